"""onnxruntime's errors by name: each is the class of ``trnrt.errors`` that trnrt raises in its place.

``trnrt.ort.table.ERRORS`` has them, ``docs/onnxruntime-api.md``, too.
"""

from __future__ import annotations

from typing import Any

from trnrt import errors
from trnrt.ort.table import ABSENT_ERRORS, ERRORS

__all__ = sorted({*ERRORS, *ABSENT_ERRORS})


class _NeverRaisedError(Exception):
    """An error of onnxruntime that nothing in trnrt raises."""


def __getattr__(name: str) -> Any:
    if name in ERRORS:
        return getattr(errors, ERRORS[name])
    if name in ABSENT_ERRORS:
        return _NeverRaisedError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
