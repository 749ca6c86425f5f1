"""The results of ``python -m benchmarks.timing``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.timing.ladders import BAR, TIE
from benchmarks.timing.table import BARS, LEFT_OUT_BARS, Bars, summary
from benchmarks.verdicts import target_notes
from trnrt.nki.machine.timing import WIDEST
from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.timing.calibration import Calibration
    from benchmarks.timing.instructions import InstructionRow
    from benchmarks.timing.ladders import Ranking
    from trnrt.calibration.cases import Row
    from trnrt.calibration.fit import Fitted


def timing_document(found: Calibration) -> Document:
    """The findings as JSON. Errors are predicted over measured, less 1; ``fit`` is null without a fit."""
    fit = found.fit
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "timing",
        **_timing_rows(found.rows),
        "passed": found.passed,
        "ladders": [ladder.document for ladder in found.ladders],
        "instructions": [asdict(row) | {"error": row.error} for row in found.instructions],
        "fit": fit
        and {
            "shortening_error": found.shortening_error,
            "parameters": [
                {"name": value.parameter.name, "targets": list(value.parameter.targets)}
                | {"before": value.before, "after": value.after}
                for value in fit.values
            ],
            "fitted": _timing_rows(fit.rows),
            "left_out": _timing_rows(fit.left_out),
        },
    }


def _timing_rows(rows: Sequence[Row]) -> Document:
    found = summary(rows)
    return {
        "rows": [_row(row) for row in rows],
        "median_error": found.median_error,
        "worst_error": found.worst_error,
        "inside": found.inside,
        "median_width": found.median_width,
    }


def _row(row: Row) -> Document:
    """The published and the predicted values; ``figure`` is the published figure's number, if it has one."""
    facts, values = row.case.facts, row.case.values_us
    said = ("figure", "author", "sdk", "mode", "rewritable", "target", "clock")
    return {
        "id": row.case.id,
        **{name: facts[name] for name in said},
        "stat": row.case.clock,
        "measured_us": row.measured_us,
        "measured_low_us": values[0],
        "measured_high_us": values[-1],
        "predicted_us": row.predicted_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "error": row.error,
        "inside": row.inside,
        "kernel": facts["kernel"],
        "source": facts["source"],
        "note": facts.get("note"),
    }


def timing_parts(found: Calibration) -> list[RenderableType]:
    """The whole output for a terminal, from top to bottom."""
    parts: list[RenderableType] = [timing_table(found.rows), _verdict(found.rows)]
    parts += [instructions_table(found.instructions)]
    if found.ladders:
        parts += ["", "Each ladder left out of the fit:", ladders_table(found.ladders), _ladders_verdict(found.ladders)]
    if found.fit is not None:
        parts += ["", fitted_table(found.fit.values), "", "With the fitted values:", timing_table(found.fit.rows)]
        parts += [_verdict(found.fit.rows), "Each author left out of the fit:", timing_table(found.fit.left_out)]
        parts += [_verdict(found.fit.left_out, LEFT_OUT_BARS)]
        parts += [f"Long kernels are timed from shorter ones, within {found.shortening_error * 100:.2f} % of whole."]
    return [*parts, *target_notes(row.case.target for row in found.rows)]


def timing_table(rows: Iterable[Row]) -> Grid:
    """A line for each published time of a whole kernel, with its prediction."""
    head = ("measurement", "figure", "author", "target", "mode", "clock", "measured us", "predicted us")
    last = ("low", "high", "error", "inside")
    return plain_table((*head, *last), [_line(row) for row in rows], right=(6, 7, 8, 9, 10))


def _line(row: Row) -> tuple[str, ...]:
    facts = row.case.facts
    said = (row.case.id, facts["figure"] or "-", row.case.author, row.case.target, facts["mode"], row.case.clock)
    measured = " to ".join(f"{value:,.1f}" for value in row.case.values_us)
    times = (f"{value:,.1f}" for value in (row.predicted_us, row.low_us, row.high_us))
    return (*said, measured, *times, _percent(row.error), _inside_text(row))


def _inside_text(row: Row) -> str:
    """True if the range contains the measurement; a range that is too wide never does."""
    return "too wide" if row.ratio > WIDEST else "yes" if row.inside else "no"


def instructions_table(rows: Iterable[InstructionRow]) -> Grid:
    """A line for each published time of an instruction, with the model's."""
    lines = [
        (row.what, row.target, f"{row.measured_ns:,.1f}", f"{row.predicted_ns:,.1f}", _percent(row.error))
        for row in rows
    ]
    return plain_table(("instruction", "target", "measured ns", "model ns", "error"), lines, right=(2, 3, 4))


LADDER_COLUMNS = ("ladder", "steps", "Spearman, left out", "in the fit", "pairs in order", "at least 0.9")


def ladders_table(ladders: Iterable[Ranking]) -> Grid:
    """A line for each ladder: how well the model orders its steps, without it in the fit and with the data files."""
    lines = [
        (
            ladder.ladder,
            str(len(ladder.steps)),
            f"{ladder.spearman:.2f}",
            f"{ladder.shipped_spearman:.2f}",
            "{} of {}".format(*ladder.pairs),
            "pass" if ladder.meets_bar else "MISS",
        )
        for ladder in ladders
    ]
    return plain_table(LADDER_COLUMNS, lines, right=(1, 2, 3, 4))


def _ladders_verdict(ladders: Sequence[Ranking]) -> str:
    passed = sum(ladder.meets_bar for ladder in ladders)
    verdict = "pass" if passed == len(ladders) else "MISS"
    return (
        f"{passed} of {len(ladders)} ladders at {BAR:g} or more, steps closer than {TIE * 100:g} % as ties: {verdict}"
    )


def fitted_table(values: Iterable[Fitted]) -> Grid:
    """A line for each free parameter."""
    lines = [
        (fitted.parameter.name, ", ".join(fitted.parameter.targets), _value(fitted.before), _value(fitted.after))
        for fitted in values
    ]
    return plain_table(("parameter", "target", "now", "fitted"), lines, right=(2, 3))


def _value(value: Any) -> str:
    """A number, or the name of a choice."""
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _percent(share: float) -> str:
    """A signed error as a percentage."""
    return f"{share * 100:+.1f} %"


def _verdict(rows: Sequence[Row], bars: Bars = BARS) -> str:
    found = summary(rows)
    return (
        f"median {found.median_error * 100:.1f} % (at most {bars.median_error * 100:g}), "
        f"worst {found.worst_error * 100:.1f} % (at most {bars.worst_error * 100:g}), "
        f"{found.inside * 100:.0f} % inside their range (at least {bars.inside * 100:g}), "
        f"median width {found.median_width:.2f} (at most {bars.width:g}): "
        f"{'pass' if found.passed(bars) else 'MISS'}\n"
    )
