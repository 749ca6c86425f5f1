"""Helpers with which instructions say their meaning on numpy arrays.

An instruction is bound once: its views become arrays, its meaning a call without arguments. Whatever can be
decided then (shapes, rounding, whether a copy is needed) is not decided again at replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnrt.nki.machine.dtypes import Array, rounder
from trnrt.nki.machine.program import View

Arrays = Callable[[View], Array]


def writer(view: View, array: Array) -> Callable[[Array], None]:
    """A function that rounds a result to the view's dtype and stores it, reshaping where shapes differ."""
    rounded = rounder(view.dtype)
    shape = array.shape

    def write(values: Array) -> None:
        if rounded is not None:
            values = rounded(values)
        array[...] = values if values.shape == shape else values.reshape(shape)

    return write


def exact(view: View) -> bool:
    """Whether float32 results can be computed straight into the view's array, with no rounding."""
    return rounder(view.dtype) is None


def in_shape(array: Array, shape: tuple[int, ...]) -> Callable[[], Array]:
    """A function that gives ``array`` in ``shape``: a view where numpy can make one, else a copy at each call."""
    reshaped = array.reshape(shape)
    if array.size == 0 or np.shares_memory(reshaped, array):
        return lambda: reshaped
    return lambda: array.reshape(shape)


def matrix(array: Array) -> Callable[[], Array]:
    """``array`` as (partitions, free elements) for BLAS, through a scratch buffer where strides do not allow a view."""
    rows = array.shape[0]
    flat = array.reshape(rows, -1)
    if array.size == 0 or np.shares_memory(flat, array):
        return lambda: flat
    scratch = np.empty(array.shape, array.dtype)
    flat = scratch.reshape(rows, -1)

    def copied() -> Array:
        np.copyto(scratch, array)
        return flat

    return copied


def as_float32(array: Array) -> Array:
    """What an engine computes with: integers are cast to float32 on the way in."""
    return array if array.dtype == np.float32 else array.astype(np.float32)


def column(operand: Any, arrays: Arrays, ndim: int) -> Callable[[], Any]:
    """A ``[P, 1]`` tile or a number, as something that broadcasts over ``ndim`` dimensions."""
    if not isinstance(operand, View):
        number = np.float32(operand)
        return lambda: number
    array = arrays(operand)
    return in_shape(array, (array.shape[0],) + (1,) * (ndim - 1))
