"""Which part of a kernel the time goes to, and what holds it up there.

The time is divided along the critical path: from the last instruction to what it waited for, to what that waited for,
to the start. Each instant belongs to the one instruction of that path which was then the reason for the kernel not
being further, so the parts add up to the whole.
"""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnrt.nki.machine.timing.path import Segment
from trnrt.nki.machine.timing.tensor_engine import work_of
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline, Transfer

BOUNDS = ("tensor", "vector", "scalar", "gpsimd", "DMA bandwidth", "DMA latency", "dependency")
_BOUND_OF = {
    "DMA data": "DMA bandwidth",
    "DMA starts": "DMA latency",
    "DMA triggers": "DMA latency",
    "DMA completions": "DMA latency",
}
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a kernel that has a name: an ONNX step of a plan, or a line of a plain kernel.

    ``lines`` are the first and last line of the entry function that it covers.
    """

    name: str
    nodes: tuple[str, ...]
    lines: tuple[int, int]


class Named:
    """What a profile is made of: its attributes are items, too, so that an object and its JSON are read alike."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        """The attribute called ``name``."""
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None


@dataclass(frozen=True, slots=True)
class StepUse(Named):
    """What a step costs: from its first instruction's start to its last one's end, microseconds.

    ``time_us`` is its part of the critical path (those of all steps add up to the whole but for the fixed cost),
    ``share`` that over the whole. ``bound`` is one of ``BOUNDS``. ``mfu`` is its multiply-accumulates over what the
    tensor engine could do from its start to its end, ``lines`` where it stands in the kernel's file.
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
    """What is counted of one step. Times are picoseconds."""

    step: Step
    start: int = -1
    end: int = 0
    instructions: int = 0
    hbm_bytes: int = 0
    ideal: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def attribute(timeline: Timeline, steps: Sequence[Step] | None, segments: Sequence[Segment]) -> tuple[StepUse, ...]:
    """The steps in the order of the kernel, those without an instruction left out. ``steps`` None: a line is a step.

    ``segments`` are those of the critical path.
    """
    tallies = [_Tally(step) for step in (steps if steps is not None else _lines(timeline))]
    owner = _owners(timeline, tallies)
    transfers = {transfer.issue: transfer for transfer in timeline.transfers}
    _count(timeline, tallies, owner, transfers)
    _blame(timeline, segments, tallies, owner)
    total = max(1, timeline.duration)
    return tuple(_use(tally, total) for tally in tallies if tally.instructions)


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


def _owners(timeline: Timeline, tallies: list[_Tally]) -> list[int]:
    """The step of each issue: the last one that begins at or before the instruction's line; a rest gets its own."""
    order = sorted(range(len(tallies)), key=lambda number: tallies[number].step.lines)
    starts = [tallies[number].step.lines[0] for number in order]
    instructions, by_line = timeline.program.instructions, dict[int, int]()
    owner = []
    for index in timeline.instruction:
        line = instructions[index].line
        if line not in by_line:
            at = bisect_right(starts, line) - 1
            if at < 0 or line > tallies[order[at]].step.lines[1]:
                by_line[line] = _rest(tallies)
            else:
                by_line[line] = order[at]
        owner.append(by_line[line])
    return owner


def _rest(tallies: list[_Tally]) -> int:
    """The step of what belongs to none."""
    if not tallies or tallies[-1].step.lines != (0, 0):
        tallies.append(_Tally(Step("(outside of all steps)", (), (0, 0))))
    return len(tallies) - 1


def _count(timeline: Timeline, tallies: list[_Tally], owner: list[int], transfers: dict[int, Transfer]) -> None:
    program = timeline.program
    tensor = program.target.timing.tensor
    for issue, index in enumerate(timeline.instruction):
        tally, instruction = tallies[owner[issue]], program.instructions[index]
        transfer = transfers.get(issue)
        begin = transfer.triggered if transfer else timeline.start[issue]
        tally.start = begin if tally.start < 0 else min(tally.start, begin)
        tally.end = max(tally.end, timeline.end[issue])
        tally.instructions += 1
        tally.hbm_bytes += transfer.hbm_bytes if transfer else 0
        if instruction.operation.name == "nc_matmul":
            tally.ideal += work_of(instruction, program.target).flops / tensor.peak(
                instruction["stationary"].dtype.name
            )


def _blame(timeline: Timeline, segments: Iterable[Segment], tallies: list[_Tally], owner: list[int]) -> None:
    """Give the time of the critical path to steps and reasons."""
    for segment in segments:
        lane, part = timeline.lanes[timeline.lane[segment.issue]], segment.part
        reason = _BOUND_OF.get(part, "dependency")
        if (part == "compute" and lane != "sync") or (part == "instruction latency" and lane == "tensor"):
            reason = lane
        tallies[owner[segment.issue]].reasons[reason] += segment.end - segment.start
