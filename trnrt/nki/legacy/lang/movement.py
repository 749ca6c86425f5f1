"""Between HBM and SBUF, and copies."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import regions
from trnrt.nki.legacy.lang.common import require_tile, result_format
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import FUNCTIONS, Pending, Tile, on_chip_shape
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa

__all__ = ["copy", "load", "store"]


def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """A tensor of HBM as a tile in SBUF, its first dimension along the partitions: dma_copy.

    The elements where the mask is false stay unwritten.
    """
    src = require_hbm("nl.load", src, "src")
    return Pending(
        on_chip_shape(src.shape),
        result_format(dtype, src),
        isa.dma_copy,
        (src,),
        mask=mask,
        iteration=src.shape,
        bounds_of=lambda bounds: bounds if len(bounds) > 1 else (*bounds, (0, 1)),
    )


def store(dst: Any, value: Any, *, mask: Any = None, **_: Any) -> None:
    """A tile into a tensor of HBM: dma_copy; of a tile in PSUM a copy in SBUF, as DMA doesn't reach PSUM."""
    session = active_session("nl.store")
    dst = require_hbm("nl.store", dst, "dst")
    value = require_tile("nl.store", value, "value")
    session.flush()
    found = regions(mask, dst.shape)
    if not found:
        return
    if value.buffer is MemoryRegion.psum:
        value = copy(value)
        session.flush()
    for bounds in found:
        if bounds is None:
            isa.dma_copy(dst.target, value.view)
        else:
            part = value.narrow(bounds) if value.ndim == dst.ndim else value.narrow(bounds[:1])
            isa.dma_copy(dst.narrow(bounds).target, part.view)


def copy(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """A copy of a tile in SBUF: tensor_copy."""
    src = require_tile("nl.copy", src, "src")
    return Pending(src.shape, result_format(dtype, src), isa.tensor_copy, (src,), mask=mask)


def require_hbm(what: str, value: Any, argument: str) -> Tile:
    """``value``, if it is a tensor in HBM."""
    if not isinstance(value, Tile):
        raise KernelError(f"{what}: {argument} is a {type(value).__name__}; it must be a tensor in HBM")
    if value.on_chip:
        raise KernelError(f"{what}: {argument} is in {value.buffer.value}; it must be in HBM")
    return value


FUNCTIONS["copy"] = copy
