"""The tensor engine: weights load in the background, columns stream through, and the clock ramps with the load.

An ``nc_matmul`` is two instructions, or four in float32: load the stationary tile, multiply the moving one. Weights
may load while up to ``_PREFETCH`` earlier products are still to come. A product starts when its weights are loaded and
the previous product has taken its last column.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.targets import Target

_PREFETCH = 4  # weights that the engine loads ahead of their product
PRODUCTS = frozenset({"nc_matmul", "nc_transpose"})


class Work(NamedTuple):
    """One instruction's work: ``parts`` products of ``columns`` cycles each, after weights of ``load`` nanoseconds.

    ``streamed``: the cycles of all its columns, without the least time of a product. ``loaded``: rows of weights.
    ``passes``: of the columns in each part. ``exposed``: no earlier product hides the loading of its weights.
    """

    parts: int
    columns: int
    load: float
    load_interval: int
    flops: int
    streamed: int = 0
    loaded: int = 0
    passes: int = 1
    exposed: bool = False


def work_of(instruction: Instruction, target: Target) -> Work:
    """The engine's work for an ``nc_matmul`` or an ``nc_transpose``.

    float32 takes four passes: two instructions of two cycles a column each; a float32 transpose that only moves data
    takes half of that (trainium2_arch.rst). A double row contracts 256 rows in the time of 128.
    """
    timing = target.timing.tensor
    if instruction.operation.name == "nc_transpose":
        data: View = instruction["data"]
        columns, loaded, wide = data.partitions, data.free_size, data.dtype.itemsize == 4
        moves, flops, stride = bool(instruction["bit_accurate"]), 0, 0
    else:
        stationary, dst = instruction["stationary"], instruction["dst"]
        rows = stationary.partitions * (2 if instruction["double_row"] else 1)
        columns, loaded, wide = dst.free_size, dst.partitions, stationary.dtype.name == "float32"
        moves = bool(instruction["passes_through"])
        flops = 0 if moves else 2 * rows * columns * loaded
        stride = abs(stationary.step) * stationary.dtype.itemsize
    parts, cycles = (1, 2) if wide and moves else (2, 2) if wide else (1, 1)
    words = 2 if wide else 1
    return Work(
        parts=parts,
        columns=max(timing.interval_cycles, columns) * cycles,
        load=timing.load_latency_ns * words,
        load_interval=min(timing.load_interval_cycles, loaded) * words,
        flops=flops,
        streamed=parts * columns * cycles,
        loaded=loaded * words,
        passes=1 if moves else cycles,
        exposed=wide and stride > timing.hidden_stride_bytes,
    )


@dataclass(slots=True)
class Ramp:
    """The clock: full rate after a window that was busy for at least a share of it, else half rate.

    ``busy`` counts the time in window number ``index``, ``over`` that in the next one.
    """

    window: int
    share: float
    offset: int = 0
    index: int = -1
    busy: int = 0
    over: int = 0
    slowdown: int = 2
    origin: int | None = None

    def slowdown_at(self, time: int) -> int:
        """The factor by which a cycle is longer at ``time``; times must not decrease."""
        if not self.window:
            return 1
        if self.origin is None:
            self.origin = time - self.offset
        index = (time - self.origin) // self.window
        if index != self.index:
            follows = index == self.index + 1
            self.slowdown = 1 if follows and self.busy >= self.share * self.window else 2
            self.index, self.busy, self.over = index, self.over if follows else 0, 0
        return self.slowdown

    def note(self, begin: int, end: int) -> None:
        """Count the engine as busy between two times; a product may reach into the next window."""
        if self.origin is None:
            return
        edge = self.origin + (self.index + 1) * self.window
        if end > edge:
            self.over += end - max(begin, edge)
            end = edge
        self.busy += max(0, end - max(begin, edge - self.window))


class TensorEngine:
    """The engine's state while a program is scheduled. Times are picoseconds."""

    def __init__(self, target: Target) -> None:
        timing = self.timing = target.timing.tensor
        window = timing.ramp_window_ns * 1000
        self.ramp = Ramp(round(window), timing.ramp_share, round(window * timing.ramp_offset))
        self.started = deque([0] * _PREFETCH, maxlen=_PREFETCH)
        self.period = 1000 / timing.clock_ghz
        self.latency = round(timing.latency_ns * 1000)
        self.slow_latency = round((timing.latency_ns + timing.slow_latency_ns) * 1000)
        self.loaded = self.next_product = self.covered = self.busy = 0

    def earliest(self) -> int:
        """The earliest time at which the engine accepts the next instruction."""
        return max(self.loaded, self.started[0])

    def wait_until(self, time: int) -> None:
        """Accept no instruction before ``time``."""
        self.loaded = max(self.loaded, time)

    def run(self, work: Work, ready: int) -> tuple[int, int]:
        """Start and end of an instruction whose operands are ready at ``ready``; a hidden weight load is before it."""
        timing, ramp, period = self.timing, self.ramp, self.period
        first = -1
        for _ in range(work.parts):
            load_start = max(ready, self.loaded, self.started[0], self.next_product if work.exposed else 0)
            self.loaded = load_start + round(work.load_interval * period)
            slow = ramp.slowdown if ramp.window else 1
            if work.exposed:
                load = timing.strided_load_ns * 1000 * work.loaded / 256 * slow
            else:
                load = work.load * 1000 + (slow - 1) * work.loaded * period
            start = max(load_start + round(load), self.next_product)
            slow = ramp.slowdown_at(start)
            past = start + round(work.columns * period * slow)
            full = slow == 1
            self.next_product = past if work.exposed or not full else past + round(timing.gap_ns * work.passes * 1000)
            self.started.append(start)
            end = past + (self.latency if full else self.slow_latency)
            # Loading while an earlier product runs is hidden: the instruction starts after that.
            shown = min(start, max(load_start, self.covered))
            first = shown if first < 0 else first
            self._note(shown, past)
        return first, end

    def _note(self, begin: int, end: int) -> None:
        """Count the time that the engine is busy, each moment once."""
        begin = max(begin, self.covered)
        if end > begin:
            self.busy += end - begin
            self.ramp.note(begin, end)
            self.covered = end
