"""The instructions of `nisa`, each declared once, in its family's file: signature, operands, rules, meaning, cycles.

``trnrt.nki.sim.isa`` offers the ``__all__`` of the families; ``OPERATIONS`` maps a name to its record, of every family.
Code shared by several families (a rule, a formula of cycles, a way to spread) is in ``trnrt/nki/machine``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnrt.nki.sim.declaring import OPERATIONS as OPERATIONS


def __getattr__(name: str) -> Any:
    if name != "OPERATIONS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for family in iter_modules(__path__):
        import_module(f"{__name__}.{family.name}")
    return import_module("trnrt.nki.sim.declaring").OPERATIONS
