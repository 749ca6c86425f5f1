"""How many arrivals the tests of capacity plan with."""

from __future__ import annotations

import pytest

from trnrt.capacity import choosing
from trnrt.capacity.queueing import SAMPLES, Array, stream


@pytest.fixture(autouse=True)
def fewer_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the arrivals: playing them is all the time that a plan takes, and most tests are not about figures."""

    def fewer(burst: float = 1.0, samples: int = SAMPLES) -> Array:
        return stream(burst, samples // 10)

    monkeypatch.setattr(choosing, "stream", fewer)


@pytest.fixture
def every_arrival(fewer_arrivals: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the arrivals that a plan is made with."""
    monkeypatch.setattr(choosing, "stream", stream)
