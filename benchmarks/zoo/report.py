"""The table on a terminal, and the profile reports that the page links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.zoo.listing import Entry
from benchmarks.zoo.predicting import Sessions, profile_parts
from benchmarks.zoo.results import Result
from benchmarks.zoo.table import (
    Line,
    accuracy_text,
    batch_cell,
    cost_cell,
    held_cell,
    item_cell,
    lines_of,
    rate_cell,
    report_names,
    size_cell,
    time_cell,
)
from trnrt.cache.code import PLANS, code_version
from trnrt.capacity.prices import Prices
from trnrt.report.console import note
from trnrt.report.files import write_text
from trnrt.report.page import report_html
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def zoo_parts(rows: Sequence[Result], prices: Prices | None = None) -> list[RenderableType]:
    """A line for each model and target; those without predictions below."""
    heads = ("model", "size", "float32", "bfloat16", "target", "ms at first batch", "batch", "ms an item", "items/s")
    heads = (*heads, "bound by", *(() if prices is None else ("$ a million",)))
    lines = [
        (
            line.row.entry.name,
            size_cell(line.row).text,
            *(accuracy_text(line.row.accuracy.get(dtype)) for dtype in ("float32", "bfloat16")),
            line.target,
            time_cell(line.first).text,
            batch_cell(line).text,
            item_cell(line.best).text,
            rate_cell(line.best).text,
            held_cell(line.best).text,
            *(() if prices is None else (cost_cell(line, prices).text,)),
        )
        for line in lines_of(rows)
    ]
    refused = [f"{row.entry.name} on {target}: {why[0]}" for row in rows for target, why in row.refused.items()]
    legend = "float32 and bfloat16: rank correlation with onnxruntime, and the items whose largest score is the same"
    return [plain_table(heads, lines, right=(1, 5, 6, 7, 8)), "", legend, *refused]


def write_profiles(
    folder: Path, entries: Sequence[Entry], rows: Sequence[Result], target: str, out: Path, done: Callable[[int], None]
) -> None:
    """Write the profile reports of the best batches on ``target`` that ``out`` doesn't have yet.

    Predictions of another version of trnrt get none: the profile would be that of this version.
    """
    chosen, version = {entry.file for entry in entries}, code_version(PLANS)
    out.mkdir(parents=True, exist_ok=True)
    for line in lines_of(rows):
        if line.target != target or line.row.entry.file not in chosen:
            continue
        if line.best.version != version:
            note(f"{line.row.entry.name}: no profile report, as trnrt has changed since its prediction on {target}")
            continue
        paths = [out / name for name in report_names(line)]
        if not all(path.exists() for path in paths):
            _write_reports(folder, line, paths)
        done(1)


def _write_reports(folder: Path, line: Line, paths: Sequence[Path]) -> None:
    entry, best = line.row.entry, line.best
    session = Sessions(folder / entry.file, entry).session(best.target, best.dtype, best.effort)
    profiles = [profile for _, profile in profile_parts(session.partition(best.batch))]
    for number, (path, profile) in enumerate(zip(paths, profiles, strict=True), 1):
        part = f", kernel {number} of {len(paths)}" if len(paths) > 1 else ""
        write_text(path, report_html(profile, f"{entry.title}{part}"))
