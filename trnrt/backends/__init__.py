"""Backends run kernel modules: one small protocol."""

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
    """A session's options for NeuronCores; the simulator uses ``lnc`` alone.

    ``lnc``: physical cores per logical core; by default NEURON_LOGICAL_NC_CONFIG, else 1. ``cores``: load the model on
    this many; slices of a batch run on them in parallel. ``compiled``: a directory of ``trnrt compile --backend
    neuron``; only its programs run then. ``timeout_s``: a longer run counts as hung. ``compile_only``: nothing runs, so
    no device is needed, and the target may differ from this machine's. ``debug_info``: keep source lines in compiled
    programs, for device profiles; compiling then takes more time and memory. ``route``: how AWS's packages are called
    (docs/device.md); by default TRNRT_ROUTE, else the first whose packages are installed. ``allow_unsupported``: run on
    devices that NKI does not support; also by TRNRT_ALLOW_UNSUPPORTED_DEVICE=1. ``first_core``: load on ``cores`` from
    this one on, counted from 0 among the process's; by default on those with the fewest programs.
    """

    lnc: int | None = None
    cores: int = 1
    compiled: Path | None = None
    timeout_s: float = 30.0
    compile_only: bool = False
    debug_info: bool = False
    route: str | None = None
    allow_unsupported: bool = False
    first_core: int | None = None


class LoadedKernel(Protocol):
    """A compiled kernel with its weights in place."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs in the plan's order and dtypes -> results in the plan's order."""
        ...

    def close(self) -> None:
        """Release its resources; it does not run again."""
        ...


class Backend(Protocol):
    """Runs kernel modules. ``parallel``: the number of runs to start in parallel.

    If it is above 1, loaded kernels may run in several threads.
    """

    name: str
    parallel: int

    def load(self, plan: Plan, path: Path, source: bytes) -> LoadedKernel:
        """Compile the kernel module ``source`` of the file ``path``, and load the plan's weights."""
        ...
