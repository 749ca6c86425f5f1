"""Matrix products and transposes of whole tiles, on the tensor engine."""

from __future__ import annotations

from math import prod
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.lang.common import require_tile, result_format
from trnrt.nki.legacy.lang.masks import mask_product, operand_tile
from trnrt.nki.legacy.tiles import FUNCTIONS, Pending, Tile
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import copy_tile, copy_to_sbuf, tile
from trnrt.nki.sim.tensor import NkiTensor

_STATIONARY_MOST, _MOVING_MOST = 128, 512

__all__ = ["matmul", "multiply_matrices", "transpose"]


def multiply_matrices(stationary: Any, moving: Any, *, mask: Any = None, **options: Any) -> Pending:
    """``stationary.T @ moving``, float32 in PSUM. ``psum += `` of it accumulates there.

    The engine reads SBUF; as in Beta 1, a tile in PSUM, as nc_transpose returns it, is copied there first.
    """
    what = "nisa.nc_matmul"
    given, other = operand_tile(what, stationary, "stationary"), operand_tile(what, moving, "moving")

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.nc_matmul(dst, copy_to_sbuf(a), copy_to_sbuf(b), accumulate=False, **options)

    def fold(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.nc_matmul(dst, copy_to_sbuf(a), copy_to_sbuf(b), **options)

    doubled = options.get("perf_mode") not in (None, "none")  # the first free dimension, of 2, is contracted too
    shape = (given.free_size // (2 if doubled else 1), *other.shape[2 if doubled else 1 :])
    dtype = given.format if options.get("is_transpose") else float32
    _require_sizes(what, shape, given.shape[0], other.shape[0])
    a, b, where = mask_product(what, stationary, moving, mask, shape)
    return Pending(shape, dtype, emit, (a, b), buffer=MemoryRegion.psum, mask=where, fold=fold)


def _require_sizes(what: str, shape: tuple[int, ...], contracted: int, also: int) -> None:
    """The limits of a product of tiles: SDK 2.26.1, nisa.nc_matmul."""
    columns, rest = shape[0], prod(shape[1:])
    if columns > _STATIONARY_MOST or rest > _MOVING_MOST:
        raise KernelError(
            f"{what}: stationary has {columns} elements a partition, moving {rest}; the limits are {_STATIONARY_MOST} "
            f"and {_MOVING_MOST}",
            hint="divide the free axes into tiles: nl.tile_size.gemm_stationary_fmax and gemm_moving_fmax",
        )
    if contracted != also:
        raise KernelError(
            f"{what}: stationary spans {contracted} partitions, moving {also}; both are the contraction, and must agree"
        )


def matmul(x: Any, y: Any, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Pending:
    """``x.T @ y`` with ``transpose_x``, else ``x @ y``, for which x is transposed first; float32 in PSUM."""
    y = _bring_to_sbuf(y)
    if transpose_x:
        return multiply_matrices(_bring_to_sbuf(x), y, mask=mask)
    x, y = require_tile("nl.matmul", x), require_tile("nl.matmul", y, "y")
    if mask is not None and not isinstance(mask, bool):
        raise KernelError("nl.matmul: mask with transpose_x=False; give x transposed, with transpose_x=True")

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.nc_matmul(dst, _transpose_tile(a), copy_to_sbuf(b), accumulate=False)

    def fold(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.nc_matmul(dst, _transpose_tile(a), copy_to_sbuf(b))

    shape = (x.shape[0], *y.shape[1:])
    return Pending(shape, float32, emit, (x, y), buffer=MemoryRegion.psum, mask=mask, fold=fold)


def _bring_to_sbuf(operand: Any) -> Any:
    """A copy of a tile in PSUM, which the tensor engine doesn't read; others as they are."""
    in_psum = isinstance(operand, Tile) and operand.buffer is MemoryRegion.psum
    return FUNCTIONS["copy"](operand) if in_psum else operand


def _transpose_tile(x: NkiTensor) -> NkiTensor:
    """A 2-D tile transposed, in SBUF."""
    made = tile((x.free_size, x.shape[0]), x.dtype, MemoryRegion.psum)
    isa.nc_transpose(made, copy_to_sbuf(x), engine=isa.engine.tensor)
    return copy_tile(made, x.dtype)


def transpose(x: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``x.T`` of a 2-D tile of at most 128 x 128, in PSUM."""
    x = require_tile("nl.transpose", x)
    if x.ndim != 2:
        raise KernelError(f"nl.transpose: x has {x.ndim} dimensions, {x.shape}; it must have 2")
    wanted = result_format(dtype, x)

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        made = dst if dst.dtype == a.dtype else tile(dst.shape, a.dtype, MemoryRegion.psum)
        isa.nc_transpose(made, copy_to_sbuf(a), engine=isa.engine.tensor)
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(
        (x.shape[1], x.shape[0]),
        wanted,
        emit,
        (x,),
        buffer=MemoryRegion.psum,
        mask=mask,
        iteration=x.shape,
        bounds_of=lambda bounds: (bounds[1], bounds[0]),
    )
