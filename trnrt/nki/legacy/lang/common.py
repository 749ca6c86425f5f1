"""Operands and results of the old namespace's functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.blocks import Blocks
from trnrt.nki.legacy.indexing import Index, Mask
from trnrt.nki.legacy.tiles import SCALARS, Pending, Tile
from trnrt.nki.legacy.windows import repeat
from trnrt.nki.machine.dtypes import DType, as_dtype, bfloat16, float32, int32, uint8
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

Number = int | float

# numpy's functions that the old namespace takes as operators, under our names.
_OF_NUMPY = {
    "amax": "maximum",
    "amin": "minimum",
    "max": "maximum",
    "min": "minimum",
    "sum": "add",
    "prod": "multiply",
    "absolute": "abs",
    "true_divide": "divide",
    "remainder": "mod",
}


def require_tile(what: str, value: Any, argument: str = "x") -> Tile:
    """``value``, if it is a tile in SBUF or PSUM."""
    if isinstance(value, Blocks):
        raise KernelError(
            f"{what}: {argument} has {len(value.blocks)} block dimensions, {value.shape}; it must be a tile, whose "
            "partitions come first",
            hint="take the tile of a block, as in x[i]",
        )
    if not isinstance(value, Tile):
        instead = "nisa.iota makes a tile of an index expression" if isinstance(value, (Index, Mask)) else None
        raise KernelError(f"{what}: {argument} is a {type(value).__name__}; it must be a tile", hint=instead)
    if not value.on_chip:
        raise KernelError(f"{what}: {argument} is in HBM; engines reach SBUF and PSUM: bring it in with nl.load")
    return value


def require_operand(what: str, value: Any, argument: str) -> Tile | Number:
    """``value``, if it is a tile in SBUF or PSUM, or a number."""
    if isinstance(value, SCALARS):
        return value  # type: ignore[return-value]  # numpy's numbers behave as Python's
    return require_tile(what, value, argument)


def as_operator(value: Any) -> Operator:
    """The operator that ``op=`` names: of nl, as ``nl.add``, or numpy's function of that meaning, as ``np.add``."""
    if isinstance(value, Operator):
        return value
    name = getattr(value, "__name__", None)
    known = OPERATORS.get(_OF_NUMPY.get(str(name), str(name)))
    if known is None:
        raise KernelError(f"{value!r} is no operator; write one of nl, as nl.add, or of numpy, as np.add")
    return known


def named_format(dtype: Any) -> DType:
    """The number format that ``dtype=`` names; KernelError if there is none of that name."""
    try:
        return as_dtype(bool if dtype is bool else dtype)
    except TypeError as error:
        raise KernelError(f"dtype: {error}") from None


def result_format(wanted: Any, *operands: Any) -> DType:
    """The number format that is asked for, else that of the operands, tiles and numbers, promoted.

    Python's numbers count as uint8 (bool), int32 and float32; numpy's have their own format. Source: SDK 2.26.1,
    nki/api/nki.api.shared.rst, "NKI Type Promotion".
    """
    if wanted is not None:
        return named_format(wanted)
    formats = [_own_format(one) for one in operands if isinstance(one, (Tile, *SCALARS))]
    found = formats[0]
    for other in formats[1:]:
        found = promote(found, other)
    return found


def _own_format(operand: Any) -> DType:
    if isinstance(operand, Tile):
        return operand.format
    if hasattr(operand, "dtype"):
        try:
            return as_dtype(operand.dtype)
        except TypeError:  # numpy's 64 bits
            return int32 if operand.dtype.kind in "iu" else float32
    if isinstance(operand, bool):
        return uint8
    return int32 if isinstance(operand, int) else float32


def promote(one: DType, other: DType) -> DType:
    """The format of a result of two: floats before integers, then the wider, or the next one that holds both."""
    if one == other:
        return one
    if one.is_float != other.is_float:
        return one if one.is_float else other
    if not one.is_float:
        wide = np.promote_types(one.numpy, other.numpy)
        return as_dtype(wide) if wide.itemsize <= float32.itemsize else float32
    if one.itemsize != other.itemsize:
        return one if one.itemsize > other.itemsize else other
    return bfloat16 if one.itemsize == 1 else float32


def broadcast_shape(what: str, one: Tile, other: Tile) -> tuple[int, ...]:
    """The shape of both operands, with sizes of 1 repeated; a column ``[P, 1]`` fits any tile of P partitions."""
    a, b = one.shape, other.shape
    for column, wide in ((other, a), (one, b)):
        if column.free_size == 1 and column.shape[0] in (1, wide[0]):
            return wide
    if len(a) == len(b) and all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=True)):
        return tuple(max(m, n) for m, n in zip(a, b, strict=True))
    if a[0] == b[0] and one.free_size == other.free_size:
        return a
    raise KernelError(
        f"{what}: tiles of shape {a} and {b}; they must have one shape, or sizes of 1",
        hint="take parts of one shape, or give sizes of 1 to what is repeated: t.reshape, t.expand_dims",
    )


def spread(view: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """A tile's view in ``shape``: free dimensions repeated without cost, a single partition by a DMA to all."""
    if view.shape == shape or (view.shape[0] == shape[0] and view.free_size == _free(shape)):
        return view
    if view.shape[0] != shape[0]:
        view = _to_partitions(view, shape[0])
    return repeat(view, shape)


def _free(shape: Sequence[int]) -> int:
    size = 1
    for n in shape[1:]:
        size *= n
    return size


def _to_partitions(view: NkiTensor, count: int) -> NkiTensor:
    """The one partition of a view in ``count`` partitions: a DMA whose source has a stride of 0."""
    from trnrt.nki.sim.lang.common import copy_to_sbuf, tile

    row = copy_to_sbuf(view)
    shape = (count, *row.shape[1:])
    made = tile(shape, row.dtype)
    isa.dma_copy(made, replace(row, shape=shape, strides=(0, *row.strides[1:])))
    return made


__all__ = [
    "MemoryRegion",
    "Number",
    "Pending",
    "as_operator",
    "broadcast_shape",
    "named_format",
    "promote",
    "require_operand",
    "require_tile",
    "result_format",
    "spread",
]
