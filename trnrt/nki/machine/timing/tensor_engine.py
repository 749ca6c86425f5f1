"""The tensor engine: weights load in the background, columns stream through, and the clock ramps with the load.

An ``nc_matmul`` is two instructions, or four in float32: load the stationary tile, multiply the moving one. Weights
may load while up to ``_PREFETCH`` earlier products are still to come; a product starts when its weights are there
and the one before has let its last column in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.targets import Target

_PREFETCH = 4  # weights that the engine takes in ahead of their product
_FULL_RATE = 1
PRODUCTS = frozenset({"nc_matmul", "nc_transpose"})


class Work(NamedTuple):
    """One instruction's work: ``parts`` products of ``columns`` cycles each, after weights of ``load`` nanoseconds.

    ``streamed`` are the cycles of all its columns, without those that few columns take besides.
    """

    parts: int
    columns: int
    load: float
    load_interval: int
    flops: int
    streamed: int = 0


def work_of(instruction: Instruction, target: Target) -> Work:
    """What the engine does for an ``nc_matmul`` or an ``nc_transpose``.

    float32 takes four passes: two instructions of two cycles a column each; a float32 transpose that only moves data
    takes half of that (trainium2_arch.rst). A double row contracts 256 rows in the time of 128.
    """
    timing = target.timing.tensor
    if instruction.operation.name == "nc_transpose":
        data: View = instruction["data"]
        columns, loaded, wide = data.partitions, data.free_size, data.dtype.itemsize == 4
        moves, flops = bool(instruction["bit_accurate"]), 0
    else:
        stationary, dst = instruction["stationary"], instruction["dst"]
        rows = stationary.partitions * (2 if instruction["double_row"] else 1)
        columns, loaded, wide = dst.free_size, dst.partitions, stationary.dtype.name == "float32"
        moves = bool(instruction["passes_through"])
        flops = 0 if moves else 2 * rows * columns * loaded
    parts, cycles = (1, 2) if wide and moves else (2, 2) if wide else (1, 1)
    load = timing.load_latency_ns * (2 if wide else 1)
    interval = min(timing.load_interval_cycles, loaded) * (2 if wide else 1)
    least = max(timing.interval_cycles, columns)
    return Work(parts, least * cycles, load, interval, flops, parts * columns * cycles)


@dataclass(slots=True)
class Ramp:
    """The clock: half rate until a whole window was busy for a share of it, again after one that was not."""

    window: int
    share: float
    index: int = -1
    busy: int = 0
    slowdown: int = 2

    def slowdown_at(self, time: int) -> int:
        """By what a cycle is longer at ``time``; times never go back."""
        if not self.window:
            return _FULL_RATE
        index = time // self.window
        if index != self.index:
            filled = index == self.index + 1 and self.busy >= self.share * self.window
            self.slowdown = 1 if filled else 2
            self.index, self.busy = index, 0
        return self.slowdown


@dataclass(slots=True)
class TensorEngine:
    """The engine's state while a program is scheduled. Times are picoseconds."""

    target: Target
    ramp: Ramp = field(init=False)
    started: deque[int] = field(init=False)
    loaded: int = 0
    next_product: int = 0
    covered: int = 0
    busy: int = 0

    def __post_init__(self) -> None:
        timing = self.target.timing.tensor
        self.ramp = Ramp(round(timing.ramp_window_ns * 1000), timing.ramp_share)
        self.started = deque([0] * _PREFETCH, maxlen=_PREFETCH)

    def earliest(self) -> int:
        """When the next instruction can be taken in at the earliest."""
        return max(self.loaded, self.started[0])

    def run(self, work: Work, ready: int) -> tuple[int, int]:
        """Start and end of an instruction whose operands are there at ``ready``; a hidden weight load is before it."""
        timing = self.target.timing.tensor
        period = 1000 / timing.clock_ghz
        first, end = -1, ready
        for _ in range(work.parts):
            load_start = max(ready, self.loaded, self.started[0])
            self.loaded = load_start + round(work.load_interval * period)
            start = max(load_start + round(work.load * 1000), self.next_product)
            slow = self.ramp.slowdown_at(start)
            columns = round(work.columns * period * slow)
            self.next_product = start + columns + round(timing.gap_ns * 1000)
            self.started.append(start)
            end = start + columns + round(timing.latency_ns * 1000)
            # What loads while an earlier product runs is hidden: the instruction shows from then on.
            shown = min(start, max(load_start, self.covered))
            first = shown if first < 0 else first
            self._note(shown, start + columns)
        return first, end

    def _note(self, begin: int, end: int) -> None:
        """Count the time that the engine was busy, each moment once."""
        fresh = end - max(begin, self.covered)
        if fresh > 0:
            self.busy += fresh
            self.ramp.busy += fresh
            self.covered = end
