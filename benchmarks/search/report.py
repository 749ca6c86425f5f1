"""The results of ``python -m benchmarks.search``: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.comparing import verdict
from benchmarks.search.table import MOST_RATIO, Row
from benchmarks.verdicts import verdict_text
from trnrt.report.documents import Document
from trnrt.report.tables import plain_table
from trnrt.text import range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

SEARCH_SCHEMA_VERSION = 1


def search_document(rows: Sequence[Row], target: str, dtype: str) -> Document:
    """Times in microseconds; ``ratio`` is of the middles of the ranges, the search's over the best one."""
    return {
        "schema_version": SEARCH_SCHEMA_VERSION,
        "benchmark": "search",
        "target": target,
        "dtype": dtype,
        "most_ratio": MOST_RATIO,
        "rows": [asdict(row) | {"ratio": row.ratio, "passed": row.meets_bar} for row in rows],
        "passed": all(row.meets_bar for row in rows),
    }


def search_parts(rows: Sequence[Row]) -> list[RenderableType]:
    """A line for each layer, and the bar."""
    lines = [
        (
            row.layer,
            str(row.batch),
            f"{row.count:,}",
            f"{row.trials:,}",
            range_text(row.estimated, ""),
            range_text(row.found, ""),
            range_text(row.best, ""),
            f"{row.ratio:.3f}",
            verdict_text(verdict(row.meets_bar)),
        )
        for row in rows
    ]
    columns = ("layer", "batch", "choices", "trials", "us by estimates", "us as found", "us at best", "ratio", "")
    bar = f"bar: the plan that the search finds takes at most {MOST_RATIO:g} times the best of all choices"
    return [plain_table(columns, lines, right=tuple(range(1, 8)), whole=(4, 5, 6)), "", bar]
