"""Tensors with block dimensions: one tile for each block, before the dimension that ``nl.par_dim`` marks."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import prod
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.allocating import Allocation, PsumAllocator, SbufAllocator
from trnrt.nki.legacy.assigning import assign
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import Tile, on_chip_shape
from trnrt.nki.machine.dtypes import DType
from trnrt.nki.machine.program import MemoryRegion, Source
from trnrt.nki.sim.tensor import NkiTensor

_ALLOCATORS = {SbufAllocator: MemoryRegion.sbuf, PsumAllocator: MemoryRegion.psum}


class PartitionDim(int):
    """A size that ``nl.par_dim`` marks as that of the partitions; the dimensions before it are blocks."""

    def __repr__(self) -> str:
        return f"par_dim({int(self)})"


def par_dim(size: int) -> PartitionDim:
    """The size of the dimension that lies along the partitions."""
    return PartitionDim(index(size))


class Blocks:
    """Tiles of one shape, by block: ``t[k]`` is a tile, ``t[k, i_p, i_f]`` a part of it."""

    def __init__(self, blocks: tuple[int, ...], tiles: Sequence[NkiTensor]) -> None:
        self.blocks = blocks
        self.tiles = [Tile(one) for one in tiles]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.blocks, *self.tiles[0].shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self.tiles[0].dtype

    @property
    def format(self) -> DType:
        return self.tiles[0].format

    @property
    def buffer(self) -> MemoryRegion:
        return self.tiles[0].buffer

    def __repr__(self) -> str:
        return f"Blocks({self.blocks} of {self.tiles[0].describe()})"

    def __getitem__(self, key: Any) -> Tile | Blocks:
        """The tile of a block, or a part of it; without integers for all block dimensions, the blocks that are left."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if keys and keys[0] is Ellipsis and len(keys) == 1:
            return self
        number = self._find(keys)
        if number is not None:
            inner = keys[len(self.blocks) :]
            return self.tiles[number][tuple(inner)] if inner else self.tiles[number]
        rest = keys[len(self.blocks) :]
        ranges = [self._range(dim, one) for dim, one in enumerate(keys[: len(self.blocks)])]
        ranges += [range(size) for size in self.blocks[len(ranges) :]]
        kept = tuple(len(r) for dim, r in enumerate(ranges) if dim >= len(keys) or isinstance(keys[dim], slice))
        tiles = [self.tiles[self._number(at)] for at in product(*ranges)]
        if kept:
            return Blocks(kept, [one[tuple(rest)].target if rest else one.target for one in tiles])
        return tiles[0][tuple(rest)] if rest else tiles[0]

    def view(self, dtype: Any) -> Blocks:
        """The same bits in another format."""
        return Blocks(self.blocks, [one.view(dtype).target for one in self.tiles])

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        for one in part.tiles if isinstance(part, Blocks) else (part,):
            assign(one, value)

    def _find(self, keys: list[Any]) -> int | None:
        """The number of the block that integers name; None if they are others, or too few."""
        number = 0
        if len(keys) < len(self.blocks):
            return None
        for size, at in zip(self.blocks, keys, strict=False):
            if not isinstance(at, int) or not 0 <= at < size:
                return None
            number = number * size + at
        return number

    def _range(self, dim: int, key: Any) -> range:
        size = self.blocks[dim]
        if isinstance(key, slice):
            return range(*key.indices(size))
        try:
            at = index(key)
        except TypeError:
            raise KernelError(
                f"block dimension {dim} of {self!r} is indexed by {key!r}; blocks are separate tiles: give an integer"
            ) from None
        if not -size <= at < size:
            raise KernelError(f"index {at} is outside block dimension {dim}, which has {size} blocks")
        return range(at % size, at % size + 1)

    def _number(self, block: tuple[int, ...]) -> int:
        return sum(at * prod(self.blocks[dim + 1 :]) for dim, at in enumerate(block))


def allocate(shape: Any, dtype: DType, buffer: Any, name: str = "") -> Tile | Blocks:
    """A new tensor for ``nl.ndarray``: in HBM of any shape; on chip one tile, or one for each block."""
    session = active_session("nl.ndarray")
    session.flush()
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    allocation = as_allocation(buffer)
    if allocation.region in (MemoryRegion.shared_hbm, MemoryRegion.private_hbm):
        return Tile(session.allocate(sizes, dtype, MemoryRegion.shared_hbm, name))
    session.use_allocation(direct=allocation.place is not None)
    if allocation.place is not None:
        allocation = session.repeat_allocation(allocation)
    name = name or _variable_name(*session.tracer.here())
    at = next((k for k, size in enumerate(sizes) if isinstance(size, PartitionDim)), 0)
    blocks, inner = tuple(index(size) for size in sizes[:at]), on_chip_shape(sizes[at:])
    bytes_each = prod(inner[1:]) * dtype.itemsize
    tiles = []
    for block in product(*(range(size) for size in blocks)):
        address = None if session.automatic else allocation.address(block, inner[0], bytes_each)
        numbered = f"{name}[{', '.join(map(str, block))}]" if name and block else name
        tiles.append(session.allocate(inner, dtype, allocation.region, numbered, address))
    return Blocks(blocks, tiles) if blocks else Tile(tiles[0])


_ASSIGNED = re.compile(r"\s*(\w+)\s*(?::[^=]+)?=(?!=)")


@cache
def _variable_name(source: Source, line: int) -> str:
    """The variable that the line of an allocation assigns to; "" if it is none."""
    found = _ASSIGNED.match(linecache.getline(source.file, source.line))
    return found[1] if found else ""


def as_allocation(buffer: Any) -> Allocation:
    """The allocation that ``buffer=`` names: a memory, ``ncc.sbuf`` or ``ncc.psum``, or addresses; SBUF for None."""
    if buffer is None:
        return Allocation(MemoryRegion.sbuf)
    if isinstance(buffer, Allocation):
        return buffer
    if isinstance(buffer, MemoryRegion):
        return Allocation(buffer)
    known = _ALLOCATORS.get(type(buffer))
    if known is None:
        raise KernelError(f"buffer={buffer!r} is no memory; give nl.sbuf, nl.psum, nl.hbm, or ncc.sbuf.mod_alloc(...)")
    return Allocation(known)
