"""Addresses that rotate: how many places in SBUF the tiles of one allocation in a loop take turns on.

Policy (AWS's compiler is free here; this is ours, in one place): the tiles of one shape that one line of a kernel
allocates are a pool (a line of a function that several lines of the kernel call: one for each of these). A pool has
``DEPTH`` times as many places as it holds tiles at once, and a new tile takes the place that has been free for
longest. So a loop may load its next tiles while the last ones are in use, ``DEPTH`` iterations at most at a time. A
pool keeps its places from its first tile to its last. Where memory is too small for every pool to have addresses of its
own, pools that do not live at the same time share them, each at the lowest address that is free for its whole life:
they take their places in the order of their first tiles, or, where the gaps of that are too small, in another order.
Where it is too small even so, every pool gets its second places before any gets its third, small ones first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from trnrt.nki.machine.program import Storage

DEPTH = 8  # more than any measurement needs; docs/timing.md
# Layouts of the memory that are looked at, in the order of first tiles, and in any other, which takes longer.
_MOST_TRIES, _MOST_OTHER_TRIES = 500, 40
ALIGNMENT = 32  # bytes; tile_size.sbuf_min_align and psum_min_align are not more than that on any target

Span = tuple[int, int]


@dataclass(slots=True)
class _Pool:
    """The tiles of one allocation, by first use. ``held``: at most so many of them are alive at once."""

    tiles: list[Storage]
    size: int
    first: int
    last: int
    held: int
    places: int = 0
    start: int = 0
    turns: list[int] = field(default_factory=list)  # of each tile, its place

    @property
    def bytes(self) -> int:
        return self.places * self.size


def rotate(tiles: Sequence[Storage], spans: dict[int, Span], capacity: int) -> bool:
    """Give each tile its address; False where the memory can't hold every pool even once.

    ``tiles`` come in the order of their first use and have no fixed address; ``spans`` is the first and the last
    instruction that touch each.
    """
    pools = _pools(tiles, spans)
    places = [pool.held for pool in pools]
    fits: _Fitting = _fits
    tries = _MOST_TRIES
    if not fits(pools, capacity, places):
        orders = (partial(_fits_in_order, order) for order in _ORDERS)
        found = next((other for other in orders if other(pools, capacity, places)), None)
        if found is None:
            return False
        fits, tries = found, _MOST_OTHER_TRIES
    if not fits(pools, capacity, [pool.held * DEPTH for pool in pools]):
        places = _divided(pools, capacity, places, fits, tries)
        fits(pools, capacity, places)
    _spread(pools, capacity)
    for pool in pools:
        for tile, place in zip(pool.tiles, _turns(pool, spans), strict=True):
            tile.address = (0, pool.start + place * pool.size)
    return True


def _pools(tiles: Sequence[Storage], spans: dict[int, Span]) -> list[_Pool]:
    groups: dict[tuple[object, ...], list[Storage]] = {}
    for tile in tiles:
        groups.setdefault((tile.source, tile.line, tile.shape, tile.dtype.name), []).append(tile)
    pools = []
    for members in groups.values():
        size = -(-members[0].partition_bytes // ALIGNMENT) * ALIGNMENT
        last = max(spans[tile.index][1] for tile in members)
        pools.append(_Pool(members, size, spans[members[0].index][0], last, _held(members, spans)))
    return pools


def _held(tiles: Sequence[Storage], spans: dict[int, Span]) -> int:
    """How many of the tiles are alive at once, at most."""
    alive: list[int] = []
    most = 0
    for tile in tiles:
        first, last = spans[tile.index]
        while alive and alive[0] < first:
            heappop(alive)
        heappush(alive, last)
        most = max(most, len(alive))
    return most


def _fits(pools: Sequence[_Pool], capacity: int, places: Sequence[int]) -> bool:
    """Put each pool at the lowest address that is free for its whole life; False where one finds none.

    ``pools`` come in the order of their first tiles.
    """
    alive: list[_Pool] = []
    for pool, count in zip(pools, places, strict=True):
        pool.places = min(count, len(pool.tiles))
        pool.start = 0
        alive = [other for other in alive if other.last >= pool.first]
        for other in sorted(alive, key=lambda o: o.start):
            if other.start < pool.start + pool.bytes and pool.start < other.start + other.bytes:
                pool.start = other.start + other.bytes
        if pool.start + pool.bytes > capacity:
            return False
        alive.append(pool)
    return True


_Fitting = Callable[[Sequence[_Pool], int, Sequence[int]], bool]
# What pools take their places by, where the gaps are too small in the order of their first tiles: the largest first,
# those that end last, those that take most space and time, those that live longest.
_ORDERS: tuple[Callable[[_Pool], int], ...] = (
    lambda pool: -pool.bytes,
    lambda pool: -pool.last,
    lambda pool: -pool.bytes * (pool.last - pool.first),
    lambda pool: pool.first - pool.last,
)


def _fits_in_order(order: Callable[[_Pool], int], pools: Sequence[_Pool], capacity: int, places: Sequence[int]) -> bool:
    """``_fits`` in another order."""
    for pool, count in zip(pools, places, strict=True):
        pool.places = min(count, len(pool.tiles))
    placed: list[_Pool] = []
    for pool in sorted(pools, key=order):
        pool.start, first, last, size = 0, pool.first, pool.last, pool.bytes
        beside = [other for other in placed if other.first <= last and first <= other.last]
        for other in sorted(beside, key=lambda o: o.start):
            if other.start < pool.start + size and pool.start < other.start + other.bytes:
                pool.start = other.start + other.bytes
        if pool.start + size > capacity:
            return False
        placed.append(pool)
    return True


def _spread(pools: Sequence[_Pool], capacity: int) -> None:
    """Give each pool addresses of its own, where there is room: a tile then waits for none of another pool."""
    if sum(pool.bytes for pool in pools) <= capacity:
        start = 0
        for pool in pools:
            pool.start = start
            start += pool.bytes


def _divided(pools: Sequence[_Pool], capacity: int, places: list[int], fitting: _Fitting, tries: int) -> list[int]:
    """The places of each pool where not all can have as many as they want."""
    small_first = sorted(range(len(pools)), key=lambda number: pools[number].size * pools[number].held)
    for depth in range(2, DEPTH + 1):
        for number in small_first:
            fits, wanted = places[number], min(pools[number].held * depth, len(pools[number].tiles))
            while fits < wanted and tries:
                tries -= 1
                tried = (fits + wanted + 1) // 2
                if fitting(pools, capacity, [*places[:number], tried, *places[number + 1 :]]):
                    fits = tried
                else:
                    wanted = tried - 1
            places[number] = fits
    return places


def _turns(pool: _Pool, spans: dict[int, Span]) -> list[int]:
    """The place of each tile: the one that has been free for longest."""
    free = deque(range(pool.places))
    alive: list[tuple[int, int]] = []
    turns = []
    for tile in pool.tiles:
        first, last = spans[tile.index]
        while alive and alive[0][0] < first:
            free.append(heappop(alive)[1])
        place = free.popleft()
        heappush(alive, (last, place))
        turns.append(place)
    return turns
