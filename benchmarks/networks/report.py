"""The results of ``python -m benchmarks.networks``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.comparing import verdict
from benchmarks.documented import guide_rates, rates
from benchmarks.networks.table import Bar, Row, bars_of, best_of
from benchmarks.verdicts import verdict_text
from trnrt.report.documents import Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table
from trnrt.text import count_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

NETWORKS_SCHEMA_VERSION = 1
_HOLDERS_SHOWN = 4


def networks_document(rows: Sequence[Row]) -> Document:
    """Times of a batch in microseconds; ``over_bound`` and ``over_theoretical`` are multiples of the two bounds."""
    bars = bars_of(rows)
    targets = dict.fromkeys(row.target for row in rows)
    return {
        "schema_version": NETWORKS_SCHEMA_VERSION,
        "benchmark": "networks",
        "rates": {one: {"bound": asdict(guide_rates(one)), "theoretical": asdict(rates(one))} for one in targets},
        "rows": [_line(row) for row in rows],
        "bars": [asdict(bar) | {"passed": bar.meets_bar} for bar in bars],
        "passed": all(bar.meets_bar for bar in bars),
    }


def _line(row: Row) -> Document:
    return asdict(row) | {
        "bound_us": row.least_time.us,
        "bound_memory_us": row.least_time.memory_us,
        "bound_tensor_us": row.least_time.tensor_us,
        "over_bound": asdict(row.bound_ratio),
        "floor_over_bound": row.floor_ratio,
        "over_theoretical": row.predicted.us / row.theoretical_time.us,
        "images_per_second": row.images_per_second,
        "scaling": None if row.scaling is None else asdict(row.scaling),
    }


def networks_parts(rows: Sequence[Row]) -> list[RenderableType]:
    """The output for a terminal: a line for each network and batch, the best batches, and the bars."""
    parts: list[RenderableType] = [rows_table(rows), "", *_explanation(rows), "", *_best_lines(rows)]
    bars = bars_of(rows)
    if bars:
        missed = sum(not bar.meets_bar for bar in bars)
        impossible = sum(bar.floor > bar.most for bar in bars)
        parts += ["", bars_table(bars), "", f"{count_text(len(bars), 'bar')}, {missed} missed"]
        parts += ["floor: the least that the timing model allows any plan (benchmarks/networks/floor.py)"]
        parts += [f"below their floor, so that no plan can meet them: {impossible}"] if impossible else []
    return parts


def rows_table(rows: Sequence[Row]) -> Grid:
    """Each prediction over the hardware's least time, and what holds it."""
    lines = [
        (
            row.network,
            row.dtype,
            str(row.batch),
            _multiple(row),
            range_text(row.predicted, ""),
            f"{row.images_per_second:,.0f}",
            f"{row.least_time.us:,.0f}",
            f"{row.least_time.memory_us:,.0f}",
            f"{row.least_time.tensor_us:,.0f}",
            f"{row.predicted.us / row.theoretical_time.us:.2f}",
            f"{row.instructions:,}" + (f" in {row.kernels}" if row.kernels > 1 else ""),
            *_sharing_texts(row),
            _held_text(row),
        )
        for row in rows
    ]
    first = ("network", "dtype", "batch", "x bound", "us a batch", "images/s")
    last = ("bound", "memory", "products", "x theoretical", "instructions")
    sharing = ("us on 2 cores", "scaling") if any(row.shared for row in rows) else ()
    heads = (*first, *last, *sharing, "held by")
    return plain_table(heads, lines, right=range(2, 11 + len(sharing)), whole=(3, 4, *range(11, 11 + len(sharing))))


def _sharing_texts(row: Row) -> tuple[str, ...]:
    """The prediction for two cores, and how it scales; nothing if it wasn't asked for."""
    if row.shared is None or row.scaling is None:
        return ()
    return range_text(row.shared, ""), f"{row.scaling.us:.2f} ({row.scaling.least_us:.2f} to {row.scaling.most_us:.2f})"


def bars_table(bars: Sequence[Bar]) -> Grid:
    """The limits, and what is predicted."""
    lines = [
        (
            bar.network,
            bar.what,
            str(bar.batch),
            f"{bar.most:,.2f}",
            f"{bar.value:,.2f}",
            f"{bar.floor:,.2f}",
            verdict_text(verdict(bar.meets_bar)),
        )
        for bar in bars
    ]
    return plain_table(("network", "bar", "batch", "at most", "predicted", "floor", ""), lines, right=(2, 3, 4, 5))


def _multiple(row: Row) -> str:
    found = row.bound_ratio
    return f"{found.us:.2f} ({found.least_us:.2f} to {found.most_us:.2f})"


def _held_text(row: Row) -> str:
    """The longest parts of the critical path, as shares of the headline."""
    return ", ".join(f"{one.by} {one.us / row.predicted.us:.0%}" for one in row.held[:_HOLDERS_SHOWN])


def _best_lines(rows: Sequence[Row]) -> list[str]:
    """The batch of each network with the most images a second."""
    lines = []
    for name in dict.fromkeys(row.network for row in rows):
        best = best_of([row for row in rows if row.network == name])
        lines.append(
            f"{name}: most images a second at batch {best.batch}: {best.images_per_second:,.0f}, {_multiple(best)}"
            " times the bound"
        )
    return lines


def _explanation(rows: Sequence[Row]) -> list[str]:
    lines = []
    for target in dict.fromkeys(row.target for row in rows):
        guide, most = guide_rates(target), rates(target)
        lines.append(
            f"bound on {target}: the larger of memory (weights, inputs and outputs once, at {guide.gbps:g} GB/s:"
            f" {guide.engines} DMA engines of {guide.engine_gbps:g}, {guide.source}) and products (at"
            " the tensor engine's documented peak)."
            f" x theoretical: the same at {most.gbps:g} GB/s ({most.engine_gbps:g} an engine,"
            f" {most.source})"
        )
    lines.append(
        "us a batch: the headline with its range, as a benchmark of many runs measures it; a program's fixed cost is in"
        " it, but not in the bound. images/s: of one core. instructions: unrolled, of all kernels. held by: the"
        " critical path's longest parts: an engine's elements, its fixed latencies, transfers, and fixed costs"
    )
    if any(row.shared for row in rows):
        lines.append(
            "scaling: the time on one core over that on two physical cores as one (--lnc 2), of the same batch"
        )
    return lines
