"""Our `nki`: what AWS's package of that name offers to kernels, on the simulated NeuronCore."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnrt.nki.sim import compiler, isa, language
    from trnrt.nki.sim.kernel import Kernel, jit, simulate, trace

__all__ = ["Kernel", "compiler", "isa", "jit", "language", "simulate", "trace"]

_MODULES = ("compiler", "isa", "language")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.kernel"), name))
