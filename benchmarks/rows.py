"""The results of a benchmark of measured rows: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from rich.text import Text

from benchmarks.measuring import Row
from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table


def passed(rows: Iterable[Row]) -> bool:
    """True if every row meets its bar."""
    return all(row.passed is not False for row in rows)


def rows_document(benchmark: str, rows: Iterable[Row], *, quick: bool) -> Document:
    """The rows as JSON. ``passed`` is null without a bar or without a value."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": benchmark,
        "quick": quick,
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
    }


def rows_table(rows: Iterable[Row]) -> Grid:
    """A line for each measurement, with its bar."""
    verdicts = {None: Text("-"), True: Text("pass", "green"), False: Text("MISS", "bold red")}
    lines = [
        (
            row.case,
            "-" if row.value is None else f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:.2f}",
            row.unit,
            "-" if row.bar is None else f"{'>=' if row.at_least else '<='} {row.bar:,g}",
            verdicts[row.passed],
            row.note,
        )
        for row in rows
    ]
    return plain_table(("case", "value", "unit", "bar", "verdict", "how"), lines, right=(1, 3))
