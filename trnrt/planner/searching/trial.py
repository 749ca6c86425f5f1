"""A kernel module on trial: traced without a file, to check that its tiles fit, and to time it."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from trnrt.nki import Spec
from trnrt.nki.machine.program import Program
from trnrt.nki.seam import use_simulator
from trnrt.nki.sim.kernel import trace_cores
from trnrt.planner.plan import DeviceTensor, Plan


def trace_source(
    source: str, entry: str, inputs: Sequence[DeviceTensor], weights: Sequence[Spec], target: str
) -> Program:
    """The program of a module's function ``entry`` for one core. Raises what tracing raises."""
    return trace_source_cores(source, entry, inputs, weights, target, 1)[0]


def trace_source_cores(
    source: str, entry: str, inputs: Sequence[DeviceTensor], weights: Sequence[Spec], target: str, cores: int
) -> list[Program]:
    """The program of each core of a module's function ``entry``. Raises what tracing raises."""
    with _load_entry(source, entry) as kernel:
        return trace_cores(kernel, *_specs(inputs), *weights, target=target, cores=cores)


def trace_cores_of(plan: Plan) -> list[Program]:
    """The program of each core of a plan. Raises what tracing raises."""
    weights = [Spec(weight.shape, weight.dtype) for weight in plan.weights.values()]
    return trace_source_cores(plan.source, plan.entry, plan.inputs, weights, plan.target, plan.cores)


def _specs(tensors: Sequence[DeviceTensor]) -> list[Spec]:
    return [Spec(tensor.shape, tensor.dtype) for tensor in tensors]


@contextmanager
def _load_entry(source: str, entry: str) -> Iterator[Callable[..., Any]]:
    """A module's function ``entry``; its lines can be found while it is used."""
    path = f"<trial of {entry}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType("trial")
    module.__file__ = path
    try:
        with use_simulator():  # beside AWS's nki, too
            exec(compile(source, path, "exec"), module.__dict__)
            yield getattr(module, entry)
    finally:
        linecache.cache.pop(path, None)
