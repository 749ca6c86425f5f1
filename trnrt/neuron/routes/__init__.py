"""Routes to a NeuronCore: ways to compile a kernel module with AWS's compiler and to run it with AWS's runtime.

A route compiles a ``Job``, and loads it on a core. ``NeuronBackend`` knows no more of a route than ``Route``. Which
packages a route needs, and the page that says so, is data: ``trnrt/neuron/releases.json``. ``choosing`` chooses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trnrt.backends import Array
from trnrt.planner.plan import Plan

ROUTES = ("neff", "trace", "torchneuron", "jit")
"""The routes' names, the preferred one first."""


@dataclass(frozen=True)
class Job:
    """A kernel module to compile. ``path``: its file, with ``source`` as its content; ``on_device``: this machine has a
    device of the plan's target; ``work``: a folder for the compiler's own files."""

    plan: Plan
    path: Path
    source: bytes
    lnc: int
    on_device: bool
    work: Path


class Program(Protocol):
    """A kernel on a core, its weights included. Only one thread uses it."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Inputs in the plan's order and dtypes -> results in the plan's order."""
        ...

    def time_runs(self, count: int) -> list[float] | None:
        """The microseconds of runs on the inputs of the last ``run``, by the device's own clock; None if the route has
        no such clock. BackendError if it can't time this program."""
        ...

    def close(self) -> None:
        """Unload it. Called once, also after errors."""
        ...


class Route(Protocol):
    """``suffix``: of the file that ``compile`` writes, "" if the route keeps none. ``has_weights``: the file holds the
    weights. ``is_portable``: the file also runs where the packages that compiled it are missing. ``most_cores``: cores
    that a process can use by this route, None for any number."""

    name: str
    suffix: str
    has_weights: bool
    is_portable: bool
    most_cores: int | None

    def compile(self, job: Job, file: Path) -> None:
        """Write the compiled kernel to ``file``. KernelError if AWS's compiler refuses it."""
        ...

    def load(self, job: Job, file: Path | None, core: int) -> Program:
        """Load ``file`` (None if the route keeps none) on a core, in the numbers of this process."""
        ...

    def find_neff(self, file: Path) -> Path | None:
        """The NEFF of a compiled kernel, for AWS's profiler; None if there is none or several."""
        ...
