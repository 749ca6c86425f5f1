"""Reports of a device that does not exist: the self-test's kernels, timed by the model with other numbers, with noise.

A run of a case takes the predicted time, plus the host's: a constant, and a time a byte. Each run is off by ``NOISE``
(one standard deviation, as a share), and one in ``OUTLIERS`` takes twice as long. What becomes of the runs is the
self-test's own code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from trnrt import __version__
from trnrt.calibration.learning import Predictions
from trnrt.calibration.reports import program_of
from trnrt.neuron.selftest.cases import DIRECT, Direct
from trnrt.neuron.selftest.describing import time_by_place
from trnrt.neuron.selftest.running import RUNS, distribution
from trnrt.neuron.selftest.suite import Outcome, Suite
from trnrt.neuron.selftest.table import CASES, PROBED
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import schedule_freely
from trnrt.report.selftest import selftest_document

NOISE = 0.02
OUTLIERS = 20


@dataclass(frozen=True)
class Host:
    """The host's part of a call: microseconds, and those a MB of arguments and results."""

    us: float = 180.0
    us_per_mb: float = 90.0


HOST = Host()


@cache
def predictions(target: str) -> Predictions:
    """The predictions of the self-test's kernels; kept, as rehearsals share most of them."""
    return Predictions(get_target(target).timing, lambda name: program_of(name, target))


def made_up_report(
    target: str,
    changes: Mapping[str, float],
    seed: int,
    host: Host | None = HOST,
    names: Collection[str] | None = None,
) -> dict[str, Any]:
    """A report of a device whose numbers are the target's, with some ``changes`` (factors by name).

    ``host``: None for a device's clock. ``names``: of cases and probes; None for all.
    """
    random = np.random.default_rng(seed)
    model, generation = predictions(target), get_target(target).generation
    values = {name: float(attrgetter(name)(model.timing)) * factor for name, factor in changes.items()}
    suite = Suite("neuron", target)
    for case in (*DIRECT, *PROBED):
        wanted = names is None or case.name in names or case.probe in names
        if case.since > generation or not wanted:
            continue
        moved = _moved_bytes(case.name)
        us = model.us(case.name, values) + (host.us + host.us_per_mb * moved / 1e6 if host else 0.0)
        runs = us * (1 + NOISE * random.standard_normal(RUNS)) * np.where(random.random(RUNS) * OUTLIERS < 1, 2, 1)
        own_us = model.us(case.name, {})
        simulated = {
            "predicted_us": own_us,
            "low_us": own_us,
            "high_us": own_us,
            "moved_bytes": moved,
            "path_us": _path_us(case.name, target),
        }
        document = {"state": "passed", "wall_us": distribution(runs.tolist()), "clock": "host" if host else "device"}
        suite.outcomes.append(Outcome(case.name, document, {"state": "passed", **simulated}, 0.0))
    return selftest_document(suite, {}, "", version=__version__)


@cache
def _path_us(name: str, target: str) -> dict[str, float]:
    return time_by_place(schedule_freely(program_of(name, target)))


@cache
def _moved_bytes(name: str) -> int:
    case = CASES[name]
    assert isinstance(case, Direct)
    arrays = case.arrays()
    return sum(array.nbytes for array in arrays) + int(case.expected(*arrays).size) * 4
