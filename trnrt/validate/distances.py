"""Distances of a tensor from its reference, each element against its own tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Distance:
    """``error``, ``tolerance`` and their ``ratio`` at the ``element`` where the ratio is largest.

    ``max_abs``: the largest error anywhere. NaN equals only NaN, infinity only itself; else the error is infinite.
    """

    max_abs: float
    error: float
    tolerance: float
    ratio: float
    element: tuple[int, ...]
    passed: bool


def errors_of(ours: Array, reference: Array) -> Array:
    """Absolute errors; 0 for equal values, NaN and infinity included, infinite if only one is NaN."""
    mine, theirs = numbers(ours), numbers(reference)
    with np.errstate(all="ignore"):
        apart = np.abs(mine - theirs)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    return np.where(same, np.float32(0), np.where(np.isnan(apart), np.float32(np.inf), apart))


def numbers(array: Array) -> Array:
    """Any tensor as float32; wide integers as float64."""
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
    return array.astype(np.float64 if wide else np.float32, copy=False)


def distance(errors: Array, tolerance: Array) -> Distance:
    """The distance for errors and tolerances of one shape."""
    if not errors.size:
        return Distance(0.0, 0.0, 0.0, 0.0, (), True)
    with np.errstate(all="ignore"):
        ratio = np.where((errors == 0) | np.isinf(tolerance), 0.0, errors / tolerance)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    worst = int(ratio.argmax())
    element = tuple(int(i) for i in np.unravel_index(worst, errors.shape))
    off, allowed, largest = (float(a.reshape(-1)[worst]) for a in (errors, tolerance, ratio))
    return Distance(float(errors.max()), off, allowed, largest, element, largest <= 1)


def index_errors(ours: Array, reference: Array, x: Array, e: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Errors of indices of extreme elements of ``x``: 0 if the elements that they name differ by no more than their own
    errors ``e``, else the indices' difference. ``shape``: of the indices, with their axis."""
    mine, theirs = (i.astype(np.int64).reshape(shape) for i in (ours, reference))
    inside = (mine >= 0) & (mine < x.shape[axis])
    safe = np.where(inside, mine, 0)
    chosen, wanted = (np.take_along_axis(x, i, axis) for i in (safe, theirs))
    doubt = np.take_along_axis(e, safe, axis) + np.take_along_axis(e, theirs, axis)
    explained = inside & (doubt > 0) & (np.abs(chosen - wanted) <= doubt)
    return np.where((mine == theirs) | explained, 0.0, np.abs(mine - theirs).astype(np.float64))
