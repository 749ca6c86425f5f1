"""The route for serving: a NEFF, compiled once, is run by AWS's nrtpy in a worker process of its own environment.

nrtpy and nki can't be installed in one environment (neuron-runtime/nrtpy/nrtpy-troubleshooting.rst), so the worker has
its own: TRNRT_NRTPY_PYTHON names its Python. That environment needs neither a compiler nor PyTorch, and trnrt's own
needs none of AWS's packages where a NEFF is only run. ``compiling`` makes NEFFs; ``trnrt/neuron/worker`` runs them.

A runtime keeps its cores until its process ends, so the models on a core share one worker.
"""

from __future__ import annotations

import ast
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trnrt.backends import Array, DeviceOptions
from trnrt.errors import BackendError
from trnrt.neuron.cores import VISIBLE, lease_for_process, parse_cores
from trnrt.neuron.device import WORKER_VARIABLE, neuron_device
from trnrt.neuron.routes import Job
from trnrt.neuron.routes.compiling import compile_to_neff
from trnrt.neuron.worker.client import LoadedNeff, NeffWorker

WARM_UP = 5
"""Runs before those that are timed: nrtpy's own default."""
_STARTING = threading.Lock()
_workers: dict[tuple[int, int], NeffWorker] = {}  # by process and core: a fork can't use its parent's


class NeffRoute:
    """Compiles into a .neff file, without weights: they are arguments of the kernel, and are moved to the core once."""

    name = "neff"
    suffix = ".neff"
    has_weights = False
    is_portable = True
    most_cores: int | None = None

    def __init__(self, options: DeviceOptions) -> None:
        self._timeout_s = options.timeout_s

    def compile(self, job: Job, file: Path) -> None:
        """Call AWS's compiler in a process of its own, and keep the NEFF that it leaves.

        That process also runs the kernel if there is a device, so it needs a core: this process's.
        """
        if neuron_device() is not None:
            lease_for_process(1, job.lnc)
        shutil.copyfile(compile_to_neff(job, os.environ), file)

    def load(self, job: Job, file: Path | None, core: int) -> Loaded:
        """Load the NEFF and the weights on a core, by its worker; one is started if the core has none."""
        assert file is not None
        plan, names = job.plan, parameters_of(job.source, job.plan.entry)
        inputs = [replace(tensor, name=name) for name, tensor in zip(names, plan.inputs, strict=False)]
        weights = dict(zip(names[len(inputs) :], plan.weights.values(), strict=True))
        return Loaded(_worker_on(core).load(file, inputs, plan.results, weights), self._timeout_s)

    def find_neff(self, file: Path) -> Path | None:
        """The file itself."""
        return file


class Loaded:
    """A NEFF in a worker."""

    def __init__(self, neff: LoadedNeff, timeout_s: float) -> None:
        self._neff, self._timeout_s = neff, timeout_s

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it; a run that hangs ends the worker, which frees the core."""
        return self._neff.run(inputs, self._timeout_s)

    def time_runs(self, count: int) -> list[float] | None:
        """By nrtpy's mode "device": the core's execution time by its own trace (neuron-runtime/nrtpy/model.rst).

        BackendError if the runs have other numbers of events than one: their times are no runs' times
        (nrtpy-troubleshooting.rst has such NEFFs, of several subgraphs).
        """
        found = self._neff.benchmark(warmup=WARM_UP, iterations=count, mode="device")
        if len(found.durations_ms) != count:
            raise BackendError(
                f"{self._neff.name}: {len(found.durations_ms)} events in {count} runs: no run's time is known",
                hint="time it by the host's clock",
            )
        return [duration * 1000 for duration in found.durations_ms]

    def close(self) -> None:
        """Unload it. The worker goes on with its other models."""
        self._neff.close()


def parameters_of(source: bytes, entry: str) -> list[str]:
    """The names of the parameters of a module's kernel, which are those of the NEFF's inputs."""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    (found,) = (node for node in functions if node.name == entry)
    return [argument.arg for argument in found.args.args]


def _worker_on(core: int) -> NeffWorker:
    """The worker on a core of this process, started if need be."""
    python = os.environ.get(WORKER_VARIABLE)
    if not python:
        raise BackendError(f"{WORKER_VARIABLE} is not set", hint="trnrt doctor shows how to make its environment")
    with _STARTING:
        worker = _workers.get((os.getpid(), core))
        if worker is None or not worker.is_alive:
            number = parse_cores(os.environ[VISIBLE])[core]
            worker = _workers[os.getpid(), core] = NeffWorker(Path(python), number)
        return worker
