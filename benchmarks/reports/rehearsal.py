"""Reports of a device that does not exist: the self-test's cases, timed by the model with other numbers, with noise.

A run of a case takes the predicted time, plus the host's: a constant, and a time a byte. Each run is off by ``NOISE``
(a normal share), and one in ``OUTLIERS`` takes twice as long. The statistics of the runs are those of the self-test.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from trnrt.calibration.learning import Predictions
from trnrt.calibration.reports import program_of
from trnrt.neuron.selftest.table import PROBED
from trnrt.nki.machine.targets import get_target

NOISE = 0.02
OUTLIERS = 20
HOST_US, HOST_US_PER_MB = 180.0, 90.0


@cache
def predictions(target: str) -> Predictions:
    """The predictions of the self-test's cases; kept, as all rehearsals share most of them."""
    return Predictions(get_target(target).timing, lambda name: program_of(name, target))


def probes(target: str) -> list[str]:
    """The probes that a target can run."""
    return [case.name for case in PROBED if case.since <= get_target(target).generation]


def measure(
    target: str, changes: Mapping[str, float], seed: int, names: list[str] | None = None
) -> list[dict[str, object]]: ...
