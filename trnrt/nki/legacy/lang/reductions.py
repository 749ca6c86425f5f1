"""Reductions along the free axes of a tile, and softmax and rms_norm, which are made of them.

With a mask, only the elements where it holds count, as if the tile had those alone: also for the number of elements
that a mean divides by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod as product
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds
from trnrt.nki.legacy.lang.common import require_tile, result_format, spread
from trnrt.nki.legacy.tiles import Pending, Tile, on_chip_shape
from trnrt.nki.machine.dtypes import bool_, float32
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import common as today
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["all", "max", "mean", "min", "prod", "reduce_tile", "rms_norm", "softmax", "sum", "var"]

Axis = int | Sequence[int]
Reduce = Callable[[NkiTensor, NkiTensor, tuple[int, ...]], object]
"""Writes to ``dst``, whose reduced axes have size 1, from a tile and its axes to reduce, the last ones."""

ADD, MULTIPLY = OPERATORS["add"], OPERATORS["multiply"]


def sum(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The sum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.sum", ADD, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def max(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The maximum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.max", OPERATORS["maximum"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def min(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The minimum along ``axis``: tensor_reduce."""
    return reduce_tile("nl.min", OPERATORS["minimum"], x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def prod(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The product along ``axis``: tensor_reduce."""
    return reduce_tile("nl.prod", MULTIPLY, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def mean(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The mean along ``axis``: a float32 sum, times 1 / n; float32 for integers."""
    return _reduce_by("nl.mean", _scaled_sum, x, axis, _float_of(x, dtype), mask, keepdims=keepdims)


def var(x: Any, axis: Axis, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """The mean square of the distance to the mean along ``axis``, in two passes in float32; float32 for integers."""
    return _reduce_by("nl.var", _variance, x, axis, _float_of(x, dtype), mask, keepdims=keepdims)


def all(x: Any, axis: Axis, *, dtype: Any = bool, mask: Any = None, keepdims: bool = False, **_: Any) -> Pending:
    """True if no element along ``axis`` is 0: a comparison with 0, and its minimum."""
    return _reduce_by("nl.all", _every, x, axis, bool_ if dtype is None else dtype, mask, keepdims=keepdims)


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

    def reduce(dst: NkiTensor, data: NkiTensor, axes: tuple[int, ...]) -> None:
        isa.tensor_reduce(dst, op, data, axes, negate=negate)

    return _reduce_by(what, reduce, x, axis, dtype, mask, keepdims=keepdims)


def _reduce_by(what: str, reduce: Reduce, x: Any, axis: Axis, dtype: Any, mask: Any, *, keepdims: bool) -> Pending:
    x = require_tile(what, x)
    axes = _axes(what, x, axis)
    kept = [dim for dim in range(x.ndim) if dim not in axes]
    shape = [1 if dim in axes else size for dim, size in enumerate(x.shape)] if keepdims else [x.shape[d] for d in kept]

    def emit(dst: NkiTensor, data: NkiTensor) -> None:
        turned = data.permute((*kept, *axes))
        flat = dst.reshape((*turned.shape[: len(kept)], *(1,) * (1 if len(kept) < 2 else 0)))
        reduce(flat, turned, tuple(range(len(kept), data.ndim)))

    def bounds_of(bounds: Bounds) -> Bounds:
        if keepdims:
            return tuple((0, 1) if dim in axes else one for dim, one in enumerate(bounds))
        left = tuple(bounds[d] for d in kept)
        return left if len(left) > 1 else (*left, (0, 1))

    form = result_format(dtype, x)
    made = Pending(on_chip_shape(shape), form, emit, (x,), mask=mask, iteration=x.shape, bounds_of=bounds_of)
    _require_whole_rows(what, [bounds for _, bounds in made.parts])
    return made


def _require_whole_rows(what: str, regions: Sequence[Bounds | None]) -> None:
    """KernelError if a mask has two parts that are reduced to the same elements."""
    if len(set(regions)) != len(regions):
        raise KernelError(
            f"{what}: the mask holds for several ranges of the reduced axes; it must hold for one",
            hint="fill the rest with a number that doesn't count, by nl.where or nisa.affine_select",
        )


def _axes(what: str, x: Tile, axis: Axis) -> tuple[int, ...]:
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(int(a) % x.ndim if -x.ndim <= a < x.ndim else -1 for a in given))
    if not axes or axes[0] < 1 or len(set(axes)) != len(axes):
        raise KernelError(f"{what}: axis={axis!r} of a tile {x.shape}; free axes can be reduced, 1 to {x.ndim - 1}")
    return axes


def _float_of(x: Any, dtype: Any) -> Any:
    """The number format of a mean: float32 of integers."""
    return float32 if dtype is None and isinstance(x, Tile) and not x.format.is_float else dtype


def _scaled_sum(dst: NkiTensor, data: NkiTensor, axes: tuple[int, ...]) -> None:
    total = today.tile(dst.shape, float32)
    isa.tensor_reduce(total, ADD, data, axes)
    isa.tensor_scalar(dst, total, MULTIPLY, 1.0 / product(data.shape[a] for a in axes))


def _variance(dst: NkiTensor, data: NkiTensor, axes: tuple[int, ...]) -> None:
    kept = data.shape[: axes[0]]
    centre = today.tile(dst.shape, float32)
    _scaled_sum(centre, data, axes)
    apart = today.tile(data.shape, float32)
    _with_column(apart, data, "subtract", centre.reshape((*kept, *(1,) * len(axes))))
    isa.tensor_tensor(apart, apart, apart, MULTIPLY)
    _scaled_sum(dst, apart, axes)


def _every(dst: NkiTensor, data: NkiTensor, axes: tuple[int, ...]) -> None:
    truth = today.tile(data.shape, float32)
    isa.tensor_scalar(truth, data, OPERATORS["not_equal"], 0.0)
    isa.tensor_reduce(dst, OPERATORS["minimum"], truth, axes)


def _with_column(dst: NkiTensor, x: NkiTensor, op: str, column: NkiTensor) -> None:
    """``x <op> column``, whose reduced dimensions of size 1 are repeated."""
    if column.free_size == 1:
        isa.tensor_scalar(dst, x, OPERATORS[op], column.reshape((column.shape[0], 1)))
    else:
        isa.tensor_tensor(dst, x, spread(column, x.shape), OPERATORS[op])


def _normal(
    what: str,
    emit: Callable[..., object],
    x: Tile,
    axes: tuple[int, ...],
    sources: Sequence[Any],
    dtype: Any,
    mask: Any,
) -> Pending:
    """A result of the shape of ``x`` that is made along ``axes``: the mask must leave one range of them."""
    made = Pending(x.shape, result_format(dtype, x), emit, sources, mask=mask)
    kept = [
        None if bounds is None else tuple(one for d, one in enumerate(bounds) if d not in axes)
        for bounds, _ in made.parts
    ]
    _require_whole_rows(what, kept)
    return made


def softmax(x: Any, axis: Axis, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``, in float32. ``compute_dtype``: the result's format."""
    x = require_tile("nl.softmax", x)
    axes = _axes("nl.softmax", x, axis)

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        powers, column = today.tile(a.shape, float32), _column(a, axes)
        _reduce_kept(column, OPERATORS["maximum"], a, axes)
        _with_column(powers, a, "subtract", column)
        isa.activation(powers, OPERATORS["exp"], powers)
        total = _column(a, axes)
        _reduce_kept(total, ADD, powers, axes)
        isa.reciprocal(total, total)
        _with_column(dst, powers, "multiply", total)

    return _normal("nl.softmax", emit, x, axes, (x,), compute_dtype if dtype is None else dtype, mask)


def rms_norm(
    x: Any,
    w: Any,
    axis: Axis,
    n: Any,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Pending:
    """``x / sqrt(sum(x * x) / n + epsilon) * w`` along ``axis``, in float32; sizes of 1 of ``w`` are repeated."""
    x, w = require_tile("nl.rms_norm", x), require_tile("nl.rms_norm", w, "w")
    axes = _axes("nl.rms_norm", x, axis)
    if w.ndim != x.ndim or any(b not in (1, a) for a, b in zip(x.shape, w.shape, strict=True)):
        raise KernelError(f"nl.rms_norm: w is {w.shape}; it must have the shape of x, {x.shape}, or sizes of 1")

    def emit(dst: NkiTensor, a: NkiTensor, weight: NkiTensor) -> None:
        scaled, total = today.tile(a.shape, float32), _column(a, axes)
        isa.activation(scaled, OPERATORS["square"], a)
        _reduce_kept(total, ADD, scaled, axes)
        isa.tensor_scalar(total, total, MULTIPLY, 1.0 / n, op1=ADD, operand1=epsilon)
        isa.activation(total, OPERATORS["rsqrt"], total)
        _with_column(scaled, a, "multiply", total)
        isa.tensor_tensor(dst, scaled, spread(weight, a.shape), MULTIPLY)

    return _normal("nl.rms_norm", emit, x, axes, (x, w), compute_dtype if dtype is None else dtype, mask)


def _column(a: NkiTensor, axes: tuple[int, ...]) -> NkiTensor:
    """A new float32 tile of the shape of ``a``, its reduced axes of size 1."""
    return today.tile(tuple(1 if d in axes else size for d, size in enumerate(a.shape)), float32)


def _reduce_kept(dst: NkiTensor, op: Operator, data: NkiTensor, axes: tuple[int, ...]) -> None:
    """tensor_reduce on a view with ``axes`` last; ``dst`` has size 1 there."""
    kept = tuple(d for d in range(data.ndim) if d not in axes)
    turned = data.permute((*kept, *axes))
    flat = dst.reshape((*turned.shape[: len(kept)], *(1,) * (1 if len(kept) < 2 else 0)))
    isa.tensor_reduce(flat, op, turned, tuple(range(len(kept), data.ndim)))
