"""The tiles of a program's steps: instructions by the shape of their tiles, and the bytes held in SBUF and PSUM.

All of it follows from the program's instructions, so it works for every kernel, ours or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Program
from trnrt.nki.machine.timing.steps import Step, steps_by_line
from trnrt.nki.machine.timing.unrolling import issue_order

Kind = tuple[str, str, tuple[int, ...]]  # operation, engine, shape


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
        """Operation and shape: ``nc_matmul 128x128x512``, ``dma_copy 128x2KiB``."""
        shape = [str(size) for size in self.shape]
        if self.engine == Engine.dma.name:
            shape[-1] = _bytes_text(self.shape[-1])
        return f"{self.operation} {'x'.join(shape)}"


@dataclass(frozen=True)
class StepTiles:
    """The tiles of one step, the most frequent first.

    Bytes are of one partition: the most that tiles hold while the step's instructions run, including tiles that other
    steps left there.
    """

    name: str
    instructions: int
    sbuf_bytes: int
    psum_bytes: int
    tiles: tuple[Tiles, ...]


def tile_plan(program: Program, steps: Sequence[Step]) -> tuple[StepTiles, ...]:
    """The tiles of each of ``steps``. Instructions of device loops count once for each iteration."""
    by_line = steps_by_line(steps, (instruction.line for instruction in program.instructions))
    owners = [by_line[instruction.line] for instruction in program.instructions]
    held = {region: _held_bytes(program, region) for region in (MemoryRegion.sbuf, MemoryRegion.psum)}
    counts: list[Counter[Kind]] = [Counter() for _ in steps]
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


def _held_bytes(program: Program, region: MemoryRegion) -> NDArray[np.int64]:
    """Bytes per partition that tiles hold at each instruction."""
    change = np.zeros(len(program.instructions) + 1, np.int64)
    spans = find_lifetimes(program)
    for storage in program.storages:
        if storage.buffer is region and storage.index in spans:
            first, last = spans[storage.index]
            change[first] += storage.partition_bytes
            change[last + 1] -= storage.partition_bytes
    assert program.memory is not None
    # The sum is too large if the kernel gave live tiles the same address.
    return np.minimum(np.cumsum(change), program.memory.peak_bytes(region))


def _kind(instruction: Instruction) -> Kind | None:
    """Operation, engine and shape of an instruction; None if it touches no tensor."""
    operation = instruction.operation.name
    views = [view for _, view in instruction.operands]
    if not views:
        return None
    engine = instruction.engine.name
    if "stationary" in instruction.args and "moving" in instruction.args:
        stationary, moving = instruction["stationary"], instruction["moving"]
        return operation, engine, (stationary.partitions, stationary.free_size, moving.free_size)
    if instruction.engine is Engine.dma:
        tile = next((view for view in views if view.storage.on_chip), views[0])
        rows = tile.partitions if tile.storage.on_chip or tile.ndim > 1 else 1
        return operation, engine, (rows, tile.size // max(1, rows) * tile.dtype.itemsize)
    return operation, engine, (views[0].partitions, views[0].free_size)


def _sort_tiles(counts: Counter[Kind]) -> tuple[Tiles, ...]:
    """The most frequent first; of equally frequent ones, the largest first."""
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], -prod(entry[0][2]), entry[0]))
    return tuple(Tiles(*kind, count) for kind, count in ordered)


def _bytes_text(size: int) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % (unit // 4) == 0:
            return f"{size / unit:g}{name}"
    return f"{size}B"
