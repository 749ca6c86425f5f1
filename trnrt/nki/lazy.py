"""Names that load their modules on first use (PEP 562), so that a kernel pays for the instructions that it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def load_lazily(
    module: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module that offers other modules' names; ``homes``: module to names.

    A name is looked up once, and belongs to the module from then on. ``from module import *`` asks for ``__all__``: it
    gets every public name.
    """
    namespace = vars(sys.modules[module])
    found = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name == "__all__":
            return [public for public in names() if not public.startswith("_")]
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        return namespace.setdefault(name, getattr(import_module(found[name]), name))

    def names() -> list[str]:
        return sorted({*namespace, *found})

    return get, names
