"""Names of onnxruntime's interface that trnrt refuses: each says why, at any use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from trnrt.errors import NotSupportedError
from trnrt.ort.table import MODULE, TABLE, Status

_PAGE = "docs/onnxruntime-api.md"


def refusal(owner: str, name: str) -> Exception:
    """The error for an owner's refused name; an AttributeError for a name that onnxruntime has not, either."""
    entry = TABLE[owner].get(name)
    shown = name if owner == MODULE else f"{owner}.{name}"
    if entry is None or entry.status is not Status.refused:
        return AttributeError(f"{'trnrt' if owner == MODULE else owner} has no attribute {name!r}")
    return NotSupportedError(f"{shown}: {entry.note}", hint=f"see {_PAGE}")


class _Refusing(type):
    """The type of classes that exist, so that isinstance works, and refuse all else."""

    def __call__(cls, *args: object, **more: object) -> NoReturn:
        raise refusal(MODULE, cls.__name__)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refusal(MODULE, cls.__name__)


@cache
def refused_name(name: str) -> type | Callable[..., Any]:
    """A class or function of onnxruntime's module that refuses any use."""
    if name[0].isupper():
        return _Refusing(name, (), {"__doc__": f"Refused: {TABLE[MODULE][name].note}.", "__module__": "trnrt"})

    def refuse(*args: object, **more: object) -> NoReturn:
        raise refusal(MODULE, name)

    refuse.__name__, refuse.__doc__ = name, f"Refused: {TABLE[MODULE][name].note}."
    return refuse
