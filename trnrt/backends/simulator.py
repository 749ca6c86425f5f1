"""The simulator as a backend: the kernel module is traced for the plan's target once, then replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from trnrt.backends import Array
from trnrt.errors import KernelError
from trnrt.nki import Spec
from trnrt.nki.machine.cores import CoreGroup
from trnrt.nki.machine.execute import Executor
from trnrt.nki.machine.program import Program
from trnrt.nki.seam import use_simulator
from trnrt.nki.sim.kernel import trace_cores
from trnrt.planner.plan import Plan


def load_entry(plan: Plan, path: Path, source: bytes, *, importable: bool = False) -> Callable[..., Any]:
    """The kernel function of a module, compiled from the checked bytes.

    ``importable``: add the module to ``sys.modules``, for a compiler that looks functions up there.
    """
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), module.__dict__)
    entry = getattr(module, plan.entry, None)
    if not callable(entry):
        raise KernelError(f"{path} has no kernel {plan.entry!r}")
    if importable:
        sys.modules[path.stem] = module
    function: Callable[..., Any] = entry
    return function


def trace_plan(plan: Plan, path: Path, source: bytes) -> list[Program]:
    """The program of each core of a plan's kernel module, for the plan's shapes and target; reads no array."""
    specs = [Spec(tensor.shape, tensor.dtype) for tensor in plan.inputs]
    specs += [Spec(weight.shape, weight.dtype) for weight in plan.weights.values()]
    with use_simulator():
        entry = load_entry(plan, path, source)
    return trace_cores(entry, *specs, target=plan.target, cores=plan.cores)


class SimulatedKernel:
    """A traced and bound kernel, with the program of each core; weights stay loaded between runs.

    Several threads may call ``run``: one runs at a time, since all runs of a kernel use the same simulated memory.
    """

    def __init__(self, programs: Sequence[Program], plan: Plan) -> None:
        self.programs, self._lock = programs, Lock()
        given = dict(enumerate(plan.weights.values(), start=len(plan.inputs)))
        alone = len(programs) == 1
        self._executor = Executor(programs[0], given=given) if alone else CoreGroup(programs, given=given)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Replay the programs on new inputs."""
        with self._lock:
            return self._executor.run(inputs)

    def close(self) -> None:
        """Do nothing: a simulated kernel holds no device."""


class SimulatorBackend:
    """Runs kernel modules on the simulated NeuronCore."""

    name = "simulator"
    parallel = 1

    def load(self, plan: Plan, path: Path, source: bytes) -> SimulatedKernel:
        """Trace the module for the plan's shapes and target."""
        return SimulatedKernel(trace_plan(plan, path, source), plan)
