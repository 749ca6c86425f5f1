"""The results of ``python -m benchmarks.labs``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.verdicts import all_passed, bars_text, passed, target_notes, verdict_text
from trnrt.nki.machine.timing import Range
from trnrt.report.documents import Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table
from trnrt.text import range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.comparing import Verdict
    from benchmarks.labs.cases import Row
    from benchmarks.labs.checking import Checked
    from benchmarks.labs.floors import Floor


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
        "passed": False if wrong else all_passed([*(row.verdict for row in rows), *_held_verdicts(rows)]),
    }


def _held_verdicts(rows: Sequence[Row]) -> list[Verdict | None]:
    """The verdicts of the bars by the floors' clocks."""
    return [None if row.held is None else row.held.verdict for row in rows]


def _line(row: Row) -> Document:
    held = row.held
    derived = {"compared_with": row.compared_with, "ratio": row.ratio, "passed": passed(row.verdict)}
    floor = asdict(row.floor) | {"us": row.floor.us, "over": row.over_floor}
    judged = None if held is None else asdict(held) | {"passed": passed(held.verdict), "reachable": held.reachable}
    if held is not None and judged is not None:
        judged["least"] |= {"us": held.least.us}
    return asdict(row) | derived | {"floor": floor, "held": judged}


def labs_parts(rows: Sequence[Row], checked: Sequence[Checked] | None) -> list[RenderableType]:
    """The whole output for a terminal."""
    parts: list[RenderableType] = [labs_table(rows), "", *_COLUMNS_TEXT]
    parts += [bars_text([row.verdict for row in rows], "case"), "", floors_table(rows), "", _FLOORS_TEXT]
    if any(row.held is not None for row in rows):
        parts += ["", held_table(rows), "", *_reasons(rows)]
    parts += [bars_text(_held_verdicts(rows), "floor"), *target_notes(row.target for row in rows)]
    if checked is not None:
        lines = [(one.case, f"{one.worst:.2g}", "pass" if one.passed else "FAIL") for one in checked]
        parts += ["", plain_table(("numbers of", "error over the allowed", ""), lines, right=(1,))]
    return parts


def labs_table(rows: Sequence[Row]) -> Grid:
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


def floors_table(rows: Sequence[Row]) -> Grid:
    """A line for each case: the parts of its floor, and how far the prediction is above it."""
    lines = [
        (
            row.case,
            row.target,
            row.dtype,
            row.floor.clock,
            *(_part(us) for us in _parts_of(row)),
            f"{row.floor.us:,.1f}",
            f"{row.predicted_us:,.1f}",
            f"{row.over_floor - 1:+.1%}",
        )
        for row in rows
    ]
    parts = ("fixed", "first load", "columns", "gaps", "ramp", "data", "last store")
    columns = ("case", "target", "dtype", "clock", *parts, "floor", "predicted", "above")
    return plain_table(columns, lines, right=range(4, 14))


def held_table(rows: Sequence[Row]) -> Grid:
    """A line for each case that has a bar by its floor's side: the bar, by its own clock, and what is published."""
    lines = [
        (
            row.case,
            row.target,
            row.dtype,
            f"{row.held.bar.limit:g} {row.held.bar.kind}",
            row.held.bar.clock,
            f"{row.held.most_us:,.1f}",
            f"{row.held.predicted_us:,.1f}",
            verdict_text(row.held.verdict),
            *_published_cells(row),
        )
        for row in rows
        if row.held is not None
    ]
    columns = ("case", "target", "dtype", "bar", "by", "at most us", "predicted", "", "published", "by")
    return plain_table(columns, lines, right=(5, 6, 8))


def _parts_of(row: Row) -> tuple[float, ...]:
    """The parts of a floor in the table's order."""
    floor = row.floor
    waiting = (floor.fixed_us, floor.first_load_us)
    return (*waiting, floor.columns_us, floor.gaps_us, floor.ramp_us, floor.data_us, floor.last_store_us)


def _part(us: float) -> str:
    return f"{us:,.2f}" if us else ""


def _published_cells(row: Row) -> tuple[str, str]:
    """The fastest measured kernel and its clock."""
    return ("", "") if row.fastest is None else (f"{row.fastest.us:,.1f}", row.fastest.clock)


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Why the bars are these, each once; and the bars that no kernel can meet."""
    found = [(row, row.held) for row in rows if row.held is not None]
    bars = dict.fromkeys(held.bar for _, held in found)
    return [
        *(f"bar {bar.limit:g} {bar.kind}, by the {bar.clock}: {bar.reason}" for bar in bars),
        *(
            f"{row.case} on {row.target}, {row.dtype}: the bar allows {held.most_us:,.1f} us, less than the least that"
            f" can be predicted, {held.least.us:,.1f} us: {_sum_of(held.least)}. No kernel can meet it under this model"
            for row, held in found
            if not held.reachable
        ),
    ]


def _sum_of(least: Floor) -> str:
    """The derivation of the least time: its parts."""
    moved = "data at the bandwidth of the model's DMA engines"
    parts = (
        (least.fixed_us, "fixed"),
        (least.first_load_us, "first load"),
        (least.columns_us, "columns"),
        (least.gaps_us, "gaps"),
        (least.ramp_us, "ramp"),
        (least.data_us, moved),
        (least.last_store_us, "last store"),
    )
    return " + ".join(f"{us:,.2f} {name}" for us, name in parts if us)


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

_FLOORS_TEXT = (
    "floor: the sum of the parts before it, of the longer of two paths that overlap: products (columns at full clock,"
    " gaps between passes, the ramp beyond the first load) or data (the least traffic at documented bandwidth). fixed:"
    " the program's start and end as the clock sees them; first load and last store: of the model's smallest program"
)
