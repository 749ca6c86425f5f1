"""The results of ``python -m benchmarks.models``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.documented import rates
from benchmarks.models.table import host_fit, latencies
from benchmarks.verdicts import all_passed, bars_text, passed, target_notes, verdict_text
from trnrt.nki.machine.targets import get_target, place_of
from trnrt.nki.machine.timing import Range
from trnrt.planner.parts.crossing import host_link
from trnrt.report.documents import Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table
from trnrt.text import range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.models.table import Row

MODELS_SCHEMA_VERSION = 3
"""This document's version: 1 had a ratio against figures that include the host's time; 2 judged the bars by times at
other rates than the model's."""


def models_document(rows: Sequence[Row]) -> Document:
    """Times of a batch in microseconds. Unpublished figures are null; so is ``passed`` without a bar."""
    fitted = host_fit()
    return {
        "schema_version": MODELS_SCHEMA_VERSION,
        "benchmark": "models",
        "rates": {target: asdict(rates(target)) | {"gbps": rates(target).gbps} for target in _targets(rows)},
        "rows": [_line(row) for row in rows],
        "host_fit": asdict(fitted) | {"rows": [asdict(one) for one in latencies()]},
        "passed": all_passed([row.verdict for row in rows]),
    }


def _line(row: Row) -> Document:
    known, bound = row.published, row.bound
    return {
        "model": row.model,
        "target": row.target,
        "dtype": row.dtype,
        "batch": row.batch,
        "predicted_us": row.predicted_us,
        "low_us": row.predicted.least_us,
        "high_us": row.predicted.most_us,
        "bound_us": bound.us,
        "bound_ratio": row.predicted_us / bound.us,
        "bound_memory_us": bound.memory_us,
        "bound_tensor_us": bound.tensor_us,
        "compared_with": _figure_kind(row),
        "device_us": None if known is None or known.device is None else known.device.us,
        "device_ratio": row.device_ratio,
        "device_error_us": None if row.device_ratio is None else host_fit().error_us,
        "residual_us": None if known is None else known.residual_us,
        "published": None if known is None else asdict(known.measured),
        "per_item_us": row.predicted_us / row.batch,
        "published_per_item_us": None if known is None else known.measured.us / row.batch,
        "bars": [asdict(bar) for bar in row.bars],
        "verdict": row.verdict,
        "passed": passed(row.verdict),
    }


def _figure_kind(row: Row) -> str:
    """The kind of figure in ``device_ratio``."""
    return "no comparison" if row.device_ratio is None or row.published is None else "less host"


def models_parts(rows: Sequence[Row]) -> list[RenderableType]:
    """The output for a terminal: the prediction over the bound, AWS's figures, and notes on each."""
    parts: list[RenderableType] = [bounds_table(rows), "", *_rates_text(rows)]
    measured = [row for row in rows if row.published is not None]
    if measured:
        parts += ["", latency_table(measured), "", *_latency_text()]
        batches = [row for row in measured if row.batch > 1]
        if batches:
            parts += ["", throughput_table(batches), "", *_THROUGHPUT_TEXT]
        parts += ["", bars_table(measured), "", *_BARS_TEXT, bars_text([row.verdict for row in measured], "row")]
    return [*parts, *target_notes(row.target for row in rows)]


def bounds_table(rows: Sequence[Row]) -> Grid:
    """Each prediction over the hardware's least time."""
    lines = [
        (
            row.model,
            row.target,
            row.dtype,
            str(row.batch),
            f"{row.predicted_us / row.bound.us:.2f}",
            range_text(row.predicted, ""),
            f"{row.bound.us:,.1f}",
            f"{row.bound.memory_us:,.1f}",
            f"{row.bound.tensor_us:,.1f}",
            f"{_link_us(row):,.0f}",
        )
        for row in rows
    ]
    columns = ("model", "target", "dtype", "batch", "x bound", "predicted us")
    last = ("bound", "memory", "products", "link us")
    return plain_table((*columns, *last), lines, right=range(3, 10))


def latency_table(rows: Sequence[Row]) -> Grid:
    """AWS's latencies at batch 1, less the host's part."""
    fitted = host_fit()
    sizes = {one.model: one for one in latencies()}
    lines = [
        (
            row.model,
            f"{row.published.measured.us:,.0f}",
            f"{sizes[row.model].megabytes:.1f}",
            f"{sizes[row.model].gflop:.2f}",
            f"{row.published.measured.us - (row.published.residual_us or 0):,.0f}",
            f"{row.published.residual_us:+,.0f}",
            f"{row.published.device.us:,.0f}",
            range_text(row.predicted, ""),
            f"{row.device_ratio:.2f}",
            f"{row.predicted_us / (row.published.device.us + fitted.error_us):.2f} to"
            f" {row.predicted_us / (row.published.device.us - fitted.error_us):.2f}",
        )
        for row in rows
        if row.published is not None and row.published.device is not None
    ]
    columns = ("model, batch 1", "end to end us", "MB", "GFLOP", "fitted", "residual")
    less = f"less host ({fitted.constant_us:.0f})"
    return plain_table((*columns, less, "predicted us", "x less host", "by its error"), lines, right=range(1, 10))


def throughput_table(rows: Sequence[Row]) -> Grid:
    """AWS's throughputs, per item and core; no ratio, as the host may be the limit."""
    lines = [
        (
            row.model,
            str(row.batch),
            f"{row.published.measured.us / row.batch:,.1f}",
            range_text(per_item(row), ""),
        )
        for row in rows
        if row.published is not None
    ]
    columns = ("model", "batch", "AWS, us an item and core", "predicted, us an item and core")
    return plain_table(columns, lines, right=(1, 2, 3))


def bars_table(rows: Sequence[Row]) -> Grid:
    """The limits of each row."""
    names = {"bound": "2 x the bound", "own target": "target of ours"}
    lines = [
        (
            row.model,
            str(row.batch),
            names[bar.kind],
            f"{bar.most_us:,.1f}",
            range_text(row.predicted, ""),
            verdict_text(bar.verdict),
        )
        for row in rows
        for bar in row.bars
    ]
    columns = ("model", "batch", "bar", "at most us", "predicted us", "")
    return plain_table(columns, lines, right=(1, 3, 4))


def per_item(row: Row) -> Range:
    """The time of one item of a batch."""
    found, batch = row.predicted, row.batch
    return Range(found.least_us / batch, found.us / batch, found.most_us / batch)


def _link_us(row: Row) -> float:
    """The estimated time on the PCIe link: the batch to the device, and the answer back."""
    link = host_link(row.target)
    to_device, to_host = row.host_bytes
    return link.transfer_us(to_device) + link.transfer_us(to_host)


def _targets(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.target for row in rows))


def _rates_text(rows: Sequence[Row]) -> list[str]:
    """The rates behind the bound, for each target."""
    told = []
    for target in _targets(rows):
        most, link = rates(target), host_link(target)
        told += [
            f"bound: the larger of memory (weights, inputs and outputs once, at {most.gbps:g} GB/s on {target}: the"
            f" lower of {most.engines} DMA engines of {most.engine_gbps:g} GB/s and {most.hbm_gbps:g} of HBM,"
            f" {most.source})"
            " and products (at the tensor engine's documented peak)",
            f"predicted us: the headline, with its range; x bound is the headline's. The timing model moves"
            f" {get_target(target).timing.dma.total_gbps:g} GB/s",
            f"link us: an estimate for {target} at {link.gbps:g} GB/s and {link.latency_us:g} us each way, which are"
            f" assumptions ({place_of(target)})",
        ]
    return told


def _latency_text() -> list[str]:
    fitted = host_fit()
    return [
        "end to end: AWS's own compiler, PyTorch on inf2.xlarge, one request at a time; the host's time is in it, so no"
        " ratio is formed with it",
        f"fitted: {fitted.constant_us:.0f} us (standard error {fitted.error_us:.0f}) + {fitted.us_per_mb:.2f} us/MB +"
        f" {fitted.us_per_gflop:.1f} us/GFLOP, least squares over all {len(fitted.residuals)} rows of batch 1; the"
        " constant is taken for the host's part. less host: end to end less that constant; x less host is our headline"
        " over that, by its error: with one standard error of the constant either way; the residual is how far the line"
        " is off",
    ]


_THROUGHPUT_TEXT = (
    "AWS: of two cores with two batches in flight each. No ratio: the host may be what limits it (at batch 8 ResNet-50"
    " takes longer an item than at batch 1 less the host's part)",
)
_BARS_TEXT = (
    "2 x the bound: the bar that has a meaning, as it compares the device with what the hardware allows",
    "target of ours: a number of microseconds, once set as a share of AWS's end-to-end time or throughput. It says"
    " nothing about AWS's compiler, and is kept so that what was promised stays visible",
    "a bar is passed or missed by the headline of the timing model as it is shipped",
)
