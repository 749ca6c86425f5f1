"""``nki.jit`` and ``nki.simulate``: from a Python function to a program, and from a program to numbers."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trnrt.nki.errors import KernelError, TrnrtError
from trnrt.nki.level import Level, choose_level, default_level
from trnrt.nki.machine.collecting import without_collection
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import MemoryRegion, Program
from trnrt.nki.machine.targets import DEFAULT_TARGET, Target, get_target
from trnrt.nki.machine.warning import warn_at
from trnrt.nki.sim.arguments import Given, Spec, cache_key, device_dtype, host_arguments, list_hint, map_tensors
from trnrt.nki.sim.compiler import CompileConfig, SpecializationConfig
from trnrt.nki.sim.launching import LNC_VARIABLE, check_cores, check_level, check_nested, check_options, degree_of_lnc
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import JitOptions, Tracer, activate, active_tracer, is_tracing, source_of, without_ours

if TYPE_CHECKING:
    from trnrt.nki.machine.cores import CoreGroup
    from trnrt.nki.machine.execute import Executor
    from trnrt.nki.sim.scheduling import Edge

__all__ = ["Kernel", "Simulated", "Spec", "intercept_calls", "jit", "simulate", "trace", "trace_cores"]

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
PRECISION_VARIABLE = "NKI_PRECISE_FP"

Interceptor = Callable[["Simulated", tuple[Any, ...], dict[str, Any]], Any]
# Run kernels in the place of the simulator: (kernel, args, kwargs) -> the caller's result.
# Global to the process, not to a context: a script may call its kernels from threads.
_interceptors: list[Interceptor] = []


class Kernel:
    """A function decorated with ``@nki.jit``.

    Called inside another kernel it is inlined; called with arrays it runs on the simulator, for the target in
    ``NEURON_PLATFORM_TARGET_OVERRIDE``, by default trn2. ``cores``: what the brackets say, None without them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cores: int | None = None,
        schedule: tuple[Edge, ...] = (),
        options: JitOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.cores = None if cores is None else check_cores(cores)
        self.schedule = schedule
        self.options = options or JitOptions()
        self._simulated: dict[tuple[str, bool, Level, str | None], Simulated] = {}

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def brackets(self) -> str:
        """The brackets of a call: ``[2]``; "" for one core."""
        return "" if self.cores in (None, 1) else f"[{self.cores}]"

    def run(self, arguments: inspect.BoundArguments) -> Any:
        """Call the function while it is traced, with tensors in the place of arrays."""
        __tracebackhide__ = True
        return self.function(*arguments.args, **arguments.kwargs)

    def check_source(self, level: Level) -> None:
        """Refuse Python that NKI's compiler refuses, anywhere in the kernel's file."""
        from trnrt.nki.sim.subset import check_file  # strict kernels only: it loads the tables of NKI's API

        check_file(self.function, level)

    def on_cores(self, cores: int | None) -> Kernel:
        """The kernel on so many physical cores; None leaves the number to the environment."""
        return Kernel(self.function, cores, self.schedule, self.options)

    def __getitem__(self, cores: int) -> Kernel:
        """The kernel on ``cores`` physical cores (1 or 2), each an instance with its own ``nl.program_id``."""
        return self.on_cores(cores)

    def with_schedule(self, schedule: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """The kernel with edges ``(later, earlier)`` or ``(later, [earlier, ...])`` between instructions, by ``name=``.

        They apply if the host calls the kernel, not if another kernel does.
        """
        from trnrt.nki.sim.scheduling import schedule_edges

        return Kernel(self.function, self.cores, schedule_edges(schedule), self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if is_tracing():
            check_nested(self.name, self.options, active_tracer("a kernel").options)
            return self.function(*args, **kwargs)
        target = get_target(default_target())
        key = target.name, _Limits.capacity, default_level(), os.environ.get(LNC_VARIABLE)
        if key not in self._simulated:
            self._simulated[key] = Simulated(self, target)
        return self._simulated[key](*args, **kwargs)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: CompileConfig | None = None,
    specialization_config: SpecializationConfig | None = None,
    **kwargs: Any,
) -> Any:
    """Make ``fn`` a kernel. Options of AWS's compiler are accepted, and ignored by the simulator.

    The two configurations are those of ``nki.compiler``, from NKI 0.7 on; level 0.6 refuses them.

    Raises:
        KernelError: if a configuration is of another type.
    """
    options = check_options(compile_config, specialization_config)
    if fn is None:
        return functools.partial(
            jit, compile_config=compile_config, specialization_config=specialization_config, **kwargs
        )
    if isinstance(fn, Kernel):
        return fn if options == JitOptions() else Kernel(fn.function, fn.cores, fn.schedule, options)
    return Kernel(fn, options=options)


def trace(
    kernel: Kernel | Callable[..., Any],
    *args: Any,
    target: str | None = None,
    strict: bool = False,
    capacity: bool | None = None,
    nki: Level | str | None = None,
    **kwargs: Any,
) -> Program:
    """The compiled program of ``kernel`` for these arguments (arrays or ``Spec`` for tensors), without any data.

    ``target``: by default the one in ``NEURON_PLATFORM_TARGET_OVERRIDE``, else trn2. ``strict``: also refuse what only
    works on simulators: Python that NKI's compiler refuses, anywhere in the kernel's file, and functions of `nl` that
    fail on hardware. ``capacity=False``: let tiles take more SBUF and PSUM than there is; ``Program.memory`` then says
    how much. ``nki``: the release of NKI, "0.6" or "0.7"; by default the level that holds. Warns (KernelWarning) of
    lines that the target may refuse. Raises KernelError if the kernel breaks a rule of the target, KernelMemoryError if
    its tiles do not fit.
    """
    made, limited = _as_kernel(kernel), _Limits.capacity if capacity is None else capacity
    function, given = made.function, host_arguments(made.function, args, kwargs)
    code, on, level = function.__code__, get_target(target or default_target()), choose_level(nki)
    check_level(made.name, made.options, level)
    options: dict[str, Any] = {"strict": strict, "capacity": limited, "level": level, "options": made.options}
    tracer = Tracer(function.__name__, on, code, **options)
    with without_collection():
        traced = _trace(made, _bind(function, given.args, given.kwargs), tracer)
        # The kernel of a model that computes nothing returns an empty tuple: its outputs are its inputs.
        if not traced.returns_tuple:
            _check_result([traced])
        (program,) = _finish_programs([traced], made.schedule, limited=limited)
    if strict:
        made.check_source(level)
    return _warn_doubts([program])[0]


def trace_cores(
    kernel: Kernel | Callable[..., Any],
    *args: Any,
    target: str,
    cores: int,
) -> list[Program]:
    """``trace`` for a kernel on ``cores`` physical cores: the program of each."""
    if cores == 1:
        return [trace(kernel, *args, target=target)]
    return _warn_doubts(Simulated(kernel, get_target(target), cores=cores).trace(*args))


def simulate(
    kernel: Kernel | Callable[..., Any],
    target: str | None = None,
    strict: bool = False,
    precise: bool | None = None,
    capacity: bool | None = None,
    nki: Level | str | None = None,
) -> Simulated:
    """The kernel as a function on numpy arrays, run on the simulated ``target``.

    ``strict``, ``capacity`` and ``nki`` are as in ``trace``. ``precise=False``, or ``NKI_PRECISE_FP=0`` in the
    environment, rounds nothing: remaining errors come from the algorithm, vanishing ones from narrow dtypes.
    """
    on = get_target(target or default_target())
    return Simulated(kernel, on, strict=strict, precise=precise, capacity=capacity, nki=nki)


class Simulated:
    """A kernel on a target. Called with numpy arrays or PyTorch tensors, it returns the same kind, and updates the
    arguments that the kernel writes. Programs are cached by the shapes of the arguments."""

    def __init__(
        self,
        kernel: Kernel | Callable[..., Any],
        target: Target,
        *,
        strict: bool = False,
        cores: int | None = None,
        precise: bool | None = None,
        capacity: bool | None = None,
        nki: Level | str | None = None,
    ) -> None:
        made = _as_kernel(kernel)
        self.level = choose_level(nki)
        check_level(made.name, made.options, self.level)
        self.target = target
        self.capacity = _Limits.capacity if capacity is None else capacity
        self.precise = os.environ.get(PRECISION_VARIABLE, "1") != "0" if precise is None else precise
        self.strict = strict
        asked = made.cores if cores is None else cores
        self.cores = check_cores(degree_of_lnc(made.name, asked, target, self.level), target)
        self.kernel = made.on_cores(self.cores)
        if strict:
            made.check_source(self.level)
        self._compiled: dict[Hashable, Executor | CoreGroup] = {}

    def __getitem__(self, cores: int) -> Simulated:
        """The kernel on ``cores`` physical cores."""
        options = {"strict": self.strict, "precise": self.precise, "capacity": self.capacity}
        return Simulated(self.kernel, self.target, cores=cores, nki=self.level, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = host_arguments(self.function, args, kwargs)
        if _interceptors:
            return given.call_result(_interceptors[-1](self, given.args, dict(given.kwargs)))
        return self.run(given)

    def run(self, given: Given) -> Any:
        """The result of a call, whoever intercepts calls."""
        __tracebackhide__ = True
        executor, arrays = self.prepare(given)
        targets = [
            given.target(executor.program.inputs[at].name, arrays[at], [*arrays[:at], *arrays[at + 1 :]])
            for at in executor.changes
        ]
        outputs = executor.run(arrays)
        for at, target in zip(executor.changes, targets, strict=True):
            target.fill(executor.argument(at))
        return given.call_result(executor.program.call_result(outputs))

    def prepare(self, given: Given) -> tuple[Executor | CoreGroup, list[Array]]:
        """The executor of a call, traced if its shapes are new, and its tensor arguments in the program's order."""
        __tracebackhide__ = True
        bound = _bind(self.function, given.args, given.kwargs)
        values: list[Any] = []
        _map_arguments(bound, lambda name, value: values.append(value))
        if any(isinstance(value, Spec) for value in values):
            raise KernelError(f"kernel {self.function.__name__}: a Spec has no data to run on; nki.trace takes it")
        arrays = [value for value in values if isinstance(value, np.ndarray)]
        return self._executor(bound, tuple(cache_key(value) for value in values), arrays), arrays

    @property
    def function(self) -> Callable[..., Any]:
        return self.kernel.function

    def programs(self) -> list[Program]:
        """The programs of the calls so far, on the first core."""
        return [executor.program for executor in self._compiled.values()]

    def trace(self, *args: Any, **kwargs: Any) -> list[Program]:
        """The program of each core for these arguments (arrays or ``Spec`` for tensors), without any data."""
        given = host_arguments(self.function, args, kwargs)
        return self._programs(
            _bind(self.function, given.args, given.kwargs), [self._tracer(c) for c in range(self.cores)]
        )

    def _tracer(self, core: int) -> Tracer:
        code, name = self.function.__code__, self.function.__name__
        options: dict[str, Any] = {"strict": self.strict, "capacity": self.capacity, "level": self.level}
        options["options"] = self.kernel.options
        return Tracer(name, self.target, code, core=core, cores=self.cores, **options)

    def _programs(self, bound: inspect.BoundArguments, tracers: Sequence[Tracer]) -> list[Program]:
        __tracebackhide__ = True
        with without_collection():
            traced = list(map(functools.partial(_trace, self.kernel, bound), tracers))
            _check_result(traced)
            return _finish_programs(traced, self.kernel.schedule, limited=self.capacity)

    def _executor(self, bound: inspect.BoundArguments, key: Hashable, arrays: Sequence[Array]) -> Executor | CoreGroup:
        __tracebackhide__ = True
        if key not in self._compiled:
            # What runs programs is imported with the first one: many kernels are only traced.
            from trnrt.nki.machine.cores import CoreGroup
            from trnrt.nki.machine.execute import Executor
            from trnrt.nki.sim.printing import printing, show

            tracers = [self._tracer(core) for core in range(self.cores)]
            try:
                with printing(arrays, precise=self.precise):
                    programs = _warn_doubts(self._programs(bound, tracers))
                alone = self.cores == 1
                self._compiled[key] = (
                    Executor(programs[0], precise=self.precise) if alone else CoreGroup(programs, precise=self.precise)
                )
            except BaseException:
                for tracer in tracers:
                    show(tracer.program)
                raise
        return self._compiled[key]


@contextmanager
def intercept_calls(interceptor: Interceptor) -> Iterator[None]:
    """Pass the host's calls of kernels to ``interceptor`` instead of running them."""
    _interceptors.append(interceptor)
    try:
        yield
    finally:
        _interceptors.remove(interceptor)


class _Limits:
    """The default for the capacity check, and the programs that exceed it. Global to the process."""

    capacity = True
    overflowed: ClassVar[list[Program]] = []


@contextmanager
def without_capacity() -> Iterator[list[Program]]:
    """Let kernels take more SBUF and PSUM than there is; yields the programs that do, as they are traced."""
    before, _Limits.capacity, _Limits.overflowed = _Limits.capacity, False, []
    try:
        yield _Limits.overflowed
    finally:
        _Limits.capacity = before


def tensor_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arrays and ``Spec`` among a call's arguments, in the order of ``Program.inputs``."""
    given, found = host_arguments(function, args, kwargs), list[Any]()
    _map_arguments(_bind(function, given.args, given.kwargs), lambda name, value: found.append(value))
    return [value for value in found if isinstance(value, (np.ndarray, Spec))]


def default_target() -> str:
    """The target in ``NEURON_PLATFORM_TARGET_OVERRIDE``, by default trn2."""
    return os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET


def _as_kernel(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """The kernel, or a plain function as one."""
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise KernelError(f"{function!r} is not a Python function; a kernel is one, decorated with @nki.jit")
    return kernel if isinstance(kernel, Kernel) else Kernel(function)


def _bind(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise KernelError(f"kernel {function.__name__}: {error}") from None
    bound.apply_defaults()
    return bound


def _trace(kernel: Kernel, bound: inspect.BoundArguments, tracer: Tracer) -> Program:
    """Run ``kernel``, with tensors in place of the arrays of ``bound``, which is not changed."""
    __tracebackhide__ = True
    arguments = _map_arguments(bound, lambda name, value: _tensor_argument(tracer, name, value))
    with activate(tracer):
        result = _run(kernel, arguments)
    if tracer.open_loops:
        place = tracer.loop_place()
        raise KernelError(
            f"kernel {kernel.name}: a device loop was begun and not ended; a break or return out of one is "
            f"decided on the device only: let its register become 0\n  at {place}"
        )
    program = tracer.program
    program.returns_tuple = isinstance(result, (tuple, list))
    program.outputs = list(_check_outputs(result, tracer))
    return program


def _check_result(programs: Sequence[Program]) -> None:
    """Refuse a kernel that neither returns a tensor nor writes to an argument."""
    if not any(program.outputs or program.changes() for program in programs):
        result = "an empty tuple" if programs[0].returns_tuple else "NoneType"
        raise KernelError(
            f"kernel {programs[0].kernel} returned {result}; it must return tensors",
            hint="a kernel that writes to one of its arguments may return nothing",
        )


def _finish_programs(programs: list[Program], schedule: tuple[Edge, ...], *, limited: bool) -> list[Program]:
    """Order the programs of a kernel's cores by its schedule, and give their tiles addresses."""
    from trnrt.nki.machine.memory import allocate  # it isn't needed to define a kernel

    if schedule:
        from trnrt.nki.sim.scheduling import apply, check_names

        check_names(programs, schedule)
        for program in programs:
            apply(program, schedule)
    for program in programs:
        program.memory = allocate(program, limited=limited)
    if not _Limits.capacity:
        _Limits.overflowed += [program for program in programs if program.memory and not program.memory.fits]
    return programs


def _warn_doubts(programs: list[Program]) -> list[Program]:
    """Warn of each line that the hardware may refuse; return the programs."""
    for doubt in {(doubt.source, doubt.rule.name): doubt for program in programs for doubt in program.doubts}.values():
        warn_at(doubt.source, str(doubt))
    return programs


def _map_arguments(bound: inspect.BoundArguments, function: Callable[[str, Any], Any]) -> inspect.BoundArguments:
    """``bound`` with every value replaced by ``function(name, value)``, those of ``*args`` and ``**kwargs`` too."""
    mapped = inspect.BoundArguments(bound.signature, bound.arguments.copy())
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            mapped.arguments[name] = tuple(map_tensors(function, f"{name}[{i}]", item) for i, item in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            mapped.arguments[name] = {key: map_tensors(function, key, item) for key, item in value.items()}
        else:
            mapped.arguments[name] = map_tensors(function, name, value)
    return mapped


def _tensor_argument(tracer: Tracer, name: str, value: Any) -> Any:
    """The tensor for an array or a Spec; anything else unchanged."""
    if not isinstance(value, (np.ndarray, Spec)):
        return value
    dtype = device_dtype(value.dtype, f"kernel {tracer.program.kernel}: argument {name!r}")
    if not value.shape or 0 in value.shape:
        raise KernelError(
            f"kernel {tracer.program.kernel}: argument {name!r} has shape {tuple(value.shape)}; "
            "a tensor has at least one dimension, and none of 0"
        )
    return tracer.argument(tuple(value.shape), dtype, name)


def _run(kernel: Kernel, bound: inspect.BoundArguments) -> Any:
    """Call the kernel. Any error becomes a KernelError that names the kernel's source line."""
    __tracebackhide__ = True  # pytest's tracebacks show the kernel, not what calls it
    try:
        return kernel.run(bound)
    except KernelError as error:
        source = error.source or source_of(error.__traceback__)
        error.hint = error.hint or list_hint(bound.arguments, str(error))
        error.args = (f"{error}\n  at {source}",)
        raise error.with_traceback(without_ours(error.__traceback__))  # noqa: B904 - it is the same error
    except TrnrtError:
        raise
    except Exception as error:
        from bdb import BdbQuit

        if isinstance(error, BdbQuit):  # the user left the debugger
            raise
        source = source_of(error.__traceback__)
        assert source is not None
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError):
            code = linecache.getline(source.file, source.line).strip()
            what = f"assertion failed: {error}" if str(error) else f"assertion failed: {code}"
        hint = list_hint(bound.arguments, what)
        raise KernelError(f"kernel {kernel.name}: {what}\n  at {source}", hint=hint) from error


def _check_outputs(result: Any, tracer: Tracer) -> Sequence[NkiTensor]:
    kernel, outputs = tracer.program.kernel, result if isinstance(result, (tuple, list)) else (result,)
    if result is None:
        return ()
    for output in outputs:
        if not isinstance(output, NkiTensor):
            raise KernelError(f"kernel {kernel} returned {type(output).__name__}; it must return tensors")
        if output.buffer is not MemoryRegion.shared_hbm:
            raise KernelError(
                f"kernel {kernel} returned {output.storage}, a tensor in {output.buffer.value}; "
                "return one in nl.shared_hbm"
            )
        output.check_bounds(f"kernel {kernel}", "its result")
    return outputs
