"""The DMA engines: queues of transfers, served in turn, chunk by chunk.

Each queue is in order. A free engine takes the next chunk of the queue whose turn it is. A large transfer is many
chunks, so that a small one of another queue does not wait for all of it. All engines share one road to memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from trnrt.nki.machine.targets import Target
from trnrt.nki.machine.timing.transfers import Load, Movement

_CHUNK = 2_000_000  # picoseconds of one engine's time: about 48 KiB


@dataclass(slots=True)
class _Waiting:
    """A transfer in its queue. ``loads`` and ``road`` (the shared road's time) are those of one chunk.

    ``even``: the load of each engine, -1 if they differ.
    """

    issue: int
    ready: int
    loads: tuple[Load, ...]
    even: int
    road: int
    chunks: int
    latency: int
    skew: int
    start: int = -1
    end: int = 0


class DmaEngines:
    """The state of the DMA engines. Times are picoseconds; ``next_event``: when the next chunk can start, if any."""

    def __init__(self, target: Target) -> None:
        self.total_gbps = target.timing.dma.total_gbps
        self.free = [0] * target.timing.dma.engines
        self.road = self.busy = self.covered = 0
        self.queues: dict[str, deque[_Waiting]] = {}
        self.turn: list[deque[_Waiting]] = []  # the queues, the one served last at the end
        self.next_event: int | None = None

    def submit(self, issue: int, name: str, movement: Movement, ready: int, skew: int) -> None:
        """Append a transfer to a queue; its data can flow from ``ready`` on."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = deque()
            self.turn.append(queue)
        loads, even, longest = movement.loads, movement.even, movement.longest
        road = round(movement.payload * 1000 / self.total_gbps)
        chunks = 1 + max(longest, road) // _CHUNK
        if chunks > 1:
            loads = tuple(Load(load.engine, load.picoseconds // chunks) for load in loads)
            even = even // chunks
        waiting = _Waiting(issue, ready, loads, even, road // chunks, chunks, movement.latency, skew)
        queue.append(waiting)
        if len(queue) == 1:
            possible = self._possible(waiting)
            if self.next_event is None or possible < self.next_event:
                self.next_event = possible

    def serve(self, now: int) -> list[tuple[int, int, int]]:
        """Start the chunks that can start at ``now``; return finished transfers: (issue, first data, last data)."""
        finished: list[tuple[int, int, int]] = []
        while True:
            upcoming = None
            for queue in self.turn:
                if queue:
                    possible = self._possible(queue[0])
                    if possible <= now:
                        break
                    upcoming = possible if upcoming is None or possible < upcoming else upcoming
            else:
                self.next_event = upcoming
                return finished
            self.turn = [other for other in self.turn if other is not queue] + [queue]
            waiting = queue[0]
            self._start(waiting, now)
            if not waiting.chunks:
                queue.popleft()
                finished.append((waiting.issue, waiting.start, waiting.end + waiting.latency))

    def _possible(self, waiting: _Waiting) -> int:
        free = self.free
        least = min(free) if waiting.even >= 0 else min([free[load.engine] for load in waiting.loads])
        return least if least > waiting.ready else waiting.ready

    def _start(self, waiting: _Waiting, now: int) -> None:
        free = self.free
        late = waiting.skew // (len(free) - 1) if waiting.start < 0 else 0
        if waiting.even >= 0:
            if late:
                begins = range(now, now + late * len(free), late)
                free[:] = [
                    (time if time > begin else begin) + waiting.even for time, begin in zip(free, begins, strict=True)
                ]
            else:
                free[:] = [(time if time > now else now) + waiting.even for time in free]
            end = max(free)
        else:
            end = now
            for number, load in enumerate(waiting.loads):
                begin = free[load.engine]
                first = now + late * number
                begin = (begin if begin > first else first) + load.picoseconds
                free[load.engine] = begin
                if begin > end:
                    end = begin
        self.road = max(self.road, now) + waiting.road
        if self.road > end:
            # The road is full: the engines wait with their data until there is room.
            late = self.road - end
            for load in waiting.loads:
                free[load.engine] += late
            end = self.road
        waiting.chunks -= 1
        waiting.end = max(waiting.end, end)
        if waiting.start < 0:
            waiting.start = now
        self.busy += max(0, end - max(now, self.covered))
        self.covered = max(self.covered, end)
