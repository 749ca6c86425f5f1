"""Remove or merge copies as AWS's compiler does in profiles of attention (docs/timing.md).

- A plain copy from PSUM to SBUF is removed if only vector, scalar or gpsimd instructions read it, if they may read PSUM
  instead, and if PSUM has room for the longer life.
- Copies of whole tiles that an engine makes one after the other become one copy of tiles that are adjacent in a bank.

The values stay the same to the bit. Instructions in ``nl.no_reorder``, with an edge of their own, or in different
iterations of a device loop stay as they are. Loads and stores are not merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from trnrt.nki.errors import KernelMemoryError
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.memory import allocate
from trnrt.nki.machine.program import Dynamic, Engine, Instruction, MemoryRegion, Program, Storage, View

_READERS = frozenset({Engine.vector, Engine.scalar, Engine.gpsimd})
_FLOATS = frozenset({"float32", "bfloat16", "float16"})  # engines compute in float32, which holds each of their values
_Move = Callable[[View], View | None]  # the new view for a view, or None


class _Block(NamedTuple):
    """Rows of a storage, and adjacent elements in each."""

    row: int
    rows: int
    first: int
    size: int


@dataclass(slots=True)
class _Copy:
    """A plain copy at ``position``, from one block to another, element by element."""

    position: int
    src: Storage
    dst: Storage
    read: _Block
    written: _Block

    @property
    def whole(self) -> bool:
        """True if it copies a whole tile to a whole tile."""
        sides = ((self.src, self.read), (self.dst, self.written))
        return all(block == (0, tile.shape[0], 0, tile.partition_elements) for tile, block in sides)


def rewrite_copies(program: Program) -> Program | None:
    """The program with fewer copies and new addresses; None if no copy can go, or if memory is too small."""
    rewriting = _Rewriting(program)
    if rewriting.copies:
        rewriting.remove_copies()
        rewriting.merge_copies()
    if not rewriting.removed:
        return None
    found = rewriting.result()
    try:
        found.memory = allocate(found)
    except KernelMemoryError:
        return None
    return found


class _Rewriting:
    """The state of the rewriting; ``removed`` are the positions of removed instructions."""

    def __init__(self, program: Program) -> None:
        self.program, self.target = program, program.target
        self.instructions = list(program.instructions)
        self.storages = list(program.storages)
        self.removed: set[int] = set()
        self.loop = _loops(program)
        self.fixed = {id(other) for one in program.instructions for other in one.after}
        self.writes: dict[int, list[int]] = {}
        self.reads: dict[int, list[tuple[int, View]]] = {}
        self.stuck: set[int] = set()  # storages with a view that can't be moved
        for position, instruction in enumerate(self.instructions):
            self._note(position, instruction)
        self.copies = [copy for position in range(len(self.instructions)) if (copy := self._copy(position))]

    def _note(self, position: int, instruction: Instruction) -> None:
        for name, view in instruction.operands:
            index = view.storage.index
            if view.cast is not None or view.dynamic is not None:
                self.stuck.add(index)
            if name in instruction.operation.writes:
                self.writes.setdefault(index, []).append(position)
            else:
                self.reads.setdefault(index, []).append((position, view))
        self.stuck.update(view.storage.index for view in instruction.extra)

    def _copy(self, position: int) -> _Copy | None:
        """The plain copy from PSUM to SBUF at a position, if there is one that may be changed."""
        instruction = self.instructions[position]
        source = _source_of_copy(instruction)
        if source is None or self._is_pinned(instruction):
            return None
        dst: View = instruction["dst"]
        src, to = source.storage, dst.storage
        if src.buffer is not MemoryRegion.psum or to.buffer is not MemoryRegion.sbuf or to.pinned or src.pinned:
            return None
        if to.index in self.stuck or src.index in self.stuck or not _is_exact(src.dtype.name, to.dtype.name):
            return None
        read, written = _block(source), _block(dst)
        if read is None or written is None or (read.rows, read.size) != (written.rows, written.size):
            return None
        uses = [p for index in (to.index, src.index) for p, _ in self.reads.get(index, ())]
        uses += [p for index in (to.index, src.index) for p in self.writes.get(index, ())]
        if len({self.loop[p] for p in uses}) != 1:
            return None
        return _Copy(position, src, to, read, written)

    def _is_pinned(self, instruction: Instruction) -> bool:
        return instruction.in_order or bool(instruction.after) or id(instruction) in self.fixed

    # Removed copies.
    def remove_copies(self) -> None:
        """Let readers read PSUM, tile by tile, in program order."""
        held = self._count_held()
        by_tile: dict[int, list[_Copy]] = {}
        for copy in self.copies:
            by_tile.setdefault(copy.dst.index, []).append(copy)
        for index, copies in by_tile.items():
            readers = self.reads.get(index, [])
            if not readers or len(copies) != len(self.writes[index]):
                continue
            if not all(self._reads_in_time(p, view, copies) for p, view in readers):
                continue
            if self._have_room(copies, readers, held) and self._change(
                {p for p, _ in readers}, partial(_move_to_psum, copies=copies)
            ):
                self.removed.update(copy.position for copy in copies)
                for copy in copies:
                    self._hold(copy, readers, held)
        self.copies = [copy for copy in self.copies if copy.position not in self.removed]

    def _reads_in_time(self, position: int, view: View, copies: list[_Copy]) -> bool:
        """True if PSUM still has the copied values at ``position``, and the instruction there may be changed."""
        instruction = self.program.instructions[position]
        copy = _source(view, copies)
        if copy is None or position < copy.position or instruction.engine not in _READERS or instruction.in_order:
            return False
        return not any(copy.position < p <= position for p in self.writes.get(copy.src.index, ()))

    def _change(self, positions: Iterable[int], move: _Move) -> bool:
        """Move the views of the instructions at ``positions``; change none if one can't be moved, or breaks a rule."""
        found: dict[int, Instruction] = {}
        for position in positions:
            old = self.instructions[position]
            args = {name: move(value) if isinstance(value, View) else value for name, value in old.args.items()}
            found[position] = replace(old, args=args)
            if any(args[name] is None and old.args[name] is not None for name in args) or self._is_refused(
                found[position]
            ):
                return False
        for position, instruction in found.items():
            self.instructions[position] = instruction
        return True

    def _is_refused(self, instruction: Instruction) -> bool:
        rules = instruction.operation.rules
        return any(rule.refuses and rule.check(instruction, self.target) is not None for rule in rules)

    def _count_held(self) -> list[int]:
        """The bytes per partition of PSUM, in whole banks, that tiles hold at each position."""
        held = [0] * (len(self.instructions) + 1)
        for index, (first, last) in find_lifetimes(self.program).items():
            if self.storages[index].buffer is MemoryRegion.psum:
                for position in range(first, last + 1):
                    held[position] += self._banks(self.storages[index])
        return held

    def _banks(self, tile: Storage) -> int:
        return -(-tile.partition_bytes // self.target.psum_bank_bytes) * self.target.psum_bank_bytes

    def _longer_life(self, copy: _Copy, readers: list[tuple[int, View]]) -> range:
        """The positions by which a source lives longer without its copy."""
        first = max([*self.writes.get(copy.src.index, ()), *(p for p, _ in self.reads[copy.src.index])]) + 1
        return range(first, max(p for p, _ in readers) + 1)

    def _have_room(self, copies: list[_Copy], readers: list[tuple[int, View]], held: list[int]) -> bool:
        capacity = self.target.psum_banks * self.target.psum_bank_bytes
        more: dict[int, int] = {}
        for copy in copies:
            for position in self._longer_life(copy, readers):
                more[position] = more.get(position, 0) + self._banks(copy.src)
        return all(held[position] + size <= capacity for position, size in more.items())

    def _hold(self, copy: _Copy, readers: list[tuple[int, View]], held: list[int]) -> None:
        for position in self._longer_life(copy, readers):
            held[position] += self._banks(copy.src)
        self.reads[copy.src.index] += readers

    # Merged copies.
    def merge_copies(self) -> None:
        """Merge copies that follow each other on their engine."""
        engine: dict[Engine, list[_Copy]] = {}
        copies = {copy.position: copy for copy in self.copies}
        for position, instruction in enumerate(self.instructions):
            if position in self.removed:
                continue
            group = engine.setdefault(instruction.engine, [])
            copy = copies.get(position)
            if group and (copy is None or not self._joins(copy, group)):
                self._merge(group)
                group.clear()
            if copy is not None and copy.whole:
                group.append(copy)
        for group in engine.values():
            self._merge(group)

    def _joins(self, copy: _Copy, group: list[_Copy]) -> bool:
        """True if a copy can be merged with those before it, which are then made at its position."""
        first, instruction = group[0], self.instructions[copy.position]
        alike = [(one.src.shape, one.src.dtype, one.dst.shape, one.dst.dtype) for one in (first, copy)]
        if not copy.whole or alike[0] != alike[1] or self.loop[first.position] != self.loop[copy.position]:
            return False
        if instruction.operation is not self.instructions[first.position].operation:
            return False
        sources, tiles = {one.src.index for one in (*group, copy)}, {one.dst.index for one in (*group, copy)}
        if min(len(sources), len(tiles)) <= len(group):
            return False
        if len(sources) * first.src.partition_bytes > self.target.psum_bank_bytes:
            return False
        return not any(
            any(p <= copy.position for p, _ in self.reads.get(one.dst.index, ()))
            or any(one.position != p <= copy.position for p in self.writes[one.dst.index])
            or any(one.position < p <= copy.position for p in self.writes.get(one.src.index, ()))
            for one in group
        )

    def _merge(self, group: list[_Copy]) -> None:
        if len(group) < 2:
            return
        src, dst = (
            self._side_by_side([copy.src for copy in group], 0),
            self._side_by_side([copy.dst for copy in group], 1),
        )
        homes = {copy.src.index: (src, n) for n, copy in enumerate(group)}
        homes |= {copy.dst.index: (dst, n) for n, copy in enumerate(group)}
        touched = {p for index in homes for p in self.writes.get(index, ())}
        touched |= {p for index in homes for p, _ in self.reads.get(index, ())}
        last = self.instructions[group[-1].position]
        name = "src" if "src" in last.args else "data"
        whole = {"dst": _whole(last["dst"], dst), name: _whole(last[name], src)}
        merged = replace(last, args={**last.args, **whole})
        in_order = any(self.instructions[p].in_order for p in touched)
        if in_order or self._is_refused(merged) or not self._change(touched, partial(_move_beside, homes=homes)):
            return
        self.instructions[group[-1].position] = merged
        self.storages += [src, dst]
        self.removed.update(copy.position for copy in group[:-1])

    def _side_by_side(self, tiles: list[Storage], place: int) -> Storage:
        """A tile that holds similar ones beside each other, the new storage number ``place``."""
        shape = (tiles[0].shape[0], len(tiles) * tiles[0].partition_elements)
        return replace(tiles[0], index=len(self.storages) + place, shape=shape, address=None)

    # The result.
    def result(self) -> Program:
        """A new program that shares no storage with an address with the old one."""
        storages = [replace(s, address=None) if s.on_chip and not s.pinned else s for s in self.storages]
        known: dict[int, Instruction] = {}
        kept = [(p, one) for p, one in enumerate(self.instructions) if p not in self.removed]
        for position, one in kept:
            args = {name: _renew(value, storages) for name, value in one.args.items()}
            known[id(self.program.instructions[position])] = replace(one, args=args)
        instructions = [known[id(self.program.instructions[position])] for position, _ in kept]
        for instruction in instructions:
            instruction.after = tuple(known[id(other)] for other in instruction.after)
        return replace(self.program, storages=storages, instructions=instructions, memory=None)


def _loops(program: Program) -> list[int]:
    """For each position, its innermost device loop; -1 for none."""
    found = [-1] * len(program.instructions)
    for number, (begin, end) in enumerate(program.loops()):
        for position in range(begin, end + 1):
            found[position] = number if found[position] < 0 else found[position]
    return found


def _source_of_copy(instruction: Instruction) -> View | None:
    """The source of an instruction that only copies; None for any other."""
    args = instruction.args
    if instruction.operation.name == "tensor_copy":
        source = args["src"]
    elif instruction.operation.name == "activation" and getattr(args["op"], "name", "") == "copy":
        plain = args["bias"] is None and args["scale"] == 1.0 and args["reduce_regs"] is None
        source = args["data"] if plain and args["reduce_res"] is None else None
    else:
        return None
    return source if isinstance(source, View) else None


def _is_exact(source: str, to: str) -> bool:
    return source in _FLOATS and to in (source, "float32")


def _block(view: View) -> _Block | None:
    """The block of a view; None if it is no block."""
    row = view.storage.partition_elements
    if view.contiguous_elements != view.free_size or (view.partitions > 1 and view.strides[0] != row):
        return None
    return _Block(view.offset // row, view.partitions, view.offset % row, view.free_size)


def _source(view: View, copies: list[_Copy]) -> _Copy | None:
    """The copy that wrote all elements of a view."""
    row = view.storage.partition_elements
    if min(view.strides) < 0 or view.strides[0] % row:
        return None
    low, first = divmod(view.offset, row)
    high = low + (view.partitions - 1) * (view.strides[0] // row)
    last = first + sum((size - 1) * stride for size, stride in zip(view.shape[1:], view.strides[1:], strict=True))
    for copy in copies:
        block = copy.written
        rows = block.row <= low and high < block.row + block.rows
        if rows and block.first <= first and last < block.first + block.size:
            return copy
    return None


def _move_view(view: View, storage: Storage, rows: int, elements: int) -> View:
    """The same part of another storage, ``rows`` and ``elements`` further."""
    old, new = view.storage.partition_elements, storage.partition_elements
    row, first = divmod(view.offset, old)
    strides = (view.strides[0] // old * new, *view.strides[1:])
    return replace(view, storage=storage, strides=strides, offset=(row + rows) * new + first + elements)


def _move_to_psum(view: View, copies: list[_Copy]) -> View | None:
    """The view of the copy's source; other views unchanged."""
    if view.storage is not copies[0].dst:
        return view
    copy = _source(view, copies)
    if copy is None:
        return None
    return _move_view(view, copy.src, copy.read.row - copy.written.row, copy.read.first - copy.written.first)


def _move_beside(view: View, homes: dict[int, tuple[Storage, int]]) -> View | None:
    """The view of a tile that is now beside others; other views unchanged."""
    home = homes.get(view.storage.index)
    if home is None:
        return view
    if min(view.strides) < 0 or view.strides[0] % view.storage.partition_elements:
        return None
    return _move_view(view, home[0], 0, home[1] * view.storage.partition_elements)


def _whole(view: View, storage: Storage) -> View:
    return replace(view, storage=storage, shape=storage.shape, strides=storage.strides, offset=0)


def _renew(value: Any, storages: list[Storage]) -> Any:
    """An argument with the new storages instead of the old ones."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_renew(one, storages) for one in value)
    if not isinstance(value, View):
        return value
    dynamic = value.dynamic
    if dynamic is not None:
        scalar, vector = _renew(dynamic.scalar, storages), _renew(dynamic.vector, storages)
        dynamic = Dynamic(scalar, vector, dynamic.stride, dynamic.limit)
    return replace(value, storage=storages[value.storage.index], dynamic=dynamic)
