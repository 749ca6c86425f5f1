"""All results of ``python -m benchmarks.timing`` together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.timing.instructions import InstructionRow
from benchmarks.timing.ladders import Ranking
from benchmarks.timing.table import BARS, LEFT_OUT_BARS, summary
from trnrt.calibration.cases import Case, Row, predicted_us
from trnrt.calibration.fit import Fit
from trnrt.calibration.published import CASES


@dataclass(frozen=True)
class Calibration:
    """The whole kernels, the single instructions, and the fit if requested."""

    rows: tuple[Row, ...]
    instructions: tuple[InstructionRow, ...]
    fit: Fit | None = None
    shortening_error: float = 0.0  # of the kernels in the fit
    ladders: tuple[Ranking, ...] = ()

    @property
    def passed(self) -> bool:
        """True if the whole kernels are within the bars and the ladders in their order; with a fit, also when their
        authors are left out of it."""
        if not summary(self.rows).passed(BARS) or not all(ladder.meets_bar for ladder in self.ladders):
            return False
        return self.fit is None or summary(self.fit.left_out).passed(LEFT_OUT_BARS)


def shortening_error(cases: Iterable[Case] = CASES) -> float:
    """The largest error of times extrapolated from shorter kernels."""
    errors = [abs(predicted_us(case, short=True) / predicted_us(case) - 1) for case in cases if case.short]
    return max(errors)
