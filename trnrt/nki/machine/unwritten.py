"""Find reads of unwritten memory that are certain from the program alone, without data.

On the device such memory holds arbitrary bytes, and AWS's compiler may refuse the read (its error NCC_IBIR182). Two
kinds are reported:

- an operand or an index without a single written element;
- a result, or an argument that the kernel writes, that is unwritten or was computed from unwritten memory. It does no
  harm to compute unwritten rows and columns along with others, if they are never returned.

An element counts as unwritten if no earlier instruction can have written it. These may have: a write at a run-time
index into its tensor, a masked write that spans it, an earlier iteration of a device loop that writes it, and the other
core if both share it. Elements that a mask or an index selects count as written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trnrt.nki.machine.binding import view_array
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.modes import oob_mode
from trnrt.nki.machine.program import Instruction, MemoryRegion, Program, Source, Storage, View

_SHARED = MemoryRegion.shared_hbm


@dataclass(frozen=True)
class UnwrittenRead:
    """Elements of a storage that are read, or returned, but were never written.

    ``reader``: the instruction and its argument, or the kernel's use of it. ``count`` of the ``read`` elements were
    never written; ``bounds`` are their (first, last) in each dimension: partition and column on chip. ``beneath``:
    another tile of the same address, whose bytes are there. ``reaches``: the results computed from them.
    """

    source: Source
    reader: str
    storage: Storage
    count: int
    read: int
    bounds: tuple[tuple[int, int], ...]
    beneath: Storage | None = None
    reaches: str = ""

    def __str__(self) -> str:
        storage = self.storage
        what = f"{self.reader} {storage.name or 'a tile'} [{'x'.join(map(str, storage.shape))}] {storage.dtype}"
        some = f"{self.count} of {self.read}" if self.count < self.read else f"any of the {self.read}"
        under = f"; its address is also that of {self.beneath}, whose bytes may be there" if self.beneath else ""
        after = f"; {self.reaches} depend on them" if self.reaches else ""
        made = f"allocated at {storage.source}"
        return f"{what}: nothing has written {some} elements, {self._region()} ({made}){under}{after}"

    def _region(self) -> str:
        parts = [f"{first} to {last}" if last > first else f"{first}" for first, last in self.bounds]
        return "partitions {}, columns {}".format(*parts) if self.storage.on_chip else f"indices [{', '.join(parts)}]"


def unwritten_reads(programs: Sequence[Program]) -> list[UnwrittenRead]:
    """The unwritten memory that a kernel reads or returns, once for each line and tile; ``programs``: of its cores."""
    found: dict[tuple[Source, Source, str], UnwrittenRead] = {}
    for number, program in enumerate(programs):
        others = [other for core, other in enumerate(programs) if core != number]
        for read in _reads_of(program, others, returns=number == 0):
            found.setdefault((read.source, read.storage.source, read.reader), read)
    return list(found.values())


def _reads_of(program: Program, others: Sequence[Program], *, returns: bool) -> Iterator[UnwrittenRead]:
    """The unwritten reads of one core; with ``returns`` also its results."""
    known = _Known(program)
    for other in others:
        known.share(other)
    ends, skipped, within = dict(program.loops()), -1, -1
    dying = _dying(program)
    for position, instruction in enumerate(program.instructions):
        if position <= skipped:
            continue
        if position in ends and _never_runs(instruction):
            skipped = ends[position]
        elif position in ends:
            within = max(within, ends[position])
            for inner in program.instructions[position : ends[position]]:
                known.write(inner)
        yield from known.missing(instruction)
        if position > within:
            known.spread(instruction)
        else:
            known.write(instruction)
        known.forget(dying.get(position, ()))
    if returns:
        yield from known.results()


def _dying(program: Program) -> dict[int, list[int]]:
    """Position -> the storages that no later instruction touches, except for results."""
    kept = {view.storage.index for view in program.outputs} | {storage.index for storage in program.inputs}
    dying: dict[int, list[int]] = {}
    for index, (_, last) in find_lifetimes(program).items():
        if index not in kept:
            dying.setdefault(last, []).append(index)
    return dying


def _never_runs(begin: Instruction) -> bool:
    """True if a device loop has constant bounds and no iterations."""
    loop = begin["loop"]
    constant = isinstance(loop.start, int) and isinstance(loop.stop, int)
    return loop.condition is None and constant and not range(loop.start, loop.stop, loop.step)


class _Known:
    """For each storage, the elements that may have been written, and those that were computed from unwritten ones.

    The latter are marked with the number of the read that introduced them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._whole = {storage.index for storage in program.inputs} | set(program.initial)
        self._whole |= {s.index for s in program.storages if s.buffer is MemoryRegion.registers}
        self._parts: dict[int, Array] = {}  # for each element, whether it may have been written
        self._left: dict[int, int] = {}  # the number of elements that were not
        self._begun: set[int] = set()  # storages with a write
        self._foreign: set[int] = set()  # storages that another core writes to
        self._marks: dict[int, Array] = {}
        self._origins: list[UnwrittenRead] = []

    def share(self, other: Program) -> None:
        """Count as written what another core writes to the HBM that both share: it may do so at any time."""
        mine = [storage for storage in self._program.storages if storage.buffer is _SHARED]
        theirs = [storage.index for storage in other.storages if storage.buffer is _SHARED]
        same = dict(zip(theirs, mine, strict=False))
        for instruction in other.instructions:
            for view in instruction.writes():
                storage = same.get(view.storage.index)
                if storage is not None:
                    self._foreign.add(storage.index)
                    self._write(View(storage, view.shape, view.strides, view.offset, view.cast, view.dynamic))

    def write(self, instruction: Instruction) -> None:
        """Note an instruction's writes; their results count as written."""
        for view in instruction.writes():
            self._write(view)

    def spread(self, instruction: Instruction) -> None:
        """Record an instruction's writes, and mark results that it computes from unwritten memory."""
        spread, found = instruction.operation.spreads, {}
        for arg, view in instruction.operands if spread else ():
            marks = self._operand_marks(instruction, arg, view) if arg in instruction.operation.reads else None
            if marks is not None:
                found[arg] = marks
        results = spread(instruction, found) if spread and found else {}
        kept = self._kept_marks(instruction) if results or self._marks else None
        self.write(instruction)
        if kept is not None:
            results["dst"] = np.maximum(results.get("dst", 0), kept)
        for arg, marks in results.items():
            self._mark(instruction[arg], marks)

    def missing(self, instruction: Instruction) -> Iterator[UnwrittenRead]:
        """The operands of an instruction without a written element, and unwritten indices."""
        operation = instruction.operation
        skips = instruction.args.get("oob_mode") is oob_mode.skip
        for arg, view in instruction.operands:
            unseen = view.storage.index not in self._whole and arg in operation.reads and arg not in operation.partly
            if unseen and not (view.dynamic is not None and skips):
                indexed = arg in operation.indexed or view.dynamic is not None
                if not (indexed and view.storage.index in self._parts):
                    places = self._unwritten(view)
                    if places is not None and places.size == _places(view).size:
                        yield self._report(instruction.source, f"{operation.name} reads {arg},", view, places)
        for view in () if skips else instruction.extra:
            places = self._unwritten(view)
            if places is not None:
                yield self._report(instruction.source, f"{operation.name} reads an index,", view, places)

    def results(self) -> Iterator[UnwrittenRead]:
        """Unwritten elements of results and arguments, and those that were computed from unwritten ones."""
        whole = [View(storage, storage.shape, storage.strides, 0) for storage in self._program.inputs]
        reported: set[int] = set()
        for view in [*self._program.outputs, *whole]:
            places = self._unwritten(view)
            if places is not None:
                yield self._report(view.storage.source, "the kernel returns", view, places)
            marks = self._marks.get(view.storage.index)
            seen = None if marks is None else _window(view, marks)
            if seen is not None:
                reaches = f"{int(np.count_nonzero(seen))} of {view.size} elements of {view.storage.name or 'a tensor'}"
                for number in sorted(set(np.unique(seen).tolist()) - {0} - reported):
                    reported.add(number)
                    yield replace(self._origins[number - 1], reaches=f"{reaches} that the caller gets")

    def forget(self, indices: Iterable[int]) -> None:
        """Drop the data of storages that no later instruction touches."""
        for index in indices:
            self._parts.pop(index, None)
            self._marks.pop(index, None)

    def _report(self, source: Source, reader: str, view: View, places: Array) -> UnwrittenRead:
        """The read of a view, where ``places`` of its storage are unwritten."""
        storage = view.storage
        shape = (storage.shape[0], storage.partition_elements) if storage.on_chip else storage.shape
        bounds = tuple((int(c.min()), int(c.max())) for c in np.unravel_index(places, shape))
        read = _places(view).size
        return UnwrittenRead(source, reader, storage, places.size, read, bounds, self._overlapped_tile(storage))

    def _overlapped_tile(self, storage: Storage) -> Storage | None:
        """Another written tile that shares bytes with this one, at addresses that the kernel gave to both."""
        for other in self._program.storages if storage.pinned else ():
            if other is not storage and other.pinned and other.index in self._begun and storage.overlap(other):
                return other
        return None

    def _unwritten(self, view: View) -> Array | None:
        """The unwritten elements of its storage that a view spans; None if there are none."""
        index = view.storage.index
        if index in self._whole:
            return None
        if index not in self._parts:
            return _places(view)
        window = _window(view, self._parts[index])
        if window is not None and window.all():
            return None
        places = _places(view)
        missing = places[~self._parts[index][places]]
        return missing if missing.size else None

    def _operand_marks(self, instruction: Instruction, arg: str, view: View) -> Array | None:
        """The marks of the elements that an operand reads; None if there are none.

        Unwritten elements get a mark of this read, unless all are unwritten: then the operand is reported.
        """
        index = view.storage.index
        if index in self._foreign or (index in self._whole and index not in self._marks):
            return None
        marks, parts = self._marks.get(index), self._parts.get(index)
        found = np.zeros(view.shape, np.int32)
        if marks is not None:
            window = _window(view, marks)
            found = found if window is None else window.copy()
        written = None if parts is None else _window(view, parts)
        if written is not None and not written.all() and written.any():
            places = self._unwritten(view)
            assert places is not None
            reader = f"{instruction.operation.name} reads {arg},"
            self._origins.append(self._report(instruction.source, reader, view, places))
            found[~written] = len(self._origins)
        return found if found.any() else None

    def _kept_marks(self, instruction: Instruction) -> Array | None:
        """The marks that stay in a product's destination because the product is added to it."""
        accumulates = instruction.args.get("accumulates", False)
        marks = self._marks.get(instruction["dst"].storage.index) if accumulates is not False else None
        window = None if marks is None else _window(instruction["dst"], marks)
        return None if window is None else np.where(accumulates, window, 0)

    def _mark(self, view: View, marks: Array) -> None:
        """Set the marks of elements that were just written."""
        index = view.storage.index
        if index in self._foreign or view.cast is not None or view.dynamic is not None or not marks.any():
            return
        held = self._marks.setdefault(index, np.zeros(view.storage.size, np.int32))
        window = _window(view, held)
        assert window is not None
        window[...] = marks

    def _write(self, view: View) -> None:
        index = view.storage.index
        self._begun.add(index)
        if index in self._marks:
            self._clear_marks(view)
        if index in self._whole:
            return
        if view.dynamic is not None or view.covers_storage():
            self._note_whole(index)
            return
        if index not in self._parts:
            self._parts[index] = np.zeros(view.storage.size, bool)
            self._left[index] = view.storage.size
        parts = self._parts[index]
        window = _window(view, parts)
        if window is None or 0 in view.strides:
            places = _places(view)
            fresh = places.size - int(np.count_nonzero(parts[places]))
            parts[places] = True
        else:
            fresh = window.size - int(np.count_nonzero(window))
            window[...] = True
        self._left[index] -= fresh
        if self._left[index] <= 0:
            self._note_whole(index)

    def _clear_marks(self, view: View) -> None:
        window = _window(view, self._marks[view.storage.index])
        if window is None:
            del self._marks[view.storage.index]
        else:
            window[...] = 0

    def _note_whole(self, index: int) -> None:
        self._whole.add(index)
        self._parts.pop(index, None)


def _window(view: View, held: Array) -> Array | None:
    """The view's window on an array of its storage; None if its elements are not the storage's."""
    if view.cast is not None or view.dynamic is not None or not view.bounded:
        return None
    return view_array(view, held)


def _places(view: View) -> Array:
    """The elements of its storage that a view may touch, each once."""
    if view.dynamic is not None:  # at run-time indices: all of it
        return np.arange(view.storage.size, dtype=np.int64)
    places = np.full((1,), view.offset, np.int64)
    for size, stride in zip(view.shape, view.strides, strict=True):
        if stride:
            places = (places[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    here, there = view.dtype.itemsize, view.storage.dtype.itemsize
    if here != there:
        first, last = places * here // there, ((places + 1) * here - 1) // there
        places = np.concatenate([np.minimum(first + step, last) for step in range(-(-here // there) + 1)])
    places = np.unique(places)
    return places[(places >= 0) & (places < view.storage.size)]
