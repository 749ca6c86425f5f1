"""Hazards: each instruction waits for earlier ones that touch the same memory.

A read waits for the last writes of its elements; a write waits for those and for the reads since. A tile waits for the
last users of its bytes (the allocator reuses addresses). If a lane issues its instructions in the order of the program,
it is enough to wait for the last of each lane (``Waits.last``). Otherwise all count (``Waits.ends`` and
``Waits.starts``), except for those that others of them wait for.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TypeVar

from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import ON_CHIP, Instruction, MemoryRegion, Program, Register, Storage, View
from trnrt.nki.machine.regions import EVERYTHING, Region, region_of

MOST_PARTITIONS = 128
WINDOW = 64
"""A stream issues instructions less than this many places ahead of its oldest unissued one. The compiler's own window
is not published. From 64 on no calibration kernel changes except matmul-best-trn1, which 96 would make 8 % shorter,
away from its measurement. The bound also limits the history here: the last 64 users of a part in one lane are enough,
as an earlier one was issued before the last one."""
_REGISTERS = frozenset(
    {"register_move", "register_load", "register_store", "scalar_load", "scalar_store", "scalar_arithmetic"}
)


_Key = TypeVar("_Key")
Run = tuple[int, ...]  # issues of one lane in the order of the program, ``WINDOW`` at most


class Waits:
    """The issues that ``issue`` waits for: ``last`` has the last one of each lane, which is enough if lanes are in
    order.

    Under any order within the window, all of ``ends`` must have ended, and all of ``starts``, which are in the issue's
    own lane, must have been issued.
    """

    __slots__ = ("ends", "issue", "last", "starts")

    def __init__(self, issue: int) -> None:
        self.issue = issue
        self.last: dict[int, int] = {}
        self.ends: list[Run] = []
        self.starts: list[Run] = []

    def add(self, lane: int, run: Run) -> None:
        """Wait until issues of a lane have ended."""
        if self.last.get(lane, -1) < run[-1]:
            self.last[lane] = run[-1]
        self.ends.append(run)


@dataclass(slots=True)
class _Uses:
    """The parts of a storage that were touched, and the issues that touched them; found by their position.

    ``whole``: lane -> issues that touched all of it; ``latest``: lane -> issues that touched a part. The parts of one
    size are in a grid of cells of about that size, each in the cell of its corner.
    """

    whole: dict[int, Run] = field(default_factory=dict)
    latest: dict[int, Run] = field(default_factory=dict)
    grids: dict[tuple[int, ...], dict[tuple[int, ...], dict[tuple[Region, int], Run]]] = field(default_factory=dict)

    def add(self, region: Region, lane: int, issue: int) -> None:
        if region.whole:
            _append(self.whole, lane, issue)
            return
        _append(self.latest, lane, issue)
        cells = self.grids.setdefault(region.levels, {})
        _append(cells.setdefault(region.corner, {}), (region, lane), issue)

    def remove(self, region: Region, lane: int) -> None:
        cells = self.grids[region.levels]
        uses = cells[region.corner]
        del uses[region, lane]
        if not uses:
            del cells[region.corner]
            if not cells:
                del self.grids[region.levels]

    def clear(self) -> None:
        self.whole.clear()
        self.latest.clear()
        self.grids.clear()

    def near(self, region: Region) -> list[tuple[tuple[Region, int], Run]]:
        """The parts that may overlap ``region``, which is not the whole."""
        found: list[tuple[tuple[Region, int], Run]] = []
        for levels, cells in self.grids.items():
            # A region has two or more corners along each dimension: it is faster to look through few cells directly.
            corners = region.corners(levels) if len(cells) >= 2 ** len(levels) else None
            if corners is None or prod(map(len, corners)) > len(cells):
                for uses in cells.values():
                    found.extend(uses.items())
            else:
                for corner in product(*corners):
                    if corner in cells:
                        found.extend(cells[corner].items())
        return found


@dataclass(slots=True)
class _Accesses:
    """The accesses to one storage that a later one may have to wait for.

    ``before``: the last users of its bytes, by lane, before the storage lived there. ``last``: the issues of each lane
    that touched it since all of it was last written; ``writer``: the last one that wrote to it. ``regions``: those of
    views, shared with similar storages. ``found``: the waits of parts that were read since the last write.
    """

    before: dict[int, Run] = field(default_factory=dict)
    writer: int = -1
    writes: _Uses = field(default_factory=_Uses)
    reads: _Uses = field(default_factory=_Uses)
    last: dict[int, Run] = field(default_factory=dict)
    regions: dict[tuple[object, ...], Region] = field(default_factory=dict)
    found: dict[Region, dict[int, Run]] = field(default_factory=dict)


class Hazards:
    """Finds, issue by issue in program order, the issues that each one waits for."""

    def __init__(self, program: Program) -> None:
        self._written = program.writers().keys()
        self._accesses: dict[int, _Accesses] = {}
        # The tiles that a loop allocates have the same regions.
        self._regions: dict[tuple[object, ...], dict[tuple[object, ...], Region]] = {}
        self._heirs = _heirs(program)
        self._lanes: list[int] = []
        self._registers: dict[int, int] = {}  # the last issue that wrote each
        self._register_users: dict[int, dict[int, Run]] = {}  # and those that read it since, with that one
        self._uses_registers = any(i.operation.name in _REGISTERS for i in program.instructions)

    def producer(self, view: View) -> int:
        """The lane of the last issue that wrote to the view's storage; -1 if none did."""
        accesses = self._accesses.get(view.storage.index)
        return -1 if accesses is None or accesses.writer < 0 else self._lanes[accesses.writer]

    def issue(self, instruction: Instruction, lane: int, *, one_by_one: bool = True) -> Waits:
        """The waits of the next issue.

        ``one_by_one``: the lane reads in the order of issue, so an issue need not wait until its own lane's reads end.
        """
        number = len(self._lanes)
        waits = Waits(number)
        written = instruction.operation.writes
        operands = instruction.operands
        for name, view in operands:
            if name not in written:
                self._read(view, number, lane, waits)
        for view in instruction.extra:
            self._read(view, number, lane, waits)
        if self._uses_registers:
            self._use_registers(instruction, number, lane, waits)
        # After a meeting, another core may have changed what it is about.
        targets = [view for name, view in operands if name in written or instruction.operation.meets]
        if instruction.operation.registers is not None:
            targets += [view for view in instruction.extra if view.buffer is MemoryRegion.registers]
        # Find all waits first: an instruction that writes one tile twice does not wait for itself.
        parts = [self._overwrite(view, lane if one_by_one else -1, waits) for view in targets]
        for accesses, region in parts:
            accesses.writes.add(region, lane, number)
            accesses.found.clear()
            if region.whole:
                accesses.last.clear()
            _append(accesses.last, lane, number)
            accesses.writer = number
        self._lanes.append(lane)
        return waits

    def _use_registers(self, instruction: Instruction, number: int, lane: int, waits: Waits) -> None:
        """Wait for the scalar registers that it reads, and for the users of a register that it overwrites."""
        if instruction.operation.name in _REGISTERS:
            used = [instruction.args["src"], instruction.args.get("src2")]
        else:
            used = [view.dynamic.scalar for _, view in instruction.operands if view.dynamic is not None]
        used = [register for register in used if isinstance(register, Register)]
        for register in used:
            if register.index in self._registers:
                issue = self._registers[register.index]
                waits.add(self._lanes[issue], (issue,))
        written = instruction.args.get("dst")
        if isinstance(written, Register):
            # In program order its users are assumed to be early enough: they are not in ``last``.
            users = self._register_users.pop(written.index, {})
            for user, run in users.items():
                (waits.starts if user == lane else waits.ends).append(run)
            self._registers[written.index] = number
            self._register_users[written.index] = {lane: (number,)}
        for register in used:
            _append(self._register_users.setdefault(register.index, {}), lane, number)

    def _read(self, view: View, number: int, lane: int, waits: Waits) -> None:
        storage = view.storage
        if storage.index not in self._written:
            return
        accesses = self._get_accesses(storage)
        region = _region(accesses, view)
        writes = accesses.writes
        for writer, run in writes.whole.items():
            waits.add(writer, run)
        if region.whole:
            for writer, run in writes.latest.items():
                waits.add(writer, run)
        elif writes.grids:
            found = accesses.found.get(region)
            if found is None:
                found = accesses.found[region] = {}
                for (other, writer), run in writes.near(region):
                    if other is region or region.overlaps(other):
                        found[writer] = _merge(found[writer], run) if writer in found else run
            for writer, run in found.items():
                waits.add(writer, run)
        accesses.reads.add(region, lane, number)
        _append(accesses.last, lane, number)

    def _overwrite(self, view: View, reader: int, waits: Waits) -> tuple[_Accesses, Region]:
        """Wait for the uses of the overwritten part; for the reads of lane ``reader`` only until they were issued.

        Forget the uses that it covers. Return the storage's accesses and the part.
        """
        accesses = self._get_accesses(view.storage)
        region = _region(accesses, view)
        for user, run in accesses.before.items():
            waits.add(user, run)
        for uses, own in ((accesses.writes, -1), (accesses.reads, reader)):
            for user, run in uses.whole.items():
                _wait(waits, user, run, own)
            if region.whole:
                for user, run in uses.latest.items():
                    _wait(waits, user, run, own)
                uses.clear()
            elif uses.grids:
                self._overwrite_parts(uses, region, own, waits)
        return accesses, region

    def _overwrite_parts(self, uses: _Uses, region: Region, own: int, waits: Waits) -> None:
        """Wait for the uses of parts that ``region`` overlaps; forget those that it covers."""
        gone = []
        for key, run in uses.near(region):
            other, user = key
            if other is not region and not region.overlaps(other):
                continue
            _wait(waits, user, run, own)
            if other is region or region.covers(other):
                gone.append(key)
        for other, user in gone:
            uses.remove(other, user)

    def _get_accesses(self, storage: Storage) -> _Accesses:
        found = self._accesses.get(storage.index)
        if found is None:
            alike = storage.shape, storage.dtype, storage.on_chip
            found = _Accesses(self._inherited_runs(storage), regions=self._regions.setdefault(alike, {}))
            self._accesses[storage.index] = found
        return found

    def _inherited_runs(self, storage: Storage) -> dict[int, Run]:
        """The last issues of each lane on the storages that formerly had this storage's bytes."""
        found: dict[int, Run] = {}
        for index in self._heirs.get(storage.index, ()):
            earlier = self._accesses.get(index)
            if earlier is not None:
                # Its writers have waited for the users before it.
                for users in (earlier.last,) if earlier.writer >= 0 else (earlier.last, earlier.before):
                    for lane, run in users.items():
                        found[lane] = _merge(found[lane], run) if lane in found else run
        return found


def _append(runs: dict[_Key, Run], key: _Key, issue: int) -> None:
    """Add an issue to the end of a run."""
    run = runs.get(key)
    if run is None:
        runs[key] = (issue,)
    elif run[-1] != issue:
        runs[key] = (*run, issue) if len(run) < WINDOW else (*run[1:], issue)


def _merge(one: Run, other: Run) -> Run:
    return tuple(sorted({*one, *other})[-WINDOW:])


def _wait(waits: Waits, lane: int, run: Run, own: int) -> None:
    if run[-1] == waits.issue:  # it reads what it overwrites
        run = run[:-1]
        if not run:
            return
    if lane == own:
        waits.starts.append(run)
    else:
        waits.add(lane, run)


def _region(accesses: _Accesses, view: View) -> Region:
    storage = view.storage
    if view.dynamic is not None or (view.shape == storage.shape and view.strides == storage.strides):
        return EVERYTHING
    key = (view.offset, view.shape, view.strides, view.cast)
    region = accesses.regions.get(key)
    if region is None:
        region = accesses.regions[key] = region_of(view)
    return region


def _heirs(program: Program) -> dict[int, list[int]]:
    """Storage -> the storages that had some of its bytes just before it."""
    spans = find_lifetimes(program)
    heirs: dict[int, list[int]] = {}
    for region in ON_CHIP:
        tiles = [s for s in program.storages if s.buffer is region and s.index in spans and s.address is not None]
        tiles.sort(key=lambda tile: spans[tile.index])
        # Tiles that share no partition may share bytes: each band of partitions has its own owners.
        edges = sorted({edge for tile in tiles for edge in _partitions(tile)})
        owners: dict[int, list[tuple[int, int, int]]] = {edge: [] for edge in edges[:-1]}
        for tile in tiles:
            assert tile.address is not None
            start, (low, high) = tile.address[1], _partitions(tile)
            found: dict[int, None] = {}
            for edge, band in owners.items():
                if low <= edge < high:
                    found |= dict.fromkeys(_take(band, start, start + tile.partition_bytes, tile.index))
            heirs[tile.index] = list(found)
    return heirs


def _partitions(tile: Storage) -> tuple[int, int]:
    """The first partition of a tile and the one after its last; without a fixed address it has all of them."""
    if not tile.pinned or tile.address is None:
        return 0, MOST_PARTITIONS
    return tile.address[0], tile.address[0] + tile.shape[0]


def _take(owners: list[tuple[int, int, int]], start: int, end: int, tile: int) -> list[int]:
    """Give the bytes from ``start`` to ``end`` to a tile; return the tiles that had some of them."""
    first = bisect_right(owners, (start, start, -1)) - 1
    if first < 0 or owners[first][1] <= start:
        first += 1
    last = first
    while last < len(owners) and owners[last][0] < end:
        last += 1
    taken = owners[first:last]
    left = [(a, start, owner) for a, b, owner in taken[:1] if a < start]
    right = [(end, b, owner) for a, b, owner in taken[-1:] if b > end]
    owners[first:last] = [*left, (start, end, tile), *right]
    return [owner for _, _, owner in taken]
