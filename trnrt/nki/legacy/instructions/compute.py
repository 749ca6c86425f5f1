"""Products, elementwise instructions, activations and reductions."""

from __future__ import annotations

from typing import Any

from trnrt.nki.legacy.lang.common import (
    as_operator,
    broadcast_shape,
    require_operand,
    require_tile,
    result_format,
    spread,
)
from trnrt.nki.legacy.lang.products import multiply_matrices
from trnrt.nki.legacy.lang.reductions import reduce_tile
from trnrt.nki.legacy.tiles import Pending
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.program import Engine
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import cast
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["activation", "nc_matmul", "reciprocal", "tensor_reduce", "tensor_scalar", "tensor_tensor"]


def nc_matmul(stationary: Any, moving: Any, *, mask: Any = None, **options: Any) -> Pending:
    """``stationary.T @ moving``, float32 in PSUM; ``psum +=`` of it accumulates."""
    return multiply_matrices(stationary, moving, mask=mask, **options)


def tensor_tensor(
    data1: Any, data2: Any, op: Any, *, dtype: Any = None, mask: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """``data1 <op> data2``; dimensions of size 1 are repeated."""
    what = "nisa.tensor_tensor"
    data1, data2, op = require_tile(what, data1, "data1"), require_tile(what, data2, "data2"), as_operator(op)
    shape = broadcast_shape(what, data1, data2)

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.tensor_tensor(dst, spread(a, dst.shape), spread(b, dst.shape), op, engine=engine)

    return Pending(shape, result_format(dtype, data1, data2), emit, (data1, data2), mask=mask)


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Engine = Engine.unknown,
    **_: Any,
) -> Pending:
    """``(data <op0> operand0) <op1> operand1``; operands are numbers or columns ``[P, 1]``."""
    what = "nisa.tensor_scalar"
    data, operand0 = require_tile(what, data, "data"), require_operand(what, operand0, "operand0")
    first = as_operator(op0)
    second = None if op1 is None else as_operator(op1)
    last = None if operand1 is None else require_operand(what, operand1, "operand1")

    def emit(dst: NkiTensor, a: NkiTensor, b: Any, c: Any) -> None:
        b, c = _as_column(b, first), _as_column(c, second)
        isa.tensor_scalar(dst, a, first, b, reverse0, second, c, reverse1, engine=engine)

    return Pending(data.shape, result_format(dtype, data), emit, (data, operand0, last), mask=mask)


def _as_column(operand: Any, op: Any) -> Any:
    """A column of float32, which today's instruction takes; Beta 1 took any format."""
    if not isinstance(operand, NkiTensor) or op is None or op.bitvec:
        return operand
    return cast(operand, float32)


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: Any,
) -> Pending:
    """``op`` over free axes."""
    return reduce_tile(
        "nisa.tensor_reduce", as_operator(op), data, axis, dtype=dtype, mask=mask, keepdims=keepdims, negate=negate
    )


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = None,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Pending:
    """``op(data * scale + bias)`` on the scalar engine."""
    what = "nisa.activation"
    data, op = require_tile(what, data, "data"), as_operator(op)
    scale = require_operand(what, scale, "scale")
    bias = None if bias is None else require_operand(what, bias, "bias")
    more: dict[str, Any] = {}
    if reduce_op is not None:
        more["reduce_op"] = as_operator(reduce_op)
    if reduce_cmd is not None:
        more["reduce_cmd"] = reduce_cmd

    def emit(dst: NkiTensor, a: NkiTensor, b: Any, factor: Any, result: Any) -> None:
        isa.activation(dst, op, a, b, factor, reduce_res=result, **more)

    return Pending(data.shape, result_format(dtype, data), emit, (data, bias, scale, reduce_res), mask=mask)


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``1 / data`` on the vector engine."""
    data = require_tile("nisa.reciprocal", data, "data")
    return Pending(data.shape, result_format(dtype, data), isa.reciprocal, (data,), mask=mask)
