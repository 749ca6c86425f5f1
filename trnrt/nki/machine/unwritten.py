"""Reads of memory that nothing has written: what is certain from the program alone, without any data.

On the device such memory holds whatever was there before, and AWS's compiler may refuse the read (its error
NCC_IBIR182). A read counts as one of unwritten memory if no instruction can have written the element before it:

- a write at a run-time index may have written any element, one under a mask all that it spans;
- within a device loop, an earlier round may have written what the body writes anywhere;
- in HBM that cores share, the other core may have written at any time;
- an operand that is read where a mask says so (``Operation.partly``) never counts; one that is read at indices
  (``Operation.indexed``) only if nothing has written any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.modes import oob_mode
from trnrt.nki.machine.program import Instruction, MemoryRegion, Program, Source, Storage, View

_SHARED = MemoryRegion.shared_hbm


@dataclass(frozen=True)
class UnwrittenRead:
    """Elements of a storage that are read, or returned, and that nothing wrote.

    ``reader`` is the instruction and its argument, "the kernel" where it returns them. ``count`` of the ``read``
    elements were never written; ``bounds`` are their (first, last) in each dimension: partition and column on chip.
    ``beneath`` is another tile of the same address, whose bytes are there.
    """

    source: Source
    reader: str
    storage: Storage
    count: int
    read: int
    bounds: tuple[tuple[int, int], ...]
    beneath: Storage | None = None

    def __str__(self) -> str:
        storage = self.storage
        what = f"{self.reader} {storage.name or 'a tile'!s} [{'x'.join(map(str, storage.shape))}] {storage.dtype}"
        some = f"{self.count} of {self.read}" if self.count < self.read else f"any of the {self.read}"
        made = f"allocated at {storage.source}"
        under = f"; its address is also that of {self.beneath}, whose bytes may be there" if self.beneath else ""
        return f"{what}: nothing has written {some} elements, {self._region()} ({made}){under}"

    def _region(self) -> str:
        names = ("partitions", "columns") if self.storage.on_chip else ()
        parts = [f"{first} to {last}" if last > first else f"{first}" for first, last in self.bounds]
        if names:
            return ", ".join(f"{name} {part}" for name, part in zip(names, parts, strict=True))
        return f"indices [{', '.join(parts)}]"


def unwritten_reads(programs: Sequence[Program]) -> list[UnwrittenRead]:
    """What a kernel reads and returns that nothing wrote, once for each line and tile; ``programs`` are its cores'."""
    found: dict[tuple[Source, Source, str], UnwrittenRead] = {}
    for number, program in enumerate(programs):
        others = [other for core, other in enumerate(programs) if core != number]
        for read in _reads_of(program, others, returns=number == 0):
            found.setdefault((read.source, read.storage.source, read.reader), read)
    return list(found.values())


def _reads_of(program: Program, others: Sequence[Program], *, returns: bool) -> Iterator[UnwrittenRead]:
    """The unwritten reads of one core; with ``returns`` also what it returns."""
    written = _Written(program)
    for other in others:
        written.share(other)
    ends, skipped = dict(program.loops()), -1
    kept = {view.storage.index for view in program.outputs}
    dying: dict[int, list[int]] = {}
    for index, (_, last) in program.lifetimes().items():
        dying.setdefault(last, []).append(index)
    for position, instruction in enumerate(program.instructions):
        if position <= skipped:
            continue
        if position in ends and _never_runs(instruction):
            skipped = ends[position]
        elif position in ends:
            for inner in program.instructions[position : ends[position]]:
                written.note(inner)
        yield from written.missing(instruction)
        written.note(instruction)
        written.forget(index for index in dying.get(position, ()) if index not in kept)
    for view in program.outputs if returns else ():
        missing = written.unwritten(view)
        if missing is not None:
            yield written.report(view.storage.source, "the kernel returns", view, missing)


def _never_runs(begin: Instruction) -> bool:
    """Whether a device loop has constant bounds between which there is nothing."""
    loop = begin["loop"]
    constant = isinstance(loop.start, int) and isinstance(loop.stop, int)
    return loop.condition is None and constant and not range(loop.start, loop.stop, loop.step)


class _Written:
    """Which elements of each storage may have been written so far."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._whole = {storage.index for storage in program.inputs} | set(program.initial)
        self._whole |= {s.index for s in program.storages if s.buffer is MemoryRegion.registers}
        self._parts: dict[int, Array] = {}
        self._left: dict[int, int] = {}  # elements of it that nothing wrote
        self._begun: set[int] = set()  # storages that something wrote to

    def share(self, other: Program) -> None:
        """What another core writes to the HBM that both share may be there at any time."""
        mine = [storage for storage in self._program.storages if storage.buffer is _SHARED]
        theirs = [storage.index for storage in other.storages if storage.buffer is _SHARED]
        same = dict(zip(theirs, mine, strict=False))
        for instruction in other.instructions:
            for view in instruction.writes():
                storage = same.get(view.storage.index)
                if storage is not None:
                    self._write(View(storage, view.shape, view.strides, view.offset, view.cast, view.dynamic))

    def note(self, instruction: Instruction) -> None:
        """Take an instruction's writes in."""
        for view in instruction.writes():
            self._write(view)

    def forget(self, indices: Iterable[int]) -> None:
        """Release what is known of storages that no later instruction touches."""
        for index in indices:
            self._parts.pop(index, None)

    def missing(self, instruction: Instruction) -> Iterator[UnwrittenRead]:
        """What an instruction reads that nothing wrote."""
        operation = instruction.operation
        indices = [("index", view) for view in instruction.extra]
        for arg, view in [pair for pair in instruction.operands if pair[0] in operation.reads] + indices:
            skips = instruction.args.get("oob_mode") is oob_mode.skip and view.dynamic is not None
            if view.storage.index in self._whole or arg in operation.partly or skips:
                continue
            if (arg in operation.indexed or view.dynamic is not None) and view.storage.index in self._parts:
                continue
            missing = self.unwritten(view)
            if missing is not None:
                yield self.report(instruction.source, f"{operation.name} reads {arg},", view, missing)

    def report(self, source: Source, reader: str, view: View, missing: Array) -> UnwrittenRead:
        """``missing`` are places in the view's storage."""
        storage = view.storage
        shape = (storage.shape[0], storage.partition_elements) if storage.on_chip else storage.shape
        bounds = tuple((int(c.min()), int(c.max())) for c in np.unravel_index(missing, shape))
        read = _places(view).size
        return UnwrittenRead(source, reader, storage, missing.size, read, bounds, self._beneath(storage))

    def unwritten(self, view: View) -> Array | None:
        """Which elements of its storage that a view spans nothing wrote; None if there are none."""
        index = view.storage.index
        if index in self._whole:
            return None
        if index not in self._parts:
            return _places(view)
        window = self._window(view)
        if window is not None and window.all():
            return None
        places = _places(view)
        missing = places[~self._parts[index][places]]
        return missing if missing.size else None

    def _beneath(self, storage: Storage) -> Storage | None:
        """Another tile that was written at the addresses that a kernel gave to both."""
        for other in self._program.storages if storage.pinned else ():
            if other is not storage and other.pinned and other.index in self._begun and _overlap(storage, other):
                return other
        return None

    def _window(self, view: View) -> Array | None:
        """The view's window on what is known of its storage; None where its elements are not the storage's."""
        if view.cast is not None or view.dynamic is not None or not view.bounded:
            return None
        return np.ndarray(view.shape, bool, self._parts[view.storage.index], view.offset, view.strides)

    def _write(self, view: View) -> None:
        storage = view.storage
        if storage.index in self._whole:
            return
        self._begun.add(storage.index)
        if view.dynamic is not None or not view.bounded or view.covers_storage():
            self._fill(storage.index)
            return
        if storage.index not in self._parts:
            self._parts[storage.index] = np.zeros(storage.size, bool)
            self._left[storage.index] = storage.size
        window = self._window(view)
        if window is None:
            places = _places(view)
            fresh = places.size - int(np.count_nonzero(self._parts[storage.index][places]))
            self._parts[storage.index][places] = True
        else:
            fresh = 0 if 0 in view.strides else window.size - int(np.count_nonzero(window))
            window[...] = True
        self._left[storage.index] -= fresh
        if self._left[storage.index] <= 0:
            self._fill(storage.index)

    def _fill(self, index: int) -> None:
        self._whole.add(index)
        self._parts.pop(index, None)


def _places(view: View) -> Array:
    """The elements of its storage that a view touches, each once."""
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


def _overlap(one: Storage, other: Storage) -> bool:
    """Whether two tiles with addresses share bytes."""
    if one.buffer is not other.buffer or one.address is None or other.address is None:
        return False
    (partition, start), (other_partition, other_start) = one.address, other.address
    beside = partition >= other_partition + other.shape[0] or other_partition >= partition + one.shape[0]
    return not beside and start < other_start + other.partition_bytes and other_start < start + one.partition_bytes
