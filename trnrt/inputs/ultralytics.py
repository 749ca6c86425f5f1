"""The metadata that ultralytics' exporter writes: ``task``, ``names``, ``imgsz``, ``stride``.

Values are Python literals; a file is untrusted, and what can't be read counts as missing.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_KEYS = ("task", "names", "imgsz", "stride")
_LONGEST = 1 << 20
_LARGEST_SIDE = 1 << 14


def is_ultralytics(metadata: Mapping[str, str]) -> bool:
    """True if the file has all of the keys."""
    return all(key in metadata for key in _KEYS)


def ultralytics_names(metadata: Mapping[str, str]) -> list[str]:
    """The names of the classes in order; empty if they are missing, or not numbered from 0."""
    found = _literal(metadata.get("names", "")) if is_ultralytics(metadata) else None
    if isinstance(found, dict):
        found = [found.get(k) for k in range(len(found))]
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return []
    return list(found)


def ultralytics_size(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """The height and width of the images that the model was exported for."""
    found = _literal(metadata.get("imgsz", "")) if is_ultralytics(metadata) else None
    sides = [found, found] if isinstance(found, int) else found
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        return None
    if not all(type(side) is int and 0 < side <= _LARGEST_SIDE for side in sides):
        return None
    return sides[0], sides[1]


def ultralytics_point_numbers(metadata: Mapping[str, str]) -> int:
    """The numbers of a box's key points (``kpt_shape``); 0 without any."""
    found = _literal(metadata.get("kpt_shape", "")) if is_ultralytics(metadata) else None
    if not isinstance(found, list | tuple) or not all(type(count) is int and 0 < count < 1 << 10 for count in found):
        return 0
    return math.prod(found)


@lru_cache(maxsize=8)  # the server reads them for every picture
def _literal(text: str) -> Any:
    if len(text) > _LONGEST:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
