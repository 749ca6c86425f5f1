"""Measured against predicted, for each case of some reports, before and after a fit.

A probe's time is the difference of its longest and its shortest call: the host's part is in both. Of another case the
host's part, as the fit found it, is taken off. Kernels are predicted anew with the fitted numbers. Models are not, as
that would plan them again: they have the report's own prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import median

from trnrt.calibration.learning import Learned, Predictions
from trnrt.calibration.reports import Measured, Report, is_probe
from trnrt.neuron.selftest.cases import Direct
from trnrt.neuron.selftest.probing import PROBES
from trnrt.neuron.selftest.table import CASES
from trnrt.nki.machine.timing.path import LAUNCH

USUAL = 0.1
"""A case whose measured time is known worse than this share of it says nothing about an error: it is shown alone."""

_PLACES = {probe.name: probe.decides for probe in PROBES}


@dataclass(frozen=True)
class Compared:
    """A case, or a probe of several: microseconds. ``place``: the engine, the kind of descriptors or the part of the
    time that dominates it. ``error_us``: the standard error of ``measured_us``. ``after_us``: None for a model."""

    name: str
    kernel: str
    place: str
    measured_us: float
    error_us: float
    before_us: float
    after_us: float | None

    @property
    def error_before(self) -> float:
        """Predicted over measured, less 1, before the fit."""
        return self.before_us / self.measured_us - 1

    @property
    def error_after(self) -> float | None:
        """The same after it."""
        return None if self.after_us is None else self.after_us / self.measured_us - 1

    @property
    def is_known(self) -> bool:
        """True if the measured time is known well enough to speak of errors."""
        return 0 <= self.error_us <= USUAL * self.measured_us


@dataclass(frozen=True)
class Group:
    """The cases of one kernel or one place: the medians of their errors' sizes, the second of those that have one."""

    name: str
    count: int
    error_before: float
    error_after: float | None


def compare(reports: Sequence[Report], predictions: Predictions, learned: Learned) -> list[Compared]:
    """A row for each probe and each other case of each report; those of one report follow each other.

    Of a report whose probes the device timed, cases that the host timed have none: the host's part is not known.
    """
    values = {number.name: number.value for number in learned.decided_numbers}
    rows: list[Compared] = []
    for k, report in enumerate(reports):
        constant, per_mb = learned.hosts.get(k, (0.0, 0.0))
        rows += _probe_rows(report, predictions, values)
        for one in report.cases:
            case = CASES[one.name]
            if is_probe(case) or (one.clock == "host" and k not in learned.hosts):
                continue  # no probe was timed with the host, so its part of a call is not known
            host = 0.0 if one.clock == "device" else constant + per_mb * one.moved_bytes / 1e6
            before = after = None
            if isinstance(case, Direct):
                before, after = (predictions.us(one.name, given) for given in ({}, values))
            measured_us, kernel = max(one.us - host, 1e-9), case.body if isinstance(case, Direct) else "a model"
            predicted_us = one.predicted_us if before is None else before
            rows.append(Compared(one.name, kernel, _place(one), measured_us, one.error_us, predicted_us, after))
    return rows


def _probe_rows(report: Report, predictions: Predictions, values: dict[str, float]) -> Iterator[Compared]:
    by_probe: dict[str, list[Measured]] = {}
    for one in report.cases:
        case = CASES[one.name]
        if isinstance(case, Direct) and case.probe:
            by_probe.setdefault(case.probe, []).append(one)
    for probe, found in by_probe.items():
        short, long = (end(found, key=lambda one: one.us) for end in (min, max))
        if short is long:
            continue
        before, after = (predictions.us(long.name, v) - predictions.us(short.name, v) for v in ({}, values))
        case = CASES[long.name]
        assert isinstance(case, Direct)
        error_us = hypot(short.error_us, long.error_us)
        yield Compared(probe, case.body, _PLACES[probe], long.us - short.us, error_us, before, after)


def _place(one: Measured) -> str:
    """Where the report's prediction spends most of its time, without the program's start."""
    spent = {place: us for place, us in one.path_us.items() if place != LAUNCH}
    return max(spent, key=spent.__getitem__, default=LAUNCH)


def group(rows: Iterable[Compared], key: Callable[[Compared], str]) -> list[Group]:
    """The rows that are known well enough, by ``key``, the largest error first."""
    by_key: dict[str, list[Compared]] = {}
    for row in rows:
        if row.is_known:
            by_key.setdefault(key(row), []).append(row)
    groups = [Group(name, len(found), *median_errors(found)) for name, found in by_key.items()]
    return sorted(groups, key=lambda one: -one.error_before)


def median_errors(rows: Sequence[Compared]) -> tuple[float, float | None]:
    """The median sizes of the errors before and after."""
    after = [abs(row.error_after) for row in rows if row.error_after is not None]
    return median(abs(row.error_before) for row in rows), median(after) if after else None
