"""The results of ``python -m benchmarks.size``: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.size.table import MOST_RATIO, Compared
from trnrt.report.documents import Document
from trnrt.report.tables import plain_table
from trnrt.text import escape_text, name_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

SIZE_SCHEMA_VERSION = 1
_COLUMNS = (
    "network",
    "batch",
    "budget",
    "kernels",
    "trips",
    "instructions",
    "largest as compiled",
    "us",
    "time",
    "most",
)


def size_document(rows: Sequence[Compared]) -> Document:
    """Times in microseconds; ``ratio`` and ``most_ratio`` are to the row without a budget, null if it can't be met."""
    return {
        "schema_version": SIZE_SCHEMA_VERSION,
        "benchmark": "size",
        "most_ratio": MOST_RATIO,
        "rows": [
            asdict(one.row) | {"ratio": one.ratio, "most_ratio": one.most_ratio, "meets_bar": one.meets_bar}
            for one in rows
        ],
        "passed": all(one.meets_bar is not False for one in rows),
    }


def size_parts(rows: Sequence[Compared]) -> list[RenderableType]:
    """A line for each network, batch and budget."""
    lines = [_line(one) for one in rows]
    problems = [escape_text(one.row.problem) for one in rows if one.row.problem]
    bar = f"bar: at batch 1 and the default budget, the range's end is at most {MOST_RATIO:g} times that without one"
    return [plain_table(_COLUMNS, lines, right=tuple(range(1, len(_COLUMNS)))), "", bar, *problems]


def _line(one: Compared) -> tuple[str, ...]:
    row = one.row
    head = (name_text(row.model), str(row.batch), f"{row.budget:,}" if row.budget else "none")
    if row.predicted is None:
        return (*head, *["-"] * (len(_COLUMNS) - len(head)))
    ratios = (f"{value:.3f}" if value is not None else "-" for value in (one.ratio, one.most_ratio))
    return (
        *head,
        str(len(row.compiled)),
        str(row.trips) if row.trips > 1 else "-",
        f"{sum(row.unrolled):,}",
        f"{max(row.compiled):,}",
        range_text(row.predicted),
        *ratios,
    )
