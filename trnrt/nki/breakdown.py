"""The parts of a latency: the critical path by kind of cost, with that of fixed overheads for comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import PS_PER_US, Range, schedule
from trnrt.nki.machine.timing.issues import ENGINES
from trnrt.nki.machine.timing.path import LAUNCH, PARTS, Segment, critical_path
from trnrt.nki.machine.timing.steps import Named
from trnrt.nki.machine.timing.timeline import Timeline

if TYPE_CHECKING:
    from trnrt.nki.tiles import StepTiles


@dataclass(frozen=True, slots=True)
class PathPart(Named):
    """The time of one of ``PARTS`` in the latency and in the floor's (None without a floor), in microseconds.

    ``fixed``: it does not depend on the size of the data.
    """

    part: str
    fixed: bool
    time_us: float
    floor_us: float | None


@dataclass(frozen=True, slots=True)
class Breakdown(Named):
    """The parts of a latency, which add up to it. ``floor_us``: the latency of a program that only loads the inputs and
    stores the outputs; ``ratio``: the latency over that."""

    parts: tuple[PathPart, ...]
    floor_us: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Holder(Named):
    """A part of the critical path, microseconds: an engine's elements (``tensor engine``), an engine's fixed latencies
    (``tensor latency``), or another of ``PARTS``."""

    by: str
    us: float


NOTHING = "nothing"
"""The bound of a step without instructions: its result is read where it is."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step's tiles, its part of the headline in microseconds, and what bounds it (see ``timing.steps.BOUNDS``), or
    NOTHING of a step without instructions."""

    tiles: StepTiles
    time_us: float
    bound: str


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The predicted time of a plan, the parts of its critical path (the longest first), and each step's cost."""

    predicted: Range
    held: tuple[Holder, ...]
    steps: Mapping[str, StepCost]


def holders_of(timelines: Iterable[Timeline]) -> tuple[Holder, ...]:
    """Where the critical paths of kernels that follow each other go, the longest part first."""
    spent = Counter[str]()
    for timeline in timelines:
        spent[LAUNCH] += round(timeline.timing.benchmark_ns * 1000)
        for segment in critical_path(timeline):
            spent[holder_of(timeline, segment)] += segment.end - segment.start
    return tuple(Holder(by, picoseconds / PS_PER_US) for by, picoseconds in spent.most_common())


def holder_of(timeline: Timeline, segment: Segment) -> str:
    """The holder of a segment of the critical path (see ``Holder.by``)."""
    if segment.part not in ("compute", "instruction latency"):
        return segment.part
    engine = ENGINES[timeline.lane[segment.issue]]
    return f"{engine} engine" if segment.part == "compute" else f"{engine} latency"


def breakdown_of(timeline: Timeline, segments: Iterable[Segment], floor: Program | None) -> Breakdown:
    """The breakdown of a benchmark's figure for ``timeline``, whose critical path the segments are."""
    launch = round(timeline.timing.benchmark_ns * 1000)
    spent = _sum_parts(launch, segments)
    least = None if floor is None else _sum_parts(launch, critical_path(schedule(floor)))
    parts = tuple(
        PathPart(part, fixed, spent[part] / PS_PER_US, None if least is None else least[part] / PS_PER_US)
        for part, fixed in PARTS.items()
    )
    if least is None:
        return Breakdown(parts)
    return Breakdown(parts, least.total() / PS_PER_US, spent.total() / least.total())


def _sum_parts(launch: int, segments: Iterable[Segment]) -> Counter[str]:
    """Part -> picoseconds."""
    spent = Counter({LAUNCH: launch})
    for segment in segments:
        spent[segment.part] += segment.end - segment.start
    return spent
