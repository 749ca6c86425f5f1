"""The direct route: an ``nki.jit`` function, called on numpy arrays, compiles and runs without PyTorch.

nki/api/nki/__init__.py of SDK 2.32 and nki.jit's page of 2.33.1 document the call. In the code of nki 0.6 it compiles
at every call, and runs on core 0. So this route is for tests of kernels, for the self-test and for comparing numbers,
never for serving. A list as an argument means one value for each of several ranks there, so arguments are never lists.

Not checked, for want of a device: everything. By the pages, the compiler's program must be on PATH, and the runtime
comes with the wheel nki.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.backends import Array
from trnrt.backends.simulator import load_entry
from trnrt.errors import BackendError
from trnrt.neuron.failures import compile_error, is_compilers
from trnrt.neuron.routes import Job
from trnrt.neuron.routes.fileless import FilelessRoute


class JitRoute(FilelessRoute):
    """AWS's own call compiles, loads and runs."""

    name = "jit"
    when = "each call"

    def load(self, job: Job, file: Path | None, core: int) -> Direct:
        """Bind the kernel to its weights; AWS's package compiles it at the first run, and at each later one."""
        kernel = load_entry(job.plan, job.path, job.source, importable=True)
        launched = kernel if job.lnc == 1 else kernel[job.lnc]  # type: ignore[index]
        return Direct(launched, job)


class Direct:
    """A kernel that is called on arrays: its inputs, then its weights."""

    def __init__(self, kernel: Callable[..., Any], job: Job) -> None:
        self._kernel, self._job = kernel, job

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Compile and run it."""
        plan = self._job.plan
        try:
            return call_kernel(self._kernel, *inputs, *plan.weights.values())
        except Exception as error:
            if is_compilers(error):
                raise compile_error(plan.name, plan.target, "a folder that nki removed", error) from error
            raise

    def time_runs(self, count: int) -> list[float] | None:
        """Return None: each call holds a compilation."""
        return None

    def close(self) -> None:
        """Do nothing: AWS's package unloads it after each run."""


def call_kernel(kernel: Callable[..., Any], *arguments: Any) -> list[Array]:
    """Call a kernel on arrays and constants; its results as arrays.

    BackendError for a list among the arguments: AWS's package takes it for one value for each rank.
    """
    for k, argument in enumerate(arguments):
        if isinstance(argument, list):
            raise BackendError(f"argument {k} of the kernel is a list", hint="give a tuple: nki.jit shares lists out")
    results = kernel(*arguments)
    return [np.asarray(result) for result in (results if isinstance(results, tuple | list) else [results])]
