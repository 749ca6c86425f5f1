"""Operators and functions of each element, as ``nl.add`` and ``nl.exp``.

Two tiles: tensor_tensor; a tile and a number, or a column ``[P, 1]`` of float32: tensor_scalar; functions of the scalar
engine: activation. Divisions are a reciprocal and a product. Functions that no engine has are today's, of several
instructions, and a copy to the destination.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.lang.common import Number, broadcast_shape, require_operand, require_tile, result_format, spread
from trnrt.nki.legacy.tiles import FUNCTIONS, Pending, Tile
from trnrt.nki.machine.dtypes import DType, bool_, float32, int32, uint32
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import common as today
from trnrt.nki.sim.lang import elementwise, rounding, trigonometry
from trnrt.nki.sim.tensor import NkiTensor

Emit = Callable[..., object]

_EXACT_INTEGERS = ("add", "subtract", "multiply", "maximum", "minimum")


def binary(name: str, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """``x <op> y`` of two tiles, or a tile and a number, with sizes of 1 repeated. Comparisons give ``bool``."""
    what = f"nl.{name}"
    x, y = require_operand(what, x, "x"), require_operand(what, y, "y")
    tiles = [one for one in (x, y) if isinstance(one, Tile)]
    if not tiles:
        raise KernelError(f"{what}: x and y are both numbers; one of them must be a tile")
    shape = tiles[0].shape if len(tiles) == 1 else broadcast_shape(what, *tiles)
    op = OPERATORS.get(name)
    wanted = _binary_format(name, op, dtype, x, y)
    emit = _SPECIAL.get(name) or (lambda dst, a, b: _apply(_require_operator(op), dst, a, b))
    return Pending(shape, wanted, emit, (x, y), mask=mask, converts=op is None or not op.bitvec)


def describe_binary(name: str) -> str:
    """Name the instructions of a function of two operands, for its docstring."""
    op = OPERATORS.get(name)
    how = {
        "divide": "the reciprocal of y, times x",
        "power": "tensor_tensor on the GpSimd engine",
        "mod": "the remainder with the sign of y",
        "fmod": "the remainder with the sign of x",
    }.get(name, "tensor_tensor, or tensor_scalar with a number or a float32 column")
    return f"Two tiles, or a tile and a number: {how}{'; gives bool' if op is not None and op.comparison else ''}."


def describe_unary(name: str) -> str:
    """Name the instructions of a function of one tile, for its docstring."""
    if name in _OF_TODAY:
        return "Each element of a tile: several instructions, for numbers of any size."
    return f"Each element of a tile: {'reciprocal' if name == 'reciprocal' else 'activation'}."


def _binary_format(name: str, op: Operator | None, dtype: Any, x: Any, y: Any) -> DType:
    """The format of a result; that of bit patterns is the tiles' own, whatever numbers they are combined with.

    Quotients of integers are float32, as numpy's are floats.
    """
    if op is not None and op.comparison and dtype is None:
        return bool_
    if op is not None and op.bitvec:
        return result_format(dtype, *(one for one in (x, y) if isinstance(one, Tile)))
    found = result_format(dtype, x, y)
    return float32 if name == "divide" and dtype is None and not found.is_float else found


def _require_operator(op: Operator | None) -> Operator:
    assert op is not None
    return op


def _apply(op: Operator, dst: NkiTensor, x: Any, y: Any) -> None:
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        _two_tiles(op, dst, x, y)
    elif isinstance(x, NkiTensor):
        _with_number(op, dst, x, y, swapped=False)
    else:
        _with_number(op, dst, y, x, swapped=True)


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
    """tensor_scalar; 32-bit integers, which lose digits in its float32, with a tile of the number on GpSimd."""
    exact = op.name in _EXACT_INTEGERS and dst.dtype in (int32, uint32) and x.dtype == dst.dtype
    if exact and number == int(number):
        other = today.tile(x.shape, x.dtype)
        isa.memset(other, int(number))
        _two_tiles(op, dst, *((other, x) if swapped else (x, other)))
        return
    isa.tensor_scalar(dst, x, op, number, reverse0=swapped)


def _remainder(name: str) -> Emit:
    """Today's function of this name, and a copy of its result to the destination."""
    function = getattr(elementwise, name)

    def emit(dst: NkiTensor, x: Any, y: Any) -> None:
        x, y = (spread(one, dst.shape) if isinstance(one, NkiTensor) else one for one in (x, y))
        isa.tensor_copy(dst, function(x, y, dtype=dst.dtype))

    return emit


def _divide(dst: NkiTensor, x: Any, y: Any) -> None:
    """``x / y`` as a product with the reciprocal of y."""
    if not isinstance(y, NkiTensor):
        isa.tensor_scalar(dst, x, OPERATORS["multiply"], 1.0 / y)
        return
    inverse = today.tile(y.shape, float32)
    isa.reciprocal(inverse, y)
    _apply(OPERATORS["multiply"], dst, x, inverse)


def _power(dst: NkiTensor, x: Any, y: Any) -> None:
    """``x ** y``: tensor_tensor on the GpSimd engine, which reaches SBUF only."""
    x, y = (_as_tile(one, dst.shape) for one in (x, y))
    made = dst if dst.buffer is MemoryRegion.sbuf else today.tile(dst.shape, dst.dtype)
    isa.tensor_tensor(made, x, y, OPERATORS["power"], engine=Engine.gpsimd)
    if made is not dst:
        isa.tensor_copy(dst, made)


def _as_tile(operand: Any, shape: tuple[int, ...]) -> NkiTensor:
    """An operand as a tile of this shape in SBUF."""
    if isinstance(operand, NkiTensor):
        return spread(today.copy_to_sbuf(operand), shape)
    made = today.tile(shape, float32)
    isa.memset(made, operand)
    return made


_SPECIAL: dict[str, Emit] = {
    "divide": _divide,
    "power": _power,
    "mod": _remainder("mod"),
    "fmod": _remainder("fmod"),
}

# Functions of one tile that no engine has, or that an engine has for a part of the numbers only.
_OF_TODAY: dict[str, Callable[..., NkiTensor]] = {
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "arctan": trigonometry.arctan,
    "floor": rounding.floor,
    "ceil": rounding.ceil,
    "trunc": rounding.trunc,
}


def unary(name: str, x: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """``op(x)``: an activation on the scalar engine; reciprocals on the vector engine, which is the more precise."""
    x = require_tile(f"nl.{name}", x)
    function, op = _OF_TODAY.get(name), OPERATORS.get(name)

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        if function is not None:
            isa.tensor_copy(dst, function(a, dtype=dst.dtype))
        elif name == "reciprocal":
            isa.reciprocal(dst, a)
        else:
            isa.activation(dst, _require_operator(op), a)

    return Pending(x.shape, result_format(dtype, x), emit, (x,), mask=mask, converts=True)


def negative(x: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """``-x``: times -1."""
    x = require_tile("nl.negative", x)
    return binary("multiply", x, -1, dtype=result_format(dtype, x), mask=mask)


def logical_not(x: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """True where ``x`` is 0: a comparison with 0."""
    return binary("equal", require_tile("nl.logical_not", x), 0.0, dtype=dtype, mask=mask)


def invert(x: Any, *, dtype: Any = None, mask: Any = None) -> Pending:
    """Integers with all bits inverted; ``bool`` negated."""
    x = require_tile("nl.invert", x)
    if x.format == bool_:
        return logical_not(x, dtype=dtype, mask=mask)
    op = OPERATORS["invert"]
    return Pending(x.shape, result_format(dtype, x), lambda dst, a: isa.tensor_scalar(dst, a, op, 0), (x,), mask=mask)


FUNCTIONS.update(binary=binary, invert=invert, negative=negative)
