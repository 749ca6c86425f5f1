"""The critical path: from the last semaphore of a program back to its start, and how each moment of it was spent.

The walk finds what let each issue begin: the semaphore of an issue that it depends on, its stream's previous
instruction, or another engine that used a shared memory. Each segment ends where the next one begins, so they add up to
the timeline's duration.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from trnrt.nki.machine.costs import fixed_cycles
from trnrt.nki.machine.loops import is_loop_barrier
from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.timing.issues import ENGINES, function_of
from trnrt.nki.machine.timing.tensor_engine import PRODUCTS, work_of
from trnrt.nki.machine.timing.timeline import Timeline, Transfer

LAUNCH = "launch"
PARTS = {
    LAUNCH: True,
    "DMA starts": True,
    "DMA triggers": True,
    "DMA completions": True,
    "DMA data": False,
    "semaphores": True,
    "loop barriers": True,
    "meetings": True,
    "function tables": True,
    "instruction latency": True,
    "compute": False,
}
"""Part of the time -> whether it is a fixed cost of each program, transfer or instruction, whatever its size.

``launch``: the program's fixed start and end. ``DMA starts``: from a trigger to the first data. ``DMA triggers``: a
trigger that waits for its engine's earlier ones. ``DMA completions``: the memory's latency, and from the last byte to
the semaphore. ``DMA data``: packets and bytes, including those of other transfers that an engine has first.
``semaphores``: from an end to the instruction that waited for it. ``loop barriers``: of device loops, at their entry
and after each trip. ``meetings``: waiting for another core, and for its semaphore. ``function tables``: the scalar
engine's. ``instruction latency``: the least time of an instruction, or until the next may follow. ``compute``: elements
and columns.
"""


class Segment(NamedTuple):
    """A stretch of the critical path, picoseconds: its issue, and the part of ``PARTS`` that it was spent on."""

    issue: int
    part: str
    start: int
    end: int


def critical_path(timeline: Timeline) -> list[Segment]:
    """The segments from time 0 to the timeline's duration, in their order; none is empty."""
    return _Walk(timeline).run() if timeline.seen else []


class _Walk:
    """The walk back. ``until``: its present time. ``finished``: that is the issue's semaphore; otherwise the moment at
    which its engine was free again."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.timing = timeline, timeline.timing
        self.transfers = {transfer.issue: transfer for transfer in timeline.transfers}
        self.completion = round(self.timing.dma.completion_ns * 1000)
        self.until, self.finished = timeline.duration, True
        self.segments: list[Segment] = []
        self._freed: dict[int, list[int]] = {}
        self._times: list[int] = []
        self._products: dict[int, int] = {}  # the tensor engine's instructions -> the ones before

    def run(self) -> list[Segment]:
        """Walk from the issue whose semaphore is set last to one that nothing delayed."""
        seen = self.timeline.seen
        issue = max(range(len(seen)), key=lambda i: (seen[i], i))
        while issue >= 0:
            transfer = self.transfers.get(issue)
            if transfer is not None:
                issue = self._signalling_issue(issue) if self.finished else issue
                self._through_transfer(self.transfers[issue])
            else:
                self._through_instruction(issue)
            issue = self._previous(issue)
        return self.segments[::-1]

    def _add(self, issue: int, part: str, begin: int) -> None:
        """Add the time from ``begin`` to where the walk is."""
        if begin < self.until:
            self.segments.append(Segment(issue, part, begin, self.until))
            self.until = begin

    def _signalling_issue(self, issue: int) -> int:
        """The transfer whose end set the semaphore: those of one order signal in their order."""
        seen, end = self.timeline.seen, self.timeline.end
        if end[issue] + self.completion == seen[issue]:
            return issue
        triggered = {i: transfer.triggered for i, transfer in self.transfers.items()}
        found = [i for i in self.transfers if end[i] + self.completion == seen[i] == seen[issue]]
        return max((i for i in found if triggered[i] <= triggered[issue]), key=triggered.__getitem__, default=issue)

    def _through_transfer(self, transfer: Transfer) -> None:
        issue = transfer.issue
        if not self.finished:
            self._add(issue, "DMA triggers", transfer.triggered)
            return
        instruction = self._instruction(issue)
        from_memory = any(not view.storage.on_chip for _, view in instruction.operands[1:])
        latency = round(self.timing.dma.read_ns * 1000) if from_memory else 0
        self._add(issue, "DMA completions", self.timeline.end[issue] - latency)
        self._add(issue, "DMA data", transfer.ready)
        self._add(issue, "DMA starts", transfer.triggered)

    def _through_instruction(self, issue: int) -> None:
        begin = self.timeline.start[issue]
        self._add(issue, "semaphores", self.timeline.end[issue])
        if is_loop_barrier(self._instruction(issue)):
            self._add(issue, "loop barriers", begin)
            return
        self._add(issue, "compute", max(begin, self.until - self._working(issue)))
        self._add(issue, "instruction latency", begin)

    def _working(self, issue: int) -> int:
        """The part of an instruction's time that grows with its data."""
        instruction, target = self._instruction(issue), self.timeline.program.target
        if self._engine(issue) == "tensor":
            if instruction.operation.name not in PRODUCTS:
                return 0
            slowdown = 2 if issue in self.timeline.slowed else 1
            return round(work_of(instruction, target).streamed * slowdown * 1000 / self.timing.tensor.clock_ghz)
        cycles = instruction.operation.cycles(instruction, target) - fixed_cycles(instruction, target)
        clock_ghz: float = getattr(self.timing, self._engine(issue)).clock_ghz
        return round(max(0, cycles) * 1000 / clock_ghz)

    def _previous(self, issue: int) -> int:
        """The issue that allowed an issue to begin, at the walk's present time; -1 for none."""
        line = self.timeline
        self._add(issue, "meetings", line.reached.get(issue, self.until))
        begin = self.until
        earlier, engine = line.waited_for[issue], self._engine(issue)
        table = self._table_load(issue)
        if earlier < 0 and begin in (0, table):
            self._add(issue, "function tables", 0)
            return -1
        if earlier < 0:  # it began when something shared was free
            return self._hold(issue, self._holder(begin, issue))
        if table and begin == line.freed[earlier] + table:
            return self._switch(issue, earlier, "function tables", line.freed[earlier], finished=False)
        if self._has_waited(engine, begin - line.seen[earlier]):
            return self._switch(issue, earlier, "semaphores", line.seen[earlier], finished=True)
        if engine == "tensor":
            return self._switch(issue, self._previous_product(issue), "instruction latency", begin, finished=False)
        return self._hold(issue, earlier if begin == line.freed[earlier] else self._holder(begin, issue))

    def _has_waited(self, engine: str, time: int) -> bool:
        """True if an engine that starts ``time`` after a semaphore had waited for it, alone or with further ones."""
        timing = getattr(self.timing, engine)
        wait: int = round(timing.wait_ns * 1000)
        second: int = round(timing.second_wait_ns * 1000)
        return time == wait or (time > wait and second > 0 and (time - wait) % second == 0)

    def _hold(self, issue: int, holder: int) -> int:
        """Continue with the issue that held up another until its engine was free; or end at the start."""
        until = self.timeline.freed[holder] if holder >= 0 else 0
        return self._switch(issue, holder, "instruction latency", until, finished=False)

    def _switch(self, issue: int, earlier: int, part: str, until: int, *, finished: bool) -> int:
        self._add(issue, part, until)
        self.finished = finished
        return earlier

    def _table_load(self, issue: int) -> int:
        wanted = issue not in self.transfers and bool(function_of(self._instruction(issue)))
        return round(self.timing.table_load_ns * 1000) if wanted else 0

    def _previous_product(self, issue: int) -> int:
        if not self._products:
            lane, start = self.timeline.lane, self.timeline.start
            issued = sorted((i for i in range(len(lane)) if lane[i] == lane[issue]), key=start.__getitem__)
            self._products = dict(zip(issued, [-1, *issued], strict=False))
        return self._products[issue]

    def _holder(self, begin: int, issue: int) -> int:
        """The issue that used something shared with ``issue`` until ``begin``, or the last one to do so before.

        A stream that chooses may begin a little later, after another stream's turn.
        """
        if not self._freed:
            for number, freed in enumerate(self.timeline.freed):
                self._freed.setdefault(freed, []).append(number)
            self._times = sorted(self._freed)
        for place in range(bisect_right(self._times, begin) - 1, -1, -1):
            for found in reversed(self._freed[self._times[place]]):
                if found != issue and self._time_of_issue(found) < self._time_of_issue(issue):
                    return found
        return -1

    def _time_of_issue(self, issue: int) -> int:
        """The time at which an issue's engine began with it."""
        transfer = self.transfers.get(issue)
        return self.timeline.start[issue] if transfer is None else transfer.triggered

    def _instruction(self, issue: int) -> Instruction:
        return self.timeline.program.instructions[self.timeline.instruction[issue]]

    def _engine(self, issue: int) -> str:
        """The engine that issues an issue."""
        transfer = self.transfers.get(issue)
        return ENGINES[self.timeline.lane[issue] if transfer is None else transfer.lane]
