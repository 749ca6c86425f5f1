"""Reductions over the trips of a loop, and over the instances of a launch grid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.lang.common import as_operator, require_tile, result_format, spread
from trnrt.nki.legacy.lang.movement import copy
from trnrt.nki.legacy.lang.program import LoopIndex
from trnrt.nki.legacy.session import Place, active_session, instance
from trnrt.nki.legacy.tiles import Pending, Tile
from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.machine.operators import Operator
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["all_reduce", "loop_reduce"]

Window = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""The number of a storage, and offset, shape and strides of a view on it."""


def loop_reduce(x: Any, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """Reduce the tiles ``x`` of all trips of the loops by ``op``: a copy of the first, then a tensor_tensor for each.

    The result is in the destination. A loop begins anew when the outermost of ``loop_indices`` does; plain integers
    begin it when they come again.
    """
    what = "nl.loop_reduce"
    x, operator = require_tile(what, x), as_operator(op)
    if not operator.reduces:
        raise KernelError(f"{what}: op={op!r} is no reduction; np.add, np.multiply, np.max and np.min are some")
    given = tuple(loop_indices) if isinstance(loop_indices, (tuple, list)) else (loop_indices,)
    if not given or not all(isinstance(one, (int, np.integer)) for one in given):
        raise KernelError(f"{what}: loop_indices={loop_indices!r}; give the loops' indices, as loop_indices=[i]")
    return LoopReduction(x, operator, given, result_format(dtype, x), mask)


class LoopReduction(Pending):
    """The result of ``loop_reduce``: in its destination, or in one tile for all trips of a loop."""

    __slots__ = ("_run", "_trip")

    def __init__(self, x: Tile, op: Operator, indices: tuple[int, ...], dtype: DType, mask: Any) -> None:
        session = active_session("nl.loop_reduce")
        loops = [one.run for one in indices if isinstance(one, LoopIndex)]
        key = min(loops) if loops else session.tracer.here()
        run = session.runs.setdefault(key, Run(counted=bool(loops)))
        assert isinstance(run, Run)
        self._run, self._trip = run, tuple(int(one) for one in indices)
        trip = self._trip

        def emit(dst: NkiTensor, a: NkiTensor) -> None:
            if run.begins(dst, trip):
                isa.tensor_copy(dst, a)
            else:
                isa.tensor_tensor(dst, dst, spread(a, dst.shape), op)

        super().__init__(x.shape, dtype, emit, (x,), mask=mask, converts=True, once=True)

    def allocate(self) -> NkiTensor:
        """The tile of the loop that a result without a destination goes to: a line that has several results in a trip
        gives each its own."""
        number = self._run.given[self._place, self._trip]
        self._run.given[self._place, self._trip] += 1
        place = self._place, number
        if place not in self._run.tiles:
            self._run.tiles[place] = super().allocate()
        return self._run.tiles[place]


@dataclass
class Run:
    """A loop, from its first trip to its last. ``counted``: its index tells its runs apart, so that ``trip`` needn't.

    ``windows``: those that it has written, each with its trips. ``tiles``: of results without a destination.
    ``given``: how many of these a line has had in a trip.
    """

    counted: bool
    windows: dict[Window, set[tuple[int, ...]]] = field(default_factory=dict)
    tiles: dict[tuple[Place, int], NkiTensor] = field(default_factory=dict)
    given: Counter[tuple[Place, tuple[int, ...]]] = field(default_factory=Counter)

    def begins(self, dst: NkiTensor, trip: tuple[int, ...]) -> bool:
        """True for the first trip that writes to ``dst``, which it overwrites."""
        window = dst.storage.index, dst.offset, dst.shape, dst.strides
        trips = self.windows.get(window)
        if trips is None:
            self._require_apart(window)
        if trips is None or (not self.counted and trip in trips):
            self.windows[window] = {trip}
            return True
        trips.add(trip)
        return False

    def _require_apart(self, window: Window) -> None:
        """KernelError if a part of the window was written by an earlier trip, with another mask."""
        for other in self.windows:
            if other[0] == window[0] and np.intersect1d(_elements(other), _elements(window)).size:
                raise KernelError(
                    "nl.loop_reduce: the trips of the loop write parts of the destination that overlap and differ",
                    hint="let the mask be the same for each trip, or fill the rest of x with a number that is neutral",
                )


def _elements(window: Window) -> Array:
    """The numbers of the window's elements in its storage."""
    _, offset, shape, strides = window
    found: Array = np.asarray(offset)
    for size, stride in zip(shape, strides, strict=True):
        found = np.add.outer(found, np.arange(size) * stride)
    return found.ravel()


def all_reduce(
    x: Any,
    op: Any,
    program_axes: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    parallel_reduce: bool = True,
    asynchronous: bool = False,
    **_: Any,
) -> Pending:
    """``op`` over the instances along axes of the launch grid; a copy if there is only one.

    KernelError for more: instances run one after the other, so that the results of later ones aren't there yet.
    """
    what = "nl.all_reduce"
    x, operator = require_tile(what, x), as_operator(op)
    axes = tuple(program_axes) if isinstance(program_axes, (tuple, list)) else (program_axes,)
    count = prod(instance(what, int(axis))[1] for axis in axes)
    if count > 1:
        raise KernelError(
            f"{what}: {operator!r} over {count} instances along axes {axes} of the launch grid is left out of trnrt's "
            "simulator, which runs them one after the other",
            hint="loop over that axis inside the kernel, and nl.loop_reduce",
        )
    return copy(x, dtype=dtype, mask=mask)
