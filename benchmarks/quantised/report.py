"""The results of ``python -m benchmarks.quantised``: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.quantised.table import Row
from trnrt.report.documents import Document
from trnrt.report.tables import plain_table
from trnrt.text import range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

QUANTISED_SCHEMA_VERSION = 1
_HOLDERS_SHOWN = 4


def quantised_document(rows: Sequence[Row]) -> Document:
    """Times of a batch in microseconds."""
    return {
        "schema_version": QUANTISED_SCHEMA_VERSION,
        "benchmark": "quantised",
        "rows": [asdict(row) | {"images_per_second": row.images_per_second} for row in rows],
        "best": [asdict(row) | {"images_per_second": row.images_per_second} for row in best_rows(rows)],
    }


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """The row with the most images a second, of each network in each form."""
    keys = dict.fromkeys((row.network, row.form) for row in rows)
    return [
        max((row for row in rows if (row.network, row.form) == key), key=lambda row: row.images_per_second)
        for key in keys
    ]


def quantised_parts(rows: Sequence[Row]) -> list[RenderableType]:
    """The output for a terminal: a line for each row, and for each network's best batch in each form."""
    lines = [
        (
            row.network,
            row.form,
            str(row.batch),
            range_text(row.predicted, ""),
            f"{row.images_per_second:,.0f}",
            ", ".join(f"{one.by} {one.us / row.predicted.us:.0%}" for one in row.held[:_HOLDERS_SHOWN]),
        )
        for row in rows
    ]
    heads = ("network", "form", "batch", "us a batch", "images/s", "held by")
    found = best_rows(rows)
    in_16 = {row.network: row.images_per_second for row in found if row.form == "bfloat16"}
    best = [
        f"{row.network} in {row.form}: most images a second at batch {row.batch}: {row.images_per_second:,.0f}"
        + (f", {row.images_per_second / in_16[row.network]:.2f} times bfloat16's" if row.network in in_16 else "")
        for row in found
    ]
    return [plain_table(heads, lines, right=(2, 3, 4)), "", *best]
