"""Operators called as functions, ``nl.add(x, y)``, and the functions of one or two tiles that are no operators.

Instructions: tensor_tensor for two tiles; tensor_scalar for a tile and a number; activation for functions of the
scalar engine; exceptions are in the functions' docstrings. Of two tiles in PSUM the second is copied to SBUF first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType, float32
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import (
    Scalar,
    copy_to_sbuf,
    promote,
    refuse_when_strict,
    require_operand,
    require_tile,
    result_dtype,
    result_tile,
    tile,
)
from trnrt.nki.sim.lang.movement import repeat_tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["divide", "fmod", "logical_not", "mod", "negative"]

_INTEGERS = ("int32", "uint32")
_EXACT_INTEGERS = ("add", "subtract", "multiply", "maximum", "minimum")
_COLUMN_OPERATORS = ("abs_max", "abs_min")  # tensor_scalar takes their second operand as a column: no broadcasting

# The vector engine has none of these; they stand in unless strict mode refuses them.
_DIVIDE = Operator("divide", binary=np.divide)
_MOD = Operator("mod", binary=np.mod)
_FMOD = Operator("fmod", binary=np.fmod)
_REMAINDER = "nl.subtract(x, nl.multiply(y, nl.{}(nl.multiply(x, nl.reciprocal(y)))))"


def binary(op: Operator, x: Any, y: Any, dtype: object = None) -> NkiTensor:
    """``x <op> y`` of two tiles of one shape, or of a tile and a number, in ``dtype``: by default the tile's, of two
    tiles the wider one (see ``promoted``). Strict mode refuses broadcasting over dimensions of size 1."""
    x, y = require_operand(op.name, x, "x"), require_operand(op.name, y, "y")
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        wanted = result_dtype(op.name, dtype, promote(x.dtype, y.dtype))
        return _two_tiles(op, x, y, wanted)
    if isinstance(x, NkiTensor):
        return _with_number(op, x, y, result_dtype(op.name, dtype, x.dtype), reverse=False)
    if isinstance(y, NkiTensor):
        return _with_number(op, y, x, result_dtype(op.name, dtype, y.dtype), reverse=True)
    raise KernelError(f"nl.{op.name}: x and y are both numbers; one of them must be a tile")


def _two_tiles(op: Operator, x: NkiTensor, y: NkiTensor, dtype: DType) -> NkiTensor:
    if x.shape != y.shape:
        if op.name in _COLUMN_OPERATORS and y.dtype == float32 and (y.partitions, y.free_size) == (x.partitions, 1):
            dst = tile(x.shape, dtype)
            isa.tensor_scalar(dst, x, op, y)
            return dst
        shapes = f"x is {x.shape}, y {y.shape}: one is broadcast"
        refuse_when_strict(op.name, shapes, "nisa.tensor_scalar with a [P, 1] operand, or nl.broadcast_to first")
        x, y = _broadcast(op.name, x, y)
    dst = tile(x.shape, dtype)
    if op.name == "power":
        isa.tensor_tensor(dst, copy_to_sbuf(x), copy_to_sbuf(y), op, engine=Engine.gpsimd)
        return dst
    if x.buffer is MemoryRegion.psum and y.buffer is MemoryRegion.psum:
        y = copy_to_sbuf(y)
    # Integers would be divided as integers on the GpSimd engine.
    isa.tensor_tensor(dst, x, y, op, engine=Engine.vector if op is _DIVIDE else Engine.unknown)
    return dst


def _broadcast(what: str, x: NkiTensor, y: NkiTensor) -> tuple[NkiTensor, NkiTensor]:
    """Both operands in the shape that numpy's rule gives."""
    if x.ndim != y.ndim or any(a != b and 1 not in (a, b) for a, b in zip(x.shape, y.shape, strict=True)):
        raise KernelError(f"nl.{what}: x is {x.shape}, y {y.shape}; they must have one shape, or sizes of 1")
    shape = tuple(b if a == 1 else a for a, b in zip(x.shape, y.shape, strict=True))
    return repeat_tile(x, shape), repeat_tile(y, shape)


def _with_number(op: Operator, x: NkiTensor, number: Scalar, dtype: DType, *, reverse: bool) -> NkiTensor:
    exact = op.name in _EXACT_INTEGERS and dtype == x.dtype and _fits(number, dtype)
    if op.name == "power":
        instead = "nl.power(x, y) with a tile in the place of the number, or nl.square and nl.multiply"
        refuse_when_strict("power", f"{'x' if reverse else 'y'} is a number", instead)
    if op.name == "power" or exact:
        # 32-bit integers lose digits in tensor_scalar's float32; a tile of the number goes to the GpSimd engine.
        other = tile(x.shape, dtype if exact else float32)
        isa.memset(other, number)
        return _two_tiles(op, other, x, dtype) if reverse else _two_tiles(op, x, other, dtype)
    dst = tile(x.shape, dtype)
    isa.tensor_scalar(dst, x, op, number, reverse0=reverse)
    return dst


def _fits(number: Scalar, dtype: DType) -> bool:
    """True if ``dtype`` is a 32-bit integer and ``number`` one of its values."""
    if dtype.name not in _INTEGERS or not float(number).is_integer():
        return False
    limits = np.iinfo(dtype.numpy)
    return int(limits.min) <= number <= int(limits.max)


def unary(op: Operator, x: Any, dtype: object = None) -> NkiTensor:
    """``op(x)`` in ``dtype``, the tile's by default: an activation on the scalar engine."""
    dst = result_tile(op.name, x, dtype)
    isa.activation(dst, op, x)
    return dst


def copy(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """A copy of ``x`` in SBUF: tensor_copy on the vector engine."""
    dst = result_tile("copy", x, dtype)
    isa.tensor_copy(dst, x)
    return dst


def reciprocal(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """``1 / x`` on the vector engine, which is the more precise one."""
    dst = result_tile("reciprocal", x, dtype)
    isa.reciprocal(dst, x)
    return dst


def rsqrt(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """``1 / sqrt(x)`` of a tile in SBUF: tensor_scalar on the GpSimd engine, which is the more precise one."""
    dst = result_tile("rsqrt", x, dtype)
    isa.tensor_scalar(dst, x, OPERATORS["rsqrt"], 0.0, engine=Engine.gpsimd)
    return dst


def invert(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """Integers with all bits inverted: a tensor_scalar with the bitvec operator."""
    dst = result_tile("invert", x, dtype)
    isa.tensor_scalar(dst, x, OPERATORS["invert"], 0)
    return dst


def logical_not(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """1 where ``x`` is 0, 0 where it is 1: a tensor_scalar that compares with 0."""
    dst = result_tile("logical_not", x, dtype)
    isa.tensor_scalar(dst, x, OPERATORS["equal"], 0.0)
    return dst


def negative(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """``-x``: times -1, 32-bit integers in integer arithmetic."""
    return binary(OPERATORS["multiply"], require_tile("negative", x), -1, dtype)


def divide(x: Any, y: Any, dtype: object = None) -> NkiTensor:
    """``x / y``. The hardware has no division: strict mode refuses it."""
    refuse_when_strict("divide", "there is no division instruction", "nl.multiply(x, nl.reciprocal(y))")
    return binary(_DIVIDE, x, y, dtype)


def mod(x: Any, y: Any, dtype: object = None) -> NkiTensor:
    """The remainder of ``x / y`` with the sign of y. The hardware has no such instruction: strict mode refuses it."""
    refuse_when_strict("mod", "there is no instruction for remainders", _REMAINDER.format("floor"))
    return binary(_MOD, x, y, dtype)


def fmod(x: Any, y: Any, dtype: object = None) -> NkiTensor:
    """The remainder of ``x / y`` with the sign of x. The hardware has no such instruction: strict mode refuses it."""
    refuse_when_strict("fmod", "there is no instruction for remainders", _REMAINDER.format("trunc"))
    return binary(_FMOD, x, y, dtype)
