"""What runs a kernel module: one small protocol, and the choice of who implements it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from trnrt.errors import BackendError, OptionError
from trnrt.neuron.device import device_target, neuron_device

if TYPE_CHECKING:
    from trnrt.planner.plan import Plan

__all__ = [
    "BACKENDS",
    "Array",
    "Backend",
    "Choice",
    "DeviceOptions",
    "LoadedKernel",
    "choose",
    "device_target",
    "neuron_device",
]

Array = NDArray[Any]
BACKENDS = ("auto", "simulator", "neuron")


@dataclass(frozen=True)
class DeviceOptions:
    """What a session asks of NeuronCores; it means nothing to the simulator.

    ``lnc``: physical cores in a logical one; by default what NEURON_LOGICAL_NC_CONFIG says, else 1. ``cores``: on so
    many the model is loaded, and the slices of a batch run on them at the same time. ``compiled``: a directory that
    ``trnrt compile --backend neuron`` wrote; nothing else is run then. ``timeout_s``: a run that takes longer has hung.
    ``compile_only``: nothing is run, so no device is needed, and it may be another target's. ``debug_info``: what is
    compiled keeps the lines of its source, for a device profile; that takes the compiler more time and memory.
    """

    lnc: int | None = None
    cores: int = 1
    compiled: Path | None = None
    timeout_s: float = 30.0
    compile_only: bool = False
    debug_info: bool = False


class LoadedKernel(Protocol):
    """A compiled kernel with its weights in place."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs in the plan's order and dtypes -> results in the plan's order."""
        ...

    def close(self) -> None:
        """Give back what it holds; it does not run again."""
        ...


class Backend(Protocol):
    """A place where kernel modules run. ``parallel``: so many runs at the same time are faster than one after another.

    Where that is more than 1, loaded kernels may be run from several threads.
    """

    name: str
    parallel: int

    def load(self, plan: Plan, path: Path, source: bytes) -> LoadedKernel:
        """Compile the kernel module ``source``, which stands in the file ``path``, and give it the plan's weights."""
        ...


@dataclass(frozen=True)
class Choice:
    """The backend that was chosen and, in one line, why."""

    backend: Backend
    reason: str


def choose(
    name: str,
    target: str | os.PathLike[str] | None = None,
    options: DeviceOptions | None = None,
    folder: Path | None = None,
) -> Choice:
    """The backend called ``name``; ``auto`` takes the NeuronCore where there is one, the simulator otherwise.

    ``target``: what was asked for. ``folder``: where compiled models are kept; without, they are not. Raises
    BackendError where ``neuron`` was asked for and can't run: never a silent simulation.
    """
    from trnrt.backends.simulator import SimulatorBackend

    if name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}", hint=f"backends are {', '.join(BACKENDS)}")
    if name == "simulator":
        return Choice(SimulatorBackend(), "asked for")
    options = options or DeviceOptions()
    device = neuron_device()
    if name == "auto" and device is None:
        return Choice(SimulatorBackend(), "no NeuronCore on this machine")
    from trnrt.neuron.requirements import Asked, findings
    from trnrt.nki.machine.targets import get_target

    asked = None if target is None else get_target(target).name
    found = findings(Asked(asked, options.lnc, not options.compile_only))
    if found and name == "auto":
        return Choice(SimulatorBackend(), f"{device} is here, but {found[0].told}")
    if found:
        does = "compile" if options.compile_only else "run"
        told = "; ".join(finding.told for finding in found)
        remedies = "; ".join(dict.fromkeys(finding.mend for finding in found))
        raise BackendError(f"the neuron backend can't {does}: {told}", hint=remedies)
    from trnrt.neuron.backend import NeuronBackend

    return Choice(NeuronBackend(options, folder), "asked for" if name == "neuron" else f"{device} is here")
