"""A list scheduler: the order that a compiler may choose within a program's dependences and memory.

Whenever a stream is free, it issues the first instruction in program order that may start; if none may, the first one
that becomes ready. It looks ``WINDOW`` places ahead of the oldest one that it has not issued. Addresses stay as they
are, so memory limits how far work moves. On each stream, these stay in order:

- DMA transfers: queues are in order, so one that is triggered early holds up those that it overtakes, which are
  needed first. Free loads make ResNet-50 10 % slower; in-order ones cost 4 % at most on a calibration kernel.
- the instructions of ``nl.no_reorder``; nothing moves into, out of or across such a region. (The SDK says that the
  compiler adds edges between each two of them, but nothing about the instructions around them.)
- the trips of device loops: all engines meet between them, so nothing leaves or enters one
- the meetings of two cores

On the scalar engine, a ready instruction that needs the loaded table goes first.

Otherwise program order decides between ready instructions. The longest remaining path was tried, too. Of 32 calibration
kernels (and sizes) it made 16 slower, by up to 7 %, and 4 faster: matmul-blocked by 1 %, fused attention by 7 %. With
it ResNet-18 took longer than in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from trnrt.nki.machine.timing.hazards import WINDOW
from trnrt.nki.machine.timing.issues import Issues, Stream
from trnrt.nki.machine.timing.simulation import Schedule
from trnrt.nki.machine.timing.unrolling import loop_rounds


@dataclass(slots=True)
class _Choice:
    """The issues that a stream can choose from: ``soon`` may start at a known time, ``ready`` may start now.

    ``ready`` is sorted by the table that an issue needs. ``oldest``: the first unissued place; ``seen``: the first one
    that has not come into the window. ``last``: the previous issue. ``next``: when the stream chooses, if known.
    """

    oldest: int = 0
    seen: int = 0
    last: int = -1
    soon: list[tuple[int, int]] = field(default_factory=list)
    ready: dict[str, list[int]] = field(default_factory=dict)
    next: int | None = None


class ListSchedule(Schedule):
    """One run of the event loop in which streams choose their order."""

    def __init__(self, issues: Issues) -> None:
        super().__init__(issues)
        count = len(issues.order)
        self.segments = _segments(issues)
        self.choices = [_Choice() for _ in issues.streams]
        self.issued = bytearray(count)
        self.looked = [0] * count  # how many of its waits have ended
        self.may_start, self.blame = [0] * count, [-1] * count
        self.watchers: dict[int, list[int]] = {}  # by ``issue``: its end; by ``~issue``: its start
        self.now = 0

    def _consider(self, stream: Stream) -> None:
        """Look at the instructions that have come into the stream's window, and plan when it chooses."""
        choice, places = self.choices[stream.number], stream.issues
        while choice.oldest < len(places) and self.issued[places[choice.oldest]]:
            choice.oldest += 1
        if choice.oldest < len(places):
            segment = self.segments[places[choice.oldest]]
            end = min(len(places), choice.oldest + (1 if stream.moves else WINDOW))
            while choice.seen < end and self.segments[places[choice.seen]] == segment:
                choice.seen += 1
                self._look(places[choice.seen - 1])
        self._plan(stream)

    def _look(self, issue: int) -> None:
        """Find out when an issue may start; or watch another issue whose end is not known yet.

        It looks at the last issue of each lane first: when that has ended, earlier ones mostly have.
        """
        facts, waits, seen = self.issues.facts[issue], self.issues.waits[issue], self.seen
        stream, latest, blame = facts.stream, self.may_start[issue], self.blame[issue]
        products = facts.order == 0
        for number in range(self.looked[issue], len(waits.ends)):
            for other in reversed(waits.ends[number]):
                time = seen[other]
                if time < 0:
                    self.looked[issue], self.may_start[issue], self.blame[issue] = number, latest, blame
                    self.watchers.setdefault(other, []).append(issue)
                    return
                # The tensor engine's products follow each other without waiting for memory.
                if time + stream.wait > latest and not (products and self.issues.facts[other].order == 0):
                    latest, blame = time + stream.wait, other
        self.looked[issue], self.may_start[issue], self.blame[issue] = len(waits.ends), latest, blame
        for run in waits.starts:
            for other in reversed(run):
                if not self.issued[other]:
                    self.watchers.setdefault(~other, []).append(issue)
                    return
        heappush(self.choices[stream.number].soon, (latest, issue))
        self._plan(stream)

    def _plan(self, stream: Stream) -> None:
        """Have the stream choose as soon as it is free and something may start."""
        choice = self.choices[stream.number]
        free = max(self.now, self._free_from(stream))
        if any(choice.ready.values()):
            self._wake(stream, free)
        elif choice.soon:
            self._wake(stream, max(free, choice.soon[0][0]))

    def _wake(self, stream: Stream, time: int) -> None:
        choice = self.choices[stream.number]
        if choice.next is None or time < choice.next:
            choice.next = time
            heappush(self.events, (time, stream.issues[choice.oldest]))

    def _free_from(self, stream: Stream) -> int:
        return self.tensor.earliest() if stream.engine == "tensor" and not stream.triggers else stream.free

    def _issue(self, issue: int, now: int) -> None:
        """Let the stream of an issue choose what to issue."""
        self.now = now
        stream = self.issues.facts[issue].stream
        choice = self.choices[stream.number]
        if choice.next is not None and choice.next <= now:
            choice.next = None
        while choice.soon and choice.soon[0][0] <= now:
            _, ready = heappop(choice.soon)
            heappush(choice.ready.setdefault(self.issues.facts[ready].function, []), ready)
        free = self._free_from(stream)
        if free > now:
            self._plan(stream)
            return
        found = self._best(choice, free, now)
        if found is None:
            self._wait(stream, choice, free)
        else:
            self._issue_one(found, stream, choice, now)

    def _best(self, choice: _Choice, free: int, now: int) -> list[int] | None:
        """The heap with the first issue that can start now; one with another table needs time to load it."""
        heaps = [heap for function, heap in choice.ready.items() if heap and function in ("", self.table)]
        if not heaps and free + self.table_load <= now:
            heaps = [heap for heap in choice.ready.values() if heap]
        return min(heaps, default=None)

    def _wait(self, stream: Stream, choice: _Choice, free: int) -> None:
        """Choose again when another instruction may start, or when a table is loaded."""
        times = [choice.soon[0][0]] if choice.soon else []
        if any(choice.ready.values()):
            times.append(free + self.table_load)
        if times:
            self._wake(stream, min(times))

    def _issue_one(self, heap: list[int], stream: Stream, choice: _Choice, now: int) -> None:
        issue, issued = heap[0], stream.position
        free = self._free(stream, self.issues.facts[issue])
        self.waited_for[issue] = self.blame[issue] if self.may_start[issue] > free else choice.last
        heappop(heap)
        self.issued[issue] = True
        last, choice.last = choice.last, issue
        super()._issue(issue, max(now, self.may_start[issue] + self._second_waits(issue, stream, free)))
        if stream.position == issued:  # another engine uses what they share: the event is there
            heappush(heap, issue)
            self.issued[issue], choice.last = False, last
            return
        for other in self.watchers.pop(~issue, ()):
            self._look(other)

    def _second_waits(self, issue: int, stream: Stream, free: int) -> int:
        """The delay of an issue by further semaphores, if they were set only after its stream was free."""
        if not stream.second_wait:
            return 0
        facts, runs = self.issues.facts, self.issues.waits[issue].ends
        late = {facts[other].order for run in runs for other in run if self.seen[other] + stream.wait > free}
        if facts[issue].order == 0:
            late.discard(0)
        return max(0, len(late) - 1) * stream.second_wait

    def _serve_dma(self, now: int) -> None:
        self.now = now
        super()._serve_dma(now)

    def _finish(self, issue: int, begin: int, end: int, seen: int) -> None:
        super()._finish(issue, begin, end, seen)
        for other in self.watchers.pop(issue, ()):
            self._look(other)


def _segments(issues: Issues) -> list[int]:
    """For each issue, the number of its segment: a stream issues a whole segment before the next."""
    segments = list(range(len(issues.order)))
    rounds = loop_rounds([facts.instruction for facts in issues.facts])
    for stream in issues.streams:
        before = -1
        for issue in stream.issues:
            same_round = before >= 0 and rounds[before] == rounds[issue]
            if same_round and not (_is_fixed(issues, before) or _is_fixed(issues, issue)):
                segments[issue] = segments[before]
            before = issue
    return segments


def _is_fixed(issues: Issues, issue: int) -> bool:
    instruction = issues.facts[issue].instruction
    return instruction.in_order or instruction.operation.meets
