"""The instruction that wrote an element of a kernel's result, and those that its copies lead back to.

The program says it, without a run: the last instruction whose destination covers the element. A result in HBM is
mostly stored by a copy, so a plain copy leads on to the instruction that wrote the element of its source.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trnrt.nki.machine.program import Instruction, Program, Source, Storage, View
from trnrt.nki.machine.unwritten import unwritten_reads

_COPIES = frozenset(["dma_copy", "tensor_copy"])
_MOST_COPIES = 8


@dataclass(frozen=True)
class Element:
    """An element of a storage, by its number in row-major order."""

    storage: Storage
    number: int

    def __str__(self) -> str:
        index = ", ".join(map(str, self.storage.coordinates(self.number)))
        kind = "a tile" if self.storage.on_chip else "a tensor in HBM"
        return f"{self.storage.name or kind} [{index}]"


@dataclass(frozen=True)
class Write:
    """An instruction that wrote an element, by its ``position`` in the program.

    ``certain``: False if its address is known at run time only, so that it may have written another one.
    """

    position: int
    view: View
    certain: bool


def element_at(view: View, index: Sequence[int]) -> Element:
    """The element of its storage that a view has at ``index``: the first, if it reads several as one."""
    number = view.offset + sum(i * stride for i, stride in zip(index, view.strides, strict=True))
    return Element(view.storage, number * view.dtype.itemsize // view.storage.dtype.itemsize)


def find_index(view: View, number: int) -> tuple[int, ...] | None:
    """The index in a view of element ``number`` of its storage, counted in the view's dtype; None if it isn't there."""
    found = [0] * view.ndim
    # Longest steps first: what is left must be within reach of the shorter ones.
    dims = sorted(range(view.ndim), key=lambda dim: -abs(view.strides[dim]))
    reach = [0] * (view.ndim + 1)
    lowest = view.offset
    for at in range(view.ndim - 1, -1, -1):
        span = (view.shape[dims[at]] - 1) * view.strides[dims[at]]
        lowest += min(0, span)
        reach[at] = reach[at + 1] + abs(span)

    def search(at: int, rest: int) -> bool:
        if not 0 <= rest <= reach[at]:
            return False
        if at == view.ndim:
            return rest == 0
        size, step = view.shape[dims[at]], abs(view.strides[dims[at]])
        first, last = (0, 0) if step == 0 else (max(0, -(-(rest - reach[at + 1]) // step)), min(size - 1, rest // step))
        for steps in range(first, last + 1):
            if search(at + 1, rest - steps * step):
                found[dims[at]] = steps if view.strides[dims[at]] >= 0 else size - 1 - steps
                return True
        return False

    return tuple(found) if search(0, number - lowest) else None


def covers(view: View, element: Element) -> bool:
    """True if the view has a byte of the element, whatever dtype it reads the storage's bits as."""
    mine, other = view.dtype.itemsize, element.storage.dtype.itemsize
    first, end = element.number * other, (element.number + 1) * other
    return any(find_index(view, number) is not None for number in range(first // mine, -(-end // mine)))


def last_write(program: Program, element: Element, before: int | None = None) -> Write | None:
    """The last write to an element ahead of position ``before``, in a device loop also the rest of the loop's body.

    None if no instruction can have written it.
    """
    for position in _backwards(program, before):
        for view in program.instructions[position].writes():
            if view.storage is element.storage:
                if view.dynamic is not None:
                    return Write(position, view, certain=False)
                if covers(view, element):
                    return Write(position, view, certain=True)
    return None


def _backwards(program: Program, before: int | None) -> Iterator[int]:
    if before is None:
        yield from range(len(program.instructions) - 1, -1, -1)
        return
    yield from range(before - 1, -1, -1)
    ends = [end for begin, end in program.loops() if begin < before < end]
    yield from range(max(ends, default=before), before, -1)


def source_of_copy(instruction: Instruction, write: Write, element: Element) -> Element | None:
    """The element that a plain copy took; None for other instructions, and for places known at run time only."""
    if instruction.operation.name not in _COPIES or not write.certain:
        return None
    dst, src = instruction["dst"], instruction["src"]
    index = find_index(dst, element.number)
    plain = all(view.dynamic is None and view.cast is None for view in (dst, src))
    if index is None or not plain or dst.size != src.size:
        return None
    place = int(np.ravel_multi_index(index, dst.shape))
    return element_at(src, [int(i) for i in np.unravel_index(place, src.shape)])


def explain(programs: Sequence[Program], positions: Sequence[Element], *, unwritten: bool) -> list[str]:
    """Lines that say which instructions wrote an element; ``positions``: it in the program of each core.

    ``unwritten``: the element is NaN, which it shouldn't be; lines that read unwritten memory are named, too.
    """
    lines: list[str] = []
    for core, (program, element) in enumerate(zip(programs, positions, strict=True)):
        found = _explain_core(program, element)
        if found and len(programs) > 1:
            found[0] = f"core {core}: {found[0]}"
        lines += found
    if not lines:
        what = "it still has the caller's value" if positions[0].storage in programs[0].inputs else _UNWRITTEN
        lines.append(f"no instruction writes it: {what}")
    elif unwritten:
        lines += [
            f"unwritten memory is read at {place_text(read.source)}: {read}" for read in unwritten_reads(programs)
        ]
    return lines


_UNWRITTEN = "it is uninitialised memory, which the simulator shows as NaN, and as 4 in whole numbers"


def _explain_core(program: Program, element: Element) -> list[str]:
    lines: list[str] = []
    before: int | None = None
    for _ in range(_MOST_COPIES):
        write = last_write(program, element, before)
        if write is None:
            if lines:
                lines.append(f"  from {element}, {_origin(program, element)}")
            break
        instruction = program.instructions[write.position]
        verb = "written" if write.certain else "perhaps written, at a run-time address,"
        head = f"  from {element}, {verb} by" if lines else f"it was {verb} by"
        lines += _describe(program, write.position, head)
        copied = source_of_copy(instruction, write, element)
        if copied is None:
            break
        element, before = copied, write.position
    return lines


def _origin(program: Program, element: Element) -> str:
    if element.storage in program.inputs:
        return "an argument"
    if element.storage.index in program.initial:
        return "a constant"
    return f"which nothing had written ({place_text(element.storage.source)}): {_UNWRITTEN}"


def _describe(program: Program, position: int, head: str) -> list[str]:
    """The instruction's name and number, its place, its line of code, and the kernel's line that led to it."""
    instruction, total = program.instructions[position], len(program.instructions)
    name = f" {instruction.name!r}" if instruction.name else ""
    source = instruction.source
    step = f", called from line {instruction.line} of {program.kernel}" if instruction.line != source.line else ""
    where = f"    {place_text(source)}{step}"
    code = linecache.getline(source.file, source.line).strip()
    what = f"{head} nisa.{instruction.operation.name}{name}, instruction {position + 1:,} of {total:,}"
    return [what, where, *([f"      {code}"] if code else [])]


def place_text(source: Source) -> str:
    """``file:line in function``, the file relative to the working directory if it is below that."""
    file = Path(source.file)
    shown = os.path.relpath(file) if file.is_relative_to(Path.cwd()) else source.file
    return f"{shown}:{source.line} in {source.function}"
