"""Reductions along the free axes of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds
from trnrt.nki.legacy.lang.common import require_tile, result_format
from trnrt.nki.legacy.tiles import Pending, Tile, on_chip_shape
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.sim import isa

__all__ = ["max", "min", "prod", "reduce_tile", "sum"]

Axis = int | Sequence[int]


def sum(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The sum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.sum", OPERATORS["add"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def max(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The maximum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.max", OPERATORS["maximum"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def min(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The minimum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.min", OPERATORS["minimum"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def prod(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The product along ``axis``: tensor_reduce."""
    return reduce_tile("nl.prod", OPERATORS["multiply"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def reduce_tile(
    what: str,
    op: Operator,
    x: Any,
    axis: Axis,
    *,
    dtype: Any = None,
    mask: Any = None,
    keepdims: bool = False,
    negate: bool = False,
) -> Pending:
    """``op`` over the free axes ``axis``: tensor_reduce, on a view that has them last."""
    x = require_tile(what, x)
    axes = _axes(what, x, axis)
    kept = [dim for dim in range(x.ndim) if dim not in axes]
    shape = [1 if dim in axes else size for dim, size in enumerate(x.shape)] if keepdims else [x.shape[d] for d in kept]

    def emit(dst: Any, data: Any) -> None:
        turned = data.permute((*kept, *axes))
        flat = dst.reshape((*turned.shape[: len(kept)], *(1,) * (1 if len(kept) < 2 else 0)))
        isa.tensor_reduce(flat, op, turned, tuple(range(len(kept), data.ndim)), negate=negate)

    def bounds_of(bounds: Bounds) -> Bounds:
        left = (
            [(0, 1) if dim in axes else one for dim, one in enumerate(bounds)]
            if keepdims
            else [bounds[d] for d in kept]
        )
        return tuple(left) if len(left) > 1 else (*left, (0, 1))

    made = Pending(
        on_chip_shape(shape),
        result_format(dtype, x),
        emit,
        (x,),
        mask=mask,
        iteration=x.shape,
        bounds_of=bounds_of,
    )
    if len({bounds for _, bounds in made.parts}) != len(made.parts):
        raise KernelError(f"{what}: the mask leaves parts of reduced axes that are no single range")
    return made


def _axes(what: str, x: Tile, axis: Axis) -> tuple[int, ...]:
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(int(a) % x.ndim if -x.ndim <= a < x.ndim else -1 for a in given))
    if not axes or axes[0] < 1 or len(set(axes)) != len(axes):
        raise KernelError(f"{what}: axis={axis!r} of a tile {x.shape}; free axes can be reduced, 1 to {x.ndim - 1}")
    return axes
