"""The server's own batcher on a clock that is only counted: an event loop and a model's thread that never wait.

What takes time says so (``Clock.spend``, ``VirtualThread.compute``), and time is what it adds up to. While the loop is
busy the thread goes on, as it does in a server; but what the thread does in Python keeps the loop waiting.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trnrt.capacity.queueing import Worker
from trnrt.serve.hosting import batcher, batching
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.problems import Problem

Array = NDArray[Any]


class Clock:
    """``now`` in seconds, the moment when the thread goes on, and the moments when requests arrive."""

    def __init__(self, arrivals: Sequence[float]) -> None:
        self.now = 0.0
        self.wake = math.inf
        self.resume: Callable[[], None] = lambda: None
        self.arrive: Callable[[int], None] = lambda number: None
        self._arrivals, self._came = arrivals, 0

    def time(self) -> float:
        """What ``time.perf_counter`` is for the batcher."""
        return self.now

    def spend(self, seconds: float) -> None:
        """The loop is busy; the thread may wake meanwhile, and keeps it longer."""
        end = self.now + seconds
        while self.wake <= end:
            self.now, self.wake = self.wake, math.inf
            before = self.now
            self.resume()
            end += self.now - before
        self.now = end

    def look(self, seconds: float | None) -> None:
        """The loop looks at the network; if nothing has come, it waits for so long, or until the thread wakes."""
        self.now = max(self.now, min(math.inf if seconds is None else self.now + seconds, self.wake, self._next))
        if math.isinf(self.now):
            raise RuntimeError("everybody waits for ever")
        if self.wake <= self.now:
            self.now, self.wake = max(self.now, self.wake), math.inf
            self.resume()
        while self._next <= self.now:
            self._came += 1
            self.arrive(self._came - 1)

    @property
    def _next(self) -> float:
        return self._arrivals[self._came] if self._came < len(self._arrivals) else math.inf


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Let the batcher have this clock for its own."""
    for module in (batcher, batching):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock.time))


class _Selector(selectors.SelectSelector):
    """Instead of waiting for the network, let time pass. What comes is taken up at once, as uvloop does it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._clock.look(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with this clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now

    def _write_to_self(self) -> None:
        """It never sleeps, so nobody need wake it."""


class VirtualThread:
    """A ``ComputeThread`` that runs only while the loop's thread waits for it: one of both at any time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._baton, self._go = threading.Semaphore(0), threading.Semaphore(0)
        clock.resume = self._resume

    def submit(self, job: Callable[[], None], waiting: int = 0) -> None:
        """Let it begin; back when it waits for the device."""

        def work() -> None:
            job()
            self._baton.release()

        threading.Thread(target=work, daemon=True).start()
        self._baton.acquire()

    def compute(self, host_s: float, device_s: float) -> None:
        """On the thread: Python first, then the device."""
        moment = self._clock.now
        self._clock.now += host_s
        self._clock.wake = moment + host_s + device_s
        self._baton.release()
        self._go.acquire()

    def _resume(self) -> None:
        self._go.release()
        self._baton.acquire()


class Timed:
    """A model that takes for n requests of ``rows`` rows what tables say, microseconds."""

    parameters: tuple[str, ...] = ()

    def __init__(self, thread: VirtualThread, worker: Worker, rows: int, mergeable: bool) -> None:
        self._thread, self._worker, self._rows, self.mergeable = thread, worker, rows, mergeable

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The rows themselves, later."""
        index = len(feeds["x"]) // self._rows - 1
        self._thread.compute(self._worker.host_us[index] / 1e6, self._worker.device_us[index] / 1e6)
        return {"y": feeds["x"]}

    def bucket(self, rows: int) -> int:
        """It pads nothing."""
        return rows

    def predicted_us(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> float | None:
        """Nothing is predicted."""
        return None

    def independent(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> bool:
        """Each row is its own answer."""
        return True


class Steady:
    """A model that takes ``unit_s`` for a batch of any size, and keeps when it began one and its rows."""

    parameters: tuple[str, ...] = ()
    mergeable = True

    def __init__(self, clock: Clock, unit_s: float) -> None:
        self.thread, self.unit_s, self.runs = VirtualThread(clock), unit_s, list[tuple[float, int]]()
        self._clock = clock

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The rows themselves, later."""
        self.runs.append((self._clock.now, len(feeds["x"])))
        self.thread.compute(0.0, self.unit_s)
        return {"y": feeds["x"]}

    def bucket(self, rows: int) -> int:
        """It pads nothing."""
        return rows

    def predicted_us(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> float | None:
        """Nothing is predicted."""
        return None

    def independent(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> bool:
        """Each row is its own answer."""
        return True


def play(clock: Clock, count: int, make: Callable[[], Batcher], ask: Callable[[Batcher, int], Any]) -> None:
    """Let the clock's ``count`` requests arrive: ``await ask(batcher, number)`` for each."""
    loop = VirtualLoop(clock)

    async def work() -> None:
        made = make()
        tasks: list[asyncio.Task[None]] = []
        come = asyncio.Event()

        def arrive(number: int) -> None:
            tasks.append(loop.create_task(ask(made, number)))
            if len(tasks) == count:
                come.set()

        clock.arrive = arrive
        await come.wait()
        await asyncio.gather(*tasks)

    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


def latencies(
    clock: Clock,
    worker: Worker,
    arrivals: Array,
    rows: int = 1,
    most: int | None = None,
    mergeable: bool = True,
    wait_s: float = math.inf,
) -> Array:
    """What requests see of the server's batcher that come at these moments, microseconds; NaN if refused.

    Each has ``rows`` rows, and a batch ``most`` at most (None: those of the worker's largest batch).
    ``clock`` has the same arrivals, in seconds, and ``set_clock`` has set it. ``wait_s``: see ``Limits``.
    """
    found = np.full(len(arrivals), np.nan)
    row = {"x": np.zeros((rows, 1), np.float32)}

    async def ask(asked: Batcher, number: int) -> None:
        with asked.arriving():
            clock.spend(worker.in_us / 1e6)
        try:
            await asked.infer(row, rows, (), 1e6)
        except Problem as problem:
            assert problem.status == 429
            return
        clock.spend(worker.out_us / 1e6)
        found[number] = clock.now * 1e6 - arrivals[number]

    def make() -> Batcher:
        thread = VirtualThread(clock)
        limits = Limits(most or worker.most * rows, 0.002, worker.queue, wait_s=wait_s)
        model = Timed(thread, worker, rows, mergeable)
        return Batcher("timed", model, thread, limits, Metrics())

    play(clock, len(arrivals), make, ask)
    return found
