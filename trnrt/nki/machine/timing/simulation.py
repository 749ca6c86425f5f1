"""The event loop: engines issue their instructions in order, DMA engines serve their queues, and none looks ahead.

Each stream (an engine, or the triggers of its DMA transfers) issues its instructions in the order of the program, as
soon as it is free and the semaphores that they wait for are set. Events happen in the order of time. Time is an integer
(picoseconds), and of two events at the same time the one earlier in the program is first. So a program and a target
have one timeline, the same on every machine.
"""

from __future__ import annotations

from heapq import heappop, heappush

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.collecting import without_collection
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing.dma_engines import DmaEngines
from trnrt.nki.machine.timing.issues import ENGINES, Facts, Issues, Stream
from trnrt.nki.machine.timing.meetings import Meetings
from trnrt.nki.machine.timing.tensor_engine import TensorEngine
from trnrt.nki.machine.timing.timeline import Timeline, Transfer
from trnrt.nki.machine.timing.transfers import Movements

_DMA = -1  # the DMA engines, in an event in the place of an issue


def schedule(program: Program) -> Timeline:
    """The timeline of ``program``, whose tiles must have addresses.

    Raises KernelError if instructions deadlock, or if device loops make too many of them.
    """
    with without_collection():
        return Schedule(Issues(program)).run()


class Schedule:
    """One run of the event loop. ``seen``: when an issue's semaphore is set, -1 if not known yet."""

    def __init__(self, issues: Issues) -> None:
        self.issues, self.target = issues, issues.target
        count = len(issues.order)
        self.start, self.end, self.seen = [0] * count, [0] * count, [-1] * count
        self.waited_for, self.freed = [-1] * count, [0] * count
        self.slowed: set[int] = set()
        self.transfers: dict[int, Transfer] = {}
        self.waiting: dict[int, list[Stream]] = {}
        self.events: list[tuple[int, int]] = []
        self.next_dma: int | None = None
        self.tensor, self.dma = TensorEngine(self.target), DmaEngines(self.target)
        self.movements = Movements(self.target)
        self.busy, self.covered = dict.fromkeys(ENGINES, 0), dict.fromkeys(ENGINES, 0)
        self.table, self.table_load = "", round(self.target.timing.table_load_ns * 1000)
        self.completion = round(self.target.timing.dma.completion_ns * 1000)
        self.loop_barrier = round(self.target.timing.loop_barrier_ns * 1000)
        self.ports = {"psum": 0, "sbuf": 0}
        self.triggers = dict.fromkeys(ENGINES, 0)  # when each engine can trigger its next transfer
        self.engine_free: dict[str, int] = {}
        self.meetings: Meetings | None = None  # with other cores, of which this is number ``number``
        self.number = 0
        self.signalled: dict[int, int] = {}  # order -> when its last transfer signals: a semaphore counts them in order

    def run(self) -> Timeline:
        """Run all events."""
        self.begin()
        while self.events:
            self.step()
        return self.finish()

    def begin(self) -> None:
        """Schedule the first events."""
        for stream in self.issues.streams:
            self._consider(stream)

    def step(self) -> None:
        """Run the earliest event."""
        now, issue = heappop(self.events)
        if issue == _DMA:
            self._serve_dma(now)
        else:
            self._issue(issue, now)

    def finish(self) -> Timeline:
        """The timeline, once there is no event left. KernelError if instructions wait for each other for ever."""
        if any(stream.position < len(stream.issues) for stream in self.issues.streams):
            raise KernelError(self._deadlock())
        return self._timeline()

    def _consider(self, stream: Stream) -> None:
        """Schedule the next instruction of a stream; or have it wait for an issue whose end is not known yet."""
        if stream.position == len(stream.issues):
            return
        issue = stream.issues[stream.position]
        facts = self.issues.facts[issue]
        time = free = self._free(stream, facts)
        blame = stream.issues[stream.position - 1] if stream.position else -1
        semaphores = 0
        for order, other in self.issues.waits[issue].last.items():
            seen = self.seen[other]
            if seen < 0:
                self.waiting.setdefault(other, []).append(stream)
                return
            if order == facts.order == 0:
                continue  # the tensor engine's products follow each other without waiting for memory
            if seen + stream.wait > free:
                semaphores += 1
                if seen + stream.wait > time:
                    time, blame = seen + stream.wait, other
        if semaphores > 1:
            time += (semaphores - 1) * stream.second_wait
        self.waited_for[issue] = blame
        heappush(self.events, (time, issue))

    def _free(self, stream: Stream, facts: Facts) -> int:
        """The time at which a stream can start an instruction, apart from its waits."""
        if facts.start is None:
            if facts.order == 0:
                return self.tensor.earliest()
            if facts.function and facts.function != self.table:
                return stream.free + self.table_load
        return stream.free

    def _issue(self, issue: int, now: int) -> None:
        """Start the next instruction of a stream; or try again later, if something that it shares is in use."""
        facts = self.issues.facts[issue]
        stream = facts.stream
        free = self.triggers[stream.engine]
        if facts.ports:
            free = max(free, *[self.ports[port] for port in facts.ports])
        elif facts.start is not None and facts.start.software:
            free = max(free, self.engine_free.get(stream.engine, 0))
        if free > now:
            heappush(self.events, (free, issue))
            return
        if self.meetings is not None and facts.instruction.operation.meets:
            start = self.meetings.start(self.number, issue, now)
            if start is None or start > now:
                return  # the meeting wakes this core
        stream.position += 1
        if facts.barrier:
            self._meet(issue, now)
        elif facts.start is not None:
            self._trigger(issue, stream, now)
        elif facts.work is not None:
            begin, end = self.tensor.run(facts.work, now)
            self.freed[issue] = begin
            if self.tensor.ramp.slowdown > 1 and self.tensor.ramp.window:
                self.slowed.add(issue)
            self._finish(issue, begin, end, end + stream.signal)
        else:
            self._compute(issue, stream, now)
        self._consider(stream)

    def _meet(self, issue: int, now: int) -> None:
        """A device loop's barrier: all that came before has ended, and no engine goes on until it is over."""
        end = self.freed[issue] = now + self.loop_barrier
        for stream in self.issues.streams:
            stream.free = max(stream.free, end)
        self.tensor.wait_until(end)
        self._finish(issue, now, end, end)

    def _compute(self, issue: int, stream: Stream, now: int) -> None:
        facts, timing = self.issues.facts[issue], self.target.timing
        engine, cycles = getattr(timing, stream.engine), facts.cycles
        period = 1000 / engine.clock_ghz
        latency = engine.latency_ns
        if facts.function:
            latency += timing.function_latency_ns
            self.table = facts.function
        end = now + round(latency * 1000 + cycles * period)
        stream.free = now + round(max(cycles, engine.interval_cycles) * period)
        self.freed[issue] = self.engine_free[stream.engine] = stream.free
        for port in facts.ports:
            self.ports[port] = stream.free
        self._occupy(stream.engine, now, end)
        self._finish(issue, now, end, end + stream.signal)

    def _occupy(self, engine: str, begin: int, end: int) -> None:
        """Count the time that an engine is busy, each moment once."""
        covered = self.covered[engine]
        self.busy[engine] += max(0, end - max(begin, covered))
        self.covered[engine] = max(covered, end)

    def _trigger(self, issue: int, stream: Stream, now: int) -> None:
        facts = self.issues.facts[issue]
        start, movement = facts.start, self.movements.get(facts.instruction)
        assert start is not None
        stream.free = self.freed[issue] = now + start.trigger
        self.triggers[stream.engine] = stream.free
        ready = now + start.until_data
        if stream.engine == "sync" or start.software:  # the others' triggers run beside their data path
            self._occupy(stream.engine, now, stream.free)
        size = (movement.payload, movement.hbm_bytes, movement.packets, len(movement.loads))
        self.transfers[issue] = Transfer(issue, stream.lane, now, stream.free, *size, ready)
        self.dma.submit(issue, start.queue, movement, ready, start.skew)
        self._wake_dma()

    def _serve_dma(self, now: int) -> None:
        if now != self.next_dma:
            return  # an earlier event has taken its place
        self.next_dma = None
        for issue, begin, end in self.dma.serve(now):
            order = self.issues.facts[issue].order
            seen = max(end + self.completion, self.signalled.get(order, 0))
            self.signalled[order] = seen
            self._finish(issue, begin, end, seen)
        self._wake_dma()

    def _wake_dma(self) -> None:
        time = self.dma.next_event
        if time is not None and (self.next_dma is None or time < self.next_dma):
            self.next_dma = time
            heappush(self.events, (time, _DMA))

    def _finish(self, issue: int, begin: int, end: int, seen: int) -> None:
        self.start[issue], self.end[issue], self.seen[issue] = begin, end, seen
        for stream in self.waiting.pop(issue, ()):
            self._consider(stream)

    def _deadlock(self) -> str:
        lines = ["instructions wait for each other for ever:"]
        facts = self.issues.facts
        for stream in self.issues.streams:
            if stream.position == len(stream.issues):
                continue
            issue = stream.issues[stream.position]
            mine = facts[issue].instruction
            for other in self.issues.waits[issue].last.values():
                if self.seen[other] < 0:
                    theirs = facts[other].instruction
                    lines.append(
                        f"  {stream.engine}: {mine.operation.name} ({mine.source}) waits for "
                        f"{theirs.operation.name} ({theirs.source})"
                    )
        return "\n".join(lines)

    def _timeline(self) -> Timeline:
        issues = self.issues
        self.busy["tensor"] += self.tensor.busy
        last = max(self.seen, default=0)
        return Timeline(
            program=issues.program,
            lanes=tuple(issues.lanes),
            instruction=issues.order,
            lane=[facts.lane for facts in issues.facts],
            start=self.start,
            end=self.end,
            waited_for=self.waited_for,
            transfers=[self.transfers[issue] for issue in sorted(self.transfers)],
            busy={**self.busy, "dma": self.dma.busy},
            duration=last,
            notes=tuple(issues.notes),
            seen=self.seen,
            freed=self.freed,
            slowed=frozenset(self.slowed),
            timing=self.target.timing,
            reached={} if self.meetings is None else self.meetings.reach_times(self.number),
        )
