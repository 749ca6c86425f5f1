"""What runs a kernel module: one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from trnrt.planner.plan import Plan

Array = NDArray[Any]


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
