"""Fewer arrivals for the tests of capacity: playing them is all the time of a plan, and few tests are about figures."""

from __future__ import annotations

from trnrt.capacity.queueing import SAMPLES, Array, stream


def fewer(burst: float = 1.0, samples: int = SAMPLES) -> Array:
    """A tenth of the arrivals that a plan is made with."""
    return stream(burst, samples // 10)
