"""Addresses chosen by the kernel: ``ncc.sbuf.mod_alloc``, ``ncc.psum.alloc`` and their like.

A tensor with block dimensions is one tile for each block. An allocation gives the address of each by its block's
indices; the machine checks that tiles which hold numbers at the same time don't overlap. Rules: SDK 2.26.1,
nki/nki_direct_allocation_guide.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from math import prod
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import MemoryRegion

PSUM_BANK_BYTES = 2048
_STARTS = {32: (0, 32, 64, 96), 64: (0, 64), 128: (0,)}
"""The legal first partitions of a tile, by the most partitions that it may have."""


@dataclass(frozen=True)
class Allocation:
    """A memory and addresses in it, for ``buffer=`` of ``nl.ndarray``. ``place``: the address of a tile, by its block's
    indices, its partitions, and its bytes a partition; None leaves it to the allocator."""

    region: MemoryRegion
    place: Callable[[tuple[int, ...], int, int], tuple[int, int]] | None = None

    def address(self, block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int] | None:
        """(partition, byte) of the tile of a block; KernelError if the guide's rules forbid it."""
        if self.place is None:
            return None
        start, byte = self.place(block, partitions, size)
        legal = next((starts for most, starts in _STARTS.items() if partitions <= most), (0,))
        if start not in legal:
            choices = " or ".join(map(str, legal))
            raise KernelError(
                f"block {block} starts at partition {start}; a tile of {partitions} partitions starts at {choices}"
            )
        if self.region is MemoryRegion.psum and size > PSUM_BANK_BYTES:
            raise KernelError(
                f"a tile in PSUM takes {size} bytes a partition; it must fit a bank of {PSUM_BANK_BYTES}",
                hint="give it 512 float32 elements at most, and the rest to further blocks",
            )
        return start, byte


class SbufAllocator:
    """``ncc.sbuf``: also the memory itself, in ``nl.ndarray(..., buffer=ncc.sbuf)``."""

    def alloc(self, func: Callable[..., Any]) -> Allocation:
        """Addresses by ``func(block, partitions, bytes)``, which returns (partition, byte)."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            start, byte = _integers("ncc.sbuf.alloc", _place(func, block, partitions, size), 2)
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
            bank, start, byte = _integers("ncc.psum.alloc", _place(func, block, partitions, size), 3)
            _require_bank_start("ncc.psum.alloc", start, byte)
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
        """Blocks in turns over ``num_bank_tiles`` banks from ``base_bank`` on, for each block dimension."""

        def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
            bank = base_bank + _turn("num_bank_tiles", block, num_bank_tiles)
            start = base_partition + _turn("num_par_tiles", block, num_par_tiles) * partitions
            byte = base_addr + _turn("num_free_tiles", block, num_free_tiles) * size
            _require_bank_start("ncc.psum.mod_alloc", start, byte)
            return start, bank * PSUM_BANK_BYTES + byte

        return Allocation(MemoryRegion.psum, place)

    def auto_alloc(self) -> Allocation:
        """Addresses that the allocator chooses."""
        return Allocation(MemoryRegion.psum)


def _require_bank_start(what: str, start: int, byte: int) -> None:
    """A tile in PSUM starts at partition 0 and byte 0 of its bank: one tile a bank at a time."""
    if start or byte:
        raise KernelError(
            f"{what}: a tile starts at partition {start}, byte {byte} of its bank; both must be 0",
            hint="one tile has a bank at a time; spread blocks over banks with num_bank_tiles",
        )


def _place(func: Callable[..., Any], block: tuple[int, ...], partitions: int, size: int) -> Any:
    """Call the kernel's function: by its parameters' names, as functools.partial may have bound some of them."""
    given = {"idx": block, "pdim_size": partitions, "fdim_size": size}
    try:
        named = given.keys() <= signature(func).parameters.keys()
    except (TypeError, ValueError):
        named = False
    return func(**given) if named else func(*given.values())


def _turn(argument: str, block: tuple[int, ...], counts: Sequence[int]) -> int:
    """The number of a block's place: its indices, each modulo the count of its dimension, in row-major order."""
    counts = tuple(counts) or (1,) * len(block)
    if not block:
        return 0  # one tile has one place, however many there are
    if len(counts) != len(block):
        raise KernelError(f"mod_alloc: {argument}={counts} for {len(block)} block dimensions; it must have as many")
    return sum(i % n * prod(counts[dim + 1 :]) for dim, (i, n) in enumerate(zip(block, counts, strict=True)))


def _integers(what: str, value: Any, count: int) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) != count:
        raise KernelError(f"{what}: the function returned {value!r}; it must return {count} integers")
    return tuple(int(one) for one in value)


_DIRECTIVES = "nki_allocation_directives"


def direct(kernel: Any, directive: str) -> Any:
    """Note for a kernel, or the function of one, how its sessions allocate; return it."""
    function = kernel
    while (inner := getattr(function, "kernel", getattr(function, "function", None))) is not None:
        function = inner
    setattr(function, _DIRECTIVES, {*directives(function), directive})
    return kernel


def directives(function: Callable[..., Any]) -> set[str]:
    """The fields of ``Session`` that a kernel's decorators set, which choose how its tiles are allocated."""
    return getattr(function, _DIRECTIVES, set())
