"""The requests that wait for a model, in the order of their turns, and how long a new one would wait.

Requests with more rows than a slice are computed slice by slice. While both kinds wait, a slice and a batch of the
others take turns, and so do several large requests among themselves: none of them can shut out the rest.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from trnrt.serve.hosting.batching import Inference, Member, Slicing

REMEMBERED = 0.9
"""The weight of the known pace when a batch measures a new one."""


@dataclass(frozen=True)
class Limits:
    """The most rows of a batch, the longest wait for others in seconds, and the longest queue in requests.

    ``slice_rows``: requests with more rows are computed in slices of so many; 0 if rows depend on each other
    ``wait_s``: a request that would wait longer until its batch starts is refused
    """

    rows: int
    delay_s: float
    queue: int
    slice_rows: int = 0
    wait_s: float = math.inf


@dataclass(eq=False)
class Waiting(Member):
    """A request in the queue. ``deadline`` is a moment of ``time.perf_counter``; afterwards it is not computed."""

    answer: asyncio.Future[Inference]
    deadline: float
    taken: float = 0.0
    slicing: Slicing | None = None

    @property
    def rows_left(self) -> int:
        """The rows that are not computed yet."""
        return self.rows if self.slicing is None else self.rows - self.slicing.done


class Queue:
    """The waiting requests of one model. It has no lock of its own."""

    def __init__(self, limits: Limits, mergeable: bool) -> None:
        self._most, self._slice, self.mergeable = limits.rows, limits.slice_rows, mergeable
        self._small: dict[Waiting, None] = {}
        self._large: dict[Waiting, None] = {}
        self._is_large_turn = False
        self.fill = float(limits.rows if mergeable else 1)
        """The requests of a batch that leaves others behind, of late."""
        self.slices = 0
        """Of all large requests, whether queued or computing, that are still to be taken."""

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    @property
    def oldest(self) -> Waiting | None:
        """The small request that waits longest."""
        return next(iter(self._small), None)

    @property
    def batches_ahead(self) -> int:
        """The batches of small requests in front of a new one, if they fill like those that left others behind."""
        return int(len(self._small) / self.fill)

    def is_large(self, rows: int) -> bool:
        """True if so many rows are computed slice by slice."""
        return 0 < self._slice < rows

    def put(self, member: Waiting) -> None:
        """Add a request, or one whose next slice is due."""
        if 0 < self._slice < member.rows:
            if member.slicing is None:
                member.slicing = Slicing(self._slice, -(-member.rows // self._slice))
                self.slices += member.slicing.left
            self._large[member] = None
        else:
            self._small[member] = None

    def remove(self, member: Waiting) -> bool:
        """Remove a request; False if it has been taken."""
        if member in self._small:
            del self._small[member]
            return True
        if member in self._large:
            del self._large[member]
            self.forget(member)
            return True
        return False

    def forget(self, member: Waiting) -> None:
        """Don't count the slices of a large request any more, which is not in the queue."""
        if member.slicing is not None:
            self.slices -= member.slicing.left
            member.slicing.left = 0

    def choose(self) -> tuple[list[Waiting], bool]:
        """The next batch, the oldest request first, and whether it need not wait for others; () if nothing waits."""
        if self._large and (self._is_large_turn or not self._small):
            return [next(iter(self._large))], True
        if not self._small:
            return [], False
        members = iter(self._small)
        first = next(members)
        chosen, rows, kind, most = [first], first.rows, first.kind, self._most
        if not self.mergeable:
            return chosen, True
        for member in members:
            if rows >= most:
                break
            if member.kind != kind:
                continue
            if rows + member.rows > most:
                return chosen, True
            chosen.append(member)
            rows += member.rows
        # While a large request waits, the thread must not be idle.
        return chosen, rows >= most or bool(self._large)

    def take(self, chosen: list[Waiting], now: float) -> tuple[list[Waiting], int]:
        """Remove these requests; return those that still want an answer, and the rows of the others."""
        slicing = chosen[0].slicing
        is_large = slicing is not None
        self._is_large_turn = not is_large
        batch = []
        for member in chosen:
            del (self._large if is_large else self._small)[member]
            if member.deadline > now and not member.answer.done():
                member.taken = member.taken or now
                batch.append(member)
        if slicing is not None:
            slicing.left -= 1
            self.slices -= 1
            if not batch:
                self.forget(chosen[0])
        elif self._small:
            self.fill += (len(chosen) - self.fill) / 2
        return batch, 0 if len(batch) == len(chosen) else sum(m.rows_left for m in chosen if m not in batch)

    def clear(self) -> list[Waiting]:
        """Remove all requests."""
        waiting = [*self._small, *self._large]
        for member in waiting:
            self.remove(member)
        return waiting


class Pace:
    """The seconds of a full batch, as measured so far; those of the largest one before there was a full one."""

    def __init__(self, full: int) -> None:
        self._full, self._known = full, -1
        self.batch_s = 0.0

    def measure(self, bucket: int, seconds: float) -> None:
        """Note a batch. ``bucket``: the rows that it was padded to."""
        bucket = min(bucket, self._full)
        if bucket == self._known:
            self.batch_s = REMEMBERED * self.batch_s + (1 - REMEMBERED) * seconds
        elif bucket > self._known:
            self._known, self.batch_s = bucket, seconds


def rest_of(expected_s: float, elapsed_s: float) -> float:
    """The rest of a batch that has taken ``elapsed_s``. One that takes too long is expected to go on for as long."""
    return abs(expected_s - elapsed_s)
