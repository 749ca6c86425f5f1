"""One case on one backend, in this process: its numbers against the reference, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.neuron.selftest.cases import Array, Case, Direct, Sample, Small
from trnrt.neuron.selftest.describing import time_by_place

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range, Timeline

RUNS, SECONDS = 200, 1.0
"""A case is timed for this many runs or seconds, whichever ends first."""


@dataclass(frozen=True)
class Result:
    """The result of a case. ``passed``: within ``rtol`` and ``atol`` of the reference; ``max_abs``: the largest error.

    ``predicted_us``: the device's latency by the simulator, from ``low_us`` to ``high_us``; ``path_us``: what it is
    made of (``time_by_place``). ``wall_us``: measured around the call by the host's ``clock``, so the host is
    included: see ``time_calls``; ``moved_bytes``: of arguments and results. ``compile_s``: the time of the first call.
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
    path_us: dict[str, float] = field(default_factory=dict)
    moved_bytes: int = 0
    clock: str = "host"


def run_case(case: Case, backend: str, target: str) -> Result:
    """Run it; raises what trnrt, or AWS's packages, raise."""
    return _run_direct(case, backend, target) if isinstance(case, Direct) else _run_model(case, backend, target)


def _run_model(case: Small | Sample, backend: str, target: str) -> Result:
    from trnrt.running.profiler import profile_plan
    from trnrt.session import InferenceSession
    from trnrt.validate import validate

    session = InferenceSession(case.model(), backend=backend, target=target, dtype=case.dtype, cache=False)
    if session.backend != backend:
        raise RuntimeError(f"{session.backend} was taken instead of {backend}")
    feeds = case.feeds()
    start = time.perf_counter()
    outputs = session.run(None, feeds)
    compile_s = time.perf_counter() - start
    predicted, path = _figures(None), {}
    if backend == "simulator":
        predicted = _figures(session.last_run.predicted)
        path = _add_paths(profile_plan(plan).timeline for plan in session.partition(_rows(feeds)).plans)
    report = validate(session, feeds)
    worst = max((output.max_abs for output in report.outputs), default=0.0)
    detail = "" if not report.changed_decisions else f"{report.changed_decisions} decisions changed"
    wall, moved = time_calls(lambda: session.run(None, feeds)), _count_bytes([*feeds.values(), *outputs])
    return Result(
        report.passed, worst, report.rtol, report.atol, *predicted, compile_s, wall, detail, outputs, path, moved
    )


def _count_bytes(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _rows(feeds: dict[str, Array]) -> int:
    return len(next(iter(feeds.values())))


def _add_paths(timelines: Iterable[Timeline]) -> dict[str, float]:
    """The critical paths of a model's parts, together."""
    total: dict[str, float] = {}
    for line in timelines:
        for place, us in time_by_place(line).items():
            total[place] = total.get(place, 0.0) + us
    return total


def _figures(found: Range | None) -> tuple[float | None, float | None, float | None]:
    """The expected, least and most microseconds of a prediction."""
    return (None, None, None) if found is None else (found.us, found.least_us, found.most_us)


def _run_direct(case: Direct, backend: str, target: str) -> Result:
    kernel, arrays = case.find_kernel(), case.arrays()
    predicted, path, call = None, {}, _on_device(kernel, target)
    if backend == "simulator":
        from trnrt.nki import profile, simulate

        call = simulate(kernel, target)
        profiled = profile(kernel, *arrays, *case.options, target=target)
        predicted, path = profiled.benchmark, _add_paths([profiled.timeline])

    def run() -> Array:
        return np.asarray(call(*arrays, *case.options))

    start = time.perf_counter()
    got = run()
    compile_s = time.perf_counter() - start
    expected = case.expected(*(array.astype(np.float64) for array in arrays))
    if got.shape != expected.shape:
        raise RuntimeError(f"the result has the shape {got.shape}, not {expected.shape}")
    atol = case.rtol * float(np.abs(expected).max(initial=0.0))
    off = np.abs(got.astype(np.float64) - expected)
    passed = bool((off <= atol + case.rtol * np.abs(expected)).all())  # False for NaN
    worst = float(off.max(initial=0.0))
    wall, moved = time_calls(run), _count_bytes([*arrays, got])
    return Result(passed, worst, case.rtol, atol, *_figures(predicted), compile_s, wall, "", [got], path, moved)


def _on_device(kernel: Any, target: str) -> Callable[..., Any]:
    """AWS's direct route to the device."""
    from trnrt.neuron.backend import run_kernel

    return lambda *arguments: run_kernel(kernel, *arguments, target=target)[0]


def time_calls(run: Callable[[], object]) -> dict[str, float]:
    """The microseconds of several calls, as a ``distribution``."""
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < RUNS and (not taken or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e6)
    return distribution(taken)


def distribution(taken: Sequence[float]) -> dict[str, float]:
    """The ``least``, ``lower`` quartile, ``median``, ``upper`` quartile and ``most`` of times, and their ``runs``."""
    marks = np.percentile(taken, [0, 25, 50, 75, 100])
    names = ("least", "lower", "median", "upper", "most")
    return dict(zip(names, map(float, marks), strict=True)) | {"runs": float(len(taken))}
