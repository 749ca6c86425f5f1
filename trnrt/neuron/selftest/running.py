"""One case on one backend, in this process: its numbers against the reference, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trnrt.errors import BackendError
from trnrt.neuron.selftest.cases import Array, Case, Direct, Sample, Small
from trnrt.neuron.selftest.describing import time_by_place

if TYPE_CHECKING:
    from trnrt.backends import Backend, LoadedKernel
    from trnrt.nki.machine.timing import Range, Timeline
    from trnrt.session import InferenceSession

RUNS, SECONDS = 200, 1.0
"""A case is timed for this many runs or seconds, whichever ends first; by the device's own clock for the runs."""

BY_TENSORS = ("trace", "torchneuron")
"""The routes that pass operands as PyTorch's tensors, which can't be made of arrays of 8-bit floats."""


@dataclass(frozen=True)
class Result:
    """The result of a case. ``passed``: within ``rtol`` and ``atol`` of the reference; ``max_abs``: the largest error.

    ``predicted_us``: the device's latency by the simulator, from ``low_us`` to ``high_us``; ``path_us``: what it is
    made of (``time_by_place``). ``wall_us``: measured by ``clock``, see ``Times``; ``moved_bytes``: of arguments and
    results. ``compile_s``: the time of compiling, loading and the first call. ``route``: the way to the device.
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
    route: str = ""


@dataclass(frozen=True)
class Times:
    """The ``distribution`` of a case's times. ``clock``: "device" for the core's own, without the host; "host" for
    calls of a loaded kernel, the host included; "call" for calls that each compile, which say nothing of the device.
    ``note``: why the device's own clock was not used, though the route has one."""

    wall_us: dict[str, float]
    clock: str
    note: str = ""


def run_case(case: Case, backend: str, target: str) -> Result:
    """Run it; raises what trnrt, or AWS's packages, raise."""
    return _run_direct(case, backend, target) if isinstance(case, Direct) else _run_model(case, backend, target)


def _run_model(case: Small | Sample, backend: str, target: str) -> Result:
    from trnrt.session import InferenceSession

    session = InferenceSession(case.model(), backend=backend, target=target, dtype=case.dtype, cache=False)
    if session.backend != backend:
        raise RuntimeError(f"{session.backend} was taken instead of {backend}")
    with closing(session):
        return _run_session(session, case.feeds())


def _run_session(session: InferenceSession, feeds: dict[str, Array]) -> Result:
    from trnrt.running.profiler import profile_plan
    from trnrt.validate import validate

    start = time.perf_counter()
    outputs = session.run(None, feeds)
    compile_s = time.perf_counter() - start
    predicted, path = _figures(None), {}
    if session.backend == "simulator":
        predicted = _figures(session.last_run.predicted)
        path = _add_paths(profile_plan(plan).timeline for plan in session.partition(_rows(feeds)).plans)
    kernels = [part.kernel for program in session.last_run.programs for part in program.plans]
    route = _route_name(session.runner)
    times = _time_runs(lambda: session.run(None, feeds), kernels, route, compile_s)
    report = validate(session, feeds)
    worst = max((output.max_abs for output in report.outputs), default=0.0)
    changed = f"{report.changed_decisions} decisions changed" if report.changed_decisions else ""
    return Result(
        report.passed,
        worst,
        report.rtol,
        report.atol,
        *predicted,
        compile_s,
        wall_us=times.wall_us,
        detail="; ".join(filter(None, (changed, times.note))),
        outputs=outputs,
        path_us=path,
        moved_bytes=_count_bytes([*feeds.values(), *outputs]),
        clock=times.clock,
        route=route,
    )


def _route_name(backend: Backend) -> str:
    """The way to the device; "" for the simulator."""
    from trnrt.neuron.backend import NeuronBackend

    return backend.route.name if isinstance(backend, NeuronBackend) else ""


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


@dataclass(frozen=True)
class Loaded:
    """A ``Direct`` case that is ready to run. ``kernels``: the one on the device, none for the simulator."""

    run: Callable[[], Array]
    kernels: tuple[LoadedKernel, ...] = ()
    route: str = ""


def _run_direct(case: Direct, backend: str, target: str) -> Result:
    arrays = case.arrays()
    expected = case.expected(*(array.astype(np.float64) for array in arrays))
    predicted, path = _predict(case, arrays, target) if backend == "simulator" else (None, {})
    with ExitStack() as stack:
        start = time.perf_counter()
        loaded = _simulate(case, arrays, target) if backend == "simulator" else _load(case, arrays, target, expected)
        for kernel in loaded.kernels:
            stack.callback(kernel.close)
        got = loaded.run()
        compile_s = time.perf_counter() - start
        if got.shape != expected.shape:
            raise RuntimeError(f"the result has the shape {got.shape}, not {expected.shape}")
        times = _time_runs(loaded.run, loaded.kernels, loaded.route, compile_s)
    atol = case.rtol * float(np.abs(expected).max(initial=0.0))
    off = np.abs(got.astype(np.float64) - expected)
    passed = bool((off <= atol + case.rtol * np.abs(expected)).all())  # False for NaN
    return Result(
        passed,
        float(off.max(initial=0.0)),
        case.rtol,
        atol,
        *_figures(predicted),
        compile_s,
        wall_us=times.wall_us,
        detail=times.note,
        outputs=[got],
        path_us=path,
        moved_bytes=_count_bytes([*arrays, got]),
        clock=times.clock,
        route=loaded.route,
    )


def _predict(case: Direct, arrays: Sequence[Array], target: str) -> tuple[Range, dict[str, float]]:
    from trnrt.nki import profile

    profiled = profile(case.find_kernel(), *arrays, *case.options, target=target)
    return profiled.benchmark, _add_paths([profiled.timeline])


def _simulate(case: Direct, arrays: Sequence[Array], target: str) -> Loaded:
    from trnrt.nki import simulate

    call = simulate(case.find_kernel(), target)
    return Loaded(lambda: np.asarray(call(*arrays, *case.options)))


def _load(case: Direct, arrays: Sequence[Array], target: str, expected: Array) -> Loaded:
    """Compile the kernel and load it, by the route that sessions take; by jit if that route can't pass the operands."""
    from trnrt.backends import DeviceOptions
    from trnrt.backends.choosing import choose
    from trnrt.cache import KernelCache
    from trnrt.neuron.selftest.modules import plan_case

    backend, plan = choose("neuron", target).backend, plan_case(case, target, expected)
    if _route_name(backend) in BY_TENSORS and case.dtype.startswith("float8"):
        backend = choose("neuron", target, DeviceOptions(route="jit")).backend
    path, source, _ = KernelCache().kernel(plan.name, plan.source)
    kernel = backend.load(plan, path, source)
    return Loaded(lambda: kernel.run(arrays)[0], (kernel,), _route_name(backend))


def _time_runs(run: Callable[[], object], kernels: Sequence[LoadedKernel], route: str, compile_s: float) -> Times:
    """Time what was run: a single kernel by the device's own clock where the route has one, else calls of ``run``.

    ``compile_s``: the seconds of the first call; by the route jit each call takes as long, so there is no second one.
    """
    from trnrt.neuron.backend import NeuronKernel

    if route == "jit":
        return Times(distribution([compile_s * 1e6]), "call")
    note, taken = "", None
    if len(kernels) == 1 and isinstance(kernels[0], NeuronKernel):
        try:
            taken = kernels[0].time_runs(RUNS)
        except BackendError as error:
            note = f"timed by the host's clock: {error}"
    return Times(time_calls(run), "host", note) if taken is None else Times(distribution(taken), "device")


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
