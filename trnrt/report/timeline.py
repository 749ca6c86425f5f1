"""Shared by the pictures of a timeline: steps by line, rows without overlap, lifetimes of tiles, texts of operands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush

from trnrt.nki.machine.loops import is_loop_barrier
from trnrt.nki.machine.program import Instruction, MemoryRegion, Storage, View
from trnrt.nki.machine.timing import Timeline
from trnrt.nki.profiling import StepUse
from trnrt.text import name_text

NO_STEP = -1


@dataclass(frozen=True, slots=True)
class TileSpan:
    """A tile with its address and lifetime: picoseconds from the first issue on it to the end of the last."""

    storage: Storage
    partition: int
    byte: int
    start: int
    end: int

    @property
    def label(self) -> str:
        """Its name, else the line that allocated it."""
        return name_text(self.storage.name or source_text(self.storage.source))


def step_finder(steps: Sequence[StepUse]) -> Callable[[int], int]:
    """A function from a line of the entry function to the index of its step, or ``NO_STEP``.

    The step is the last one to begin at or before the line, if it covers it; else the one with the lines (0, 0), which
    collects the rest.
    """
    order = sorted(range(len(steps)), key=lambda k: steps[k].lines)
    firsts = [steps[k].lines[0] for k in order]
    rest = next((k for k in order if steps[k].lines == (0, 0)), NO_STEP)

    @cache
    def find(line: int) -> int:
        at = bisect_right(firsts, line) - 1
        return order[at] if at >= 0 and line <= steps[order[at]].lines[1] else rest

    return find


def step_name(steps: Sequence[StepUse], index: int, line: int) -> str:
    """A step's name; a line that no step covers is its own step."""
    return name_text(steps[index].name) if index != NO_STEP else f"line {line}"


def operation_text(instruction: Instruction) -> str:
    """An instruction's operation, and its name in the kernel, if any."""
    name = f" {name_text(instruction.name)}" if instruction.name else ""
    return f"{operation_name(instruction)}{name}"


def operation_name(instruction: Instruction) -> str:
    """The name of an instruction's operation; the markers of a device loop stand for its barriers."""
    return "loop barrier of all engines" if is_loop_barrier(instruction) else instruction.operation.name


def source_text(source: object) -> str:
    """``file:line in function``, escaped."""
    return name_text(str(source))


def operand_texts(instruction: Instruction) -> list[str]:
    """An instruction's tensors, destinations first: ``dst = acc[128, 512] float32 psum``."""
    return [f"{argument} = {_view_text(view)}" for argument, view in instruction.operands]


def _view_text(view: View) -> str:
    storage = view.storage
    shape = ", ".join(map(str, view.shape))
    name = name_text(storage.name) if storage.name else f"tile of line {storage.source.line}"
    return f"{name}[{shape}] {view.dtype} {storage.buffer.value}"


def drawn_spans(timeline: Timeline) -> tuple[list[int], list[int], list[int]]:
    """(lane, start, end) of each span to draw, picoseconds: the timeline's issues, then its DMA triggers."""
    transfers = timeline.transfers
    lane = timeline.lane + [transfer.lane for transfer in transfers]
    start = timeline.start + [transfer.triggered for transfer in transfers]
    return lane, start, timeline.end + [transfer.trigger_end for transfer in transfers]


def stack_rows(lanes: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The row of each span within its lane: the lowest that is free at that time.

    Engines are pipelined and queues carry several transfers at once, so spans of a lane overlap. No two spans of a row
    start at the same time, not even empty ones.
    """
    rows = [0] * len(lanes)
    busy: dict[int, list[tuple[int, int]]] = {}  # lane: heap of (end, row)
    free: dict[int, list[int]] = {}  # lane: heap of rows
    for span in sorted(range(len(lanes)), key=starts.__getitem__):
        lane, start = lanes[span], starts[span]
        running, idle = busy.setdefault(lane, []), free.setdefault(lane, [])
        while running and running[0][0] <= start:
            heappush(idle, heappop(running)[1])
        rows[span] = heappop(idle) if idle else len(running)
        heappush(running, (max(ends[span], start + 1), rows[span]))
    return rows


def tile_spans(timeline: Timeline) -> list[TileSpan]:
    """Every SBUF and PSUM tile that an issue touches, in the order of allocation."""
    touched = [_tiles(instruction) for instruction in timeline.program.instructions]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, start, end in zip(timeline.instruction, timeline.start, timeline.end, strict=True):
        for tile in touched[number]:
            if start < first.get(tile, start + 1):
                first[tile] = start
            if end > last.get(tile, -1):
                last[tile] = end
    placed = [(tile, tile.address) for tile in timeline.program.storages if tile.index in first]
    return [
        TileSpan(tile, address[0], address[1], first[tile.index], last[tile.index])
        for tile, address in placed
        if address is not None
    ]


def _tiles(instruction: Instruction) -> set[int]:
    return {view.storage.index for view in instruction.touches() if view.storage.on_chip}


def bytes_held(tiles: Sequence[TileSpan], region: MemoryRegion) -> list[tuple[int, int]]:
    """(picosecond, bytes per partition that tiles hold from then on), at every change.

    Tiles on the same bytes of different partitions count once.
    """
    changes = []
    for tile in tiles:
        if tile.storage.buffer is region:
            place = (tile.byte, tile.storage.partition_bytes)
            changes += [(tile.start, 1, place), (tile.end, -1, place)]
    changes.sort(key=lambda change: change[:2])
    users: dict[tuple[int, int], int] = {}
    held = 0
    curve: list[tuple[int, int]] = []
    for moment, change, place in changes:
        before = users.get(place, 0)
        users[place] = before + change
        held += place[1] * ((before + change > 0) - (before > 0))
        if curve and curve[-1][0] == moment:
            curve.pop()
        curve.append((moment, held))
    return curve
