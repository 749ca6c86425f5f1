"""The floor of a case: the least time that the timing model of its target allows, as a sum of parts.

Each part comes from the target's data or from a run of the model on the smallest program that has it, none from a
fitted total: the floor moves bytes at the documented rate of the DMA engines. So a kernel can approach its floor, but
not be below it. The model's DMA engines share a lower, fitted rate: ``floor_of`` at that rate is the least that a
kernel can be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Literal

from benchmarks.documented import rates
from trnrt.calibration.cases import Clock
from trnrt.nki import Spec, nisa, nl, trace
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import Target, get_target
from trnrt.nki.machine.timing import PS_PER_US, Timeline, schedule
from trnrt.nki.machine.timing.tensor_engine import TensorEngine, Work


@dataclass(frozen=True)
class Floor:
    """The parts of the floor, microseconds, of the longer of two paths that overlap: ``by`` the tensor engine or by
    ``memory``. A part of the other path is 0.

    ``fixed_us``: the program's start and end as ``clock`` sees them. ``first_load_us``: until the first tile and its
    weights are there, or until data flows; natural weights add ``turned_weights_us``. ``columns_us``: the products'
    columns at full clock; ``gaps_us``: between passes of the most columns; ``ramp_us``: what the clock's first window
    costs beyond the first load, if the engine is kept busy from the start. ``data_us``: the least traffic at documented
    bandwidth. ``last_store_us``: from the last column or byte until the result is stored.
    """

    clock: Clock
    by: Literal["tensor", "memory"]
    fixed_us: float
    first_load_us: float
    columns_us: float
    gaps_us: float
    ramp_us: float
    data_us: float
    last_store_us: float

    @property
    def us(self) -> float:
        """The sum of the parts."""
        return (
            self.fixed_us
            + self.first_load_us
            + self.columns_us
            + self.gaps_us
            + self.ramp_us
            + self.data_us
            + self.last_store_us
        )


@dataclass(frozen=True)
class Edges:
    """The beginning and the end of the smallest program, picoseconds: one tile is loaded, multiplied, copied, stored.

    ``loaded``: until the product can start. ``flowing``: until the first data moves. ``stored``: from the product's
    last column to the end. ``completed``: from the last byte to the end.
    """

    loaded: int
    flowing: int
    stored: int
    completed: int


@dataclass(frozen=True)
class Stream:
    """Products one after the other, picoseconds: loading the first weights, the columns, the gaps, and the ramp."""

    weights: int
    columns: int
    gaps: int
    ramp: int


def floor_of(
    target: str,
    dtype: str,
    clock: Clock,
    flops: float,
    hbm_bytes: float,
    run: int = 0,
    gbps: float | None = None,
    taps: int = 0,
) -> Floor:
    """The floor by a clock of ``flops`` FLOP of products in ``dtype`` (0 for none) and the bytes in and out of HBM.

    ``run``: the columns that each stationary tile has, if passes can't go on with the next one's; ``gbps``: the rate of
    the DMA engines together, by default the documented one; ``taps``: of a kernel whose weights are natural, (O, C, T).
    """
    found = get_target(target)
    timing = found.timing
    fixed_us = (timing.benchmark_ns if clock == "benchmark" else timing.head_ns + timing.tail_ns) / 1000
    edges = edges_of(target, dtype)
    memory = Floor(
        clock=clock,
        by="memory",
        fixed_us=fixed_us,
        first_load_us=edges.flowing / PS_PER_US,
        columns_us=0.0,
        gaps_us=0.0,
        ramp_us=0.0,
        data_us=hbm_bytes / (gbps or rates(target).gbps) / 1000,
        last_store_us=edges.completed / PS_PER_US,
    )
    if not flops:
        return memory
    stream = stream_of(found, dtype, flops, edges.loaded, run)
    turned_us = turned_weights_us(target, dtype, taps, gbps or rates(target).gbps) if taps else 0.0
    tensor = replace(
        memory,
        by="tensor",
        first_load_us=(edges.loaded + stream.weights) / PS_PER_US + turned_us,
        columns_us=stream.columns / PS_PER_US,
        gaps_us=stream.gaps / PS_PER_US,
        ramp_us=stream.ramp / PS_PER_US,
        data_us=0.0,
        last_store_us=edges.stored / PS_PER_US,
    )
    return max(tensor, memory, key=lambda floor: floor.us)


def turned_weights_us(target: str, dtype: str, taps: int, gbps: float) -> float:
    """The least time for natural weights (O, C, T) before products fill the array, microseconds.

    A product contracts channels, so its weights have them on the partitions. HBM has the taps of a pair of output and
    channel together, and the pairs of an output. So the channels get onto the partitions in one of two ways:

    - whole runs of taps are loaded, and an engine transposes them: ``taps`` elements a pair at ``gbps``, and the
      latency of the shortest transpose;
    - DMA places element by element, each a packet: that is slower for each pair, even if only one tap is loaded.
      (While the first transpose waits, these are under 4 % of a tile, worth some nanoseconds: they are left out.)

    While the 128 x 128 pairs of a full tile arrive at that rate, no product can use more of the array than the share
    that is there, whatever the kernel's order: over that time the share is one half in the mean, so the other half of
    the time is lost. From trn2 on DMA transposes, too: there nothing is added.
    """
    found = get_target(target)
    if found.generation > 2:
        return 0.0
    dma, item = found.timing.dma, as_dtype(dtype).itemsize
    each_ns = min(taps * item / gbps, dma.packet_ns / dma.engines + item / gbps)
    latency_us = (edges_of(target, dtype, turned=True).loaded - edges_of(target, dtype).loaded) / PS_PER_US
    return found.partitions * found.stationary_max * each_ns / 2000 + latency_us


@cache
def edges_of(target: str, dtype: str, *, turned: bool = False) -> Edges:
    """The edges of a program of one tile, with the descriptors that make it shortest. ``turned``: the vector engine,
    whose transpose is the shortest, transposes the tile before."""
    modes = [nisa.dge_mode.none, *([nisa.dge_mode.hwdge] if get_target(target).hardware_dge else [])]
    found = [_edges(_one_tile(target, dtype, mode, turned=turned)) for mode in modes]
    return Edges(
        loaded=min(one.loaded for one in found),
        flowing=min(one.flowing for one in found),
        stored=min(one.stored for one in found),
        completed=min(one.completed for one in found),
    )


def _one_tile(target: str, dtype: str, mode: Any, *, turned: bool) -> Timeline:
    """The timeline of the smallest program: a tile of one row and column a partition, maybe transposed, times
    itself."""

    def square(source: Any) -> Any:
        result = nl.ndarray((1, 1), dtype=source.dtype, buffer=nl.shared_hbm)
        tile_sb = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile_sb, src=source, dge_mode=mode)
        if turned:
            loaded_sb, tile_sb = tile_sb, nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
            nisa.nc_transpose(dst=tile_sb, data=loaded_sb, engine=nisa.engine.vector)
        product_psum = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product_psum, stationary=tile_sb, moving=tile_sb)
        result_sb = nl.ndarray((1, 1), dtype=source.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result_sb, src=product_psum, engine=nisa.engine.vector)
        nisa.dma_copy(dst=result, src=result_sb, dge_mode=mode)
        return result

    return schedule(trace(square, Spec((1, 1), dtype), target=target))


def _edges(timeline: Timeline) -> Edges:
    """The edges of ``_one_tile``, whose instructions are its issues."""
    product, _, store = range(len(timeline.start) - 3, len(timeline.start))
    return Edges(
        loaded=timeline.start[product],
        flowing=timeline.start[0],
        stored=timeline.duration - timeline.end[product] + round(timeline.timing.tensor.latency_ns * 1000),
        completed=timeline.duration - timeline.end[store],
    )


@cache
def stream_of(target: Target, dtype: str, flops: float, ready: int, run: int = 0) -> Stream:
    """The products of ``flops`` as passes of the most columns of a ``run`` (0: of all), executed by the model's tensor
    engine from ``ready`` on.

    Before that the engine is busy with something else, as a kernel can keep it to end the clock's first window.
    """
    columns = int(flops / (2 * target.partitions * target.stationary_max))
    timing = target.timing.tensor
    steady = replace(timing, ramp_window_ns=0.0)
    ends = [
        _end_of_stream(_with_tensor(target, one), dtype, (columns, run or columns), ready)
        for one in (replace(steady, gap_ns=0.0), steady, timing)
    ]
    cycles = columns * (4 if _is_wide(dtype) else 1)
    alone = round(cycles * 1000 / timing.clock_ghz)
    return Stream(weights=ends[0] - ready - alone, columns=alone, gaps=ends[1] - ends[0], ramp=ends[2] - ends[1])


def _end_of_stream(target: Target, dtype: str, size: tuple[int, int], ready: int) -> int:
    """When the last column is through, of so many in runs of so many."""
    engine, timing = TensorEngine(target), target.timing.tensor
    engine.ramp.slowdown_at(0)
    engine.ramp.note(0, ready)
    parts, cycles, words = (2, 2, 2) if _is_wide(dtype) else (1, 1, 1)
    columns, run = size
    passes, end = ceil(run / target.moving_max), 0
    for number in range(passes * ceil(columns / run)):
        width = min(target.moving_max, run - number % passes * target.moving_max)
        work = Work(
            parts=parts,
            columns=width * cycles,
            load=timing.load_latency_ns * words,
            load_interval=timing.load_interval_cycles * words,
            flops=0,
            passes=cycles,
        )
        _, end = engine.run(work, ready)
    return end - engine.latency


def _with_tensor(target: Target, tensor: Any) -> Target:
    return replace(target, timing=replace(target.timing, tensor=tensor))


def _is_wide(dtype: str) -> bool:
    """True if products of this dtype take four passes."""
    return as_dtype(dtype).name == "float32"
