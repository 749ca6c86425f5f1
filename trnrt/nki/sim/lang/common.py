"""Helpers of the functions of ``nki.language``: tiles, dtypes of results, strict mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType, as_dtype, bfloat16, float32, int32
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer
from trnrt.nki.sim.values import describe_kind

Scalar = int | float
SCALARS = (int, float, np.number, np.bool_)


def require_tensor(what: str, value: object, argument: str = "x") -> NkiTensor:
    """``value`` if it is a tensor; KernelError otherwise."""
    if isinstance(value, NkiTensor):
        return value
    raise KernelError(f"nl.{what}: {argument} is {describe_kind(value)}; it must be a tensor")


def require_tile(what: str, value: object, argument: str = "x") -> NkiTensor:
    """``value`` if it is an on-chip tensor; KernelError otherwise."""
    tensor = require_tensor(what, value, argument)
    if not tensor.on_chip:
        raise KernelError(
            f"nl.{what}: {argument} is in {tensor.buffer.value}; engines reach SBUF and PSUM: bring it in with nl.load"
        )
    return tensor


def require_operand(what: str, value: object, argument: str) -> NkiTensor | Scalar:
    """``value`` if it is a number or an on-chip tensor; KernelError otherwise."""
    if isinstance(value, SCALARS):
        return value  # type: ignore[return-value]  # numpy's numbers behave as Python's
    if isinstance(value, NkiTensor):
        return require_tile(what, value, argument)
    raise KernelError(f"nl.{what}: {argument} is {describe_kind(value)}; it must be a tile or a number")


def result_dtype(what: str, wanted: object, default: DType) -> DType:
    """The requested dtype, or the default."""
    if wanted is None:
        return default
    try:
        return as_dtype(wanted)
    except TypeError as error:
        raise KernelError(f"nl.{what}: {error}") from None


def promote(one: DType, other: DType) -> DType:
    """The dtype of a result of two tiles: floats before integers, then the wider; of two that are equally wide
    float32 (of one byte: bfloat16) or int32, which hold both."""
    if one == other:
        return one
    if one.is_float != other.is_float:
        return one if one.is_float else other
    if one.itemsize != other.itemsize:
        return one if one.itemsize > other.itemsize else other
    if not one.is_float:
        return int32
    return bfloat16 if one.itemsize == 1 else float32


def tile(shape: Sequence[int], dtype: DType, buffer: MemoryRegion = MemoryRegion.sbuf, what: str = "nl") -> NkiTensor:
    """A new, unwritten tensor, for the function ``what``."""
    return active_tracer(what).allocate(tuple(shape), dtype, buffer, "", None, what)


def result_tile(what: str, x: NkiTensor, dtype: object) -> NkiTensor:
    """A new tile with the shape of the tile ``x``, in ``dtype`` or by default that of ``x``."""
    x = require_tile(what, x)
    return tile(x.shape, result_dtype(what, dtype, x.dtype))


def copy_tile(x: NkiTensor, dtype: DType, shape: Sequence[int] | None = None) -> NkiTensor:
    """A copy of ``x`` in SBUF: tensor_copy on the vector engine."""
    dst = tile(shape or x.shape, dtype)
    isa.tensor_copy(dst, x)
    return dst


def cast(x: NkiTensor, dtype: DType) -> NkiTensor:
    """``x``, or a copy of it if it has another dtype."""
    return x if x.dtype == dtype else copy_tile(x, dtype)


def copy_to_sbuf(x: NkiTensor) -> NkiTensor:
    """``x``, or a copy of it in SBUF if it is in PSUM."""
    return x if x.buffer is MemoryRegion.sbuf else copy_tile(x, x.dtype)


def refuse_when_strict(what: str, problem: str, instead: str) -> None:
    """Raise KernelError in strict mode: AWS's simulator computes this, its compiler has no instructions for it."""
    if active_tracer(f"nl.{what}").strict:
        raise KernelError(f"nl.{what}: {problem}, which fails on hardware; write {instead}")


def free_axes(what: str, x: NkiTensor, axis: int | Sequence[int]) -> tuple[int, ...]:
    """The axes counted from the front, in order; they must be the last free ones."""
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(a + x.ndim if a < 0 else a for a in given))
    if not axes or axes != tuple(range(x.ndim - len(axes), x.ndim)) or axes[0] < 1:
        raise KernelError(f"nl.{what}: axis={axis!r} of a tile {x.shape}; only its last free axes can be reduced")
    return axes
