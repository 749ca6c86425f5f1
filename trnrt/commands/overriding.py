"""Overriding the planner: ``--no-fuse`` and ``--plan``; ``inspect --why`` shows the alternatives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.errors import KernelError, OptionError, UnsupportedModelError
from trnrt.nki.machine.targets import data_digest
from trnrt.report.console import note
from trnrt.report.progress import working
from trnrt.text import list_text, name_text, quote, reason_text

if TYPE_CHECKING:
    from trnrt.planner.choices import Choices
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.plan import StepReport
    from trnrt.planner.saving.planfile import PlanFile
    from trnrt.planner.searching.candidates import Candidate, Weighed
    from trnrt.session import InferenceSession

LARGEST_PLAN = 8 * 2**20
"""Bytes of a plan's file; ten thousand steps take half of that. Parsed JSON takes some fifty times as much memory."""


def apply_plan(session: InferenceSession, path: Path) -> InferenceSession:
    """The session with an edited file's plan, beside its other choices.

    OptionError if the file can't be read, belongs to something else, or can't be followed.
    """
    from trnrt.planner.saving.planfile import choices_of

    file = _read(path)
    _check_same(session, file, path)

    def plan(choices: Choices) -> Partition:
        return _with_choices(session, choices).partition(file.batch or 1, cached=True)

    with working(f"planning as in {path}"):
        choices, notes = choices_of(file, plan)
    note(*notes, *_timing_notes(session, file, path))
    return _with_choices(session, session.options.choices | choices)


def _timing_notes(session: InferenceSession, file: PlanFile, path: Path) -> list[str]:
    """A note on a plan that was found with other numbers of the timing model."""
    if file.timing in ("", data_digest(session.target)):
        return []
    name = name_text(str(path))
    return [f"{name} was found with other timing data of {session.target}: another search may find a faster plan"]


def _with_choices(session: InferenceSession, choices: Choices) -> InferenceSession:
    """The session with exactly these choices: no search adds any."""
    return session.with_options(replace(session.options, choices=choices, effort=0))


def weigh(session: InferenceSession, partition: Partition, rows: int, wanted: str) -> tuple[StepReport, list[Weighed]]:
    """The step called ``wanted``, and its alternatives, each with the model's predicted time."""
    from trnrt.planner.searching.candidates import Weighed, candidates, find_step

    step = find_step(partition, wanted)
    first, *others = candidates(partition, partition.choices, step)
    weighed = [Weighed(first, predicted_us(partition), _count(partition), chosen=True)]
    for number, candidate in enumerate(others, 1):
        with working(f"planning and timing candidate {number} of {len(others)}"):
            weighed.append(_weigh_candidate(session, partition, step, rows, candidate))
    return step, weighed


def predicted_us(partition: Partition) -> float:
    """The predicted time of the parts on the device and of the round trips between them, microseconds."""
    from trnrt.running.profiler import predicted_us_of

    return sum(predicted_us_of(plan) for plan in partition.plans) + partition.crossings_us


def _weigh_candidate(
    session: InferenceSession, planned: Partition, step: StepReport, rows: int, candidate: Candidate
) -> Weighed:
    """Plan and time a candidate; if that fails, mark it as not possible."""
    from trnrt.planner.searching.candidates import Weighed

    if candidate.choices is None:
        return Weighed(candidate, None, None)
    try:
        other = _with_choices(session, candidate.choices).partition(rows)
        if [plan.source for plan in other.plans] == [plan.source for plan in planned.plans]:
            same = replace(candidate, choices=None, reason="it changes nothing: the plan stays the same")
            return Weighed(same, None, None)
        reason = "; ".join([candidate.reason, *_moved_texts(planned, other, step)])
        return Weighed(replace(candidate, reason=reason), predicted_us(other), _count(other))
    except (UnsupportedModelError, KernelError, OptionError) as error:
        return Weighed(replace(candidate, choices=None, reason=str(error)), None, None)


def _moved_texts(planned: Partition, other: Partition, step: StepReport) -> list[str]:
    """The other tensors that the other plan places elsewhere, in words."""
    before = {one.output: one.place for plan in planned.plans for one in plan.steps if one.output != step.output}
    after = {one.output: one.place for plan in other.plans for one in plan.steps}
    moved = {
        place: [name for name in before if (before[name], after.get(name)) == (old, place)]
        for old, place in (("sbuf", "hbm"), ("hbm", "sbuf"))
    }
    return [
        f"{list_text(map(name_text, names), 4)} then in {place.upper()}, too" for place, names in moved.items() if names
    ]


def _count(partition: Partition) -> int:
    return sum(len(plan.steps) for plan in partition.plans)


def _read(path: Path) -> PlanFile:
    from trnrt.planner.saving.planfile import parse_plan

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_PLAN + 1)
        if len(content) > LARGEST_PLAN:
            raise ValueError("it is too large")
        return parse_plan(content)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"can't use the plan {quote(str(path))}: {reason_text(error)}",
            hint="`trnrt inspect MODEL --save-plan FILE` writes a plan",
        ) from None


def _check_same(session: InferenceSession, file: PlanFile, path: Path) -> None:
    """OptionError if the file is for another model, target, dtype or batch."""
    batch = session.model.batch
    here = {"model": session.name, "target": session.target, "dtype": session.dtype}
    there = {"model": file.model, "target": file.target, "dtype": file.dtype}
    if isinstance(batch, int) or batch is None:
        here["batch"], there["batch"] = str(batch), str(file.batch)
    elif file.batch is None:
        here["batch"], there["batch"] = "1 or more", "none"
    different = [key for key in here if here[key] != there[key]]
    if different:
        known, wanted = (", ".join(f"{key} {quote(of[key])}" for key in different) for of in (there, here))
        raise OptionError(
            f"{quote(str(path))} is a plan for {known}; this is {wanted}",
            hint="give the same target and dtype, or save a new plan with `trnrt inspect --save-plan FILE`",
        )
