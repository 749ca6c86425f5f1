"""Other ways to plan one step: the candidates that ``trnrt inspect --why`` compares."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trnrt.errors import OptionError
from trnrt.planner.checking import unknown
from trnrt.planner.choices import ASKED, Choices
from trnrt.planner.naming import printable
from trnrt.planner.parts.partition import Partition
from trnrt.planner.plan import StepReport
from trnrt.text import quote


@dataclass(frozen=True)
class Candidate:
    """One way to plan: with ``choices``, or None if impossible, for a ``reason``.

    ``ask`` is the user's way to ask for it.
    """

    what: str
    choices: Choices | None
    reason: str
    ask: str = ""


@dataclass(frozen=True)
class Weighed:
    """A candidate with the whole model's predicted time (microseconds) and its number of steps; None if impossible.

    ``chosen``: the plan uses it.
    """

    candidate: Candidate
    predicted_us: float | None
    steps: int | None
    chosen: bool = False


def find_step(partition: Partition, wanted: str) -> StepReport:
    """The step called ``wanted``, or the one that computes the node of this name. Raises OptionError if there is
    none."""
    steps = partition.steps
    for step in steps:
        if step.name == wanted:
            return step
    for step in steps:
        if wanted in step.nodes:
            return step
    report = next((report for report in partition.nodes if report.name == wanted), None)
    if report is not None:
        home = f", with step {quote(report.step)}" if report.step else ""
        raise OptionError(
            f"--why: node {quote(wanted)} is in no step: {report.reason}",
            hint=f"there is nothing to choose for it{home}; `trnrt inspect` shows the steps",
        )
    raise unknown("--why", "step or node", wanted, [step.name for step in steps])


def candidates(partition: Partition, choices: Choices, step: StepReport) -> list[Candidate]:
    """The present plan (with ``choices``) first, then plans with one difference, and impossible ones with the
    reason."""
    return [
        Candidate("as planned", choices, step.reason),
        *_fusions(partition, choices, step),
        _place(choices, step),
        *_weights(choices, step),
        *_options(choices, step),
    ]


def _fusions(partition: Partition, choices: Choices, step: StepReport) -> Iterator[Candidate]:
    reports = {report.name: report for report in partition.nodes}
    for node in step.nodes[1:]:
        what = f"{reports[node].op} {printable(node)} not fused"
        apart = replace(choices, no_fuse=choices.no_fuse | {node})
        yield Candidate(what, apart, "in a step of its own", f"--no-fuse {printable(node)}")
    notes = [note.partition(" is not fused into ") for note in partition.notes]
    for head, _, rest in notes:
        target, _, reason = rest.partition(": ")
        if rest and any(target.rpartition(" ")[2] == repr(node) for node in step.nodes) and reason != ASKED:
            yield Candidate(f"{head} fused", None, reason)
    for node in sorted(choices.no_fuse):
        neighbour = node == step.nodes[0] if step.nodes else False
        neighbour |= any(repr(node) in head and repr(step.name) in rest for head, _, rest in notes)
        if neighbour:
            what = f"{reports[node].op} {printable(node)} fused"
            together = replace(choices, no_fuse=choices.no_fuse - {node})
            yield Candidate(what, together, "as the planner does by itself", f"no --no-fuse {printable(node)}")


def _place(choices: Choices, step: StepReport) -> Candidate:
    if step.place == "sbuf":
        moved = replace(choices, in_hbm=choices.in_hbm | {step.output})
        return Candidate("result in HBM", moved, "written to HBM and read from there", '--plan: place "hbm"')
    if step.output in choices.in_hbm:
        left = replace(choices, in_hbm=choices.in_hbm - {step.output})
        return Candidate("result in SBUF", left, "as the planner does by itself", '--plan: place "sbuf"')
    return Candidate("result in SBUF", None, step.reason)


def _weights(choices: Choices, step: StepReport) -> Iterator[Candidate]:
    if step.weights == "prefetched":
        own = replace(choices, own_weights=choices.own_weights | {step.name})
        yield Candidate("weights loaded by itself", own, "as it runs, in no shared transfer", '--plan: weights "own"')
    elif step.name in choices.own_weights:
        ahead = replace(choices, own_weights=choices.own_weights - {step.name})
        yield Candidate("weights prefetched", ahead, "as the planner does by itself", '--plan: weights "prefetched"')
    elif step.weights == "own":
        yield Candidate("weights prefetched", None, step.weights_reason)


def _options(choices: Choices, step: StepReport) -> Iterator[Candidate]:
    """Other values of the options of the step's kernel, and its defaults."""
    chosen = dict(step.options)
    for option, values in step.offered:
        for value in (None, *values):
            if value == chosen.get(option):
                continue
            others = {one for one in choices.options if one[:2] != (step.name, option)}
            asked = set() if value is None else {(step.name, option, value)}
            what = f"{option} {'by default' if value is None else value}"
            ask = "--plan: options {}" if value is None else f'--plan: options {{"{option}": {json.dumps(value)}}}'
            other = replace(choices, options=frozenset(others | asked))
            yield Candidate(
                what, other, "as the kernel does by itself" if value is None else "its result is the same", ask
            )
