"""Importable packages in place of those that files import for what they do beside their kernels.

Files import PyTorch's plugins for Neuron, and loggers, for their own tests. No driver calls them; a call is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

UNUSED = (
    "loguru",
    "scipy",
    "scipy.special",
    "torch",
    "torch.nn",
    "torch.nn.functional",
    "torch.profiler",
    "torch_neuronx",
    "torch_xla",
    "torch_xla.core",
    "torch_xla.core.xla_model",
    "transformers",
    "transformers.models",
    "transformers.models.llama",
    "transformers.models.llama.modeling_llama",
)


class _Unused(ModuleType):
    """A module whose names exist, for annotations, and can't be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__new__": _refuse, "__module__": self.__name__})


def _refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"{cls.__module__}.{cls.__name__} has no stand-in; no driver needs one")


@contextmanager
def unused_packages() -> Iterator[None]:
    """Make the packages importable that aren't installed."""
    missing = [name for name in UNUSED if find_spec(name.partition(".")[0]) is None]
    for name in missing:
        module = _Unused(name)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
