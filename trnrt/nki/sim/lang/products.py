"""Matrix products and transposes of whole tiles, on the tensor engine."""

from __future__ import annotations

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import copy_tile, copy_to_sbuf, refuse_when_strict, require_tile, result_dtype, tile
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["matmul", "transpose"]


def transpose(x: NkiTensor, dtype: object = None) -> NkiTensor:
    """``x.T`` of a 2-D tile of at most 128x128, in PSUM.

    nc_transpose on the tensor engine; with another ``dtype`` a tensor_copy to a second PSUM tile.
    """
    x = require_tile("transpose", x)
    if x.ndim != 2:
        raise KernelError(f"nl.transpose: x has {x.ndim} dimensions, {x.shape}; it must have 2")
    wanted = result_dtype("transpose", dtype, x.dtype)
    dst = tile((x.shape[1], x.shape[0]), x.dtype, MemoryRegion.psum, "nl.transpose")
    isa.nc_transpose(dst, copy_to_sbuf(x), engine=isa.engine.tensor)
    if wanted == x.dtype:
        return dst
    converted = tile(dst.shape, wanted, MemoryRegion.psum)
    isa.tensor_copy(converted, dst)
    return converted


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """``x.T @ y`` with ``transpose_x``, else ``x @ y``; a float32 tile in PSUM.

    nc_matmul; without ``transpose_x`` the transpose of x goes through PSUM to SBUF first.
    """
    x, y = require_tile("matmul", x), require_tile("matmul", y, "y")
    for argument, given in (("x", x), ("y", y)):
        if given.ndim != 2:
            raise KernelError(f"nl.matmul: {argument} has {given.ndim} dimensions, {given.shape}; it must have 2")
    if not transpose_x:
        instead = "nl.matmul(x, y, transpose_x=True) with x as it is to be contracted, along its partitions"
        refuse_when_strict("matmul", "x must be transposed on the way", instead)
        x = copy_tile(transpose(x), x.dtype)
    if x.shape[0] != y.shape[0]:
        shapes = f"{x.shape[0]} partitions of x and {y.shape[0]} of y"
        raise KernelError(f"nl.matmul: {shapes} are to be contracted; they must be equally many")
    dst = tile((x.shape[1], y.shape[1]), float32, MemoryRegion.psum, "nl.matmul")
    isa.nc_matmul(dst, copy_to_sbuf(x), copy_to_sbuf(y), accumulate=False)
    return dst
