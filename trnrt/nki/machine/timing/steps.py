"""The division of a kernel's time into its steps, and the bound of each step.

The time is divided along the critical path: from the last instruction to the one that it waited for, and so on to the
start. Each instant belongs to the one instruction of the path that delayed the kernel then, so the parts add up to the
whole.
"""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnrt.nki.machine.loops import is_loop_barrier
from trnrt.nki.machine.timing.path import Segment
from trnrt.nki.machine.timing.tensor_engine import work_of
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline

BOUNDS = ("tensor", "vector", "scalar", "gpsimd", "DMA bandwidth", "DMA latency", "loop barrier", "dependency")
_BOUND_OF = {
    "DMA data": "DMA bandwidth",
    "DMA starts": "DMA latency",
    "DMA triggers": "DMA latency",
    "DMA completions": "DMA latency",
    "loop barriers": "loop barrier",
}
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Step:
    """A named part of a kernel: an ONNX step of a plan, or a line of a plain kernel.

    ``lines``: the first and the last line of the entry function that it covers.
    """

    name: str
    nodes: tuple[str, ...]
    lines: tuple[int, int]


class Named:
    """A part of a profile. Its attributes are items, too, so code can treat an object and its JSON alike."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        """The attribute called ``name``."""
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None


@dataclass(frozen=True, slots=True)
class StepUse(Named):
    """The cost of a step, from its first instruction's start to its last one's end, in microseconds.

    ``time_us``: its part of the critical path (with the fixed cost, those of all steps add up to the whole); ``share``:
    the same over the whole. ``bound`` is one of ``BOUNDS``. ``mfu``: its multiply-accumulates over those that the
    tensor engine could do from its start to its end. ``lines``: its lines in the kernel's file.
    """

    name: str
    nodes: tuple[str, ...]
    start_us: float
    end_us: float
    time_us: float
    share: float
    bound: str
    mfu: float
    hbm_bytes: int
    instructions: int
    lines: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Tally:
    """The counts of one step. Times are picoseconds."""

    step: Step
    start: int = -1
    end: int = 0
    instructions: int = 0
    hbm_bytes: int = 0
    ideal: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def attribute(timeline: Timeline, steps: Sequence[Step] | None, segments: Sequence[Segment]) -> tuple[StepUse, ...]:
    """The steps in the order of the kernel, without those that have no instruction. ``steps`` None: each line is a
    step.

    ``segments`` are those of the critical path.
    """
    steps = _lines(timeline) if steps is None else steps
    lines = [timeline.program.instructions[index].line for index in timeline.instruction]
    by_line = steps_by_line(steps, lines)
    tallies = [_Tally(step) for step in steps]
    # The last tally counts the instructions of no step.
    if -1 in by_line.values() and (not steps or steps[-1].lines != (0, 0)):
        tallies.append(_Tally(Step("(outside of all steps)", (), (0, 0))))
    owners = [tallies[by_line[line]] for line in lines]
    _count(timeline, owners)
    _blame(timeline, segments, owners)
    total = max(1, timeline.duration)
    return tuple(_use(tally, total) for tally in tallies if tally.start >= 0)


def _use(tally: _Tally, total: int) -> StepUse:
    time, length = tally.reasons.total(), tally.end - max(0, tally.start)
    reason = max(BOUNDS, key=lambda bound: (tally.reasons[bound], -BOUNDS.index(bound)))
    return StepUse(
        name=tally.step.name,
        nodes=tally.step.nodes,
        start_us=max(0, tally.start) / PS_PER_US,
        end_us=tally.end / PS_PER_US,
        time_us=time / PS_PER_US,
        share=time / total,
        bound=reason,
        mfu=tally.ideal / length if length > 0 else 0.0,
        hbm_bytes=tally.hbm_bytes,
        instructions=tally.instructions,
        lines=tally.step.lines,
    )


def _lines(timeline: Timeline) -> list[Step]:
    """A step for each line of the kernel that leads to an instruction."""
    program = timeline.program
    used = sorted({program.instructions[index].line for index in timeline.instruction})
    steps = []
    for line in used:
        code = linecache.getline(program.file, line).strip()
        shown = code if len(code) <= _LONGEST_NAME else code[: _LONGEST_NAME - 3] + "..."
        steps.append(Step(f"line {line}: {shown}" if shown else f"line {line}", (), (line, line)))
    return steps


def steps_by_line(steps: Sequence[Step], lines: Iterable[int]) -> dict[int, int]:
    """Line -> the number of its step: the last one that begins at or before it; -1 if that ends before it."""
    order = sorted(range(len(steps)), key=lambda number: steps[number].lines)
    starts = [steps[number].lines[0] for number in order]
    found = {}
    for line in set(lines):
        at = bisect_right(starts, line) - 1
        inside = at >= 0 and line <= steps[order[at]].lines[1]
        found[line] = order[at] if inside else -1
    return found


def _count(timeline: Timeline, owners: list[_Tally]) -> None:
    program = timeline.program
    tensor = program.target.timing.tensor
    transfers = {transfer.issue: transfer for transfer in timeline.transfers}
    for issue, (index, tally) in enumerate(zip(timeline.instruction, owners, strict=True)):
        instruction, transfer = program.instructions[index], transfers.get(issue)
        begin = transfer.triggered if transfer else timeline.start[issue]
        tally.start = begin if tally.start < 0 else min(tally.start, begin)
        tally.end = max(tally.end, timeline.end[issue])
        tally.instructions += not is_loop_barrier(instruction)
        tally.hbm_bytes += transfer.hbm_bytes if transfer else 0
        if instruction.operation.name == "nc_matmul":
            peak = tensor.peak(instruction["stationary"].dtype.name)
            tally.ideal += work_of(instruction, program.target).flops / peak


def _blame(timeline: Timeline, segments: Iterable[Segment], owners: list[_Tally]) -> None:
    """Give the time of the critical path to steps and reasons."""
    for segment in segments:
        lane, part = timeline.lanes[timeline.lane[segment.issue]], segment.part
        reason = _BOUND_OF.get(part, "dependency")
        if (part == "compute" and lane != "sync") or (part == "instruction latency" and lane == "tensor"):
            reason = lane
        owners[segment.issue].reasons[reason] += segment.end - segment.start
