"""``nki.jit`` and ``nki.simulate``: from a Python function to a program, and from a program to numbers."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnrt.errors import KernelError
from trnrt.nki.machine.dtypes import Array, DType, as_dtype
from trnrt.nki.machine.execute import Executor
from trnrt.nki.machine.memory import allocate
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import DEFAULT_TARGET, Target, get_target
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import Tracer, activated, is_tracing

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


class Spec:
    """A tensor argument without data: ``Spec((128, 512), "float32")``."""

    def __init__(self, shape: Sequence[int], dtype: object) -> None:
        self.shape = tuple(shape)
        self.dtype: DType = as_dtype(dtype)

    def __repr__(self) -> str:
        return f"Spec({self.shape}, {self.dtype})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


class Kernel:
    """A function decorated with ``@nki.jit``.

    Called inside another kernel it is inlined; called with arrays it runs on the simulator, on the target that
    ``NEURON_PLATFORM_TARGET_OVERRIDE`` names, else trn2.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._simulated: dict[str, Simulated] = {}

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self.function(*args, **kwargs)
        target = os.environ.get(TARGET_VARIABLE, DEFAULT_TARGET)
        if target not in self._simulated:
            self._simulated[target] = Simulated(self, get_target(target))
        return self._simulated[target](*args, **kwargs)


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Make ``fn`` a kernel. Options of AWS's compiler are accepted and mean nothing to the simulator."""
    return Kernel(fn) if fn is not None else functools.partial(jit, **kwargs)


def trace(kernel: Kernel | Callable[..., Any], *args: Any, target: str = DEFAULT_TARGET, **kwargs: Any) -> Program:
    """The compiled program of ``kernel`` for these arguments (arrays or ``Spec`` for tensors), without any data.

    Raises KernelError where the kernel breaks a rule of ``target``, KernelMemoryError where its tiles do not fit.
    """
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    tracer = Tracer(function.__name__, get_target(target), function.__code__)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    for name, value in bound.arguments.items():
        if isinstance(value, (np.ndarray, Spec)):
            tracer.program.returns_tuple = False
            bound.arguments[name] = tracer.argument(tuple(value.shape), as_dtype(value.dtype), name)
    with activated(tracer):
        result = function(*bound.args, **bound.kwargs)
    program = tracer.program
    program.returns_tuple = isinstance(result, (tuple, list))
    program.outputs = list(_returned(result, function.__name__))
    allocate(program)
    return program


def _returned(result: Any, kernel: str) -> Sequence[NkiTensor]:
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    for output in outputs:
        if not isinstance(output, NkiTensor):
            raise KernelError(f"kernel {kernel} returned {type(output).__name__}; it must return tensors")
        if output.on_chip:
            raise KernelError(
                f"kernel {kernel} returned a tensor in {output.buffer.value}; return one in nl.shared_hbm"
            )
    return outputs


class Simulated:
    """A kernel on a target: called with numpy arrays it returns numpy arrays; keeps what it compiled for each shape."""

    def __init__(self, kernel: Kernel | Callable[..., Any], target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self._compiled: dict[Any, Executor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = self.kernel.function if isinstance(self.kernel, Kernel) else self.kernel
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        values = list(bound.arguments.values())
        executor = self._executor(values)
        outputs = executor.run([np.asarray(v) for v in values if isinstance(v, np.ndarray)])
        return tuple(outputs) if executor.program.returns_tuple else outputs[0]

    def _executor(self, values: list[Any]) -> Executor:
        key = tuple((v.shape, v.dtype.name) if isinstance(v, np.ndarray) else repr(v) for v in values)
        if key not in self._compiled:
            function = self.kernel.function if isinstance(self.kernel, Kernel) else self.kernel
            self._compiled[key] = Executor(trace(function, *values, target=self.target.name))
        return self._compiled[key]


def simulate(kernel: Kernel | Callable[..., Any], target: str = DEFAULT_TARGET) -> Simulated:
    """The kernel as a function on numpy arrays, run on the simulated ``target``."""
    return Simulated(kernel, get_target(target))


__all__ = ["Array", "Kernel", "Simulated", "Spec", "jit", "simulate", "trace"]
