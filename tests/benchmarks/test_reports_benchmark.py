"""The rehearsal of calibration: what counts as found again."""

from __future__ import annotations

import pytest

from benchmarks.reports.rehearsal import made_up_report, predictions
from benchmarks.reports.sweep import BAR, Found


@pytest.mark.parametrize(
    ("errors", "others", "passed"),
    [({"a": 0.01}, 0.02, True), ({"a": -0.06}, 0.0, False), ({}, 0.051, False), ({}, 0.0, True)],
)
def test_found_again(errors: dict[str, float], others: float, passed: bool) -> None:
    assert Found({"a": 1.3}, errors, ("a",) if not errors else (), others).has_passed == passed
    assert BAR == 0.05


def test_a_rehearsed_report_is_a_slower_device() -> None:
    """Twice as slow where a number is halved, within the noise; the same seed gives the same report."""
    own, slow, again = (made_up_report("trn2", {"dma.total_gbps": by}, 4, None, ("bytes",)) for by in (1, 0.5, 0.5))
    took = [[case["measured"]["median"] for case in report["cases"]] for report in (own, slow)]
    assert slow["cases"] == again["cases"] and len(took[0]) == 2
    ratio = (took[1][1] - took[1][0]) / (took[0][1] - took[0][0])
    assert ratio == pytest.approx(2, rel=0.05)
    assert own["cases"][0]["predicted_us"] == predictions("trn2").us("bytes_2", {})
