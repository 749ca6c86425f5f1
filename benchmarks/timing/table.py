"""The calibration table: measured, predicted, error, and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trnrt.calibration.cases import Case, Row, predicted_range, row
from trnrt.calibration.published import CASES
from trnrt.nki.machine.pace import Timing

WIDTH_BAR = 1.2


@dataclass(frozen=True)
class Bars:
    """The allowed error of a table, the share that must lie within the predicted range, and the allowed median width of
    the range: its most over its least."""

    median_error: float
    worst_error: float
    inside: float = 0.80
    width: float = WIDTH_BAR


BARS = Bars(0.05, 0.20)
LEFT_OUT_BARS = Bars(0.08, 0.25)
"""The bars for fits that leave out the author of the measurements."""


@dataclass(frozen=True)
class Summary:
    """The median and the worst absolute error of a table, the share of rows within their range, and the median width of
    the range: its most over its least."""

    median_error: float
    worst_error: float
    inside: float
    median_width: float

    def passed(self, bars: Bars = BARS) -> bool:
        """True if all four are within the bars."""
        near = self.median_error <= bars.median_error and self.worst_error <= bars.worst_error
        return near and self.inside >= bars.inside and self.median_width <= bars.width


def summary(rows: Iterable[Row]) -> Summary:
    """The errors of a table together."""
    table = list(rows)
    errors = [abs(row.error) for row in table]
    inside = sum(row.inside for row in table) / len(table)
    return Summary(median(errors), max(errors), inside, median(row.ratio for row in table))


def compare(
    cases: Sequence[Case] = CASES, timing: dict[str, Timing] | None = None, *, short: bool = False
) -> list[Row]:
    """A row for each case, with the targets' own numbers or those of ``timing`` (by target)."""
    given = timing or {}
    return [row(case, predicted_range(case, given.get(case.target), short=short)) for case in cases]
