"""Addresses that rotate: the tiles that a loop allocates on one line take turns on several places in SBUF.

Policy (AWS's compiler is free here; this is ours, in one place):
- the tiles of one shape that one line of a kernel allocates are a pool (if several lines of the kernel call the
  function with that line, one pool for each of them);
- a pool has ``timing.places`` times as many places as it holds tiles at once, and a new tile takes the place that has
  been free for longest: so a loop may load its next tiles, up to that many iterations ahead, while others are in use;
- a pool keeps its places from its first tile to its last;
- if memory is too small for every pool to have its own addresses, pools that do not live at the same time share them,
  each at the lowest address that is free for its whole life: in the order of their first tiles or, if that leaves gaps
  that are too small, in another order;
- if it is still too small, every pool gets its second places before any gets its third, small ones first;
- if it can't hold every pool even once, large tiles are placed one by one: a loop's tensors then keep no place for its
  next iteration while another line's are there;
- if the whole kernel is a loop that leaves nothing in memory, each of its iterations has its own pools if more of their
  tiles then have second places: the first tiles of an iteration wait for the last ones of the previous one.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from trnrt.nki.machine.program import Storage

# The number of layouts of the memory to try: for one pool after the other, and for halves of all.
_MOST_TRIES, _MOST_HALVINGS = 500, 300
_LARGE = 4 * 1024  # bytes
ALIGNMENT = 32  # bytes; tile_size.sbuf_min_align and psum_min_align are not more than that on any target

Span = tuple[int, int]


@dataclass(slots=True)
class _Pool:
    """The tiles of one allocation, by first use. ``held``: the most of them that are alive at once."""

    tiles: list[Storage]
    size: int
    first: int
    last: int
    held: int
    places: int = 0
    start: int = 0

    @property
    def bytes(self) -> int:
        return self.places * self.size


_Fitting = Callable[[Sequence[_Pool], int, Sequence[int]], bool]


def rotate(tiles: Sequence[Storage], spans: dict[int, Span], capacity: int, depth: int) -> bool:
    """Give each tile its address; return False if the memory can't hold every pool even once.

    ``tiles`` come in the order of their first use and have no fixed address; ``spans`` has the first and the last
    instruction that touch each; a pool gets at most ``depth`` times the places that it needs.
    """
    pools = _place_pools(tiles, spans, capacity, depth)
    if _depth(pools) < 2 * len(tiles) and len(rounds := _rounds(tiles, spans)) > 1:
        of_rounds = [_place_pools(one, spans, capacity, depth) for one in rounds]
        if all(of_rounds) and sum(map(_depth, of_rounds)) > _depth(pools):
            pools = [pool for one in of_rounds for pool in one]
    for pool in pools:
        for tile, place in zip(pool.tiles, _turns(pool, spans), strict=True):
            tile.address = (0, pool.start + place * pool.size)
    return bool(pools) or not tiles


def _place_pools(tiles: Sequence[Storage], spans: dict[int, Span], capacity: int, depth: int) -> list[_Pool]:
    """The pools of these tiles with their places; none if the memory can't hold each even once."""
    pools = _pools(tiles, spans)
    fits = _way_to_fit(pools, capacity)
    if fits is None:
        pools = _part_pools(pools, spans)
        fits = _way_to_fit(pools, capacity)
    if fits is None:
        return []
    places = [pool.held for pool in pools]
    if not fits(pools, capacity, [pool.held * depth for pool in pools]):
        one_by_one = _divide_places(pools, capacity, places, depth) if fits is _fits else None
        places = one_by_one or _divide_by_halves(pools, capacity, places, depth, fits)
        fits(pools, capacity, places)
    _spread(pools, capacity)
    return pools


def _rounds(tiles: Sequence[Storage], spans: dict[int, Span]) -> list[list[Storage]]:
    """The tiles of each iteration of a loop over the whole kernel.

    An iteration begins with the allocation of the kernel's first tile, while nothing is in memory.
    """
    rounds: list[list[Storage]] = [[]]
    line, end = tiles[0].line, -1
    for tile in tiles:
        first, last = spans[tile.index]
        if first > end and line > tile.line and (tile.source, tile.line) == (tiles[0].source, tiles[0].line):
            rounds.append([])
        rounds[-1].append(tile)
        line, end = tile.line, max(end, last)
    return rounds


def _depth(pools: Sequence[_Pool]) -> float:
    """The places that a tile can take, over those that its pool needs, summed over all tiles.

    Second places count, because with them a loop loads ahead. Further ones do not: the published time of trn1's blocked
    product, which has second places already, is nearer to that of pools for the whole kernel (docs/timing.md).
    """
    return sum(len(pool.tiles) * min(pool.places / pool.held, 2) for pool in pools)


def _way_to_fit(pools: Sequence[_Pool], capacity: int) -> _Fitting | None:
    """The way to fit pools with as many places as they need; None if there is none."""
    places = [pool.held for pool in pools]
    if _fits(pools, capacity, places):
        return _fits
    beside = _neighbours(pools)
    orders = (partial(_fits_in_order, order, beside) for order in _ORDERS)
    return next((other for other in orders if other(pools, capacity, places)), None)


def _part_pools(pools: Sequence[_Pool], spans: dict[int, Span]) -> list[_Pool]:
    """The pools with a pool for each large tile: it keeps no place for the next."""
    parts: list[_Pool] = []
    for pool in pools:
        groups = [[tile] for tile in pool.tiles] if pool.size >= _LARGE else [pool.tiles]
        parts += [_pool(tiles, spans) for tiles in groups]
    return sorted(parts, key=lambda pool: pool.first)


def _pools(tiles: Sequence[Storage], spans: dict[int, Span]) -> list[_Pool]:
    groups: dict[tuple[object, ...], list[Storage]] = {}
    for tile in tiles:
        groups.setdefault((tile.source, tile.line, tile.shape, tile.dtype.name), []).append(tile)
    return [_pool(members, spans) for members in groups.values()]


def _pool(members: list[Storage], spans: dict[int, Span]) -> _Pool:
    size = -(-members[0].partition_bytes // ALIGNMENT) * ALIGNMENT
    last = max(spans[tile.index][1] for tile in members)
    return _Pool(members, size, spans[members[0].index][0], last, most_at_once(members, spans, lambda tile: 1))


def most_at_once(tiles: Sequence[Storage], spans: dict[int, Span], weigh: Callable[[Storage], int]) -> int:
    """The largest total weight of tiles that live at the same time; they come in the order of their first use."""
    alive: list[Span] = []  # heap: last use, weight
    total = most = 0
    for tile in tiles:
        first, last = spans[tile.index]
        while alive and alive[0][0] < first:
            total -= heappop(alive)[1]
        heappush(alive, (last, weigh(tile)))
        total += weigh(tile)
        most = max(most, total)
    return most


def _fits(pools: Sequence[_Pool], capacity: int, places: Sequence[int]) -> bool:
    """Put each pool at the lowest address that is free for its whole life; return False if one finds none.

    ``pools`` come in the order of their first tiles.
    """
    # (start, end, last) of the pools that live now, by address. Plain numbers, because hundreds of layouts are tried.
    alive: list[tuple[int, int, int]] = []
    for pool, count in zip(pools, places, strict=True):
        pool.places = min(count, len(pool.tiles))
        start, size, first = 0, pool.bytes, pool.first
        alive = [other for other in alive if other[2] >= first]
        for begin, end, _ in alive:
            if begin >= start + size:
                break
            start = max(start, end)
        pool.start = start
        if start + size > capacity:
            return False
        insort(alive, (start, start + size, pool.last))
    return True


# Other orders of pools for taking their places, tried if the order of their first tiles leaves too small gaps: the
# largest first, those that end last, those that take most space and time, those that live longest.
_ORDERS: tuple[Callable[[_Pool], int], ...] = (
    lambda pool: -pool.bytes,
    lambda pool: -pool.last,
    lambda pool: -pool.bytes * (pool.last - pool.first),
    lambda pool: pool.first - pool.last,
)


def _neighbours(pools: Sequence[_Pool]) -> list[list[int]]:
    """For each pool, the numbers of the others that live at the same time; pools come by first use."""
    beside: list[list[int]] = [[] for _ in pools]
    alive: list[int] = []
    for number, pool in enumerate(pools):
        alive = [other for other in alive if pools[other].last >= pool.first]
        for other in alive:
            beside[number].append(other)
            beside[other].append(number)
        alive.append(number)
    return beside


def _fits_in_order(
    order: Callable[[_Pool], int],
    beside: list[list[int]],
    pools: Sequence[_Pool],
    capacity: int,
    places: Sequence[int],
) -> bool:
    """``_fits`` in another order."""
    for pool, count in zip(pools, places, strict=True):
        pool.places = min(count, len(pool.tiles))
        pool.start = -1
    for number in sorted(range(len(pools)), key=lambda number: order(pools[number])):
        pool = pools[number]
        start, size = 0, pool.bytes
        taken = [(other.start, other.bytes) for k in beside[number] if (other := pools[k]).start >= 0]
        for begin, more in sorted(taken):
            if begin < start + size and start < begin + more:
                start = begin + more
        if start + size > capacity:
            return False
        pool.start = start
    return True


def _spread(pools: Sequence[_Pool], capacity: int) -> None:
    """Give each pool its own addresses if there is room: a tile then waits for no tile of another pool."""
    if sum(pool.bytes for pool in pools) <= capacity:
        start = 0
        for pool in pools:
            pool.start = start
            start += pool.bytes


def _small_first(pools: Sequence[_Pool]) -> list[int]:
    return sorted(range(len(pools)), key=lambda number: pools[number].size * pools[number].held)


def _divide_places(pools: Sequence[_Pool], capacity: int, places: list[int], most: int) -> list[int] | None:
    """The places of each pool if not all can have as many as they ask for: one pool after the other, small ones first.

    None if that takes more than ``_MOST_TRIES``.
    """
    tries, places = _MOST_TRIES, list(places)
    small_first = _small_first(pools)
    for depth in range(2, most + 1):
        for number in small_first:
            fits, wanted = places[number], min(pools[number].held * depth, len(pools[number].tiles))
            while fits < wanted:
                if not tries:
                    return None
                tries -= 1
                tried = (fits + wanted + 1) // 2
                if _fits(pools, capacity, [*places[:number], tried, *places[number + 1 :]]):
                    fits = tried
                else:
                    wanted = tried - 1
            places[number] = fits
    return places


def _divide_by_halves(pools: Sequence[_Pool], capacity: int, places: list[int], most: int, fits: _Fitting) -> list[int]:
    """The same for many pools: all get more or, if that does not fit, first one half of them and then the other.

    Small ones come first.
    """
    tries, growing = _MOST_HALVINGS, _small_first(pools)
    for depth in range(2, most + 1):
        groups = [[number for number in growing if places[number] < len(pools[number].tiles)]]
        growing = []
        while groups and tries:
            numbers = groups.pop()
            if not numbers:
                continue
            tries -= 1
            tried = list(places)
            for number in numbers:
                tried[number] = min(pools[number].held * depth, len(pools[number].tiles))
            if fits(pools, capacity, tried):
                places = tried
                growing += numbers
            elif len(numbers) > 1:
                middle = len(numbers) // 2
                groups += [numbers[middle:], numbers[:middle]]
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
