"""Find the step of each instruction of a device's profile, by its source line.

By the documentation an instruction has the line of the NKI call that made it. That line is in ``kernels/``, and steps
that call the same kernel share it. So, in this order:

1. A line of the kernel module, the instruction's own or of a call around it, belongs to one step: modules compiled for
   a profile have a function for each step (``planner.stepwise``).
2. A line that our own trace of the module reaches in one step only belongs to that step.
3. A line that several steps reach: its instructions are divided in the order of execution, if their number is a
   multiple of the trace's. This is inferred: the engines execute in order, but the compiler may reorder independent
   instructions.
4. The rest is reported as shared by some steps, or as of no known line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.neuron.captured import Attribution, Rest, StepMeasured
from trnrt.neuron.captured.explorer import DeviceProfile, Place, Placed, Rows
from trnrt.neuron.device import target_of
from trnrt.nki.machine.timing import Timeline
from trnrt.nki.profiling import Profile
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.stepwise import function_lines

_AHEAD = "(weights brought ahead)"
_DIGEST = re.compile(r"^(.*)_[0-9a-f]{32}\.py$", re.ASCII)
_RECOMPILE = "compile it with the lines of the source: trnrt profile MODEL --backend neuron does"


@dataclass(frozen=True)
class Lines:
    """A plan's lines: ``entry`` has the step of each line of the ``module``, ``reached`` the steps that execute a line.

    ``names``: of the steps, and one more for lines outside of all. ``reached`` has an entry for each execution, in the
    order of the program. ``short``: bare name -> file, if only one file has it.
    """

    module: str
    names: tuple[str, ...]
    entry: dict[int, int]
    reached: dict[Place, list[int]]
    short: dict[str, str]


def attribute(profile: DeviceProfile, variants: Sequence[tuple[Plan, Profile]], name: str) -> Attribution:
    """Compare a device's profile with the prediction for the same plan.

    ``variants``: the modules that it may be captured from; if it names none of them, the first is assumed. InputError
    if the profile is of another target or kernel module, or has no line of this one.
    """
    files = {PurePosixPath(file).name for placed in profile.places for file, _ in (*placed.own, *placed.calls)}
    named = [pair for pair in variants if Path(pair[1].timeline.program.file).name in files]
    plan, predicted = named[0] if named else variants[0]
    target = target_of(profile.instance)
    if target is not None and target != plan.target:
        message = f"the profile was captured on {profile.instance}, and the plan is for {plan.target}"
        raise InputError(message, hint=f"say --target {target}")
    lines = lines_of(plan, predicted.timeline)
    notes = profile.notes
    if not named:
        _check_other(files, lines)
        notes += ("the profile does not name its kernel module: it may be of another plan",)
    owner, inferred, shared = _owners(profile, lines)
    if not (owner >= 0).any() and not shared:
        raise InputError("no instruction of the profile has a line of this kernel module", hint=_RECOMPILE)
    dma = bool(profile.dma_end.any())
    expected = _predicted_active(predicted.timeline, lines, dma=dma)
    steps = []
    for number, step in enumerate(lines.names):
        mine = owner == number
        if mine.any() or number in expected:
            steps.append(_measure_step(profile, plan, number, step, mine, inferred, expected.get(number, 0.0)))
    rest = [(tuple(lines.names[k] for k in key), rows) for key, rows in shared.items()]
    owned = owner >= 0
    for _, rows in rest:
        owned[rows] = True
    if not owned.all():
        rest.append(((), np.flatnonzero(~owned)))
    return Attribution(
        part=name,
        schema_version=profile.schema_version,
        instance=profile.instance,
        elapsed_us=float(max(profile.end.max(), profile.dma_end.max()) - profile.start.min()) / 1000,
        total_us=profile.total_us,
        predicted_total_us=predicted.profiler_us,
        dma=dma,
        steps=tuple(steps),
        rest=tuple(Rest(names, _active_ns(profile, rows) / 1000, len(rows)) for names, rows in rest),
        notes=notes,
    )


def lines_of(plan: Plan, timeline: Timeline) -> Lines:
    """A plan's lines, by our own trace."""
    program = timeline.program
    spans = [step.lines for step in plan.steps]
    entry = {
        line: k for held in (spans, function_lines(plan)) for k, (a, b) in enumerate(held) for line in range(a, b + 1)
    }
    reached: dict[Place, list[int]] = defaultdict(list)
    for index in timeline.instruction:
        instruction = program.instructions[index]
        if instruction.line not in entry:
            entry[instruction.line] = len(spans)
        reached[_key(instruction.source.file), instruction.source.line].append(entry[instruction.line])
    names = {file for file, _ in reached}
    short: dict[str, str] = {}
    for file in sorted(names):
        base = PurePosixPath(file).name
        short[base] = "" if base in short else file  # "": two files are called so
    steps = (*(step.name for step in plan.steps), _AHEAD)
    return Lines(Path(program.file).name, steps, entry, dict(reached), short)


def _key(file: str) -> str:
    """The part of a file's path that is the same on every machine: below ``kernels``, else its name."""
    parts = PurePosixPath(file).parts
    below = len(parts) - parts[::-1].index("kernels") if "kernels" in parts else len(parts) - 1
    return "/".join(parts[below:])


def _check_other(files: Iterable[str], lines: Lines) -> None:
    """InputError if the profile is of another kernel module of the same model, by the digest in its name."""
    mine = _DIGEST.match(lines.module)
    for file in sorted(files):
        other = _DIGEST.match(file)
        if mine is not None and other is not None and other[1] == mine[1]:
            raise InputError(
                f"the profile is of the kernel module {file}, and this plan's is {lines.module}",
                hint="use the options that it was compiled with: --batch, --dtype, --target, --effort, --plan",
            )


def _owners(profile: DeviceProfile, lines: Lines) -> tuple[Rows, Rows, dict[tuple[int, ...], NDArray[np.intp]]]:
    """The step of each instruction (-1: none), whether it was inferred, and the rows that several steps share."""
    certain = np.full(len(profile.places), -1, np.int64)
    several: dict[int, Place] = {}
    for number, placed in enumerate(profile.places):
        found = _steps_of(placed, lines)
        if isinstance(found, int):
            certain[number] = found
        elif found is not None:
            several[number] = found
    owner, inferred = certain[profile.place], np.zeros(len(profile.place), np.int64)
    shared: dict[tuple[int, ...], list[NDArray[np.intp]]] = defaultdict(list)
    rows_of: dict[tuple[Place, int], list[NDArray[np.intp]]] = defaultdict(list)
    for number, place in several.items():
        rows = np.flatnonzero(profile.place == number)
        for kind in np.unique(profile.kind[rows]):
            rows_of[place, int(kind)].append(rows[profile.kind[rows] == kind])
    for (place, _), held in rows_of.items():
        rows, order = np.sort(np.concatenate(held)), lines.reached[place]
        if len(rows) % len(order) == 0:
            owner[rows] = np.repeat(order, len(rows) // len(order))
            inferred[rows] = 1
        else:
            shared[tuple(sorted(set(order)))].append(rows)
    return owner, inferred, {steps: np.sort(np.concatenate(rows)) for steps, rows in shared.items()}


def _steps_of(placed: Placed, lines: Lines) -> int | Place | None:
    """The one step of an instruction, or the line that it shares with others, or None."""
    for file, line in (*placed.own, *placed.calls):
        if PurePosixPath(file).name == lines.module and line in lines.entry:
            return lines.entry[line]
    for file, line in placed.own:
        key = _key(file)
        known = (key if (key, line) in lines.reached else lines.short.get(PurePosixPath(file).name, ""), line)
        if known in lines.reached:
            steps = set(lines.reached[known])
            return next(iter(steps)) if len(steps) == 1 else known
    return None


def _measure_step(
    profile: DeviceProfile, plan: Plan, number: int, name: str, mine: NDArray[np.bool_], inferred: Rows, expected: float
) -> StepMeasured:
    begin = profile.start.min()
    nodes = plan.steps[number].nodes if number < len(plan.steps) else ()
    rows = np.flatnonzero(mine)
    return StepMeasured(
        name=name,
        nodes=tuple(nodes),
        predicted_active_us=expected,
        active_us=_active_ns(profile, rows) / 1000,
        start_us=float(profile.start[rows].min() - begin) / 1000 if len(rows) else 0.0,
        end_us=float(_ends(profile, rows).max() - begin) / 1000 if len(rows) else 0.0,
        instructions=len(rows),
        inferred=int(inferred[rows].sum()),
    )


def _ends(profile: DeviceProfile, rows: NDArray[np.intp]) -> Rows:
    return np.maximum(profile.end[rows], profile.dma_end[rows])


def _active_ns(profile: DeviceProfile, rows: NDArray[np.intp]) -> float:
    """The nanoseconds in which at least one of the instructions ran, or a transfer of theirs."""
    moved = rows[profile.dma_end[rows] > profile.dma_start[rows]]
    starts = np.concatenate([profile.start[rows], profile.dma_start[moved]])
    ends = np.concatenate([profile.end[rows], profile.dma_end[moved]])
    return union_length(starts, ends)


def union_length(starts: Rows, ends: Rows) -> float:
    """The length of the union of intervals."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.concatenate([[starts[0]], np.maximum.accumulate(ends)[:-1]])
    return float(np.maximum(0, ends - np.maximum(starts, reach)).sum())


def _predicted_active(timeline: Timeline, lines: Lines, *, dma: bool) -> dict[int, float]:
    """The same by the prediction, microseconds by step; without transfers if the profile has none."""
    transfers = {transfer.issue: transfer for transfer in timeline.transfers}
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for issue, index in enumerate(timeline.instruction):
        step = lines.entry[timeline.program.instructions[index].line]
        transfer = transfers.get(issue)
        if transfer is not None:
            spans[step].append((transfer.triggered, transfer.trigger_end))
        if transfer is None or dma:
            spans[step].append((timeline.start[issue], timeline.end[issue]))
    return {step: union_length(*np.array(held, np.int64).T) / 1e6 for step, held in spans.items()}
