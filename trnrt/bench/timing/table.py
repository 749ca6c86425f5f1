"""The calibration table: measured, predicted, error, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trnrt.bench.timing.cases import Case, predicted_range
from trnrt.bench.timing.published import CASES
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.timing import WIDEST, Range

WIDTH_BAR = 1.2


@dataclass(frozen=True)
class Bars:
    """How far off a table may be, how much of it is to lie within the predicted range, and how wide the median range
    may be: the most over the least.
    """

    median_error: float
    worst_error: float
    inside: float = 0.80
    width: float = WIDTH_BAR


BARS = Bars(0.05, 0.20)
LEFT_OUT_BARS = Bars(0.08, 0.25)
"""Where each author's measurements come from a fit without any of them."""


@dataclass(frozen=True)
class Row:
    """A case and its prediction, from ``low_us`` to ``high_us``."""

    case: Case
    predicted_us: float
    low_us: float
    high_us: float

    @property
    def measured_us(self) -> float:
        """Of several published figures the nearest one."""
        return self.case.nearest_us(self.predicted_us)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_us / self.measured_us - 1

    @property
    def inside(self) -> bool:
        """Whether the range has one of the published figures, and is no wider than what counts as one."""
        within = any(self.low_us <= value <= self.high_us for value in self.case.values_us)
        return within and self.ratio <= WIDEST

    @property
    def ratio(self) -> float:
        """The most over the least."""
        return self.high_us / self.low_us


@dataclass(frozen=True)
class Summary:
    """The median and the worst absolute error of a table, the share of rows that lie within their range, and the
    median range's width: its most over its least.
    """

    median_error: float
    worst_error: float
    inside: float
    median_width: float

    def passed(self, bars: Bars = BARS) -> bool:
        """Whether all four are within the bars."""
        near = self.median_error <= bars.median_error and self.worst_error <= bars.worst_error
        return near and self.inside >= bars.inside and self.median_width <= bars.width


def summary(rows: Iterable[Row]) -> Summary:
    """The errors of a table together."""
    table = list(rows)
    errors = [abs(row.error) for row in table]
    inside = sum(row.inside for row in table) / len(table)
    return Summary(median(errors), max(errors), inside, median(row.ratio for row in table))


def row(case: Case, predicted: Range) -> Row:
    """The case's line of a table."""
    return Row(case, predicted.us, predicted.least_us, predicted.most_us)


def compare(
    cases: Sequence[Case] = CASES, timing: dict[str, Timing] | None = None, *, short: bool = False
) -> list[Row]:
    """A row for each case, with the targets' own numbers or with those of ``timing`` (by target)."""
    given = timing or {}
    return [row(case, predicted_range(case, given.get(case.target), short=short)) for case in cases]
