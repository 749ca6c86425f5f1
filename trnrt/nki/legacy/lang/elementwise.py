"""Operators and functions of each element, as ``nl.add`` and ``nl.exp``.

Two tiles: tensor_tensor; a tile and a number, or a column ``[P, 1]`` of float32: tensor_scalar; functions of the scalar
engine: activation. Divisions are a reciprocal and a product.
"""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.lang.common import Number, broadcast_shape, require_operand, require_tile, result_format, spread
from trnrt.nki.legacy.tiles import FUNCTIONS, Pending, Tile
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import common as today
from trnrt.nki.sim.lang import elementwise as functions
from trnrt.nki.sim.tensor import NkiTensor

_ALONE = frozenset({"divide", "mod", "fmod", "power"})
"""Operators that today's functions make of several instructions, or run on one engine only."""


def binary(name: str, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """``x <op> y`` of two tiles, or a tile and a number, with sizes of 1 repeated."""
    what = f"nl.{name}"
    x, y = require_operand(what, x, "x"), require_operand(what, y, "y")
    tiles = [one for one in (x, y) if isinstance(one, Tile)]
    if not tiles:
        raise KernelError(f"{what}: x and y are both numbers; one of them must be a tile")
    shape = tiles[0].shape if len(tiles) == 1 else broadcast_shape(what, *tiles)
    wanted = result_format(dtype, *tiles)
    if name in _ALONE:
        return Pending(shape, wanted, _today(name), (x, y), mask=mask)
    op = OPERATORS[name]
    if len(tiles) == 2:
        return Pending(shape, wanted, lambda dst, a, b: _two_tiles(op, dst, a, b), (x, y), mask=mask)
    if isinstance(x, Tile):
        return Pending(shape, wanted, lambda dst, a, b: _with_number(op, dst, a, b, swapped=False), (x, y), mask=mask)
    return Pending(shape, wanted, lambda dst, a, b: _with_number(op, dst, b, a, swapped=True), (x, y), mask=mask)


def _two_tiles(op: Operator, dst: NkiTensor, x: NkiTensor, y: NkiTensor) -> None:
    """tensor_tensor; a float32 column of SBUF is the operand of a tensor_scalar, which needs no repetition."""
    for data, column, swapped in ((x, y, False), (y, x, True)):
        fits = column.shape[0] == data.shape[0] and column.free_size == 1 and column.dtype == float32
        if fits and data.free_size != 1 and op.bitvec is False:
            isa.tensor_scalar(dst, data, op, column, reverse0=swapped)
            return
    shape = dst.shape
    x, y = spread(x, shape), spread(y, shape)
    if x.buffer is MemoryRegion.psum and y.buffer is MemoryRegion.psum:
        y = today.copy_to_sbuf(y)
    isa.tensor_tensor(dst, x, y, op)


def _with_number(op: Operator, dst: NkiTensor, x: NkiTensor, number: Number, *, swapped: bool) -> None:
    isa.tensor_scalar(dst, x, op, number, reverse0=swapped)


def _today(name: str) -> Any:
    """Today's function of this name, and a copy of its result to the destination."""

    def emit(dst: NkiTensor, x: Any, y: Any) -> None:
        x, y = (spread(one, dst.shape) if isinstance(one, NkiTensor) else one for one in (x, y))
        if name == "divide":
            _divide(dst, x, y)
            return
        function = getattr(functions, name, None) or OPERATORS[name]
        isa.tensor_copy(dst, function(x, y, dtype=dst.dtype))

    return emit


def _divide(dst: NkiTensor, x: Any, y: Any) -> None:
    """``x / y`` as a product with the reciprocal of y."""
    if not isinstance(y, NkiTensor):
        isa.tensor_scalar(dst, x, OPERATORS["multiply"], 1.0 / y)
        return
    inverse = today.tile(y.shape, float32)
    isa.reciprocal(inverse, y)
    if isinstance(x, NkiTensor):
        isa.tensor_tensor(dst, x, inverse, OPERATORS["multiply"])
    else:
        isa.tensor_scalar(dst, inverse, OPERATORS["multiply"], x)


def unary(name: str, x: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """``op(x)``: an activation on the scalar engine."""
    x, op = require_tile(f"nl.{name}", x), OPERATORS[name]
    return Pending(x.shape, result_format(dtype, x), lambda dst, a: isa.activation(dst, op, a), (x,), mask=mask)


def invert(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """All bits of integers turned."""
    x = require_tile("nl.invert", x)
    op = OPERATORS["invert"]
    return Pending(x.shape, result_format(dtype, x), lambda dst, a: isa.tensor_scalar(dst, a, op, 0), (x,), mask=mask)


FUNCTIONS.update(binary=binary, invert=invert)
