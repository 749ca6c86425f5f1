"""What the timing model learns from measured cases: a least-squares fit that says which numbers it can decide.

The model is ``measured = predicted(numbers) + host``. The host's part is a constant a report plus a time a byte of
arguments and results: both are fitted, and are no hardware. The numbers are fitted as logarithms, by Gauss and Newton:
the sensitivity of each case's prediction to each number comes from the timing model, with that number a little larger.
Residuals beyond twice the usual count less (Huber), so that outliers pull little.

All numbers are free together, each with a wide prior (``PRIOR``) around its value in the target's file. So two numbers
that the cases see only as a sum both keep a wide interval. A number is decided if its 95 % interval is within
``PRECISION`` and narrower than the interval that its sources leave. All others are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trnrt.nki.machine.overlays import is_rate
from trnrt.nki.machine.pace import Timing, with_value
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import compiled_issues, retimed_us
from trnrt.nki.machine.timing.issues import ENGINES, Issues

Clock = Literal["host", "device"]
Vector = NDArray[np.floating[Any]]

PRIOR = 0.3
"""Standard deviation of a number's logarithm before any measurement: published numbers were off by that much."""
PRECISION = 0.05
"""The largest half of a decided number's 95 % interval, as a share of its value."""
CONTRADICTION = 1.53
"""Three standard deviations, in halves of the 95 % interval: a value that is further off is contradicted."""
UNPUBLISHED = 0.25
"""Half of the interval that sources leave, for numbers without a published one."""
MODEL_ERROR = 0.003
"""The part of a prediction that its own simplifications may be off, at least; one standard deviation."""
TWO_SIDED = 1.96
STEP = 0.02
ROUNDS = 12
LONGEST = 4
"""How often the sensitivities are made, at most: usually twice."""
AGAIN = 0.1
"""The sensitivities are made again after a number's logarithm moved by this much."""
_LARGEST_MOVE = 0.3
_HUBER = 2.0
_CONVERGED = 1e-3
REWEIGHTED = 5
"""How often a round weighs its residuals again."""

NAMES = (
    "benchmark_ns",
    "table_load_ns",
    "function_latency_ns",
    *(
        f"{engine}.{name}"
        for engine in ("vector", "scalar", "gpsimd", "tensor")
        for name in ("clock_ghz", "latency_ns", "signal_ns", "wait_ns")
    ),
    "sync.signal_ns",
    "sync.wait_ns",
    *(f"tensor.{name}" for name in ("gap_ns", "load_latency_ns", "strided_load_ns", "slow_latency_ns")),
    *(f"dma.{name}" for name in ("engine_gbps", "total_gbps", "packet_ns", "read_ns", "completion_ns")),
    *(f"dma.trigger_{way}_ns" for way in ("hardware", "software", "static")),
    *(f"dma.start_{way}_ns" for way in ("hardware", "software", "static")),
    *(f"dma.{name}" for name in ("row_software_ns", "prepare_software_ns", "load_start_ns")),
    *(f"dma.{name}" for name in ("load_skew_ns", "store_skew_ns", "transpose_share")),
)
"""The numbers that may be learned: those of the hardware. What the compiler chooses is none of them."""


@dataclass(frozen=True)
class Observation:
    """The measured time of a case. ``error_us``: its standard error. ``moved_bytes``: of arguments and results.

    ``report``: the number of its report: each has a host of its own.
    """

    case: str
    report: int
    us: float
    error_us: float
    clock: Clock = "host"
    moved_bytes: int = 0


@dataclass(frozen=True)
class Number:
    """A number of the timing model after the fit. ``half``: half of its 95 % interval, as a share of the value.

    ``least`` and ``most``: the interval that its sources leave. ``moves``: whether any case depends on it.
    """

    name: str
    before: float
    value: float
    half: float
    least: float
    most: float
    moves: bool

    @property
    def is_decided(self) -> bool:
        """True if the measurements say more about the number than its sources, or contradict its value."""
        sharper = self.high - self.low <= self.most - self.least
        contradicted = abs(math.log(self.value / self.before)) > CONTRADICTION * self.half
        return self.moves and self.half <= PRECISION and (sharper or contradicted)

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value * math.exp(-self.half)

    @property
    def high(self) -> float:
        """The upper end."""
        return self.value * math.exp(self.half)


@dataclass(frozen=True)
class Learned:
    """The result of a fit. ``timing``: the target's with the decided numbers; ``hosts``: for each report measured by
    the host's clock, the microseconds of a call that are not the device's, and those a MB."""

    numbers: tuple[Number, ...]
    timing: Timing
    hosts: dict[int, tuple[float, float]]
    scale: float

    @property
    def decided_numbers(self) -> tuple[Number, ...]:
        """The numbers that the measurements decide."""
        return tuple(number for number in self.numbers if number.is_decided)

    @property
    def left_numbers(self) -> tuple[Number, ...]:
        """The numbers that stay as they are."""
        return tuple(number for number in self.numbers if not number.is_decided)


@dataclass
class Predictions:
    """Predictions of cases with changed numbers; each is made once.

    ``program``: the traced program of a case, for the target whose own numbers are ``timing``.
    """

    timing: Timing
    program: Callable[[str], Program]
    _issues: dict[str, Issues] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[tuple[str, float], ...]], float] = field(default_factory=dict)
    _moved_by: dict[tuple[str, str], bool] = field(default_factory=dict)
    _own: dict[str, float] = field(default_factory=dict)

    def us(self, case: str, values: dict[str, float]) -> float:
        """Microseconds with these values of numbers; the others are the target's own."""
        mine = tuple((name, value) for name, value in sorted(values.items()) if self.depends(case, name))
        found = self._known.get((case, mine))
        if found is None:
            timing = self.timing
            for name, value in mine:
                timing = with_value(timing, name, value)
            found = self._known[case, mine] = retimed_us(self._issues_of(case), timing)
        return found

    def depends(self, case: str, name: str) -> bool:
        """Whether a case takes another time if a number makes the hardware twice as slow."""
        known = self._moved_by.get((case, name))
        if known is None:
            known = self._moved_by[case, name] = _is_used(self._issues_of(case), name) and self._is_moved(case, name)
        return known

    def _is_moved(self, case: str, name: str) -> bool:
        if case not in self._own:
            self._own[case] = retimed_us(self._issues_of(case), self.timing)
        slower = attrgetter(name)(self.timing) * (0.5 if is_rate(name) else 2.0)
        return retimed_us(self._issues_of(case), with_value(self.timing, name, slower)) != self._own[case]

    def _issues_of(self, case: str) -> Issues:
        if case not in self._issues:
            self._issues[case] = compiled_issues(self.program(case))
        return self._issues[case]


def _is_used(issues: Issues, name: str) -> bool:
    """False for a number of an engine or of descriptors that the program does not use."""
    part, _, last = name.partition(".")
    modes = {facts.start.mode for facts in issues.facts if facts.start is not None}
    foreign = any(way in last and way not in modes for way in ("hardware", "software", "static"))
    idle = part in ENGINES and part not in {stream.engine for stream in issues.streams}
    return not foreign and not idle


def learn(
    observations: Sequence[Observation], predictions: Predictions, tell: Callable[[], None] = lambda: None
) -> Learned:
    """Fit all numbers of the target to the observations. ``tell`` is called after each case's sensitivities."""
    names = [name for name in NAMES if attrgetter(name)(predictions.timing) > 0]
    own = np.array([float(attrgetter(name)(predictions.timing)) for name in names])
    measured = np.array([one.us for one in observations])
    hosts, columns = _host_columns(observations)
    moved: Vector = np.zeros(len(names))
    host: Vector = np.zeros(columns.shape[1])
    weights: Vector = np.ones(len(measured))
    precision: Vector = np.eye(0)
    scale = 1.0
    sensitivity: Vector = np.zeros((len(measured), len(names)))
    made_at: Vector = np.full(len(names), np.inf)
    errors_us, made = np.array([one.error_us for one in observations]), 0
    for turn in range(ROUNDS):
        values = own * np.exp(moved)
        predicted: Vector = np.array([predictions.us(one.case, _values_by_name(names, values)) for one in observations])
        if float(np.abs(moved - made_at).max(initial=0.0)) > AGAIN and made < LONGEST:
            made += 1
            sensitivity = _sensitivities(observations, predictions, _values_by_name(names, values), predicted, tell)
            made_at = moved
        matrix = np.hstack([sensitivity, columns])
        errors = np.hypot(errors_us, MODEL_ERROR * predicted)
        target = measured - predicted + sensitivity @ moved
        for _ in range(REWEIGHTED):
            precision, solved, scale = _solve(matrix / errors[:, None], target / errors, weights, len(names))
            rest = np.abs(target - matrix @ solved) / (errors * scale)
            weights = np.minimum(1.0, _HUBER / np.maximum(rest, 1e-9))
        step = np.clip(solved[: len(names)] - moved, -_LARGEST_MOVE, _LARGEST_MOVE)
        moved, host = moved + step, solved[len(names) :]
        if turn and float(np.abs(step).max(initial=0.0)) < _CONVERGED:
            break
    halves = TWO_SIDED * np.sqrt(np.diag(np.linalg.inv(precision)))[: len(names)]
    moves = np.abs(sensitivity).max(axis=0, initial=0.0) > 0
    numbers = tuple(
        _number(predictions.timing, name, *found)
        for name, *found in zip(names, own, own * np.exp(moved), halves, moves, strict=True)
    )
    timing = predictions.timing
    for number in numbers:
        timing = with_value(timing, number.name, number.value) if number.is_decided else timing
    shares = {report: (float(host[2 * k]), float(host[2 * k + 1])) for k, report in enumerate(hosts)}
    return Learned(numbers, timing, shares, scale)


def _host_columns(observations: Sequence[Observation]) -> tuple[list[int], Vector]:
    """The reports that the host's clock measured, and for each two columns: 1, and the MB that a call moves."""
    hosts = sorted({one.report for one in observations if one.clock == "host"})
    columns = np.zeros((len(observations), 2 * len(hosts)))
    for row, one in enumerate(observations):
        if one.clock == "host":
            place = 2 * hosts.index(one.report)
            columns[row, place : place + 2] = 1.0, one.moved_bytes / 1e6
    return hosts, columns


def _sensitivities(
    observations: Sequence[Observation],
    predictions: Predictions,
    now: dict[str, float],
    predicted: Vector,
    tell: Callable[[], None],
) -> Vector:
    """The derivatives of the predicted microseconds of each observation by the logarithm of each number."""
    sensitivity = np.zeros((len(observations), len(now)))
    for row, one in enumerate(observations):
        for column, (name, value) in enumerate(now.items()):
            if predictions.depends(one.case, name):
                more = predictions.us(one.case, now | {name: value * math.exp(STEP)})
                sensitivity[row, column] = (more - predicted[row]) / STEP
        tell()
    return sensitivity


def _values_by_name(names: Sequence[str], values: Vector) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def _solve(matrix: Vector, target: Vector, weights: Vector, free: int) -> tuple[Vector, Vector, float]:
    """The precision of the solution, the solution, and the usual size of a residual in standard errors, at least 1.

    The first ``free`` unknowns have the prior.
    """
    prior = np.diag([PRIOR**-2.0] * free + [1e-12] * (matrix.shape[1] - free))
    inner = matrix.T @ (weights[:, None] * matrix)
    solved = np.linalg.solve(inner + prior, matrix.T @ (weights * target))
    used = float(np.trace(np.linalg.solve(inner + prior, inner)))
    rest = np.abs(target - matrix @ solved)
    usual = 1.4826 * float(np.median(rest)) * math.sqrt(len(target) / max(1.0, len(target) - used))
    scale = max(1.0, usual)
    return inner / scale**2 + prior, solved, scale


def _number(timing: Timing, name: str, before: float, value: float, half: float, moves: bool) -> Number:
    ends = [float(before), *(float(end) for end in _published_ends(timing, name))]
    if len(ends) == 1:
        ends = [ends[0] * (1 - UNPUBLISHED), ends[0] * (1 + UNPUBLISHED)]
    return Number(name, float(before), float(value), float(half), min(ends), max(ends), bool(moves))


def _published_ends(timing: Timing, name: str) -> Iterable[float]:
    """The ends of the interval that the target's file gives for a number."""
    for one in timing.uncertain:
        for place, value in (*one.least, *one.most):
            if place == name and not isinstance(value, str):
                yield value
