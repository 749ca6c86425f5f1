"""A session as a notebook shows it: its facts, the plan as a table, the predicted latency, and the profile's picture.

It is a piece of HTML without scripts. All names are data: they can't become markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING

from trnrt.text import one_line, range_text, shape_text

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.plan import Plan

MOST_INSTRUCTIONS = 20_000
"""Larger plans are not profiled for a notebook: a cell that shows a session should not keep anyone waiting."""

_MOST_STEPS = 40
_MOST_PICTURES = 3
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


def session_html(title: str, facts: Mapping[str, str], partition: Partition | None, note: str = "") -> str:
    """The page of a session. ``partition``: its plans, if they are known; ``note``: said below in their place."""
    parts = [f"<div><strong>{_html_text(title)}</strong>", _table([], facts.items())]
    if partition is not None:
        profiles = _profiles(partition)
        parts += _latency(partition, profiles)
        parts.append(_table(("step", "ONNX nodes", "shape", "place", "us", "held by"), _rows(partition, profiles)))
        parts += _pictures(profiles)
    if note:
        parts.append(f"<p>{_html_text(note)}</p>")
    return "\n".join([*parts, "</div>"])


def _profiles(partition: Partition) -> dict[str, Profile]:
    """The profile of each plan by its name; none if one is too large, or can't be traced."""
    from trnrt.errors import TrnrtError
    from trnrt.running.profiler import profile_plan

    if _instructions(partition) > MOST_INSTRUCTIONS:
        return {}
    try:
        return {plan.name: profile_plan(plan) for plan in partition.plans}
    except TrnrtError:
        return {}


def _instructions(partition: Partition) -> int:
    return sum(plan.size.unrolled for plan in partition.plans)


def _latency(partition: Partition, profiles: Mapping[str, Profile]) -> Iterator[str]:
    from trnrt.nki.machine.timing import add_ranges

    if profiles:
        whole = add_ranges((profile.benchmark for profile in profiles.values()), partition.crossings_us)
        crossings = " with the round trips to the CPU, without its own time" if partition.cpu_parts else ""
        yield f"<p>{_html_text(range_text(whole))} predicted{crossings}</p>"
    elif _instructions(partition) > MOST_INSTRUCTIONS:
        yield f"<p>More than {MOST_INSTRUCTIONS:,} instructions: session.latency() predicts the latency.</p>"


def _rows(partition: Partition, profiles: Mapping[str, Profile]) -> Iterator[tuple[str, ...]]:
    """A row for each step of each plan, and for each part on the CPU; the first ones, if there are many."""
    rows = [row for plan in partition.plans for row in _steps(plan, profiles.get(plan.name))]
    for part in partition.cpu_parts:
        nodes = ", ".join(node.name for node in part.nodes)
        rows.append((part.name, nodes, "", "CPU", f"{part.crossing.predicted_us:,.1f}", "round trip"))
    yield from rows[:_MOST_STEPS]
    if len(rows) > _MOST_STEPS:
        yield (f"{len(rows) - _MOST_STEPS:,} more steps", "", "", "", "", "")


def _steps(plan: Plan, profile: Profile | None) -> Iterator[tuple[str, ...]]:
    used = {} if profile is None else {step.name: step for step in profile.steps}
    operators = {node.name: node.op for node in plan.nodes}
    for step in plan.steps:
        nodes = " + ".join(operators.get(name, name) for name in step.nodes)
        time = (f"{used[step.name].time_us:,.2f}", used[step.name].bound) if step.name in used else ("", "")
        yield (step.name, nodes, shape_text(step.shape), step.place, *time)


def _pictures(profiles: Mapping[str, Profile]) -> Iterator[str]:
    from trnrt.report.picture import profile_svg

    for name, profile in list(profiles.items())[:_MOST_PICTURES]:
        yield f'<div style="max-width:960px">{profile_svg(profile, name)}</div>'


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heading = "".join(f'<th style="{_CELL}">{_html_text(column)}</th>' for column in columns)
    lines = [f"<tr>{heading}</tr>"] if heading else []
    for row in rows:
        cells = "".join(f'<td style="{_CELL}">{_html_text(cell)}</td>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _html_text(text: str) -> str:
    """The text as HTML, in ASCII, with its control characters written out."""
    return escape(one_line(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")
