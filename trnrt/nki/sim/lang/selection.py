"""Elements chosen by a condition, or by chance."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType, uint8
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import (
    Scalar,
    cast,
    require_operand,
    require_tile,
    result_dtype,
    tile,
)
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["dropout", "where"]


def where(condition: NkiTensor, x: Any, y: Any, dtype: object = None) -> NkiTensor:
    """``x`` where ``condition`` is not 0, else ``y``: tiles of the shape of ``condition``, or numbers.

    A tensor_scalar makes a uint8 predicate, y is copied, x is copied over it by tensor_copy_predicated. The dtype is
    that of x by default (of y if x is a number).
    """
    condition = require_tile("where", condition, "condition")
    x, y = require_operand("where", x, "x"), require_operand("where", y, "y")
    given = next((operand.dtype for operand in (x, y) if isinstance(operand, NkiTensor)), condition.dtype)
    wanted = result_dtype("where", dtype, given)
    for argument, operand in (("x", x), ("y", y)):
        if isinstance(operand, NkiTensor) and operand.shape != condition.shape:
            raise KernelError(
                f"nl.where: {argument} is {operand.shape}, condition {condition.shape}; equal they must be"
            )
    predicate = tile(condition.shape, uint8)
    isa.tensor_scalar(predicate, condition, OPERATORS["not_equal"], 0.0)
    dst = _copy_or_fill(y, condition, wanted)
    isa.tensor_copy_predicated(dst, cast(x, wanted) if isinstance(x, NkiTensor) else x, predicate)
    return dst


def dropout(x: NkiTensor, rate: Any, dtype: object = None) -> NkiTensor:
    """``x`` with elements set to 0 at a probability of ``rate``, a number or a ``[P, 1]`` tile: nisa.dropout."""
    x, rate = require_tile("dropout", x), require_operand("dropout", rate, "rate")
    dst = tile(x.shape, x.dtype)
    isa.dropout(dst, x, rate)
    return cast(dst, result_dtype("dropout", dtype, x.dtype))


def _copy_or_fill(value: NkiTensor | Scalar, like: NkiTensor, dtype: DType) -> NkiTensor:
    """A new tile of ``value`` in the shape of ``like``."""
    dst = tile(like.shape, dtype)
    if isinstance(value, NkiTensor):
        isa.tensor_copy(dst, value)
    else:
        isa.memset(dst, value)
    return dst
