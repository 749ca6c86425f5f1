"""Copies, DMA, fills and transposes."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import regions
from trnrt.nki.legacy.lang.common import require_tile, result_format
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import Pending, Tile
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.program import Engine, MemoryRegion
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["dma_copy", "memset", "nc_transpose", "tensor_copy"]


def dma_copy(*, dst: Any, src: Any, mask: Any = None, dst_rmw_op: Any = None, **options: Any) -> None:
    """``dst = src`` between HBM and SBUF, by DMA."""
    session = active_session("nisa.dma_copy")
    for name, one in (("dst", dst), ("src", src)):
        if not isinstance(one, Tile):
            raise KernelError(f"nisa.dma_copy: {name} is a {type(one).__name__}; it must be a tensor or a tile")
    if dst_rmw_op is not None:
        raise KernelError("nisa.dma_copy: dst_rmw_op is left out of trnrt's simulator; load, add, and store")
    source = Tile(src.view) if isinstance(src, Pending) else src
    session.flush()
    for bounds in regions(mask, dst.shape):
        if bounds is None:
            isa.dma_copy(dst.target, source.view, **options)
        else:
            part = source.narrow(bounds) if source.ndim == dst.ndim else source.narrow(bounds[:1])
            isa.dma_copy(dst.narrow(bounds).target, part.view, **options)


def memset(
    shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """A tile of one number in SBUF."""
    return Pending(tuple(shape), as_dtype(dtype), lambda dst: isa.memset(dst, value, engine=engine), (), mask=mask)


def tensor_copy(src: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown, **_: Any) -> Pending:
    """A copy of a tile in SBUF."""
    src = require_tile("nisa.tensor_copy", src, "src")
    return Pending(
        src.shape, result_format(dtype, src), lambda dst, a: isa.tensor_copy(dst, a, engine=engine), (src,), mask=mask
    )


def nc_transpose(
    data: Any, *, mask: Any = None, dtype: Any = None, engine: Engine = Engine.unknown, **_: Any
) -> Pending:
    """``data.T``: in PSUM by the tensor engine, in SBUF by the vector engine (up to 32 x 32)."""
    data = require_tile("nisa.nc_transpose", data, "data")
    by_vector = engine is Engine.vector

    def emit(dst: NkiTensor, a: NkiTensor) -> None:
        isa.nc_transpose(dst, a, engine=Engine.vector if by_vector else Engine.tensor)

    return Pending(
        (data.free_size, data.shape[0]),
        result_format(dtype, data),
        emit,
        (data,),
        buffer=MemoryRegion.sbuf if by_vector else MemoryRegion.psum,
        mask=mask,
        iteration=(data.shape[0], data.free_size),
        bounds_of=lambda bounds: (bounds[1], bounds[0]),
    )
