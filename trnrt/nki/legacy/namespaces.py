"""The modules of the old namespace by name, for ``install``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from trnrt.nki.legacy import compiler, isa, language, launching

__all__ = ["CONTENTS"]


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
