"""Copies of windows, and sums into them, in as few of numpy's inner loops as possible.

A window of a tile, as of a convolution's tap, has short rows with gaps between them. numpy begins an inner loop for
each row, which costs more than its few elements. A row is therefore copied as one element of as many bytes, and added
as a part of the run of memory that spans the window. Both give the same bits as numpy's own way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import View

_MOST_GAPS = 2
"""A run of this many times the window's elements is still added faster than the window (measured at 1.1 to 1.8)."""


def copy_call(dst: Array, src: Array) -> Callable[[], None]:
    """A call that copies ``src`` to ``dst``, which has its shape; another dtype is cast. The arrays may overlap."""
    if dst.dtype == src.dtype and not (dst.flags.c_contiguous and src.flags.c_contiguous):
        for kept in range(1, dst.ndim):
            to, of = _rows(dst, kept), _rows(src, kept)
            if to is not None and of is not None:
                return partial(np.copyto, to, of)
    return partial(np.copyto, dst, src, casting="unsafe")


def _rows(array: Array, kept: int) -> Array | None:
    """The array with its dimensions from ``kept`` on as one element; None if there are gaps between their elements."""
    inner, step = prod(array.shape[kept:]), array.itemsize
    for size, stride in zip(reversed(array.shape[kept:]), reversed(array.strides[kept:]), strict=True):
        if size != 1 and stride != step:
            return None
        step *= size
    shaped = array.reshape(*array.shape[:kept], inner)
    if inner < 2 or not np.may_share_memory(shaped, array) or shaped.strides[-1] != array.itemsize:
        return None
    return shaped.view(np.dtype((np.void, inner * array.itemsize)))[..., 0]


def add_call(view: View, values: Array, window: Callable[[View], Array]) -> Callable[[], None]:
    """A call that adds ``values`` to the view's ``window`` of a float32 tile; both have its shape.

    A window with gaps is added as a part of a run of memory whose other elements are -0.0: that changes no number.
    """
    target, run = window(view), _span(view)
    if run is None:
        return partial(np.add, target, values, out=target)
    whole = window(View(view.storage, (view.partitions, run), (view.strides[0], 1), view.offset))
    added = np.full(whole.shape, -0.0, np.float32)
    strides = [stride * added.itemsize for stride in (run, *view.strides[1:])]
    spread = copy_call(np.ndarray(view.shape, np.float32, added, 0, strides), values)

    def add() -> None:
        spread()
        np.add(whole, added, out=whole)

    return add


def _span(view: View) -> int | None:
    """The elements of a partition from the view's first to its last, if few are gaps and none is there twice."""
    if view.cast is not None or view.dynamic is not None or view.ndim < 2 or not view.size:
        return None
    run = 1
    for size, stride in zip(reversed(view.shape[1:]), reversed(view.strides[1:]), strict=True):
        if size != 1:
            if stride < run:
                return None
            run += (size - 1) * stride
    fits = view.free_size < run <= _MOST_GAPS * view.free_size
    within = view.shape[0] == 1 or view.strides[0] >= run
    return run if fits and within else None
