"""The fit: free parameters of the timing model to the published whole kernels, and each author left out in turn.

A search by coordinates on a lattice of each parameter's range: from the priors, steps of both signs are tried for each
parameter in turn, and halved when none helps. So a parameter that nothing decides keeps its prior, also where all
measurements that would decide it are one author's, and left out. What was predicted at a point of the lattice is kept;
the searches share most of their ways. The error is a logarithm; large ones count linearly, so that one measurement
cannot pull all the others away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trnrt.bench.timing.cases import Case, predicted_us
from trnrt.bench.timing.published import CASES
from trnrt.bench.timing.table import Row, row
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.targets import get_target

LATTICE = 256  # points of a parameter's range
FIRST_STEP = 32
LINEAR_FROM = 0.05  # errors above count linearly

Point = tuple[int, ...]  # steps from the prior of each parameter
Predictor = Callable[[Case, Timing], float]


@dataclass(frozen=True)
class Parameter:
    """A number of the timing model that the whole kernels decide: the same for all of ``targets``.

    ``name`` is its place in ``Timing`` ("dma.packet_ns"); ``prior`` what is known of it otherwise; ``low`` and
    ``high`` are what is physically plausible. All three are above 0.
    """

    targets: tuple[str, ...]
    name: str
    low: float
    high: float
    prior: float


FREE: tuple[Parameter, ...] = (
    Parameter(("trn1",), "dma.packet_ns", 4, 150, prior=8),  # as trn2's, which was measured
    # As a hardware trigger of trn2, 517 to 613 ns at 1.2 GHz: no static one was published.
    Parameter(("trn1", "trn2"), "dma.trigger_static_cycles", 64, 2000, prior=678),
    Parameter(("trn2",), "dma.trigger_hardware_ns", 517, 613, prior=565),  # what was published of it
    Parameter(("trn2",), "dma.total_gbps", 150, 435, prior=368),  # nki-dma-bandwidth-guide.rst: 16 engines of 23 GB/s
)


@dataclass(frozen=True)
class Fitted:
    """A free parameter, the value in the data files and the fitted one."""

    parameter: Parameter
    before: float
    after: float


@dataclass(frozen=True)
class Fit:
    """The fitted values, the table with them, and the table in which each row comes from a fit without its author."""

    values: tuple[Fitted, ...]
    rows: tuple[Row, ...]
    left_out: tuple[Row, ...]


def value_of(timing: Timing, name: str) -> float:
    """A number of the model by its name."""
    found: Any = timing
    for part in name.split("."):
        found = getattr(found, part)
    return float(found)


def with_value(timing: Any, name: str, value: float) -> Any:
    """``timing`` (or a part of it) with another number in the place that ``name`` says."""
    head, _, rest = name.partition(".")
    return replace(timing, **{head: with_value(getattr(timing, head), rest, value) if rest else value})


def value_at(parameter: Parameter, steps: int) -> float:
    """The value so many steps of the lattice from the prior, within the bounds."""
    moved = parameter.prior * math.exp(math.log(parameter.high / parameter.low) * steps / LATTICE)
    return min(max(moved, parameter.low), parameter.high)


def _short_us(case: Case, timing: Timing) -> float:
    return predicted_us(case, timing, short=True)


@dataclass
class Model:
    """Predictions at points of the lattice; a point is computed once for each target."""

    parameters: Sequence[Parameter] = FREE
    cases: Sequence[Case] = CASES
    predict: Predictor = _short_us
    timings: Mapping[str, Timing] = field(default_factory=dict)
    _known: dict[tuple[str, Point], dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {case.target for case in self.cases}
        self.timings = {name: self.timings.get(name) or get_target(name).timing for name in sorted(names)}

    def fitted(self, parameter: Parameter, steps: int) -> Fitted:
        """The parameter in the data files, and so many steps from its prior."""
        present = value_of(get_target(parameter.targets[0]).timing, parameter.name)
        return Fitted(parameter, present, value_at(parameter, steps))

    def timing(self, target: str, point: Point) -> Timing:
        """The target's numbers at a point."""
        timing = self.timings[target]
        for parameter, steps in zip(self.parameters, point, strict=True):
            if target in parameter.targets:
                timing = with_value(timing, parameter.name, value_at(parameter, steps))
        return timing

    def predictions(self, point: Point) -> dict[str, float]:
        """Case id -> microseconds."""
        found: dict[str, float] = {}
        for target in self.timings:
            mine = tuple(n if target in p.targets else 0 for p, n in zip(self.parameters, point, strict=True))
            if (target, mine) not in self._known:
                timing = self.timing(target, mine)
                cases = [case for case in self.cases if case.target == target]
                self._known[target, mine] = {case.id: self.predict(case, timing) for case in cases}
            found |= self._known[target, mine]
        return found

    def loss(self, point: Point, without: str | None = None) -> float:
        """What the errors of all cases but one author's amount to."""
        predicted = self.predictions(point)
        kept = [(case, predicted[case.id]) for case in self.cases if case.author != without]
        errors = [math.log(found / case.nearest_us(found)) for case, found in kept]
        return sum(math.sqrt(1 + (error / LINEAR_FROM) ** 2) - 1 for error in errors)


def search(loss: Callable[[Point], float], start: Point) -> Point:
    """The best point of the lattice that steps along the coordinates lead to."""
    point, least, step = start, loss(start), FIRST_STEP
    while step:
        moved = False
        for index in range(len(point)):
            for steps in (step, -step):
                near = (*point[:index], point[index] + steps, *point[index + 1 :])
                found = loss(near)
                if found < least:
                    point, least, moved = near, found, True
                    break
        if not moved:
            step //= 2
    return point


def fit(model: Model) -> Fit:
    """Fit all, then all but one author's in turn; each from the priors."""
    start = (0,) * len(model.parameters)
    best = search(model.loss, start)
    fitted = model.predictions(best)
    rows = tuple(row(case, fitted[case.id]) for case in model.cases)
    without = {author: _without(model, author, start) for author in sorted({case.author for case in model.cases})}
    left_out = tuple(row(case, without[case.author][case.id]) for case in model.cases)
    return Fit(tuple(map(model.fitted, model.parameters, best)), rows, left_out)


def _without(model: Model, author: str, start: Point) -> dict[str, float]:
    """The predictions from the fit to what all others measured."""
    return model.predictions(search(lambda near: model.loss(near, without=author), start))
