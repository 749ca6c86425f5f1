"""Matrix products and elementwise instructions."""

from __future__ import annotations

from typing import Any

from trnrt.nki.legacy.instructions.issuing import as_column, instruction, parts_of, require_one_range
from trnrt.nki.legacy.lang.common import (
    as_operator,
    broadcast_shape,
    require_operand,
    require_tile,
    result_format,
    spread,
)
from trnrt.nki.legacy.lang.products import multiply_matrices
from trnrt.nki.legacy.tiles import Pending
from trnrt.nki.machine.program import Engine
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = [
    "nc_matmul",
    "reciprocal",
    "scalar_tensor_tensor",
    "tensor_scalar",
    "tensor_tensor",
    "tensor_tensor_scan",
]

_MODES = {"double_row_gen3": "double_row"}
"""Beta 1's names of modes that today's have other names for."""


@instruction
def nc_matmul(
    stationary: Any,
    moving: Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    mask: Any = None,
    perf_mode: Any = None,
    **_: Any,
) -> Pending:
    """``stationary.T @ moving``, float32 in PSUM; ``psum +=`` of it accumulates.

    A mask's first dimension is the contraction, the others are the free axes of the operand that they fit;
    ``tile[..][condition]`` masks one operand.
    """
    options: dict[str, Any] = {
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "is_transpose": is_transpose,
        "tile_position": tuple(tile_position),
        "tile_size": tuple(tile_size),
    }
    if perf_mode is not None:
        options["perf_mode"] = _MODES.get(perf_mode, perf_mode)
    return multiply_matrices(stationary, moving, mask=mask, **options)


@instruction
def tensor_tensor(
    data1: Any, data2: Any, op: Any, *, dtype: Any = None, mask: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """``data1 <op> data2``; dimensions of size 1 are repeated."""
    what = "nisa.tensor_tensor"
    data1, data2, op = require_tile(what, data1, "data1"), require_tile(what, data2, "data2"), as_operator(op)
    shape = broadcast_shape(what, data1, data2)

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.tensor_tensor(dst, spread(a, dst.shape), spread(b, dst.shape), op, engine=engine)

    return Pending(shape, result_format(dtype, data1, data2), emit, (data1, data2), mask=mask, converts=not op.bitvec)


@instruction
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
        b, c = as_column(b, first), as_column(c, second)
        isa.tensor_scalar(dst, a, first, b, reverse0, second, c, reverse1, engine=engine)

    sources = (data, operand0, last)
    return Pending(data.shape, result_format(dtype, data), emit, sources, mask=mask, converts=not first.bitvec)


@instruction
def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Pending:
    """``(data <op0> operand0) <op1> operand1``: a number or a column, then a tile of the shape of ``data``."""
    what = "nisa.scalar_tensor_tensor"
    data, operand0 = require_tile(what, data, "data"), require_operand(what, operand0, "operand0")
    operand1 = require_tile(what, operand1, "operand1")
    first, second = as_operator(op0), as_operator(op1)

    def emit(dst: NkiTensor, a: NkiTensor, b: Any, c: NkiTensor) -> None:
        isa.scalar_tensor_tensor(dst, a, first, as_column(b, first), second, c, reverse0, reverse1)

    sources = (data, operand0, operand1)
    return Pending(data.shape, result_format(dtype, data), emit, sources, mask=mask, converts=not first.bitvec)


@instruction
def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Pending:
    """Each state of ``state = (data0 <op0> state) <op1> data1`` along a partition, starting from ``initial``."""
    what = "nisa.tensor_tensor_scan"
    data0, data1 = require_tile(what, data0, "data0"), require_tile(what, data1, "data1")
    initial, first, second = require_operand(what, initial, "initial"), as_operator(op0), as_operator(op1)

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor, start: Any) -> None:
        isa.tensor_tensor_scan(dst, a, b, start, first, second, reverse0, reverse1)

    sources = (data0, data1, initial)
    made = Pending(data0.shape, result_format(dtype, data0, data1), emit, sources, mask=mask, converts=True)
    require_one_range(what, parts_of(made))
    return made


@instruction
def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``1 / data`` on the vector engine."""
    data = require_tile("nisa.reciprocal", data, "data")
    return Pending(data.shape, result_format(dtype, data), isa.reciprocal, (data,), mask=mask, converts=True)
