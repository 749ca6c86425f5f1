"""The modules of the old namespace by name, for ``install``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from trnrt.nki.legacy import compiler, isa, language, launching

__all__ = ["CONTENTS", "add_log_level", "remove_log_level"]

LOG_LEVEL = "OFF"
"""AWS's package adds this level to Python's logging, above all others: ``logging.disable(logging.OFF)``."""


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "annotations"}


def _root() -> dict[str, Any]:
    names = ("baremetal", "benchmark", "jit", "profile", "simulate_kernel", "trace")
    return {name: getattr(launching, name) for name in names}


CONTENTS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "neuronxcc": dict,
    "neuronxcc.nki": _root,
    "neuronxcc.nki.language": lambda: _public(language),
    "neuronxcc.nki.isa": lambda: _public(isa),
    "neuronxcc.nki.compiler": lambda: _public(compiler),
}
"""The contents of each module; that of annotations, ``neuronxcc.nki.typing``, is ``installing``'s."""


def add_log_level() -> None:
    """Add ``logging.OFF``."""
    setattr(logging, LOG_LEVEL, logging.CRITICAL + 10)


def remove_log_level() -> None:
    """Remove ``logging.OFF``."""
    if hasattr(logging, LOG_LEVEL):
        delattr(logging, LOG_LEVEL)
