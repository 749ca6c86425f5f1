"""The route of SDK 2.31 and 2.32: torch_neuronx.trace (PyTorch/XLA) compiles the kernel into a TorchScript module.

Written to frameworks/torch/torch-neuronx/api-reference-guide/inference of the documentation of SDK 2.32 (torch-neuronx
2.9 of 2.31, its last with PyTorch/XLA), and tested against a fake that is generated from it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.backends import Array
from trnrt.backends.simulator import load_entry
from trnrt.neuron.failures import compile_error
from trnrt.neuron.routes import Job
from trnrt.neuron.routes.tensors import as_array, as_tensor, import_torch
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import get_target

_PLACING = threading.Lock()  # torch_neuronx.neuron_cores_context documents that it is for one thread at a time


class TraceRoute:
    """Compiles into a .pt file: the kernel (NEFF), and the weights beside it, not in it."""

    name = "trace"
    suffix = ".pt"
    has_weights = True
    is_portable = False
    most_cores: int | None = None

    def compile(self, job: Job, file: Path) -> None:
        """Trace the module, and save it with its weights."""
        torch, torch_neuronx = import_torch()
        kernel = load_entry(job.plan, job.path, job.source, importable=True)
        launched = kernel if job.lnc == 1 else kernel[job.lnc]  # type: ignore[index]
        module = _as_module(torch, launched, list(job.plan.weights.values()))
        examples = tuple(
            as_tensor(torch, np.zeros(tensor.shape, as_dtype(tensor.dtype).numpy)) for tensor in job.plan.inputs
        )
        # The compiler has this flag only for targets with logical cores of several physical ones.
        arguments = ["--lnc", str(job.lnc)] if get_target(job.plan.target).device.most_lnc > 1 else []
        # If the device is of another target or unknown, the compiler must be told the target.
        if not job.on_device:
            arguments += ["--target", job.plan.target]
        job.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            traced = torch_neuronx.trace(
                module,
                examples,
                compiler_workdir=str(job.work),
                compiler_args=arguments,
                inline_weights_to_neff=False,
                cpu_backend=not job.on_device,
            )
        except Exception as error:
            raise compile_error(job.plan.name, job.plan.target, str(job.work), error) from error
        torch.jit.save(traced, str(file))

    def load(self, job: Job, file: Path | None, core: int) -> Traced:
        """Load the module on a core, and move its weights there once, not with each run."""
        torch, torch_neuronx = import_torch()
        with _PLACING, torch_neuronx.neuron_cores_context(start_nc=core, nc_count=1):
            module = torch.jit.load(str(file))
        torch_neuronx.move_trace_to_device(module, core)
        return Traced(module)

    def find_neff(self, file: Path) -> Path | None:
        """It is graph.neff (nki/guides/use-neuron-profile.rst), or has a hash in its name (neuron-runtime/nrtpy/
        nrtpy-troubleshooting.rst)."""
        work = file.with_name(f"{file.stem}_neuronx-cc")
        found = [*work.glob("graph.neff")] or [*work.rglob("*.neff")]
        return found[0] if len(found) == 1 else None


class Traced:
    """A traced module on a core: dropping its last reference unloads it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run it on tensors of the CPU, as its page says."""
        torch, _ = import_torch()
        results = self._module(*(as_tensor(torch, array) for array in inputs))
        return [as_array(torch, result) for result in (results if isinstance(results, tuple | list) else [results])]

    def time_runs(self, count: int) -> list[float] | None:
        """Return None: a traced module has no clock of the device."""
        return None

    def close(self) -> None:
        """Drop the module."""
        self._module = None


def _as_module(torch: Any, kernel: Callable[..., Any], weights: Sequence[Array]) -> Any:
    """The kernel as a torch module, whose parameters are the weights."""

    class Kernel(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for k, weight in enumerate(weights):
                # No requires_grad: integers have no gradient, and nothing is trained.
                parameter = torch.nn.Parameter(as_tensor(torch, weight), requires_grad=False)
                self.register_parameter(f"weight_{k}", parameter)

        def forward(self, *inputs: Any) -> Any:
            return kernel(*inputs, *(getattr(self, f"weight_{k}") for k in range(len(weights))))

    return Kernel().eval()
