"""The calibration table: measured, predicted, error, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trnrt.bench.timing.cases import Case, predicted_us
from trnrt.bench.timing.published import CASES
from trnrt.nki.machine.pace import Timing


@dataclass(frozen=True)
class Bars:
    """How far off a table may be, and how much of it is to lie within the predicted range."""

    median_error: float
    worst_error: float
    inside: float = 0.80


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
        """Whether the range has the nearest published figure."""
        return self.low_us <= self.measured_us <= self.high_us


@dataclass(frozen=True)
class Summary:
    """The median and the worst absolute error of a table, and the share of rows that lie within their range."""

    median_error: float
    worst_error: float
    inside: float

    def passed(self, bars: Bars = BARS) -> bool:
        """Whether all three are within the bars."""
        near = self.median_error <= bars.median_error and self.worst_error <= bars.worst_error
        return near and self.inside >= bars.inside


def summary(rows: Iterable[Row]) -> Summary:
    """The errors of a table together."""
    table = list(rows)
    errors = [abs(row.error) for row in table]
    return Summary(median(errors), max(errors), sum(row.inside for row in table) / len(table))


def row(case: Case, predicted: float) -> Row:
    """The case's line of a table. The model gives one time so far, which is both ends of the range."""
    return Row(case, predicted, predicted, predicted)


def compare(
    cases: Sequence[Case] = CASES, timing: dict[str, Timing] | None = None, *, short: bool = False
) -> list[Row]:
    """A row for each case, with the targets' own numbers or with those of ``timing`` (by target)."""
    given = timing or {}
    return [row(case, predicted_us(case, given.get(case.target), short=short)) for case in cases]
