"""onnxruntime's errors by name: each is the class of ``trnrt.errors`` that trnrt raises in its place.

``trnrt.ort.table.ERRORS`` has them, ``docs/onnxruntime-api.md``, too. The module's own names are also here, as some
libraries import them from there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trnrt import errors
from trnrt.ort.table import ABSENT_ERRORS, ERRORS, MODULE, TABLE, Status

_NAMES = {name for name, entry in TABLE[MODULE].items() if entry.status is not Status.internal}

__all__ = sorted({*ERRORS, *ABSENT_ERRORS, *_NAMES})


class _NeverRaisedError(Exception):
    """An error of onnxruntime that nothing in trnrt raises."""


def __getattr__(name: str) -> Any:
    if name in ERRORS:
        return getattr(errors, ERRORS[name])
    if name in ABSENT_ERRORS:
        return _NeverRaisedError
    if name in _NAMES:
        return getattr(import_module("trnrt"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
