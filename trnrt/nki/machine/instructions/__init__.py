"""The instructions of the NeuronCore, one file a family. ``OPERATIONS`` maps a name to its declaration.

A new family is a new file here: every module of this folder is read.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from trnrt.nki.machine.program import Operation

_FAMILIES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for family in _FAMILIES
    for operation in vars(family).values()
    if isinstance(operation, Operation)
}
