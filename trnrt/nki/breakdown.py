"""The parts of a latency: the critical path by kind of cost, with that of fixed overheads for comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import PS_PER_US, schedule
from trnrt.nki.machine.timing.path import LAUNCH, PARTS, Segment, critical_path
from trnrt.nki.machine.timing.steps import Named
from trnrt.nki.machine.timing.timeline import Timeline


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
