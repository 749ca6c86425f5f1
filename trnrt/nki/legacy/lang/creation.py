"""New tensors: unwritten, of one number."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.blocks import Blocks, allocate
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import Tile
from trnrt.nki.machine.dtypes import DType, as_dtype
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim import isa

__all__ = ["empty_like", "full", "ndarray", "ones", "zeros", "zeros_like"]


def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor, unwritten: it reads as NaN. In SBUF by default; ``nl.par_dim`` marks the partitions' dimension."""
    return allocate(shape, _format("nl.ndarray", dtype), buffer, name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of one number: a memset of each tile. Zeros of PSUM are written only if something reads them:
    matrix products that are added to a new tile overwrite it."""
    made = allocate(shape, _format("nl.full", dtype), buffer, name)
    session = active_session("nl.full")
    for one in made.tiles if isinstance(made, Blocks) else [made]:
        if one.buffer is MemoryRegion.psum and fill_value == 0:
            session.promise_zeros(one.target)
        elif one.on_chip:
            isa.memset(one.target, fill_value)
        else:
            raise KernelError("nl.full: a tensor in HBM has no instruction that fills it: fill a tile, and nl.store it")
    return made


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of zeros (see ``full``)."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """A new tensor of ones (see ``full``)."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """Zeros in the shape of ``a``."""
    return full(a.shape, 0, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Tile | Blocks:
    """An unwritten tensor in the shape of ``a``."""
    return ndarray(a.shape, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def _format(what: str, dtype: Any) -> DType:
    try:
        return as_dtype(bool if dtype is bool else dtype)
    except TypeError as error:
        raise KernelError(f"{what}: {error}") from None
