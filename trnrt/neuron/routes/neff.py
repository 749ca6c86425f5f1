"""The route for serving: a NEFF, compiled once, is run by AWS's nrtpy in a worker process of its own environment.

nrtpy and nki can't be installed in one environment (neuron-runtime/nrtpy/nrtpy-troubleshooting.rst), so the worker has
its own: TRNRT_NRTPY_PYTHON names its Python. That environment needs neither a compiler nor PyTorch, and trnrt's own
needs none of AWS's packages where a NEFF is only run. ``compiling`` makes NEFFs; ``trnrt/neuron/worker`` runs them.

A runtime keeps its cores until its process ends, so the models on a core share one worker.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from trnrt.backends import DeviceOptions
from trnrt.neuron.cores import lease_for_process
from trnrt.neuron.device import neuron_device
from trnrt.neuron.routes import Job, Program
from trnrt.neuron.routes.compiling import compile_to_neff

_WORKERS: dict[int, Any] = {}
_WORKERS_LOCK = threading.Lock()


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

    def load(self, job: Job, file: Path | None, core: int) -> Program:
        """Load the NEFF and the weights on a core, by its worker; one is started if the core has none."""
        assert file is not None
        raise NotImplementedError

    def find_neff(self, file: Path) -> Path | None:
        """The file itself."""
        return file
