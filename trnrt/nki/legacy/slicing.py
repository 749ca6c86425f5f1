"""Slices that end beyond their dimension, as index expressions: a mask cuts off what is outside."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Index
from trnrt.nki.sim.tensor import NkiTensor


def leaves(item: Any, size: int) -> bool:
    """True if a slice ends beyond its dimension, which a mask may cut off."""
    return isinstance(item, slice) and isinstance(item.stop, (int, np.integer)) and bool(item.stop > size)


def as_expressions(view: NkiTensor, keys: list[Any]) -> list[Any]:
    """The keys with index expressions in place of slices, one dimension for each."""
    if any(isinstance(item, Index) for item in keys):
        raise KernelError(
            f"a slice leaves {view.storage}, beside index expressions", hint="write nl.arange in place of the slice"
        )
    ranges = [_range_of(item, size) for item, size in zip(keys, view.shape, strict=True)]
    count, made = sum(one is not None for one in ranges), list[Any]()
    for item, one in zip(keys, ranges, strict=True):
        if one is None:
            made.append(item)
            continue
        at = sum(isinstance(each, Index) for each in made)
        shape = tuple(len(one) if dim == at else 1 for dim in range(count))
        made.append(Index(one.start, tuple(one.step if dim == at else 0 for dim in range(count)), shape))
    return made


def _range_of(item: Any, size: int) -> range | None:
    if not isinstance(item, slice):
        return None
    start, stop, step = (None if part is None else index(part) for part in (item.start, item.stop, item.step))
    begin, end, step = start or 0, size if stop is None else stop, step or 1
    if begin < 0 or end < 0 or step < 1:
        raise KernelError(f"slice {begin}:{end}:{step}: a slice that leaves its dimension has no negative parts")
    return range(begin, end, step)
