"""Learn the timing model's numbers from measured cases: a least-squares fit that says which ones it can decide.

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
AGAIN, SETTLED = 0.1, 0.03
"""The sensitivities are made again after a number's logarithm moved by so much, on the way and for the intervals."""
_LARGEST_MOVE = 0.3
_HUBER = 2.0
_USUAL = 1.4826  # standard deviations in the median size of normal residuals
_NO_PRIOR = 1e-12
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
    search = _Search(observations, predictions, tell)
    search.run()
    moves = np.abs(search.sensitivity).max(axis=0, initial=0.0) > 0
    values, halves = search.own * np.exp(search.moved), search.find_halves()
    numbers = tuple(
        _number(predictions.timing, name, *found)
        for name, *found in zip(search.names, search.own, values, halves, moves, strict=True)
    )
    timing = predictions.timing
    for number in numbers:
        timing = with_value(timing, number.name, number.value) if number.is_decided else timing
    host = search.host
    shares = {report: (float(host[2 * k]), float(host[2 * k + 1])) for k, report in enumerate(search.hosts)}
    return Learned(numbers, timing, shares, search.scale)


class _Search:
    """The search for the numbers with the least residuals. ``moved``: the logarithms of their values over ``own``, the
    target's. ``sensitivity``: of the predictions to these, as it was at ``made_at``; it is made again only after
    larger moves, as it takes most of the time."""

    def __init__(self, observations: Sequence[Observation], predictions: Predictions, tell: Callable[[], None]) -> None:
        self.observations, self.predictions, self.tell = observations, predictions, tell
        self.names = [name for name in NAMES if attrgetter(name)(predictions.timing) > 0]
        self.own: Vector = np.array([float(attrgetter(name)(predictions.timing)) for name in self.names])
        self.measured: Vector = np.array([one.us for one in observations])
        self.errors_us: Vector = np.array([one.error_us for one in observations])
        self.hosts, self.columns = _host_columns(observations)
        self.moved: Vector = np.zeros(len(self.names))
        self.host: Vector = np.zeros(self.columns.shape[1])
        self.weights: Vector = np.ones(len(observations))
        self.scale = 1.0
        self.sensitivity: Vector = np.zeros((len(observations), len(self.names)))
        self.made_at: Vector = np.full(len(self.names), np.inf)

    def run(self) -> None:
        """Move until the steps are small."""
        made = 0
        for turn in range(ROUNDS):
            predicted = self._predict()
            if made < LONGEST and self._distance() > AGAIN:
                made += 1
                self._make_sensitivity(predicted)
            step = np.clip(self._solve(predicted) - self.moved, -_LARGEST_MOVE, _LARGEST_MOVE)
            self.moved = self.moved + step
            if turn and float(np.abs(step).max(initial=0.0)) < _CONVERGED:
                break

    def find_halves(self) -> Vector:
        """The halves of the numbers' 95 % intervals, by the sensitivities where the search ended: a number that decided
        the times elsewhere may do so no more."""
        predicted = self._predict()
        if self._distance() > SETTLED:
            self._make_sensitivity(predicted)
        matrix = self._matrix() / self._errors(predicted)[:, None]
        precision = self._precision(matrix.T @ (self.weights[:, None] * matrix))
        halves: Vector = TWO_SIDED * np.sqrt(np.diag(np.linalg.inv(precision)))[: len(self.names)]
        return halves

    def _solve(self, predicted: Vector) -> Vector:
        """Where the numbers would fit best if all were linear; sets the host's part, the weights and the scale."""
        errors, target = self._errors(predicted), self.measured - predicted + self.sensitivity @ self.moved
        matrix, solved = self._matrix() / errors[:, None], np.zeros(0)
        target = target / errors
        for _ in range(REWEIGHTED):
            inner = matrix.T @ (self.weights[:, None] * matrix)
            whole = self._precision(inner) * self.scale**2
            solved = np.linalg.solve(whole, matrix.T @ (self.weights * target))
            rest = np.abs(target - matrix @ solved)
            used = float(np.trace(np.linalg.solve(whole, inner)))
            spread = math.sqrt(len(target) / max(1.0, len(target) - used))
            self.scale = max(1.0, _USUAL * float(np.median(rest)) * spread)
            self.weights = np.minimum(1.0, _HUBER * self.scale / np.maximum(rest, 1e-9))
        self.host = solved[len(self.names) :]
        return solved[: len(self.names)]

    def _precision(self, inner: Vector) -> Vector:
        """The precision of all unknowns: by the observations (``inner``, in standard errors), and the prior."""
        free, others = len(self.names), self.columns.shape[1]
        return inner / self.scale**2 + np.diag([PRIOR**-2.0] * free + [_NO_PRIOR] * others)

    def _matrix(self) -> Vector:
        return np.hstack([self.sensitivity, self.columns])

    def _errors(self, predicted: Vector) -> Vector:
        errors: Vector = np.hypot(self.errors_us, MODEL_ERROR * predicted)
        return errors

    def _distance(self) -> float:
        return float(np.abs(self.moved - self.made_at).max(initial=0.0))

    def _values(self) -> dict[str, float]:
        return dict(zip(self.names, map(float, self.own * np.exp(self.moved)), strict=True))

    def _predict(self) -> Vector:
        values = self._values()
        return np.array([self.predictions.us(one.case, values) for one in self.observations])

    def _make_sensitivity(self, predicted: Vector) -> None:
        """The derivatives of the predicted microseconds of each observation by the logarithm of each number."""
        now, self.made_at = self._values(), self.moved
        self.sensitivity = np.zeros((len(self.observations), len(now)))
        for row, one in enumerate(self.observations):
            for column, (name, value) in enumerate(now.items()):
                if self.predictions.depends(one.case, name):
                    more = self.predictions.us(one.case, now | {name: value * math.exp(STEP)})
                    self.sensitivity[row, column] = (more - predicted[row]) / STEP
            self.tell()


def _host_columns(observations: Sequence[Observation]) -> tuple[list[int], Vector]:
    """The reports that the host's clock measured, and for each two columns: 1, and the MB that a call moves."""
    hosts = sorted({one.report for one in observations if one.clock == "host"})
    columns = np.zeros((len(observations), 2 * len(hosts)))
    for row, one in enumerate(observations):
        if one.clock == "host":
            place = 2 * hosts.index(one.report)
            columns[row, place : place + 2] = 1.0, one.moved_bytes / 1e6
    return hosts, columns


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
