"""One case on one backend, in this process: its numbers against the reference, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.neuron.selftest.cases import Array, Case, Direct, Sample, Small

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range

RUNS, SECONDS = 50, 1.0
"""A case is repeated so often, or for so long, whichever ends first."""


@dataclass(frozen=True)
class Result:
    """What a case gave. ``passed`` within ``rtol`` and ``atol`` of the reference; ``max_abs`` the largest difference.

    ``predicted_us`` is the simulator's, of the device, from ``low_us`` to ``high_us``; ``wall_us`` was measured around
    the call, host included: least, median, most, and how often. ``compile_s`` is the first call.
    """

    passed: bool
    max_abs: float | None
    rtol: float
    atol: float
    predicted_us: float | None
    low_us: float | None
    high_us: float | None
    compile_s: float
    wall_us: dict[str, float]
    detail: str = ""
    outputs: list[Array] = field(default_factory=list, repr=False)


def run_case(case: Case, backend: str, target: str) -> Result:
    """Run it; raises what trnrt, or AWS's packages, raise."""
    return _direct(case, backend, target) if isinstance(case, Direct) else _model(case, backend, target)


def _model(case: Small | Sample, backend: str, target: str) -> Result:
    from trnrt.session import InferenceSession
    from trnrt.validate import validate

    session = InferenceSession(case.model(), backend=backend, target=target, dtype=case.dtype, cache=False)
    if session.backend != backend:
        raise RuntimeError(f"{session.backend} was taken instead of {backend}")
    feeds = case.feeds()
    start = time.perf_counter()
    outputs = session.run(None, feeds)
    compile_s = time.perf_counter() - start
    predicted = _figures(session.last_run.predicted if backend == "simulator" else None)
    report = validate(session, feeds)
    off = [output.max_abs for output in report.outputs]
    detail = "" if not report.changed_decisions else f"{report.changed_decisions} decisions changed"
    wall = time_calls(lambda: session.run(None, feeds))
    worst = max(off, default=0.0)
    return Result(report.passed, worst, report.rtol, report.atol, *predicted, compile_s, wall, detail, outputs)


def _figures(found: Range | None) -> tuple[float | None, float | None, float | None]:
    """The headline and the ends of a prediction."""
    return (None, None, None) if found is None else (found.us, found.least_us, found.most_us)


def _direct(case: Direct, backend: str, target: str) -> Result:
    kernel, arrays = body_of(case), case.arrays()
    predicted, call = None, _on_device(kernel, target)
    if backend == "simulator":
        from trnrt.nki import profile, simulate

        call = simulate(kernel, target)
        predicted = profile(kernel, *arrays, target=target).benchmark
    start = time.perf_counter()
    got = np.asarray(call(*arrays))
    compile_s = time.perf_counter() - start
    expected = case.expected(*(array.astype(np.float64) for array in arrays))
    if got.shape != expected.shape:
        raise RuntimeError(f"the result has the shape {got.shape}, not {expected.shape}")
    atol = case.rtol * float(np.abs(expected).max(initial=0.0))
    off = np.abs(got.astype(np.float64) - expected)
    passed = bool((off <= atol + case.rtol * np.abs(expected)).all())  # NaN is no number that passes
    wall = time_calls(lambda: call(*arrays))
    return Result(
        passed, float(off.max(initial=0.0)), case.rtol, atol, *_figures(predicted), compile_s, wall, "", [got]
    )


def _on_device(kernel: Any, target: str) -> Callable[..., Array]:
    """AWS's direct route; looked up when it is called, since nothing of it is needed for the simulator."""

    def call(*arrays: Array) -> Array:
        from trnrt.neuron.backend import run_kernel

        return np.asarray(run_kernel(kernel, *arrays, target=target)[0])

    return call


def body_of(case: Direct) -> Any:
    """The kernel that a case calls."""
    module, _, name = case.body.rpartition(".")
    return getattr(import_module(f"trnrt.kernels.{module}" if module else "trnrt.neuron.selftest.bodies"), name)


def time_calls(run: Callable[[], object]) -> dict[str, float]:
    """The microseconds of several calls: ``least``, ``median``, ``most``, and their number, ``runs``."""
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < RUNS and (not taken or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e6)
    return {"least": min(taken), "median": median(taken), "most": max(taken), "runs": float(len(taken))}
