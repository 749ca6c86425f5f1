"""Where tiles live: each SBUF and PSUM storage gets an address for the span of the program that touches it.

Policy (AWS's compiler is free here; this is ours, in one place):
- a tile lives from the first to the last instruction that touches it, in program order;
- it takes its bytes in all 128 partitions, unless the kernel gave it an address;
- SBUF: the lowest address that is free for the whole life (first fit), longest-lived tiles are not moved;
- PSUM: the search starts at the bank after the last one given, so that consecutive tiles use different banks;
  a tile of at most one bank never straddles two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnrt.errors import KernelMemoryError
from trnrt.nki.machine.program import MemoryRegion, Program, Storage
from trnrt.nki.machine.targets import Target

_ALIGNMENT = 32  # bytes; tile_size.sbuf_min_align is a quarter of a cache line in every target


@dataclass(slots=True)
class _Space:
    """One memory while the program is walked: the tiles that hold an address right now, by address."""

    region: MemoryRegion
    capacity: int
    bank: int | None
    alive: list[tuple[int, int, int, Storage]] = field(default_factory=list)  # start byte, end byte, last use, tile
    cursor: int = 0
    peak: int = 0

    def expire(self, position: int) -> None:
        self.alive = [entry for entry in self.alive if entry[2] >= position]

    def insert(self, start: int, size: int, last: int, tile: Storage) -> None:
        self.alive.append((start, start + size, last, tile))
        self.alive.sort(key=lambda entry: entry[0])
        self.peak = max(self.peak, sum(end - begin for begin, end, _, _ in self.alive))

    def place(self, size: int) -> int | None:
        """The address of ``size`` free bytes, or None."""
        found = self._fit(size, self.cursor)
        if found is None and self.cursor:
            found = self._fit(size, 0)
        if found is not None and self.bank:
            self.cursor = (found // self.bank + 1) * self.bank % self.capacity
        return found

    def _fit(self, size: int, start: int) -> int | None:
        candidate = start
        for begin, end, _, _ in self.alive:
            candidate = self._aligned(candidate, size)
            if candidate + size <= begin:
                return candidate
            candidate = max(candidate, end)
        candidate = self._aligned(candidate, size)
        return candidate if candidate + size <= self.capacity else None

    def _aligned(self, address: int, size: int) -> int:
        address = -(-address // _ALIGNMENT) * _ALIGNMENT
        if self.bank and size <= self.bank and address % self.bank + size > self.bank:
            address = (address // self.bank + 1) * self.bank
        return address


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peak bytes a partition that tiles hold at once."""

    sbuf_peak_bytes: int
    psum_peak_bytes: int


def _spaces(target: Target) -> dict[MemoryRegion, _Space]:
    return {
        MemoryRegion.sbuf: _Space(MemoryRegion.sbuf, target.sbuf_usable_bytes, None),
        MemoryRegion.psum: _Space(MemoryRegion.psum, target.psum_bytes, target.psum_bank_bytes),
    }


def allocate(program: Program) -> MemoryUse:
    """Give every on-chip storage of the program an address.

    Raises KernelMemoryError where tiles do not fit or two live tiles share bytes; the error lists the tiles
    alive at that point, largest first, with their sizes and source lines.
    """
    spaces = _spaces(program.target)
    spans = program.lifetimes()
    order = sorted((spans[s.index], s.index) for s in program.storages if s.on_chip and s.index in spans)
    pinned = _pinned_by_region(program, spans)
    for (first, last), index in order:
        tile = program.storages[index]
        space = spaces[tile.buffer]
        space.expire(first)
        if tile.pinned:
            _check_pinned(tile, space)
            assert tile.address is not None
            space.insert(tile.address[1], tile.partition_bytes, last, tile)
            continue
        obstacles = [p for p in pinned[tile.buffer] if spans[p.index][0] <= last and spans[p.index][1] >= first]
        address = _place_around(space, tile, obstacles)
        tile.address = (0, address)
        space.insert(address, tile.partition_bytes, last, tile)
    return MemoryUse(spaces[MemoryRegion.sbuf].peak, spaces[MemoryRegion.psum].peak)


def _pinned_by_region(program: Program, spans: dict[int, tuple[int, int]]) -> dict[MemoryRegion, list[Storage]]:
    pinned: dict[MemoryRegion, list[Storage]] = {MemoryRegion.sbuf: [], MemoryRegion.psum: []}
    for tile in program.storages:
        if tile.pinned and tile.index in spans:
            pinned[tile.buffer].append(tile)
    return pinned


def _place_around(space: _Space, tile: Storage, obstacles: list[Storage]) -> int:
    """An address that is free now and that no tile with a fixed address will want during this one's life."""
    blocked = _Space(space.region, space.capacity, space.bank, list(space.alive), space.cursor)
    for other in obstacles:
        assert other.address is not None
        if all(entry[3] is not other for entry in blocked.alive):
            blocked.insert(other.address[1], other.partition_bytes, 0, other)
    search = blocked if obstacles else space
    address = search.place(tile.partition_bytes)
    space.cursor = search.cursor
    if address is None:
        raise KernelMemoryError(_overflow(space, tile))
    return address


def _check_pinned(tile: Storage, space: _Space) -> None:
    """A tile with a fixed address must lie within the memory and must not share bytes with a live tile."""
    assert tile.address is not None
    start = tile.address[1]
    end = start + tile.partition_bytes
    if end > space.capacity:
        raise KernelMemoryError(
            f"{tile} at address {tile.address} ends at byte {end} of a partition; "
            f"{space.region.value.upper()} has {space.capacity} usable bytes"
        )
    for begin, stop, _, other in space.alive:
        if begin < end and start < stop and _share_partitions(tile, other):
            raise KernelMemoryError(
                f"two live tiles share {space.region.value.upper()} bytes {max(begin, start)} to {min(stop, end)}:\n"
                f"  {tile} at address {tile.address}\n  {other} at address {other.address}\n"
                "writing one destroys the other; give them addresses that do not overlap, "
                "or use one only after the other's last use"
            )


def _share_partitions(one: Storage, other: Storage) -> bool:
    if not (one.pinned and other.pinned):
        return True
    assert one.address is not None and other.address is not None
    return one.address[0] < other.address[0] + other.shape[0] and other.address[0] < one.address[0] + one.shape[0]


def _overflow(space: _Space, tile: Storage) -> str:
    held = sum(end - begin for begin, end, _, _ in space.alive)
    lines = [
        f"{space.region.value.upper()} is full: {tile} needs {tile.partition_bytes} bytes a partition; "
        f"{space.capacity - held} of {space.capacity} are free",
        f"alive at that point ({len(space.alive)} tiles):",
    ]
    for begin, end, _, other in sorted(space.alive, key=lambda entry: entry[0] - entry[1])[:20]:
        lines.append(f"  {end - begin:>8} bytes at {begin:>6}: {other}")
    return "\n".join(lines)
