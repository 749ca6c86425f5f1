"""Addresses chosen by the kernel: ``ncc.sbuf.mod_alloc``, ``ncc.psum.alloc`` and their like.

A tensor with block dimensions is one tile for each block. An allocation gives the address of each by its block's
indices; the machine checks that tiles which hold numbers at the same time don't overlap. Rules: SDK 2.26.1,
nki/nki_direct_allocation_guide.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import MemoryRegion

PSUM_BANK_BYTES = 2048


@dataclass(frozen=True)
class Allocation:
    """What ``buffer=`` of ``nl.ndarray`` takes beside a memory. ``place``: the address of a tile, by its block's
    indices, its partitions, and its bytes a partition; None leaves it to the allocator."""

    region: MemoryRegion
    place: Callable[[tuple[int, ...], int, int], tuple[int, int]] | None = None

    def address(self, block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int] | None:
        """(partition, byte) of the tile of a block."""
        return None if self.place is None else self.place(block, partitions, size)


class SbufAllocator:
    """``ncc.sbuf``: also the memory itself, in ``nl.ndarray(..., buffer=ncc.sbuf)``."""

    def alloc(self, func: Callable[..., Any]) -> Allocation:
        """Addresses by ``func(block, partitions, bytes)``, which returns (partition, byte)."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            start, byte = _integers("ncc.sbuf.alloc", func(block, partitions, size), 2)
            return start, byte

        return Allocation(MemoryRegion.sbuf, place)

    def mod_alloc(
        self,
        *,
        base_addr: int,
        base_partition: int = 0,
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocation:
        """Blocks in turns over so many places: ``num_free_tiles`` from ``base_addr`` on, for each block dimension."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            start = base_partition + _turn("num_par_tiles", block, num_par_tiles) * partitions
            return start, base_addr + _turn("num_free_tiles", block, num_free_tiles) * size

        return Allocation(MemoryRegion.sbuf, place)

    def auto_alloc(self) -> Allocation:
        """Addresses that the allocator chooses."""
        return Allocation(MemoryRegion.sbuf)


class PsumAllocator:
    """``ncc.psum``: PSUM has banks of 2 KiB a partition; a tile starts at the begin of one."""

    def alloc(self, func: Callable[..., Any]) -> Allocation:
        """Addresses by ``func(block, partitions, bytes)``, which returns (bank, partition, byte)."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            bank, start, byte = _integers("ncc.psum.alloc", func(block, partitions, size), 3)
            return start, bank * PSUM_BANK_BYTES + byte

        return Allocation(MemoryRegion.psum, place)

    def mod_alloc(
        self,
        *,
        base_bank: int,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Sequence[int] = (),
        num_par_tiles: Sequence[int] = (),
        num_free_tiles: Sequence[int] = (),
    ) -> Allocation:
        """Blocks in turns over so many banks, partitions, and places within a bank, for each block dimension."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            bank = base_bank + _turn("num_bank_tiles", block, num_bank_tiles)
            start = base_partition + _turn("num_par_tiles", block, num_par_tiles) * partitions
            byte = base_addr + _turn("num_free_tiles", block, num_free_tiles) * size
            return start, bank * PSUM_BANK_BYTES + byte

        return Allocation(MemoryRegion.psum, place)

    def auto_alloc(self) -> Allocation:
        """Addresses that the allocator chooses."""
        return Allocation(MemoryRegion.psum)


def _turn(argument: str, block: tuple[int, ...], counts: Sequence[int]) -> int:
    """The number of a block's place: its indices, each modulo the count of its dimension, in row-major order."""
    counts = tuple(counts) or (1,) * len(block)
    if len(counts) != len(block):
        raise KernelError(f"mod_alloc: {argument}={counts} for {len(block)} block dimensions; it must have as many")
    return sum(i % n * prod(counts[dim + 1 :]) for dim, (i, n) in enumerate(zip(block, counts, strict=True)))


def _integers(what: str, value: Any, count: int) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) != count:
        raise KernelError(f"{what}: the function returned {value!r}; it must return {count} integers")
    return tuple(int(one) for one in value)
