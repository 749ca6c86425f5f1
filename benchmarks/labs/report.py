"""The results of ``python -m benchmarks.labs``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.verdicts import all_passed, bars_text, passed, verdict_text
from trnrt.nki.machine.timing import Range
from trnrt.report.documents import Document
from trnrt.report.tables import plain_table
from trnrt.text import range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.labs.cases import Row
    from benchmarks.labs.checking import Checked


LABS_SCHEMA_VERSION = 3
"""This document's version: 1 mixed measured times, grading limits and CPU times under one key; 2 judged the bars by
times at other rates than the model's."""


def labs_document(rows: Sequence[Row], checked: Sequence[Checked] | None) -> Document:
    """Microseconds; ``checked`` is null if the numbers were not checked."""
    wrong = not all(one.passed for one in checked or ())
    return {
        "schema_version": LABS_SCHEMA_VERSION,
        "benchmark": "labs",
        "rows": [_line(row) for row in rows],
        "checked": None if checked is None else [asdict(one) | {"passed": one.passed} for one in checked],
        "passed": False if wrong else all_passed([row.verdict for row in rows]),
    }


def _line(row: Row) -> Document:
    derived = {"compared_with": row.compared_with, "ratio": row.ratio, "passed": passed(row.verdict)}
    return asdict(row) | derived


def labs_parts(rows: Sequence[Row], checked: Sequence[Checked] | None) -> list[RenderableType]:
    """The whole output for a terminal."""
    parts: list[RenderableType] = [labs_table(rows), "", *_COLUMNS_TEXT]
    parts.append(bars_text([row.verdict for row in rows], "case"))
    if checked is not None:
        lines = [(one.case, f"{one.worst:.2g}", "pass" if one.passed else "FAIL") for one in checked]
        parts += ["", plain_table(("numbers of", "error over the allowed", ""), lines, right=(1,))]
    return parts


def labs_table(rows: Sequence[Row]) -> Table:
    """A line for each case."""
    lines = [
        (
            row.case,
            row.target,
            row.dtype,
            row.clock,
            range_text(Range(row.low_us, row.predicted_us, row.high_us), ""),
            row.compared_with,
            *_compared_cells(row),
            _number(row.limit_us),
            _number(row.target_us),
            _number(row.theirs_us),
            f"{row.bound_us:,.1f}",
            f"{row.peak_share:.1%}",
            verdict_text(row.verdict),
        )
        for row in rows
    ]
    columns = (
        "case",
        "target",
        "dtype",
        "clock",
        "predicted us",
        "compared with",
        "measured",
        "by",
        "x measured",
    )
    last = ("course limit", "our target", "theirs", "bound", "of peak", "")
    return plain_table((*columns, *last), lines, right=(4, 6, 8, 9, 10, 11, 12, 13), whole=(4,))


def _compared_cells(row: Row) -> tuple[str, str, str]:
    """The measured kernel with the worst ratio, its clock, and the ratio."""
    if row.ratio is None:
        return "", "", ""
    figure = row.compared[0].figure
    return f"{figure.us:,.1f}", figure.clock, f"{row.ratio:.2f}"


def _number(us: float | None) -> str:
    return "" if us is None else f"{us:,.1f}"


_COLUMNS_TEXT = (
    "measured: of the kernels of this shape that someone measured the one that ours is the least ahead of, and its"
    " clock; x measured: our prediction by that clock over it. clock: that of predicted us, limit, target and bound",
    "course limit: what a course demands for full credit, which is no measurement. our target: the lowest of those that"
    " we set ourselves: a number, a multiple of the bound, or theirs: what is"
    " predicted for the published kernel",
    "bound: at the tensor engine's columns and at documented bandwidths. predicted us: the"
    " headline, with its range. A bar is passed or missed by the headline of the timing model as it is shipped",
)
