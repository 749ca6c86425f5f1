"""The fit of the timing model's free numbers and choices to the published whole kernels, with each author left out.

A search by coordinates: from the priors, it tries steps of both signs for each number in turn (on a lattice of its
range), and halves the step when none helps; of a choice it tries all values. So a number that no measurement decides
keeps its prior, also if all measurements that would decide it are by the author who is left out. Predictions are kept,
as the searches share most of their points; a case's key has only numbers that matter to it. The error is a logarithm.
The larger it is, the less a further error counts, so that unexplained kernels do not pull all the others away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from trnrt.calibration import convolutions
from trnrt.calibration.cases import Case, Row, predicted_range, predicted_us, row
from trnrt.calibration.published import CASES
from trnrt.nki.machine.pace import Timing, with_value
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range

LATTICE = 256  # points of a number's range
FIRST_STEP = 32
USUAL = 0.05  # from about twice this error on, further error counts less

Point = tuple[int, ...]  # for each parameter, steps from its prior; for a choice, the index of its value
Predictor = Callable[[Case, Timing], float]
Ranger = Callable[[Case, Timing], Range]


def _any(_case: Case) -> bool:
    return True


@dataclass(frozen=True)
class Parameter:
    """A number of the timing model that is fitted to the whole kernels: the same for all of ``targets``.

    ``name``: its place in ``Timing`` ("dma.packet_ns"). ``prior``: its value from other sources; ``low`` and ``high``:
    its physically plausible range. All three are above 0. ``matters``: whether a case depends on it.
    """

    targets: tuple[str, ...]
    name: str
    low: float
    high: float
    prior: float
    matters: Callable[[Case], bool] = _any

    def value_at(self, steps: int) -> float:
        """The value that is ``steps`` of the lattice from the prior, within the bounds."""
        moved = self.prior * math.exp(math.log(self.high / self.low) * steps / LATTICE)
        return min(max(moved, self.low), self.high)

    def neighbours(self, steps: int, step: int) -> Iterator[int]:
        """The places at one step of both signs, if they have another value."""
        for moved in (steps + step, steps - step):
            if self.value_at(moved) != self.value_at(steps):
                yield moved


@dataclass(frozen=True)
class Choice:
    """An assumption about the compiler, one of ``values``; the first is the default without measurements."""

    targets: tuple[str, ...]
    name: str
    values: tuple[Any, ...]
    matters: Callable[[Case], bool] = _any

    @property
    def prior(self) -> Any:
        """The value if no measurement decides."""
        return self.values[0]

    def value_at(self, steps: int) -> Any:
        """The value at an index."""
        return self.values[steps]

    def neighbours(self, steps: int, step: int) -> Iterator[int]:
        """All other indices."""
        return (other for other in range(len(self.values)) if other != steps)


def _reads_strided_weights(case: Case) -> bool:
    return case.kernel is convolutions.convolve_rows and "fp32" in case.id


def _has_descriptors(mode: str) -> Callable[[Case], bool]:
    return lambda case: bool(case.facts["mode"] == mode)


_BOTH = ("trn1", "trn2")
FREE: tuple[Parameter | Choice, ...] = (
    Choice(_BOTH, "order", ("program", "free")),
    Choice(_BOTH, "places", (2, 3, 4, 6, 8, 12)),
    Choice(_BOTH, "dma.static_stores", ("gpsimd", "sync", "scalar"), _has_descriptors("static")),
    Choice(("trn2",), "tensor.hidden_stride_bytes", (1 << 30, 16), _reads_strided_weights),
    Parameter(("trn1",), "tensor.gap_ns", 2, 45, prior=23),  # trainium_inferentia2_arch.rst: 64 cycles to start
    Parameter(("trn2",), "dma.total_gbps", 200, 435, prior=368),  # nki-dma-bandwidth-guide.rst: 16 engines of 23 GB/s
    # The software's time for transfers of one row, if 128 rows take 583 ns.
    Parameter(("trn2",), "dma.row_software_ns", 0.05, 4, prior=0.1, matters=_has_descriptors("software")),
    Parameter(
        ("trn2",), "tensor.strided_load_ns", 20, 107, prior=53.3, matters=_reads_strided_weights
    ),  # a cycle a column
)


@dataclass(frozen=True)
class Fitted:
    """A free parameter or choice, the value in the data files and the fitted one."""

    parameter: Parameter | Choice
    before: Any
    after: Any


@dataclass(frozen=True)
class Fit:
    """The fitted values, the table with them, and the table in which each row comes from a fit without its author.

    ``without``: author -> the values of that fit.
    """

    values: tuple[Fitted, ...]
    rows: tuple[Row, ...]
    left_out: tuple[Row, ...]
    without: Mapping[str, tuple[Fitted, ...]] = field(default_factory=dict)


def _short_us(case: Case, timing: Timing) -> float:
    return predicted_us(case, timing, short=True)


def _short_range(case: Case, timing: Timing) -> Range:
    return predicted_range(case, timing, short=True)


@dataclass
class Model:
    """Predictions at points of the lattice; each is computed once."""

    parameters: Sequence[Parameter | Choice] = FREE
    cases: Sequence[Case] = CASES
    predict: Predictor = _short_us
    range: Ranger = _short_range
    timings: Mapping[str, Timing] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[Any, ...]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {case.target for case in self.cases}
        self.timings = {name: self.timings.get(name) or get_target(name).timing for name in sorted(names)}

    def fitted_value(self, parameter: Parameter | Choice, steps: int) -> Fitted:
        """The parameter in the data files, and at a place of the lattice."""
        present = attrgetter(parameter.name)(get_target(parameter.targets[0]).timing)
        return Fitted(parameter, present, parameter.value_at(steps))

    def timing(self, target: str, point: Point) -> Timing:
        """The target's numbers at a point."""
        timing = self.timings[target]
        for parameter, steps in zip(self.parameters, point, strict=True):
            if target in parameter.targets:
                timing = with_value(timing, parameter.name, parameter.value_at(steps))
        return timing

    def predicted_us(self, case: Case, point: Point) -> float:
        """Microseconds."""
        mine = tuple(
            p.value_at(n) if case.target in p.targets and p.matters(case) else None
            for p, n in zip(self.parameters, point, strict=True)
        )
        found = self._known.get((case.id, mine))
        if found is None:
            found = self._known[case.id, mine] = self.predict(case, self.timing(case.target, point))
        return found

    def row(self, case: Case, point: Point) -> Row:
        """The case's line of a table at a point, with its range."""
        return row(case, self.range(case, self.timing(case.target, point)))

    def loss(self, point: Point, without: Collection[str] = ()) -> float:
        """The total error of all cases except those with the ids ``without``."""
        kept = [(case, self.predicted_us(case, point)) for case in self.cases if case.id not in without]
        errors = [math.log(found / case.nearest_us(found)) for case, found in kept]
        return sum(math.log1p((error / USUAL) ** 2) for error in errors)

    def best(self, without: Collection[str] = ()) -> Point:
        """The point with the smallest total error of all cases except those with the ids ``without``."""
        return search(self.parameters, lambda point: self.loss(point, without))


def search(parameters: Sequence[Parameter | Choice], loss: Callable[[Point], float]) -> Point:
    """The best point that steps along the coordinates find from the priors."""
    point: Point = (0,) * len(parameters)
    least, step = loss(point), FIRST_STEP
    while step:
        moved = False
        for index, parameter in enumerate(parameters):
            for place in tuple(parameter.neighbours(point[index], step)):
                near = (*point[:index], place, *point[index + 1 :])
                found = loss(near)
                if found < least:
                    point, least, moved = near, found, True
        if not moved:
            step //= 2
    return point


def fit(model: Model) -> Fit:
    """Fit all cases, then all except one author's in turn; each from the priors."""
    best = model.best()
    rows = tuple(model.row(case, best) for case in model.cases)
    cases_of = {author: [c.id for c in model.cases if c.author == author] for author in {c.author for c in model.cases}}
    without = {author: model.best(ids) for author, ids in sorted(cases_of.items())}
    left_out = tuple(model.row(case, without[case.author]) for case in model.cases)

    def values(point: Point) -> tuple[Fitted, ...]:
        return tuple(map(model.fitted_value, model.parameters, point))

    return Fit(values(best), rows, left_out, {author: values(point) for author, point in without.items()})
