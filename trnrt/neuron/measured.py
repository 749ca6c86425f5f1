"""Time a loaded kernel by this machine's clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from trnrt.backends import LoadedKernel
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.plan import Plan

RUNS = 100
WARM_UP = 10


@dataclass(frozen=True)
class Measured:
    """Times of ``runs`` runs, microseconds, from arrays to arrays, transfers to and from the device included."""

    runs: int
    median_us: float
    least_us: float
    p99_us: float


def measure(kernel: LoadedKernel, plan: Plan) -> Measured:
    """Run a kernel on random inputs, one run after the other; the first ``WARM_UP`` don't count."""
    draw = np.random.default_rng(0)
    inputs = [draw.random(tensor.shape).astype(as_dtype(tensor.dtype).numpy) for tensor in plan.inputs]
    times = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        kernel.run(inputs)
        times.append((time.perf_counter() - start) * 1e6)
    median, p99 = np.percentile(times[WARM_UP:], [50, 99])
    return Measured(RUNS, float(median), min(times[WARM_UP:]), float(p99))
