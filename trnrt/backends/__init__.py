"""What runs a kernel module: one small protocol, and the choice of who implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from trnrt.errors import BackendError, OptionError

if TYPE_CHECKING:
    from trnrt.planner.plan import Plan

Array = NDArray[Any]
BACKENDS = ("auto", "simulator", "neuron")

_PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")
# EC2 instance family -> target.
_FAMILIES = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2", "trn3": "trn3"}


class LoadedKernel(Protocol):
    """A compiled kernel with its weights in place."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs in the plan's order and dtypes -> results in the plan's order."""
        ...


class Backend(Protocol):
    """A place where kernel modules run."""

    name: str

    def load(self, plan: Plan, path: Path, source: bytes) -> LoadedKernel:
        """Compile the kernel module ``source``, which stands in the file ``path``, and give it the plan's weights."""
        ...


@dataclass(frozen=True)
class Choice:
    """The backend that was chosen and, in one line, why."""

    backend: Backend
    reason: str


def choose(name: str) -> Choice:
    """The backend called ``name``; ``auto`` takes the NeuronCore where there is one, the simulator otherwise.

    Raises BackendError where ``neuron`` was asked for and can't run: never a silent simulation.
    """
    from trnrt.backends.simulator import SimulatorBackend

    if name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}", hint=f"backends are {', '.join(BACKENDS)}")
    device = neuron_device()
    if name == "neuron":
        missing = (
            "there is no /dev/neuron* on this machine" if device is None else "this version of trnrt can't drive it"
        )
        raise BackendError(f"the neuron backend can't run: {missing}", hint="use --backend simulator, on any machine")
    reason = "asked for" if name == "simulator" else "no NeuronCore on this machine"
    if name == "auto" and device is not None:
        reason = f"{device} is here, but this version of trnrt has no neuron backend yet"
    return Choice(SimulatorBackend(), reason)


def neuron_device() -> Path | None:
    """The first Neuron device file of this machine, or None."""
    return next(iter(sorted(Path("/dev").glob("neuron[0-9]*"))), None)


def device_target() -> str | None:
    """The target that this machine's device is, or None where there is no device or its kind can't be told.

    EC2 gives the instance type ("trn2.48xlarge") as the product name.
    """
    if neuron_device() is None:
        return None
    try:
        family = _PRODUCT_NAME.read_text(encoding="ascii").split(".")[0].strip()
    except (OSError, ValueError):
        return None
    return next((target for prefix, target in _FAMILIES.items() if family.startswith(prefix)), None)
