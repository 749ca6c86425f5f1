"""Reductions along the last free axes of a tile, and the normalisations made of them.

The reduced axes disappear, or become size 1 with ``keepdims``; a tile always keeps a free dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType, float32
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import Scalar, free_axes, require_tile, result_dtype, tile
from trnrt.nki.sim.lang.elementwise import binary, rsqrt
from trnrt.nki.sim.lang.movement import repeat_tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["all", "max", "mean", "min", "prod", "rms_norm", "softmax", "sum", "var"]

Axis = int | Sequence[int]


def sum(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The sum along ``axis``: tensor_reduce."""
    return _reduce("sum", "add", x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The maximum along ``axis``: tensor_reduce."""
    return _reduce("max", "maximum", x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The minimum along ``axis``: tensor_reduce."""
    return _reduce("min", "minimum", x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The product along ``axis``: tensor_reduce."""
    return _reduce("prod", "multiply", x, axis, dtype, keepdims)


def mean(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The mean along ``axis``: a float32 sum, times 1 / n."""
    x = require_tile("mean", x)
    wanted = result_dtype("mean", dtype, x.dtype)
    return _scale(_reduce("mean", "add", x, axis, float32, keepdims), 1 / _count("mean", x, axis), wanted)


def var(x: NkiTensor, axis: Axis, dtype: object = None, keepdims: bool = False) -> NkiTensor:
    """The mean square of the distance to the mean; the reduced axes become size 1, also without ``keepdims``.

    Two passes over the tile, in float32: the mean, then the squares of the distances to it.
    """
    x = require_tile("var", x)
    wanted, scale = result_dtype("var", dtype, x.dtype), 1 / _count("var", x, axis)
    centre = _scale(_reduce("var", "add", x, axis, float32, True), scale, float32)
    apart = _with_column("subtract", x, centre)
    isa.tensor_tensor(apart, apart, apart, OPERATORS["multiply"])
    return _scale(_reduce("var", "add", apart, axis, float32, True), scale, wanted)


def all(x: NkiTensor, axis: Axis, dtype: object = None) -> NkiTensor:
    """1 if no element along ``axis`` is 0, else 0: a comparison with 0, and its minimum."""
    x = require_tile("all", x)
    truth = tile(x.shape, x.dtype)
    isa.tensor_scalar(truth, x, OPERATORS["not_equal"], 0.0)
    return _reduce("all", "minimum", truth, axis, result_dtype("all", dtype, x.dtype), False)


def softmax(x: NkiTensor, axis: Axis = -1, dtype: object = None) -> NkiTensor:
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``, in float32."""
    x = require_tile("softmax", x)
    powers = _with_column("subtract", x, _reduce("softmax", "maximum", x, axis, float32, True))
    isa.activation(powers, OPERATORS["exp"], powers)
    total = _reduce("softmax", "add", powers, axis, float32, True)
    isa.reciprocal(total, total)
    return _with_column("multiply", powers, total, result_dtype("softmax", dtype, x.dtype))


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axis,
    n: Scalar,
    epsilon: float = 1e-6,
    dtype: object = None,
    compute_dtype: object = None,
) -> NkiTensor:
    """``x / sqrt(sum(x * x) / n + epsilon) * w``, squares and quotients in ``compute_dtype`` (float32 by default).

    ``w`` is a tile of the shape of ``x``, or has sizes of 1 that are repeated.
    """
    x, w = require_tile("rms_norm", x), require_tile("rms_norm", w, "w")
    if x.ndim != w.ndim or any(b not in (1, a) for a, b in zip(x.shape, w.shape, strict=True)):
        raise KernelError(f"nl.rms_norm: w is {w.shape}; it must have the shape of x, {x.shape}, or sizes of 1")
    inside = result_dtype("rms_norm", compute_dtype, float32)
    squares = tile(x.shape, inside)
    isa.activation(squares, OPERATORS["square"], x)
    total = _reduce("rms_norm", "add", squares, axis, float32, True)
    isa.tensor_scalar(total, total, OPERATORS["multiply"], 1 / n, op1=OPERATORS["add"], operand1=epsilon)
    scaled = _with_column("multiply", x, rsqrt(total), inside)
    return binary(OPERATORS["multiply"], scaled, repeat_tile(w, x.shape), result_dtype("rms_norm", dtype, x.dtype))


def _reduce(what: str, op: str, x: Any, axis: Axis, dtype: object, keepdims: bool) -> NkiTensor:
    x = require_tile(what, x)
    axes = free_axes(what, x, axis)
    kept = x.shape[: axes[0]]
    ones = len(axes) if keepdims else 1 if len(kept) < 2 else 0
    dst = tile((*kept, *(1,) * ones), result_dtype(what, dtype, x.dtype))
    isa.tensor_reduce(dst, OPERATORS[op], x, axes)
    return dst


def _count(what: str, x: NkiTensor, axis: Axis) -> int:
    """Elements that are reduced to one."""
    return product(x.shape[free_axes(what, x, axis)[0] :])


def _scale(x: NkiTensor, factor: float, dtype: DType) -> NkiTensor:
    dst = tile(x.shape, dtype)
    isa.tensor_scalar(dst, x, OPERATORS["multiply"], factor)
    return dst


def _with_column(op: str, x: NkiTensor, column: NkiTensor, dtype: DType = float32) -> NkiTensor:
    """``x <op> column``, whose reduced dimensions of size 1 are repeated."""
    dst = tile(x.shape, dtype)
    if column.free_size == 1:
        isa.tensor_scalar(dst, x, OPERATORS[op], column)
    else:
        isa.tensor_tensor(dst, x, repeat_tile(column, x.shape), OPERATORS[op])
    return dst
