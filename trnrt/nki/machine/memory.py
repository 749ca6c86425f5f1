"""Memory allocation: each SBUF and PSUM storage gets an address for as long as instructions touch it.

Policy (AWS's compiler is free here; this is ours, in one place):
- a tile lives from the first to the last instruction that touches it, in program order;
- it takes its bytes in all 128 partitions, unless the kernel gave it an address;
- in SBUF the tiles of one allocation rotate over several places (``rotation.py``) if there is room and the kernel
  gives no addresses itself;
- otherwise tiles are placed in the order of their first use, at the lowest address that is free for their whole life;
- in PSUM the search starts at the bank after the last one given, so that consecutive tiles use different banks;
  a tile of at most one bank lies in one, a larger one starts at one;
- if that leaves gaps that are too small for a tile, the memory is packed again, largest tiles first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np

from trnrt.nki.errors import KernelMemoryError
from trnrt.nki.machine.conflicts import describe_conflict
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import MemoryRegion, MemoryUse, Program, Storage
from trnrt.nki.machine.rotation import ALIGNMENT, most_at_once, rotate
from trnrt.nki.machine.rules.allocation import capacity

_LISTED = 20
_UNLIMITED = 1 << 40

_SPILLS = (
    "AWS's compiler spills to HBM what overflows an on-chip memory (NKI documentation, Memory Hierarchy Overview); "
    "the simulator doesn't"
)
_WAY_OUT = (
    "use smaller tiles, or fewer at once; to get the numbers without the device's limits: "
    "trnrt nki run --no-capacity, or in Python simulate(kernel, capacity=False)"
)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A memory's size and alignment. ``bank``: bytes of a bank, None without banks. ``places``: see ``Timing``."""

    region: MemoryRegion
    capacity: int
    bank: int | None
    places: int

    def align(self, address: int, size: int) -> int:
        """The first legal start of ``size`` bytes at or after ``address``."""
        address = -(-address // ALIGNMENT) * ALIGNMENT
        if self.bank and address % self.bank + size > self.bank:
            address = -(-address // self.bank) * self.bank
        return address


@dataclass(slots=True)
class _Space:
    """The state of one memory while tiles are placed in the order of their first uses."""

    layout: _Layout
    spans: dict[int, Span]
    pinned: list[Storage]  # by first use
    free: list[Span] = field(default_factory=list)  # gaps between the placed tiles, by address
    placed: list[tuple[int, int, int, Storage]] = field(default_factory=list)  # heap: last use, start, end, tile
    alive_pinned: list[Storage] = field(default_factory=list)
    next_pinned: int = 0
    cursor: int = 0
    held: int = 0
    peak: int = 0

    def expire(self, position: int) -> None:
        """Free tiles that no instruction from ``position`` on touches."""
        while self.placed and self.placed[0][0] < position:
            _, start, end, tile = heappop(self.placed)
            self.held -= tile.partition_bytes
            self._release(start, end)
        self.alive_pinned = [tile for tile in self.alive_pinned if self.spans[tile.index][1] >= position]

    def pin(self, tile: Storage) -> None:
        """Place a tile at the address that the kernel gave it."""
        _check_overlap(tile, self)
        self.alive_pinned.append(tile)
        self.next_pinned += 1
        self._note_peak()

    def place(self, tile: Storage, *, keep: bool = False) -> bool:
        """Give a tile an address (``keep``: its present one); return False if no gap is large enough."""
        size = _aligned_bytes(tile)
        start = tile.address[1] if keep and tile.address is not None else self._find(tile, size)
        if start is None:
            return False
        tile.address = (0, start)
        self._occupy(start, start + size)
        heappush(self.placed, (self.spans[tile.index][1], start, start + size, tile))
        self.held += tile.partition_bytes
        self._note_peak()
        return True

    def _find(self, tile: Storage, size: int) -> int | None:
        blocked = self._blocked_spans(tile)
        start = self._fit(size, self.cursor, blocked)
        if start is None and self.cursor:
            start = self._fit(size, 0, blocked)
        if start is not None and self.layout.bank:
            self.cursor = (start // self.layout.bank + 1) * self.layout.bank % self.layout.capacity
        return start

    def _blocked_spans(self, tile: Storage) -> list[Span]:
        """The bytes that tiles with fixed addresses take during this tile's life."""
        if not self.pinned:
            return []
        last = self.spans[tile.index][1]
        end = bisect_right(self.pinned, last, lo=self.next_pinned, key=lambda other: self.spans[other.index][0])
        return _union(self.alive_pinned + self.pinned[self.next_pinned : end])

    def _fit(self, size: int, start: int, blocked: list[Span]) -> int | None:
        """The first address from ``start`` on where ``size`` bytes are free."""
        first = max(0, bisect_right(self.free, (start, self.layout.capacity)) - 1)
        for gap_start, gap_end in self.free[first:]:
            candidate = self.layout.align(max(gap_start, start), size)
            for begin, end in blocked:
                if begin < candidate + size and candidate < end:
                    candidate = self.layout.align(end, size)
            if candidate + size <= gap_end:
                return candidate
        return None

    def _occupy(self, start: int, end: int) -> None:
        at = bisect_right(self.free, (start, self.layout.capacity)) - 1
        gap_start, gap_end = self.free[at]
        self.free[at : at + 1] = [gap for gap in ((gap_start, start), (end, gap_end)) if gap[0] < gap[1]]

    def _release(self, start: int, end: int) -> None:
        at = bisect_left(self.free, (start, end))
        if at < len(self.free) and self.free[at][0] == end:
            end = self.free.pop(at)[1]
        if at and self.free[at - 1][1] == start:
            at -= 1
            start = self.free.pop(at)[0]
        self.free.insert(at, (start, end))

    def _note_peak(self) -> None:
        held = self.held + sum(end - start for start, end in _union(self.alive_pinned))
        self.peak = max(self.peak, held)


def allocate(program: Program, *, limited: bool = True) -> MemoryUse:
    """Give every on-chip storage of the program an address; without ``limited``, also past a memory's end.

    Raises KernelMemoryError if tiles do not fit or two live tiles share bytes; the error lists the tiles alive at that
    point, largest first, with their sizes and source lines.
    """
    spans = find_lifetimes(program)
    peaks, overflowed = {}, list[MemoryRegion]()
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        tiles = [s for s in program.storages if s.buffer is region and s.index in spans]
        tiles.sort(key=lambda tile: (spans[tile.index], tile.index))
        bank = program.target.psum_bank_bytes if region is MemoryRegion.psum else None
        layout = _Layout(region, capacity(region, program.target), bank, program.target.timing.places)
        try:
            peaks[region] = _place_tiles(tiles, spans, layout)
        except KernelMemoryError:
            if limited:
                raise
            peaks[region] = _walk(tiles, spans, replace(layout, capacity=_UNLIMITED))
            overflowed.append(region)
    return MemoryUse(peaks[MemoryRegion.sbuf], peaks[MemoryRegion.psum], tuple(overflowed))


def overflow_notes(program: Program) -> list[str]:
    """A sentence for each memory that is too small for an unlimited program."""
    use = program.memory
    if use is None:
        return []
    return [
        f"{program.kernel} does not fit {program.target.name}: its tiles need {use.peak_bytes(region):,} bytes a "
        f"partition of {region.value.upper()} at once, and {capacity(region, program.target):,} are usable; what is "
        "predicted or computed here leaves out the spills to HBM that the device would need"
        for region in use.overflowed
    ]


def _place_tiles(tiles: list[Storage], spans: dict[int, Span], layout: _Layout) -> int:
    """Give the tiles of one memory their addresses; return the peak bytes per partition."""
    rotates = layout.bank is None and not any(tile.pinned for tile in tiles)
    if rotates and rotate(tiles, spans, layout.capacity, layout.places):
        return most_at_once(tiles, spans, lambda tile: tile.partition_bytes)
    return _walk(tiles, spans, layout)


def _walk(tiles: list[Storage], spans: dict[int, Span], layout: _Layout, *, packed: bool = False) -> int:
    """Place ``tiles``, which come in the order of their first use; return the peak bytes per partition.

    ``packed``: they have addresses already; only check the fixed ones against each other.
    """
    space = _Space(layout, spans, [tile for tile in tiles if tile.pinned], [(0, layout.capacity)])
    for tile in tiles:
        space.expire(spans[tile.index][0])
        if tile.pinned:
            space.pin(tile)
        elif not space.place(tile, keep=packed):
            if space.held + tile.partition_bytes > layout.capacity or not _pack(tiles, spans, layout):
                raise KernelMemoryError(_overflow(space, tile), hint=_WAY_OUT)
            return _walk(tiles, spans, layout, packed=True)
    return space.peak


def _pack(tiles: list[Storage], spans: dict[int, Span], layout: _Layout) -> bool:
    """Place all tiles again, largest first, each at the lowest address that is free for its whole life."""
    order = sorted(tiles, key=lambda tile: (not tile.pinned, -tile.partition_bytes, spans[tile.index]))
    taken = np.zeros((len(tiles), 4), np.int64)  # first use, last use, start, end
    for count, tile in enumerate(order):
        first, last = spans[tile.index]
        size = _aligned_bytes(tile)
        if tile.pinned and tile.address is not None:
            start = tile.address[1]
        else:
            others = taken[:count]
            neighbours = others[(others[:, 0] <= last) & (others[:, 1] >= first)]
            start = layout.align(0, size)
            for begin, end in sorted(map(tuple, neighbours[:, 2:].tolist())):
                if begin < start + size and start < end:
                    start = layout.align(end, size)
            if start + size > layout.capacity:
                return False
            tile.address = (0, start)
        taken[count] = first, last, start, start + size
    return True


def _aligned_bytes(tile: Storage) -> int:
    return -(-tile.partition_bytes // ALIGNMENT) * ALIGNMENT


def _union(tiles: list[Storage]) -> list[Span]:
    """The bytes that tiles with addresses take, as disjoint spans in order."""
    spans: list[Span] = []
    for start, end in sorted((t.address[1], t.address[1] + t.partition_bytes) for t in tiles if t.address is not None):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _check_overlap(tile: Storage, space: _Space) -> None:
    """Two live tiles whose addresses the kernel gave must not share bytes."""
    for other in space.alive_pinned:
        shared = tile.overlap(other)
        if shared is not None:
            raise KernelMemoryError(describe_conflict(tile, other, shared, space.pinned, space.spans))


def _overflow(space: _Space, tile: Storage) -> str:
    region, limit = space.layout.region.value.upper(), space.layout.capacity
    alive = [(end - start, start, other) for _, start, end, other in space.placed]
    alive += [(t.partition_bytes, t.address[1], t) for t in space.alive_pinned if t.address is not None]
    alive.sort(key=lambda entry: (-entry[0], entry[1]))
    free = limit - sum(size for size, _, _ in alive)
    lines = [
        f"{region} is full: {tile} needs {tile.partition_bytes} bytes a partition; {free} of {limit} are free",
        f"alive at that point ({len(alive)} tiles, bytes a partition):",
    ]
    lines += [f"  {size:>8} bytes at {start:>6}: {other}" for size, start, other in alive[:_LISTED]]
    if len(alive) > _LISTED:
        rest = sum(size for size, _, _ in alive[_LISTED:])
        lines.append(f"  and {len(alive) - _LISTED} smaller ones, {rest} bytes together")
    lines.append(_SPILLS)
    return "\n".join(lines)
