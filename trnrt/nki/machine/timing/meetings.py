"""Two cores that meet: both timelines in one event loop.

A meeting (``core_barrier``, ``sendrecv``) starts on both cores when the later one has reached it (its operands are
ready, what it overwrites is no longer used, its stream is free) and each has the other one's semaphore, ``meeting_ns``
later. The n-th meeting of one core is with the n-th of the other. Otherwise the cores share nothing: each has its own
engines and DMA engines, and together they stay below the bandwidth of their HBM stack.

Policy (AWS's compiler is free here; this is ours): exchanges of tiles have a queue of their own, triggered by the
engine that triggers loads, so that a core that waits for the other one goes on loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from typing import Protocol

from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.timeline import Timeline


class Core(Protocol):
    """A core's run of the event loop (``simulation.Schedule``), which reads ``meetings`` as core ``number``."""

    issues: Issues
    events: list[tuple[int, int]]
    meetings: Meetings | None
    number: int

    def run(self) -> Timeline:
        """Run all events."""
        ...

    def begin(self) -> None:
        """Schedule the first events."""
        ...

    def step(self) -> None:
        """Run the earliest event."""
        ...

    def finish(self) -> Timeline:
        """The timeline, once there is no event left."""
        ...


class Meetings:
    """The meetings of several cores, in the order of each one's program."""

    def __init__(self, cores: Sequence[Core]) -> None:
        self._cores = cores
        self._issues = [
            [issue for issue, facts in enumerate(core.issues.facts) if facts.instruction.operation.meets]
            for core in cores
        ]
        self._numbers = [{issue: number for number, issue in enumerate(issues)} for issues in self._issues]
        self._reached: dict[int, dict[int, int]] = {}
        self._starts: dict[int, int] = {}
        self._charge = round(cores[0].issues.target.timing.meeting_ns * 1000)

    def start(self, core: int, issue: int, now: int) -> int | None:
        """When the meeting of an issue that ``core`` has reached starts; None if another core has yet to reach it.

        The last one to reach it wakes all of them.
        """
        number = self._numbers[core][issue]
        if number not in self._starts:
            reached = self._reached.setdefault(number, {})
            reached.setdefault(core, now)
            if len(reached) < len(self._cores):
                return None
            self._starts[number] = max(reached.values()) + self._charge
            for one, issues in zip(self._cores, self._issues, strict=True):
                heappush(one.events, (self._starts[number], issues[number]))
        return self._starts[number]

    def reach_times(self, core: int) -> dict[int, int]:
        """The issues of a core that are meetings, with the time at which it reached each."""
        return {self._issues[core][number]: at[core] for number, at in self._reached.items() if core in at}


def run_together(cores: Sequence[Core]) -> list[Timeline]:
    """The timelines of cores that run one kernel, each event in the order of time."""
    if len(cores) == 1:
        return [cores[0].run()]
    meetings = Meetings(cores)
    for number, core in enumerate(cores):
        core.meetings, core.number = meetings, number
        core.begin()
    while busy := [core for core in cores if core.events]:
        min(busy, key=lambda core: core.events[0][0]).step()
    return [core.finish() for core in cores]
