"""What each published whole-kernel measurement is compared with: a kernel, its arguments, and which figure of its time.

A benchmark's latency is compared with ``benchmark_us``, a profiler's total with ``profiler_us``. Of exp-4x4096 the
durations of the parts were published; their sum is compared with the sum of the same parts, which nothing overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

from trnrt.bench.timing import kernels
from trnrt.nki import Spec, nisa, trace
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import PS_PER_US, Timeline, schedule

Stat = Literal["benchmark", "profiler", "parts"]
Length = tuple[int, ...]
Document = dict[str, Any]

STATIC = nisa.dge_mode.none


@cache
def published() -> Document:
    """The published facts that the model is made from: ``parameters``, ``instructions``, ``measurements``."""
    text = (files(__package__) / "measurements.json").read_text(encoding="utf-8")
    document: Document = json.loads(text)
    return document


@cache
def measurements() -> Mapping[str, Document]:
    """The published whole-kernel measurements by their id."""
    return {entry["id"]: entry for entry in published()["measurements"]}


@dataclass(frozen=True)
class Case:
    """How a published measurement is predicted.

    ``arguments`` gives the kernel's for numbers of repeated units (elements, tiles, blocks ...); the published kernel
    has ``length`` of them. ``short`` says how its time follows from those of shorter kernels, where it is long: the
    weight of each one's time. Beyond the first few units each takes as long as the one before.
    """

    id: str
    kernel: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]]
    length: Length
    stat: Stat
    short: Mapping[Length, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return str(measurements()[self.id]["target"])

    @property
    def measured_us(self) -> float:
        """The published figure; of exp-4x4096 the sum of its parts."""
        value = measurements()[self.id]["value"]
        total = sum(value) if isinstance(value, list) else value
        return float(total) / (1000 if measurements()[self.id]["unit"] == "ns" else 1)


def line(near: int, far: int, whole: int) -> Mapping[Length, float]:
    """The weights of two lengths for a third one: ``near`` units, and so often what ``far`` takes more than that."""
    slope = (whole - near) / (far - near)
    return {(near,): 1 - slope, (far,): slope}


def _elements(count: int) -> tuple[Any, ...]:
    return Spec((count, 1), "float32"), Spec((count, 1), "float32")


def _stream(rows: int) -> tuple[Any, ...]:
    return Spec((rows, 2000), "float32"), Spec((rows, 2000), "float32")


def _tiles(dtype: str, count: int) -> tuple[Any, ...]:
    """A product of ``count`` tiles of 128 x 512, at least 256 rows of them; 512 are 4096 x 8192."""
    rows = max(256, count * 8)
    return Spec((8192, rows), dtype), Spec((8192, count * 128 * 512 // rows), dtype)


def _blocks(dtype: str, columns: int, depth: int) -> tuple[Any, ...]:
    """A product of 4096 rows, ``columns`` * 1024 columns and a contraction of ``depth`` * 1024."""
    return Spec((depth * 1024, 4096), dtype), Spec((depth * 1024, columns * 1024), dtype)


# 8 x 8 blocks from 2 x 2: 6 more columns of blocks, each of a depth of 2; then 6 deeper ones in all 8 columns, while
# those of 2 columns are timed.
_COLUMNS, _DEPTH = 8 - 2, (8 - 2) * 8 / 2
BLOCKS: Mapping[Length, float] = {(2, 2): 1 - _COLUMNS - _DEPTH, (3, 2): _COLUMNS, (2, 3): _DEPTH}

# The tutorial's blocks of 16 tiles fill all 224 KiB of a partition in float32, of which 208 are a kernel's: these are
# the largest that fit.
_BLOCK_ROWS = {"tiles_m": 8}

# The three kernels of one course's lab were measured together; of the stream it is said that its descriptors are
# static. Those of the transpose must be: 64 loads that hardware triggers take longer than its whole kernel.
_LAB = {"dge_mode": STATIC}

CASES = (
    Case("add-rows-1", kernels.add_elements, _elements, (25600,), "benchmark", line(100, 200, 25600), _LAB),
    Case("add-rows-1-trn1", kernels.add_elements, _elements, (25600,), "benchmark", line(100, 200, 25600)),
    Case("add-stream-2000", kernels.add_tile, _stream, (128,), "profiler", options=_LAB),
    Case("add-stream-2000-trn1", kernels.add_tile, _stream, (128,), "profiler"),
    Case(
        "transpose-1024",
        kernels.transpose_tiles,
        lambda n: (Spec((n, n), "float32"),),
        (1024,),
        "profiler",
        options=_LAB,
    ),
    Case("matmul-tiled-trn1", kernels.matmul_tiled, partial(_tiles, "bfloat16"), (512,), "benchmark", line(4, 8, 512)),
    Case("matmul-best-trn1", kernels.matmul_blocked, partial(_blocks, "bfloat16"), (8, 8), "benchmark", BLOCKS),
    Case("matmul-tiled-trn2", kernels.matmul_tiled, partial(_tiles, "float32"), (512,), "profiler", line(4, 8, 512)),
    Case(
        "matmul-blocked-trn2",
        kernels.matmul_blocked,
        partial(_blocks, "float32"),
        (8, 8),
        "profiler",
        BLOCKS,
        _BLOCK_ROWS,
    ),
    Case("silu-trn1", kernels.silu, lambda n: (Spec((n * 128, 7168), "float32"),), (32,), "profiler", line(4, 8, 32)),
    Case("exp-4x4096", kernels.exponential, lambda n: (Spec((n, 4096), "bfloat16"),), (4,), "parts"),
)


@cache
def program(case_id: str, length: Length) -> Program:
    """The traced program of a case for numbers of units; traced once in a process."""
    case = next(case for case in CASES if case.id == case_id)
    return trace(case.kernel, *case.arguments(*length), target=case.target, **case.options)


def timeline(case: Case, length: Length, timing: Timing | None = None) -> Timeline:
    """The case's timeline, with the target's own numbers or with ``timing``."""
    traced = program(case.id, length)
    if timing is None:
        return schedule(traced)
    return schedule(replace(traced, target=replace(traced.target, timing=timing)))


def predicted_us(case: Case, timing: Timing | None = None, *, short: bool = False) -> float:
    """What the model predicts for the case. ``short``: from shorter kernels where the case has such."""
    weights = case.short if short and case.short else {case.length: 1.0}
    return sum(weight * figure_us(case.stat, timeline(case, length, timing)) for length, weight in weights.items())


def figure_us(stat: Stat, line: Timeline) -> float:
    """The figure of a timeline that a published one is compared with, microseconds."""
    timing = line.program.target.timing
    if stat == "parts":
        return sum(parts_us(line).values())
    fixed_ns = timing.benchmark_ns if stat == "benchmark" else timing.head_ns + timing.tail_ns
    return line.duration / PS_PER_US + fixed_ns / 1000


def parts_us(line: Timeline) -> dict[str, float]:
    """What a profiler shows as bars of a kernel that loads, activates and stores: each one's duration, microseconds.

    The table's load goes on before the activation starts.
    """
    spans = [(line.end[n] - line.start[n]) / PS_PER_US for n in range(len(line.start))]
    load, activation, store = spans
    table = line.program.target.timing.table_load_ns / 1000
    return {"load": load, "table load": table, "activation": activation, "store": store}
