"""``trnrt bench timing``: all of its results together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnrt.bench.timing.cases import CASES, predicted_us
from trnrt.bench.timing.fit import Fit
from trnrt.bench.timing.instructions import InstructionRow
from trnrt.bench.timing.table import Row, summary


@dataclass(frozen=True)
class Calibration:
    """The whole kernels, the single instructions, and the fit where one was asked for."""

    rows: tuple[Row, ...]
    instructions: tuple[InstructionRow, ...]
    fit: Fit | None = None
    shortening_error: float = 0.0  # of the kernels that were fitted to

    @property
    def passed(self) -> bool:
        """Whether the whole kernels are within the bars; with a fit also where each is left out of it."""
        tables = [self.rows] if self.fit is None else [self.rows, self.fit.left_out]
        return all(summary(rows).passed for rows in tables)


def shortening_error(rows: Iterable[Row]) -> float:
    """How far the times that the fit works with, from shorter kernels, are from ``rows``, those of the whole ones."""
    whole = {row.id: row.predicted_us for row in rows}
    cases = [case for case in CASES if case.short]
    return max(abs(predicted_us(case, short=True) / whole[case.id] - 1) for case in cases)
