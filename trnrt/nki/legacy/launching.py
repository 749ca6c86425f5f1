"""``nki.jit`` and its like in the old namespace: kernels with a launch grid, simulated, benchmarked, profiled.

Without AWS's device each of them runs on the simulator. A benchmark predicts; its percentiles are one prediction.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from operator import index
from pathlib import Path
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.allocating import directives
from trnrt.nki.legacy.blocks import Blocks
from trnrt.nki.legacy.returning import hoist_returns
from trnrt.nki.legacy.session import Session, activate, is_active
from trnrt.nki.legacy.tiles import Tile
from trnrt.nki.level import Level
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range
from trnrt.nki.sim.kernel import Kernel, Simulated, Spec, default_target
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import Tracer, active_tracer, is_tracing

__all__ = ["LegacyKernel", "baremetal", "benchmark", "jit", "nc", "profile", "simulate_kernel", "spmd_dim", "trace"]

PERCENTILES = (0, 1, 10, 25, 50, 90, 99, 100)


@dataclass(frozen=True)
class Cores:
    """A dimension of a launch grid whose instances run on physical cores: ``nl.nc(2)``."""

    count: int

    def __mul__(self, other: int) -> int:
        return self.count * other

    __rmul__ = __mul__

    def __index__(self) -> int:
        return self.count


def nc(count: int) -> Cores:
    """A dimension of a launch grid, with ``count`` physical cores."""
    return Cores(index(count))


def spmd_dim(*sizes: Any) -> int:
    """One dimension of a launch grid, the product of its parts."""
    count = 1
    for size in sizes:
        count *= index(size)
    return count


class LegacyKernel(Kernel):
    """A kernel of the old namespace. ``kernel[4, 2](...)`` runs an instance for each place of a launch grid.

    The instances run one after the other on one core, as they do where the device has no more: they share the kernel's
    outputs, and each has its own ``nl.program_id``.
    """

    def __init__(self, function: Callable[..., Any], grid: Sequence[int] = ()) -> None:
        super().__init__(function)
        self.grid = tuple(grid)

    def __getitem__(self, grid: Any) -> LegacyKernel:  # a grid in place of a number of cores
        sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        counts = tuple(index(size) for size in sizes)
        if any(count < 1 for count in counts):
            raise KernelError(f"kernel {self.name}: a launch grid of {counts}; each size is at least 1")
        return LegacyKernel(self.function, counts)

    @property
    def brackets(self) -> str:
        """The launch grid: ``[4, 2]``; "" without one."""
        return f"[{', '.join(map(str, self.grid))}]" if self.grid else ""

    def on_cores(self, cores: int | None) -> LegacyKernel:
        return LegacyKernel(self.function, self.grid)

    def check_source(self, level: Level) -> None:
        """Do nothing: what today's compiler refuses is no rule of the old one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; inside another kernel, its instructions become that kernel's."""
        if is_tracing():
            if not is_active():
                raise KernelError(f"kernel {self.name} is of the old namespace; a kernel of `import nki` can't call it")
            if self.grid:
                raise KernelError(
                    f"kernel {self.name} is called with a launch grid, {self.grid}, inside another kernel",
                    hint="call it without one, in a loop; only the kernel that the host calls has a grid",
                )
            return self.function(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def run(self, arguments: inspect.BoundArguments) -> Any:
        """Trace the instances, one after the other."""
        tracer, shared = active_tracer(self.name), list[NkiTensor]()
        result: Any = None
        for place in product(*(range(size) for size in self.grid)):
            session = Session(tracer, place, self.grid, shared)
            session.automatic, session.stacked = (
                name in directives(self.function) for name in ("automatic", "stacked")
            )
            with activate(session):
                args = [_wrap(value) for value in arguments.args]
                result = self.function(*args, **{name: _wrap(value) for name, value in arguments.kwargs.items()})
                result = _unwrap(self.name, result)
            _require_all_trips(self.name, session)
        _require_written(tracer, result)
        return result


def _require_all_trips(kernel: str, session: Session) -> None:
    """KernelError if a loop that AWS's compiler traces once was left before its last trip."""
    if session.left is not None:
        raise KernelError(
            f"kernel {kernel} left a loop of nl.affine_range or nl.sequential_range before its last trip: AWS's "
            f"compiler runs the body's Python once, for all trips\n  at {session.left}",
            hint="choose the trips by the loop's bounds; nl.static_range is a loop of Python, which can be left",
        )


def _require_written(tracer: Tracer, result: Any) -> None:
    """KernelError for a new tensor that is returned, and that no instruction writes to."""
    program = tracer.program
    known = program.writers().keys() | {storage.index for storage in program.inputs} | program.initial.keys()
    for output in result if isinstance(result, tuple) else (result,):
        if isinstance(output, NkiTensor) and output.storage.index not in known:
            raise KernelError(
                f"kernel {program.kernel} returned {output.storage}, and nothing is written to it",
                hint="nl.store to it; a loop of no trips stores nothing, and neither does a mask that is false",
            )


def _wrap(value: Any) -> Any:
    """A tensor as a tile of the old namespace; those within tuples, lists and dictionaries, too."""
    if isinstance(value, NkiTensor):
        return Tile(value)
    if type(value) in (list, tuple):
        return type(value)(_wrap(item) for item in value)
    if type(value) is dict:
        return {key: _wrap(item) for key, item in value.items()}
    return value


def _unwrap(kernel: str, value: Any) -> Any:
    if isinstance(value, Tile):
        return value.window
    if isinstance(value, (list, tuple)):
        return tuple(_unwrap(kernel, item) for item in value)
    if isinstance(value, Blocks):
        raise KernelError(f"kernel {kernel} returned {value!r}; it must return tensors in HBM")
    return value


def jit(func: Any = None, mode: str = "auto", **options: Any) -> Any:
    """Make ``func`` a kernel. Every ``mode`` runs on the simulator; "benchmark" also predicts the latency."""
    if func is None:
        return functools.partial(jit, mode=mode, **options)
    if mode == "benchmark":
        return benchmark(func, **options)
    return func if isinstance(func, LegacyKernel) else LegacyKernel(hoist_returns(func))


def trace(func: Any = None, **_: Any) -> Any:
    """``nki.trace``, the older name of ``nki.jit``."""
    return jit(func)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel on numpy arrays in the simulator; arguments that it writes are updated."""
    made = kernel.kernel if isinstance(kernel, Launched) else jit(kernel)
    return Simulated(made, get_target(default_target()))(*args, **kwargs)


class Launched:
    """A kernel with the options of ``nki.baremetal``: called, it runs on the simulator."""

    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self.kernel: LegacyKernel = jit(kernel.kernel if isinstance(kernel, Launched) else kernel)
        self.options = options
        functools.update_wrapper(self, self.kernel.function)

    def __getitem__(self, grid: Any) -> Launched:
        return type(self)(self.kernel[grid], self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self.kernel(*args, **kwargs)
        simulated = Simulated(self.kernel, get_target(default_target()))
        result = simulated(*args, **kwargs)
        self.save(simulated.programs())
        return result

    def save(self, programs: Sequence[Program]) -> None:
        """Write the files of a compiled kernel and of its trace, as far as they were asked for."""
        from trnrt.nki.legacy.artefacts import write_artefacts

        if programs and (self.options.get("save_neff_name") or self.options.get("save_trace_name")):
            write_artefacts(programs, self.options)


@dataclass(frozen=True)
class Latency:
    """The latency of a kernel on one NeuronCore, as the timing model predicts it: one figure, in a range."""

    predicted: Range
    is_predicted: bool = True

    def get_latency_percentile(self, percentile: int) -> float:
        """The predicted latency in microseconds, the same for each percentile: the model knows no spread of runs."""
        if percentile not in PERCENTILES:
            raise ValueError(f"there is no percentile {percentile}; there are {', '.join(map(str, PERCENTILES))}")
        return self.predicted.us


@dataclass(frozen=True)
class BenchmarkResult:
    """``nc_latency``: of the kernel on the device."""

    nc_latency: Latency


class Benchmark(Launched):
    """A kernel with the options of ``nki.benchmark``: called, it predicts the latency in place of measuring it."""

    benchmark_result: BenchmarkResult

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        from trnrt.nki.machine.timing.prediction import predict_benchmark
        from trnrt.nki.sim.kernel import _interceptors

        if _interceptors:
            self.kernel(*args, **kwargs)  # `nki check` and `nki profile` see the call
        target = get_target(default_target())
        programs = Simulated(self.kernel, target).trace(*args, **kwargs)
        found = predict_benchmark(programs)
        self.benchmark_result = BenchmarkResult(Latency(found))
        shown = f"{found.us:,.2f} us ({found.least_us:,.2f} to {found.most_us:,.2f})"
        print(f"{self.kernel.name}: predicted latency on {target.name}: {shown}. Not measured: there is no device.")
        self.save(programs)


class Profiled(Launched):
    """A kernel with the options of ``nki.profile``: called, it writes trnrt's report beside the device's files."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        folder = self.options.get("working_directory")
        if not folder or not Path(folder).is_absolute():
            raise KernelError(f"nki.profile: working_directory={folder!r}; it must be an absolute path")
        Path(folder).mkdir(parents=True, exist_ok=True)
        if any(isinstance(value, Spec) for value in (*args, *kwargs.values())):
            self.save(Simulated(self.kernel, get_target(default_target())).trace(*args, **kwargs))
            return None
        return super().__call__(*args, **kwargs)


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """Run a kernel without a framework. ``save_neff_name`` and ``save_trace_name`` are files to write."""
    return functools.partial(baremetal, **options) if kernel is None else Launched(kernel, options)


def benchmark(kernel: Any = None, **options: Any) -> Any:
    """Predict a kernel's latency; ``.benchmark_result.nc_latency`` has it after a call, which returns None."""
    return functools.partial(benchmark, **options) if kernel is None else Benchmark(kernel, options)


def profile(func: Any = None, **options: Any) -> Any:
    """Run a kernel, and write its predicted profile to ``working_directory``."""
    names = {"save_neff_name": "file.neff", "save_trace_name": "profile.ntff"}
    return functools.partial(profile, **options) if func is None else Profiled(func, names | options)
