"""A kernel module on trial: traced without a file, to check that its tiles fit, and to time it."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from types import ModuleType

from trnrt.nki import Spec, trace
from trnrt.nki.machine.program import Program
from trnrt.nki.seam import use_simulator
from trnrt.planner.plan import DeviceTensor


def trace_source(
    source: str, entry: str, inputs: Sequence[DeviceTensor], weights: Sequence[Spec], target: str
) -> Program:
    """The program of a module's function ``entry``. Raises what tracing raises."""
    path = f"<trial of {entry}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = ModuleType("trial")
    module.__file__ = path
    try:
        with use_simulator():  # beside AWS's nki, too
            exec(compile(source, path, "exec"), module.__dict__)
            specs = [Spec(tensor.shape, tensor.dtype) for tensor in inputs]
            return trace(getattr(module, entry), *specs, *weights, target=target)
    finally:
        linecache.cache.pop(path, None)
