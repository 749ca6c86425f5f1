"""The results of ``python -m benchmarks.timing --trace``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table
from trnrt.text import name_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.timing.traces.comparing import Comparison, Row, Side
    from benchmarks.timing.traces.facts import Fact, Spread

_NONE = "-"
_ONE_SIDED = ("only measured", "only ours", "merged", "split", "another engine")


def traces_document(comparisons: Iterable[Comparison]) -> Document:
    """Nanoseconds; an event's times count from its kernel's first one."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "timing traces",
        "traces": [_comparison(found) for found in comparisons],
    }


def _comparison(found: Comparison) -> Document:
    match = found.match
    return {
        "file": found.measured.name,
        "kernel": match.case.name,
        "target": match.case.target,
        "likeness": match.likeness,
        "guessed": match.guessed,
        "profile": found.measured.facts,
        "notes": [*found.measured.notes, *found.ours.notes],
        "total_ns": {"measured": found.measured.total, "ours": found.ours.total},
        "kernel_ns": {
            "measured": found.measured.last - found.measured.first,
            "ours": found.ours.last - found.ours.first,
        },
        "engines": [asdict(engine) for engine in found.engines],
        "mechanisms": [asdict(fact) | {"error": fact.error} for fact in found.facts],
        "clock": {
            "changes": [asdict(change) for change in found.changes],
            "grids": [asdict(grid) | {"explains": grid.explains} for grid in found.grids],
        },
        "events": [
            asdict(row) | {"start_difference": row.start_difference, "duration_difference": row.duration_difference}
            for row in found.rows
        ],
    }


def traces_parts(comparisons: Sequence[Comparison]) -> list[RenderableType]:
    """All that a terminal shows, from top to bottom."""
    parts: list[RenderableType] = []
    for found in comparisons:
        match = found.match
        how = f"guessed: its work is {match.likeness * 100:.0f} % that of it" if match.guessed else "as asked for"
        measured, ours = found.measured, found.ours
        parts += [
            f"{name_text(measured.name)}: {match.case.name} ({how})",
            f"the profile takes {measured.total:,} ns, ours {ours.total:,}; the kernel in it "
            f"{measured.last - measured.first:,}, ours {ours.last - ours.first:,}",
            *(f"note: {name_text(note)}" for note in (*measured.notes, *ours.notes)),
        ]
        parts += ["", engines_table(found), "", compiled_table(found), "", mechanisms_table(found.facts)]
        parts += ["", *_clock(found), "", events_table(found.rows), ""]
    return parts


def engines_table(found: Comparison) -> Grid:
    """A line per engine: events of each side, how they were paired, and their total time."""
    lines = []
    for one in found.engines:
        pairs = ", ".join(f"{count} {how}" for how, count in one.pairs.items())
        times = (f"{one.measured_ns:,}", f"{one.ours_ns:,}", _signed_text(one.difference))
        lines.append((one.engine, str(one.measured), str(one.ours), *times, pairs))
    columns = ("engine", "measured", "ours", "busy ns", "ours ns", "median difference ns", "pairs")
    return plain_table(columns, lines, right=(1, 2, 3, 4, 5))


def compiled_table(found: Comparison) -> Grid:
    """A line for each of the compiler's deviations from the kernel."""
    lines = [
        (how, engine, what, str(count))
        for how in _ONE_SIDED
        for (engine, what), count in found.found(how).most_common()
    ]
    return plain_table(("what the compiler did", "engine", "event", "how often"), lines, right=(3,))


def mechanisms_table(facts: Iterable[Fact]) -> Grid:
    """A line for each time of either side."""
    lines = [
        (fact.mechanism, fact.what, fact.unit, *_cells(fact.measured), *_cells(fact.ours), _percent(fact.error))
        for fact in facts
    ]
    columns = ("mechanism", "what", "unit", "seen", "median", "from to", "ours", "median", "from to", "error")
    return plain_table(columns, lines, right=(3, 4, 5, 6, 7, 8, 9))


def events_table(rows: Iterable[Row]) -> Grid:
    """A line per event, in the order of the measured starts."""
    lines = [
        (
            row.lane,
            row.what,
            row.how,
            *_side(row.measured),
            *_side(row.ours),
            _signed_text(row.start_difference),
            _signed_text(row.duration_difference),
        )
        for row in rows
    ]
    columns = ("lane", "event", "pair", "start", "end", "after", "ours", "end", "after", "start diff", "duration diff")
    return plain_table(columns, lines, right=(3, 4, 6, 7, 9, 10))


def _clock(found: Comparison) -> list[RenderableType]:
    """The clock's changes, and the period that explains them."""
    lines = [
        ("full" if one.full else "half", f"{one.at:,}", f"{one.after_first_product:,}", f"{one.lasted:,}")
        for one in found.changes
    ]
    changes = plain_table(("tensor clock", "at ns", "after the first product", "lasted"), lines, right=(1, 2, 3))
    shares = [
        (f"{grid.period:,.1f}", _yes(grid.on_grid), _shares(grid.full), _shares(grid.half), _yes(grid.explains))
        for grid in found.grids
    ]
    columns = ("period ns", "changes on its grid", "busy before full rate %", "before half rate %", "explains")
    return [changes, "", plain_table(columns, shares, right=(0,))]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _shares(values: Iterable[float]) -> str:
    return " ".join(f"{value * 100:.0f}" for value in values)


def _cells(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return _NONE, _NONE, _NONE
    return str(spread.count), f"{spread.median:,.0f}", f"{spread.least:,.0f} {spread.most:,.0f}"


def _side(side: Side | None) -> tuple[str, str, str]:
    if side is None:
        return _NONE, _NONE, ""
    after = f"{side.waited_for} +{side.waited}" if side.waited_for else ""
    return f"{side.start:,}", f"{side.end:,}", after


def _signed_text(value: float | None) -> str:
    return _NONE if value is None else f"{value:+,.0f}"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share * 100:+.0f} %"
