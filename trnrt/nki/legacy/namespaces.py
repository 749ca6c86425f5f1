"""The modules of the old namespace by name, for ``install``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from trnrt.nki.legacy import annotating, compiler, isa, language, launching
from trnrt.nki.legacy.indexing import Index
from trnrt.nki.legacy.tiles import Tile
from trnrt.nki.machine.dtypes import as_dtype

__all__ = ["CONTENTS", "add_log_level", "remove_log_level"]

LOG_LEVEL = "OFF"
"""AWS's package adds this level to Python's logging, above all others: ``logging.disable(logging.OFF)``."""


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "annotations"}


def _root() -> dict[str, Any]:
    names = ("baremetal", "benchmark", "jit", "profile", "simulate_kernel", "trace")
    return {name: getattr(launching, name) for name in names} | {"tensor": annotating.tensor}


def _enumerations() -> dict[str, Any]:
    return {name: value for name, value in _public(isa).items() if isinstance(value, type)}


def sizeinbytes(dtype: Any) -> int:
    """The bytes of one number."""
    return as_dtype(dtype).itemsize


CONTENTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "neuronxcc": dict,
    "neuronxcc.nki": _root,
    "neuronxcc.nki.language": lambda: _public(language),
    "neuronxcc.nki.language.constants": lambda: {"sizeinbytes": sizeinbytes},
    "neuronxcc.nki.isa": lambda: _public(isa),
    "neuronxcc.nki.isa.constants": _enumerations,
    "neuronxcc.nki.compiler": lambda: _public(compiler),
    "neuronxcc.nki.compiler.backends": dict,
    "neuronxcc.nki.compiler.backends.neuron": dict,
    "neuronxcc.nki.compiler.backends.neuron.indexing": lambda: {"TileIndex": Index},
    "neuronxcc.nki.compiler.backends.neuron.tensor": lambda: {"local_tile": Tile},
    "neuronxcc.nki.typing": lambda: _public(annotating),
}
"""The contents of each module. Those of the compiler's backends are for annotations in AWS's own kernels."""


def add_log_level() -> None:
    """Add ``logging.OFF``."""
    setattr(logging, LOG_LEVEL, logging.CRITICAL + 10)


def remove_log_level() -> None:
    """Remove ``logging.OFF``."""
    if hasattr(logging, LOG_LEVEL):
        delattr(logging, LOG_LEVEL)
