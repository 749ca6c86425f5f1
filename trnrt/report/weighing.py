"""``trnrt inspect --why``: the candidates of a step, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from trnrt.planner.parts.partition import Partition
from trnrt.planner.plan import StepReport, Tried
from trnrt.planner.searching.candidates import Weighed
from trnrt.report.documents import Document, partition_header
from trnrt.report.tables import plain_table
from trnrt.text import count_text, escape_text, name_text, names_text


def why_document(partition: Partition, step: StepReport, weighed: Sequence[Weighed]) -> Document:
    """``inspect --why``: ``predicted_us`` is for the whole model, and null for an impossible candidate, whose
    ``reason`` says why; ``difference_us`` is its extra cost over the chosen one."""
    return partition_header(partition) | {
        "step": step.name,
        "kernel": step.kernel,
        "nodes": list(step.nodes),
        "output": step.output,
        "place": step.place,
        "weights": step.weights,
        "candidates": [
            {
                "what": one.candidate.what,
                "chosen": one.chosen,
                "possible": one.predicted_us is not None,
                "predicted_us": one.predicted_us,
                "difference_us": _difference(one, weighed[0]),
                "steps": one.steps,
                "ask": one.candidate.ask,
                "reason": one.candidate.reason,
                "choices": None if one.candidate.choices is None else one.candidate.choices.document,
            }
            for one in weighed
        ],
        "searched": [
            {"what": one.what, "steps": list(one.steps), "gain_us": one.gain_us, "whole": one.whole, "taken": one.taken}
            for one in _step_trials(partition, step)
        ],
        "crossings_us": partition.crossings_us,
        "notes": _notes(partition),
    }


def why_parts(partition: Partition, step: StepReport, weighed: Sequence[Weighed]) -> list[Any]:
    """A heading, a line for each candidate with the chosen one marked, and notes."""
    rows = "" if partition.batch is None else f", {count_text(partition.batch, 'row')}"
    heading = f"step {name_text(step.name)} ({step.kernel}) of {name_text(partition.name)}"
    nodes = names_text(step.nodes)
    lines = [
        (
            "*" if one.chosen else "",
            escape_text(one.candidate.what),
            "-" if one.predicted_us is None else f"{one.predicted_us:,.2f}",
            "" if one.chosen or one.predicted_us is None else f"{_difference(one, weighed[0]):+,.2f}",
            "" if one.steps is None else f"{one.steps:,}",
            escape_text(one.candidate.ask),
            ("" if one.predicted_us is not None else "not possible: ") + escape_text(one.candidate.reason),
        )
        for one in weighed
    ]
    columns = ("", "candidate", "model us", "difference", "steps", "how to ask", "why")
    return [
        Text(f"{heading}: {partition.dtype} on {partition.target}{rows}", "bold"),
        Text(
            f"computes {nodes}; its result {name_text(step.output)} is in {step.place.upper()}; weights: {step.weights}"
        ),
        "",
        plain_table(columns, lines, right=(2, 3, 4)),
        "",
        Text("* is planned; times are predicted for the whole model"),
        *_searched_parts(partition, step),
        *(Text(f"- {note}") for note in _notes(partition)),
    ]


def _step_trials(partition: Partition, step: StepReport) -> list[Tried]:
    """The trials of the planner's search for a step, alone or with similar steps."""
    return [one for plan in partition.plans for one in plan.weighed if step.name in one.steps]


def _searched_parts(partition: Partition, step: StepReport) -> list[Any]:
    """A table of the search's trials; empty without a search."""
    lines = [
        (
            "*" if one.taken else "",
            escape_text(one.what),
            f"{one.gain_us:+,.2f}",
            "the whole model" if one.whole else "this and like steps, others changed, too",
            f"{len(one.steps):,}",
        )
        for one in _step_trials(partition, step)
    ]
    columns = ("", "tried by the search", "gain us", "timed", "for steps")
    return ["", plain_table(columns, lines, right=(2, 4))] if lines else []


def _difference(one: Weighed, chosen: Weighed) -> float | None:
    if one.predicted_us is None or chosen.predicted_us is None:
        return None
    return one.predicted_us - chosen.predicted_us


def _notes(partition: Partition) -> list[str]:
    """A note on what the times exclude."""
    if not partition.cpu_parts:
        return []
    names = names_text(part.name for part in partition.cpu_parts)
    return [
        f"the CPU's own time is not included ({names}); {partition.crossings_us:,.1f} us of each time are round trips "
        "to it"
    ]
