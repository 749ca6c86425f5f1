"""The cores for a rate: a core's capacity under each batch limit, and the limit that needs the fewest cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trnrt.capacity.assumptions import Host
from trnrt.capacity.queueing import FINAL_SAMPLES, Array, Waiting, Worker, stream, wait
from trnrt.capacity.workers import Served

LEAST_LOAD = 1e-4
"""Below this share of its capacity, a core counts as carrying nothing."""
_STEPS = 10
_STEP = 0.02
_LOADS = tuple(share / 10 for share in range(1, 10))

Limit = Literal["device", "host", "p99"]


@dataclass(frozen=True)
class Demand:
    """Requests per second of ``rows`` rows each; 99 % must be answered within ``p99_us``.

    ``burst``: see ``queueing.stream``. ``utilisation``: the largest planned load of a core.
    """

    rps: float
    p99_us: float
    rows: int
    burst: float
    utilisation: float


@dataclass(frozen=True)
class Candidate:
    """A batch limit (rows), the requests per second that one core ``carries`` with it, and what limits them.

    ``cores`` carry the whole demand, and ``waiting`` has the latencies then; None if a core carries nothing in time.
    """

    max_batch: int
    worker: Worker
    carries: float
    limited_by: Limit
    cores: int
    waiting: Waiting | None

    def load(self, rps: float) -> float:
        """The load of its cores, a share of 1."""
        return rps / self.cores / self.worker.saturation


def candidates(served: Served, limits: Iterable[int], demand: Demand, host: Host) -> list[Candidate]:
    """A candidate for each batch limit."""
    search, final = stream(demand.burst), stream(demand.burst, FINAL_SAMPLES)
    return [_candidate(most, served.worker(most, demand.rows, host), demand, search, final) for most in limits]


def best(found: Sequence[Candidate], usd_per_hour: Callable[[Candidate], float] | None = None) -> Candidate | None:
    """The cheapest candidate, if costs are known; ties go to the fewest cores, then the least p99, then the largest
    rate (both to two digits), then the smallest batch. None if no candidate is in time."""

    def cost(candidate: Candidate) -> tuple[float, int, float, float, int]:
        assert candidate.waiting is not None
        p99, carries = float(f"{candidate.waiting.p99_us:.1e}"), float(f"{candidate.carries:.1e}")
        dollars = 0.0 if usd_per_hour is None else usd_per_hour(candidate)
        return dollars, candidate.cores, p99, -carries, candidate.max_batch

    return min((candidate for candidate in found if candidate.waiting is not None), key=cost, default=None)


def curve(worker: Worker, burst: float) -> list[tuple[float, Waiting]]:
    """(rate, latencies) of one core, at tenths of its saturation."""
    moments = stream(burst)
    return [(load * worker.saturation, wait(worker, load * worker.saturation, moments)) for load in _LOADS]


def _candidate(most: int, worker: Worker, demand: Demand, search: Array, final: Array) -> Candidate:
    def spread_load(carries: float) -> tuple[int, Waiting]:
        cores = max(1, math.ceil(demand.rps / carries * (1 - 1e-9)))
        return cores, wait(worker, demand.rps / cores, final)

    carries, limited_by = _largest_rate(worker, demand, search)
    if limited_by != "p99":
        cores, waiting = spread_load(carries)
        if waiting.p99_us <= demand.p99_us:
            return Candidate(most, worker, carries, limited_by, cores, waiting)
    top = demand.utilisation * worker.saturation
    if carries:  # from the small sample, which may be far off in bursts
        carries = _refine_rate(lambda rate: wait(worker, rate, final).p99_us <= demand.p99_us, carries, top)
    if not carries:
        return Candidate(most, worker, 0.0, "p99", 0, None)
    cores, waiting = spread_load(carries)
    more = 1
    # A p99 need not fall with every step of the rate; doubling the steps ends this soon even so.
    while waiting.p99_us > demand.p99_us:
        if demand.rps / cores < LEAST_LOAD * top:
            return Candidate(most, worker, 0.0, "p99", 0, None)
        cores, more = cores + more, 2 * more
        waiting = wait(worker, demand.rps / cores, final)
    return Candidate(most, worker, carries, "p99" if carries < top else _hindrance(worker), cores, waiting)


def _largest_rate(worker: Worker, demand: Demand, moments: Array) -> tuple[float, Limit]:
    """The largest rate within the p99 and the utilisation, and which of them limits it."""

    def in_time(rate: float) -> bool:
        return wait(worker, rate, moments).p99_us <= demand.p99_us

    most = demand.utilisation * worker.saturation
    if worker.alone_us >= demand.p99_us:
        return 0.0, "p99"
    if in_time(most):
        return most, _hindrance(worker)
    low, high = LEAST_LOAD * most, most
    for _ in range(_STEPS):
        middle = math.sqrt(low * high) if high > 4 * low else (low + high) / 2
        low, high = (middle, high) if in_time(middle) else (low, middle)
    return (low if low > LEAST_LOAD * most else 0.0), "p99"


def _refine_rate(in_time: Callable[[float], bool], guess: float, top: float) -> float:
    """The largest rate in time up to ``top``, to 1 %, from a guess in growing steps; 0 for nearly nothing."""
    low = high = guess
    step = _STEP
    if in_time(guess):
        while low == high < top:
            high = min(top, low * (1 + step))
            low, step = (high if in_time(high) else low), 2 * step
    else:
        while low == high or not in_time(low):
            low, high, step = low * (1 - step), low, min(0.5, 2 * step)
            if low < LEAST_LOAD * top:
                return 0.0
    while low < high * (1 - _STEP / 2):
        middle = (low + high) / 2
        low, high = (middle, high) if in_time(middle) else (low, middle)
    return low


def _hindrance(worker: Worker) -> Limit:
    return "device" if worker.device_rate <= worker.host_rate else "host"
