"""The data of the HTML report's pictures: columns of numbers, and every text once.

Times are picoseconds. ``data.js`` reads these columns by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from trnrt.nki.machine.program import Instruction, MemoryRegion
from trnrt.nki.machine.timing import Timeline
from trnrt.nki.profiling import Profile, StepUse
from trnrt.report.page.against import against_data, paths_before
from trnrt.report.page.sources import Files, source_data
from trnrt.report.page.texts import Texts
from trnrt.report.timeline import (
    drawn_spans,
    operand_texts,
    operation_name,
    source_text,
    stack_rows,
    step_finder,
    tile_spans,
)
from trnrt.text import name_text

if TYPE_CHECKING:
    from trnrt.report.against import Difference

Columns = dict[str, Any]


def report_data(
    profile: Profile, name: str = "", difference: Difference | None = None, graph: Columns | None = None
) -> Columns:
    """The data that the page's script draws: ``texts``, ``steps``, ``roofline``, the source and each core's timeline.

    ``places``: the numbers of sources as text, each with its file and line. ``run``: what another report needs besides,
    to compare itself with this one. ``difference``: from another run, which is drawn as well (``against``). ``graph``:
    see ``graph_data``.
    """
    texts = Texts()
    roofline, files = profile.roofline, Files(profile)
    return {
        "steps": [_step(step) for step in profile.steps],
        "roofline": {
            "intensity": number(roofline.intensity),
            "achieved": number(roofline.achieved_tflops),
            "peak": number(roofline.peak_tflops),
            "dtype": profile.dtype,
            "bandwidth": number(roofline.hbm_gbps),
            "steps": [_step_point(step, roofline.peak_tflops) for step in profile.steps],
        },
        "graph": graph,
        "cores": [_core(timeline, profile.steps, texts) for timeline in profile.cores],
        "run": {
            "name": name,
            "benchmark_us": profile.benchmark_us,
            "low_us": profile.low_us.benchmark,
            "high_us": profile.high_us.benchmark,
            "target": profile.target,
            "dtype": profile.dtype,
            "batch": profile.batch,
            "cores": len(profile.cores),
            "engines": {engine: use.busy_us for engine, use in profile.engines.items()},
        },
        "against": None if difference is None else against_data(difference, profile, texts),
        **source_data(profile, files, {} if difference is None else paths_before(difference)),
        "places": [(texts.number(text), files.number[file], line) for text, (file, line) in files.places.items()],
        "texts": texts.to_list(),
    }


def number(value: float) -> float | None:
    """The number, or None if it is not finite."""
    return value if math.isfinite(value) else None


def _step(step: StepUse) -> Columns:
    return {
        "name": name_text(step.name),
        "nodes": [name_text(node) for node in step.nodes],
        "start": round(step.start_us * 1e6),
        "end": round(step.end_us * 1e6),
        "time": step.time_us,
        "share": number(step.share) or 0.0,
        "bound": step.bound,
    }


def _step_point(step: StepUse, peak_tflops: float) -> list[float] | None:
    """(FLOP per byte, TFLOPS from its first start to its last end) of a step that both computes and moves data."""
    tflops = step.mfu * peak_tflops
    megaflops = tflops * (step.end_us - step.start_us)
    if not (megaflops > 0 and step.hbm_bytes > 0 and math.isfinite(megaflops)):
        return None
    return [megaflops * 1e6 / step.hbm_bytes, tflops]


def _core(timeline: Timeline, steps: Sequence[StepUse], texts: Texts) -> Columns:
    transfers = timeline.transfers
    lane, start, end = drawn_spans(timeline)
    return {
        "lanes": list(timeline.lanes),
        "duration": timeline.duration,
        "launch": round(timeline.timing.benchmark_ns * 1000),
        # Issues, and after them the triggers of the transfers.
        "spans": {
            "lane": lane,
            "row": stack_rows(lane, start, end),
            "start": _steps_between(start),
            "length": [last - first for first, last in zip(start, end, strict=True)],
        },
        "issues": {
            "instruction": timeline.instruction,
            "waited": [issue - producer if producer >= 0 else 0 for issue, producer in enumerate(timeline.waited_for)],
        },
        "instructions": _instructions(timeline.program.instructions, steps, texts),
        "transfers": {
            "issue": [transfer.issue for transfer in transfers],
            "payload": [transfer.payload for transfer in transfers],
            "hbm": [transfer.hbm_bytes for transfer in transfers],
            "packets": [transfer.packets for transfer in transfers],
            "engines": [transfer.engines for transfer in transfers],
        },
        "memories": [_memory(timeline, region, texts) for region in (MemoryRegion.sbuf, MemoryRegion.psum)],
    }


def _steps_between(values: Iterable[int]) -> list[int]:
    """The differences of neighbours: fewer digits."""
    found, before = [], 0
    for value in values:
        found.append(value - before)
        before = value
    return found


def _instructions(instructions: Sequence[Instruction], steps: Sequence[StepUse], texts: Texts) -> Columns:
    find = step_finder(steps)
    columns: Columns = {key: [] for key in ("operation", "name", "source", "step", "line", "operands")}
    for instruction in instructions:
        columns["operation"].append(texts.number(operation_name(instruction)))
        columns["name"].append(texts.number(name_text(instruction.name or "")))
        columns["source"].append(texts.number(source_text(instruction.source)))
        columns["step"].append(find(instruction.line))
        columns["line"].append(instruction.line)
        columns["operands"].append([texts.number(text) for text in operand_texts(instruction)])
    return columns


def _memory(timeline: Timeline, region: MemoryRegion, texts: Texts) -> Columns:
    """The tiles of a memory, its usable bytes per partition, and the bytes of a bank."""
    target = timeline.program.target
    sbuf = region is MemoryRegion.sbuf
    tiles = [tile for tile in tile_spans(timeline) if tile.storage.buffer is region]
    return {
        "name": region.value.upper(),
        "capacity": target.sbuf_usable_bytes if sbuf else target.psum_bytes,
        "bank": 0 if sbuf else target.psum_bank_bytes,
        "label": [texts.number(tile.label) for tile in tiles],
        "source": [texts.number(source_text(tile.storage.source)) for tile in tiles],
        "shape": [texts.number(_shape(tile.storage.shape, str(tile.storage.dtype))) for tile in tiles],
        "partition": [tile.partition for tile in tiles],
        "byte": [tile.byte for tile in tiles],
        "bytes": [tile.storage.partition_bytes for tile in tiles],
        "start": [tile.start for tile in tiles],
        "length": [tile.end - tile.start for tile in tiles],
    }


def _shape(shape: Iterable[int], dtype: str) -> str:
    return f"{' x '.join(map(str, shape))} {dtype}"
