"""TorchNeuron (torch-neuronx of PyTorch 2.13 and 2.14, SDK 2.33): a kernel is called on tensors of the device "neuron".

Written to torch/guides/how-to-work-with-nki.rst and torch/get-started/quickstart-nki-kernel.rst of SDK 2.33, as far as
the stored copies of them go. By these, the first call with some shapes compiles, and later ones reuse that; where
TorchNeuron keeps it, and for how long, is its own affair.

Not checked, for want of a device and of the package: everything. No page that we have says how a process uses a second
core, so a process has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trnrt.backends import Array
from trnrt.backends.simulator import load_entry
from trnrt.neuron.failures import compile_error, is_compilers
from trnrt.neuron.routes import Job
from trnrt.neuron.routes.fileless import FilelessRoute
from trnrt.neuron.routes.tensors import as_array, as_tensor, import_torch

DEVICE = "neuron"


class TorchNeuronRoute(FilelessRoute):
    """TorchNeuron has a cache of its own."""

    name = "torchneuron"
    when = "the first call"

    def load(self, job: Job, file: Path | None, core: int) -> OnDevice:
        """Move the weights to the device, once."""
        torch, _ = import_torch()
        kernel = load_entry(job.plan, job.path, job.source, importable=True)
        launched = kernel if job.lnc == 1 else kernel[job.lnc]  # type: ignore[index]
        weights = [as_tensor(torch, weight).to(DEVICE) for weight in job.plan.weights.values()]
        return OnDevice(torch, launched, weights, job)


class OnDevice:
    """A kernel whose weights are tensors of the device."""

    def __init__(self, torch: Any, kernel: Callable[..., Any], weights: list[Any], job: Job) -> None:
        self._torch, self._kernel, self._weights, self._job = torch, kernel, weights, job

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Move the inputs to the device, call the kernel, and bring the results back."""
        plan, torch = self._job.plan, self._torch
        moved = [as_tensor(torch, array).to(DEVICE) for array in inputs]
        try:
            results = self._kernel(*moved, *self._weights)
        except Exception as error:
            if is_compilers(error):
                raise compile_error(plan.name, plan.target, "TORCH_NEURONX_DEBUG_DIR", error) from error
            raise
        results = results if isinstance(results, tuple | list) else [results]
        return [as_array(torch, result.to("cpu")) for result in results]

    def time_runs(self, count: int) -> list[float] | None:
        """Return None: no page that we have names a clock of the device."""
        return None

    def close(self) -> None:
        """Drop the weights, which frees their memory on the device."""
        self._weights = []
