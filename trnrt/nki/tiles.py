"""What the steps of a program are made of: instructions by their tile's shape, and how much of SBUF and PSUM is held.

All of it follows from the program's own instructions, so that it is true of every kernel, ours or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Program
from trnrt.nki.machine.timing.steps import Step
from trnrt.nki.machine.timing.unrolling import issue_order

_MOVES = Engine.dma


@dataclass(frozen=True)
class Tiles:
    """``count`` instructions of one operation on tiles of one shape.

    ``shape`` of a matrix product is (contraction, rows, columns); of a DMA transfer (rows, bytes of a row); of others
    (partitions, elements of a partition).
    """

    operation: str
    engine: str
    shape: tuple[int, ...]
    count: int

    @property
    def text(self) -> str:
        """What they do, without how many they are: ``nc_matmul 128x128x512``, ``dma_copy 128x2KiB``."""
        shape = [str(size) for size in self.shape]
        if self.engine == _MOVES.name:
            shape[-1] = _bytes_text(self.shape[-1])
        return f"{self.operation} {'x'.join(shape)}"


@dataclass(frozen=True)
class StepTiles:
    """What one step does. Bytes are of one partition: the most that tiles hold while the step's instructions run,
    those included that other steps have left there. ``tiles`` come with the most frequent ones first."""

    name: str
    instructions: int
    sbuf_bytes: int
    psum_bytes: int
    tiles: tuple[Tiles, ...]


def tile_plan(program: Program, steps: Sequence[Step]) -> tuple[StepTiles, ...]:
    """What each of ``steps`` does, in their order. Instructions of device loops count once for each iteration."""
    owners = _owners(program, steps)
    held = {region: _held_bytes(program, region) for region in (MemoryRegion.sbuf, MemoryRegion.psum)}
    counts: list[Counter[tuple[str, str, tuple[int, ...]]]] = [Counter() for _ in steps]
    peaks = [dict.fromkeys(held, 0) for _ in steps]
    kinds = [_kind(instruction) for instruction in program.instructions]
    for position in issue_order(program, []):
        kind = kinds[position]
        if kind is not None and owners[position] >= 0:
            counts[owners[position]][kind] += 1
    for position, owner in enumerate(owners):
        if owner >= 0:
            for region, alive in held.items():
                peaks[owner][region] = max(peaks[owner][region], int(alive[position]))
    return tuple(
        StepTiles(step.name, count.total(), peak[MemoryRegion.sbuf], peak[MemoryRegion.psum], _sort_tiles(count))
        for step, count, peak in zip(steps, counts, peaks, strict=True)
    )


def _owners(program: Program, steps: Sequence[Step]) -> list[int]:
    """The step of each instruction, by its line in the kernel; -1 for none."""
    order = sorted(range(len(steps)), key=lambda number: steps[number].lines)
    starts = [steps[number].lines[0] for number in order]
    owners = []
    for instruction in program.instructions:
        at = bisect_right(starts, instruction.line) - 1
        inside = at >= 0 and instruction.line <= steps[order[at]].lines[1]
        owners.append(order[at] if inside else -1)
    return owners


def _held_bytes(program: Program, region: MemoryRegion) -> NDArray[np.int64]:
    """Bytes a partition that tiles hold at each instruction."""
    change = np.zeros(len(program.instructions) + 1, np.int64)
    spans = program.lifetimes()
    for storage in program.storages:
        if storage.buffer is region and storage.index in spans:
            first, last = spans[storage.index]
            change[first] += storage.partition_bytes
            change[last + 1] -= storage.partition_bytes
    return np.minimum(np.cumsum(change), _peak(program, region))  # tiles may share an address that the kernel gave


def _peak(program: Program, region: MemoryRegion) -> int:
    """The most that the program holds: less than the sum where tiles that live at once lie in one place."""
    assert program.memory is not None
    return program.memory.sbuf_peak_bytes if region is MemoryRegion.sbuf else program.memory.psum_peak_bytes


def _kind(instruction: Instruction) -> tuple[str, str, tuple[int, ...]] | None:
    """Operation, engine and shape of an instruction; None for one that touches no tensor."""
    operation = instruction.operation.name
    views = [view for _, view in instruction.operands]
    if not views:
        return None
    engine = instruction.engine.name
    if "stationary" in instruction.args and "moving" in instruction.args:
        stationary, moving = instruction["stationary"], instruction["moving"]
        return operation, engine, (stationary.partitions, stationary.free_size, moving.free_size)
    if instruction.engine is _MOVES:
        tile = next((view for view in views if view.storage.on_chip), views[0])
        rows = tile.partitions if tile.storage.on_chip or tile.ndim > 1 else 1
        return operation, engine, (rows, tile.size // max(1, rows) * tile.dtype.itemsize)
    return operation, engine, (views[0].partitions, views[0].free_size)


def _sort_tiles(counts: Counter[tuple[str, str, tuple[int, ...]]]) -> tuple[Tiles, ...]:
    """The most frequent first; of those that are as frequent, the largest first."""
    ordered: Iterable[tuple[tuple[str, str, tuple[int, ...]], int]] = sorted(
        counts.items(), key=lambda entry: (-entry[1], -int(np.prod(entry[0][2])), entry[0])
    )
    return tuple(Tiles(operation, engine, shape, count) for (operation, engine, shape), count in ordered)


def _bytes_text(size: int) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % (unit // 4) == 0:
            return f"{size / unit:g}{name}"
    return f"{size}B"
