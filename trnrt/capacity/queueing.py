"""Simulate how long requests wait for a NeuronCore: a worker of ``trnrt serve``, request by request.

A worker is an event loop, which reads requests and writes answers one after the other, and a model's thread, which
computes batches. They share Python's interpreter: the thread's work beside the device delays the loop. No formula is
known for their rules (``trnrt/serve/hosting/batcher.py``), so they are simulated for a stream of arrivals with a fixed
seed: the same question always gets the same answer. ``docs/scale.md`` compares it with measurements.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import OptionError

Array = NDArray[np.float64]

SAMPLES = 20_000
"""Simulated arrivals during the search."""
FINAL_SAMPLES = 100_000
"""Simulated arrivals for the final figures."""
_WARM = 0.05
"""The share of arrivals to ignore: the worker is not yet in its steady state."""
_SEGMENTS = 10
_SHARES = (0.5, 0.99)


@dataclass(frozen=True)
class Worker:
    """One core with its process; microseconds.

    A batch of n requests takes ``device_us[n - 1]`` on the device, there and back, after ``host_us[n - 1]`` of the
    interpreter. ``in_us`` and ``out_us`` are the event loop's times for a request before it is queued and after it was
    computed. A request that finds ``queue`` others waiting is refused. If ``full`` requests or more wait when the
    thread is done, it takes the next batch by itself: they are a whole batch, or one more than that if a batch of all
    that fit has rows to spare.

    After a pause, work is slower, as other processes have taken the processor's caches. After a very long pause, a
    request takes ``cold_us`` more, half for reading it and half for answering; after a pause of t the share 1 - exp(-t
    / ``cooling_us``) of that.
    """

    device_us: tuple[float, ...]
    host_us: tuple[float, ...]
    in_us: float
    out_us: float
    queue: int
    full: int
    cold_us: float = 0.0
    cooling_us: float = math.inf

    @property
    def most(self) -> int:
        """Requests of a batch at most."""
        return len(self.device_us)

    @property
    def alone_us(self) -> float:
        """A request's time without a queue, with a warm worker."""
        return self.in_us + self.host_us[0] + self.device_us[0] + self.out_us

    @property
    def device_rate(self) -> float:
        """Requests per second that the model's thread can compute, in full batches."""
        return 1e6 * self.most / (self.host_us[-1] + self.device_us[-1])

    @property
    def host_rate(self) -> float:
        """Requests per second that the interpreter can read, merge into full batches, and answer."""
        busy = self.in_us + self.out_us + self.host_us[-1] / self.most
        return 1e6 / busy if busy else math.inf

    @property
    def saturation(self) -> float:
        """Requests per second from which the queue grows without bound."""
        return min(self.device_rate, self.host_rate)


@dataclass(frozen=True)
class Waiting:
    """Latencies at a rate: microseconds from arrival to answer, infinite for refused requests.

    ``p99_error`` is the standard error of ``p99_us``, from the tenths of the sample; ``batch`` the mean requests per
    batch, ``cold_us`` the mean extra time of a request because the worker is cold, ``refused`` a share of all requests.
    """

    mean_us: float
    p50_us: float
    p99_us: float
    p99_error: float
    batch: float
    cold_us: float
    refused: float


def stream(burst: float = 1.0, samples: int = SAMPLES, seed: int = 0) -> Array:
    """Moments of arrivals, on average 1 apart. (samples,)

    ``burst`` is the coefficient of variation of the gaps between them, which are gamma distributed: 1 is a Poisson
    stream of independent arrivals; larger values come in bursts, 0 is regular.
    """
    generator = np.random.default_rng(seed)
    if burst == 0:
        return np.arange(1.0, samples + 1)
    gaps = generator.gamma(1 / burst**2, burst**2, samples)
    # The sample has exactly the requested rate, so that figures differ by waiting alone.
    return np.cumsum(gaps / gaps.mean())


def wait(worker: Worker, rate: float, moments: Array) -> Waiting:
    """The latencies of requests that arrive at ``rate`` per second, at ``moments`` (see ``stream``)."""
    if not rate > 0:
        raise OptionError(f"a rate of {rate:g} requests per second", hint="give a number above 0")
    latencies, batches, cold_us = play(worker, moments * (1e6 / rate))
    counted = latencies[int(len(latencies) * _WARM) :]
    answered = counted[np.isfinite(counted)]
    p50, p99 = _quantiles(counted)
    parts = [_quantiles(part)[1] for part in np.array_split(counted, _SEGMENTS)]
    error = float(np.std(parts, ddof=1)) / math.sqrt(_SEGMENTS) if np.all(np.isfinite(parts)) else math.inf
    return Waiting(
        mean_us=float(answered.mean()) if len(answered) else math.inf,
        p50_us=p50,
        p99_us=p99,
        p99_error=error,
        batch=int(np.isfinite(latencies).sum()) / max(1, batches),
        cold_us=cold_us,
        refused=1 - len(answered) / len(counted),
    )


class Played(NamedTuple):
    """Each arrival's latency (infinite if refused), the number of batches, and the mean extra time per request because
    the worker was cold; microseconds."""

    latencies: Array
    batches: int
    cold_us: float


def play(worker: Worker, arrivals: Array) -> Played:
    """Simulate requests that arrive at these moments, microseconds. (requests,)"""
    played = _Play(worker, arrivals.tolist())
    played.run()
    return Played(np.array(played.latencies), played.batches, played.cold_us / len(arrivals))


class _Done(NamedTuple):
    """A computed batch; ``goes_on``: the thread started the next one at once."""

    batch: list[int]
    goes_on: bool


class _Play:
    """A worker and its clock.

    The event loop works in rounds. At the start of a round it checks once for new arrivals, and then runs the ready
    callbacks in order: read a request (its number), note that a batch is done, answer its requests (their list), or see
    if a batch can go (None). Callbacks that become ready meanwhile run in the next round. The thread has a batch until
    ``done``; only the thread knows until the loop has noted it (``computing``).
    """

    def __init__(self, worker: Worker, moments: list[float]) -> None:
        self.worker, self.moments = worker, moments
        self.latencies = [math.inf] * len(moments)
        self.batches, self.cold_us = 0, 0.0
        self.now, self.done = 0.0, math.inf
        self.read = self.answered = -math.inf
        self.queue: deque[int] = deque()
        self.ready: deque[int | list[int] | _Done | None] = deque()
        self.batch: list[int] = []
        self.computing = self.considering = False

    def run(self) -> None:
        """Run until every request is answered."""
        moments, ready, came, last = self.moments, self.ready, 0, len(self.moments)
        while came < last or ready or self.batch:
            if not ready:
                self.now = max(self.now, min(moments[came] if came < last else math.inf, self.done))
            if self.done <= self.now:
                self._finish()
            while came < last and moments[came] <= self.now:
                ready.append(came)
                came += 1
            for _ in range(len(ready)):
                item = ready.popleft()
                if item is None:
                    self._consider()
                elif isinstance(item, int):
                    self._read(item)
                elif isinstance(item, list):
                    self._answer(item)
                else:
                    self.computing = item.goes_on
                    ready.append(item.batch)
                    self._consider_soon()

    def _consider(self) -> None:
        self.considering = False
        if self.queue and not self.computing:
            self.computing = True
            self._start(self.now)

    def _warm_up(self, since: float) -> None:
        """Add the extra time of an action last done at ``since``."""
        takes = self.worker.cold_us / 2 * -math.expm1((since - self.now) / self.worker.cooling_us)
        self.now += takes
        self.cold_us += takes

    def _read(self, number: int) -> None:
        if self.worker.cold_us:
            self._warm_up(self.read)
        self.now += self.worker.in_us
        self.read = self.now
        # Meanwhile the thread finishes batches, with the queue unchanged.
        while self.done <= self.now:
            self._finish()
        if len(self.queue) < self.worker.queue:
            self.queue.append(number)
            if not (self.computing or self.considering):
                self._consider_soon()

    def _answer(self, numbers: list[int]) -> None:
        latencies, moments, out_us = self.latencies, self.moments, self.worker.out_us
        if self.worker.cold_us:
            self._warm_up(self.answered)
        for number in numbers:
            self.now += out_us
            while self.done <= self.now:
                self._finish()
            latencies[number] = self.now - moments[number]
        self.answered = self.now

    def _consider_soon(self) -> None:
        if self.queue and not (self.computing or self.considering):
            self.considering = True
            self.ready.append(None)

    def _start(self, moment: float) -> None:
        queue, worker = self.queue, self.worker
        count = min(len(queue), len(worker.device_us))
        self.batch = [queue.popleft() for _ in range(count)]
        host = worker.host_us[count - 1]
        self.now += host
        self.done = moment + host + worker.device_us[count - 1]
        self.batches += 1

    def _finish(self) -> None:
        """Finish a batch; the thread starts another one at once if the queue holds a full batch."""
        finished, moment = self.batch, self.done
        self.batch, self.done = [], math.inf
        goes_on = len(self.queue) >= self.worker.full
        self.ready.append(_Done(finished, goes_on))
        if goes_on:
            self._start(moment)


def _quantiles(latencies: Array) -> tuple[float, float]:
    """The median and the 99th percentile, each the latency of a request: no interpolation towards infinity."""
    p50, p99 = np.quantile(latencies, _SHARES, method="higher")
    return float(p50), float(p99)
