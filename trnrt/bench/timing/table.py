"""The calibration table: measured, predicted, error, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trnrt.bench.timing.cases import CASES, Case, predicted_us
from trnrt.nki.machine.pace import Timing

MEDIAN_BAR = 0.08
WORST_BAR = 0.20


@dataclass(frozen=True)
class Row:
    """A measurement and its prediction. ``stat`` says which figure: a benchmark's, a profiler's total, or parts'."""

    id: str
    target: str
    stat: str
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_us / self.measured_us - 1


@dataclass(frozen=True)
class Summary:
    """The median and the worst absolute error of a table, and whether both are within their bars."""

    median_error: float
    worst_error: float

    @property
    def passed(self) -> bool:
        return self.median_error <= MEDIAN_BAR and self.worst_error <= WORST_BAR


def summary(rows: Iterable[Row]) -> Summary:
    """The errors of a table together."""
    errors = [abs(row.error) for row in rows]
    return Summary(median(errors), max(errors))


def row(case: Case, predicted: float) -> Row:
    """The case's line of a table."""
    return Row(case.id, case.target, case.stat, case.measured_us, predicted)


def compare(
    cases: Sequence[Case] = CASES, timing: dict[str, Timing] | None = None, *, short: bool = False
) -> list[Row]:
    """A row for each case, with the targets' own numbers or with those of ``timing`` (by target)."""
    given = timing or {}
    return [row(case, predicted_us(case, given.get(case.target), short=short)) for case in cases]
