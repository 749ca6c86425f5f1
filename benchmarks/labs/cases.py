"""A case of a lab: a kernel, its arguments, measured and required times, and a reference for its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparing import Clock, Figure, Verdict, ratio, verdict
from benchmarks.documented import rates
from benchmarks.labs.bars import Bar, bar_of
from benchmarks.labs.floors import Floor, floor_of
from trnrt.calibration.cases import Clock as DeviceClock
from trnrt.calibration.cases import figure_us
from trnrt.nki import Spec, trace
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.timing import Prediction, Range, Timeline, predict, schedule_freely

Array = NDArray[Any]

LARGE = 20e9  # FLOP: a fleet case above must also reach FLEET_SHARE
FLEET_SHARE = 0.75
FLEET_FACTOR = 1.35


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference from the reference: |difference| <= atol + rtol * |reference|."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """One line of the table.

    ``flops`` counts the useful ones of matrix products, ``hbm_bytes`` the least traffic; ``run``, ``taps``: see
    ``floor_of``.
    ``clock`` is that of the prediction and of its bars. ``measured`` are times of kernels that do the same work on the
    same arguments, each by its own clock; ``limit_us`` is a course's limit for full credit.

    Our targets: ``target_us`` is the highest allowed predicted time, ``share_target`` the least share of peak,
    ``factor`` a highest multiple of the physical bound; ``against`` compares with the predicted time of another kernel
    on the same arguments. ``reference`` computes the result (or a tuple of them) from the inputs in float64, for
    ``--check``.
    """

    name: str
    target: str
    dtype: str
    clock: DeviceClock
    kernel: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    reference: Callable[..., Any]
    flops: float = 0.0
    hbm_bytes: int = 0
    run: int = 0
    taps: int = 0
    measured: tuple[Figure, ...] = ()
    limit_us: float | None = None
    target_us: float | None = None
    share_target: float | None = None
    factor: float | None = None
    against: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[np.random.Generator, Sequence[tuple[int, ...]]], list[Array]] | None = None
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(1e-4, 1e-4))

    def specs(self) -> list[Spec]:
        """The kernel's tensor arguments."""
        return [Spec(shape, self.dtype) for shape in self.shapes]


def measured(us: float, clock: Clock, source: str) -> Figure:
    """A published measurement of a kernel on a case's shape."""
    return Figure(us, "measured kernel", clock, source)


@dataclass(frozen=True)
class Compared:
    """A figure, our prediction by its clock, and the ratio; None if the figure's kind allows no ratio."""

    figure: Figure
    predicted_us: float
    ratio: float | None


@dataclass(frozen=True)
class Held:
    """A bar, what is predicted by its clock, the longest time that it allows, and the floor by that clock.
    ``least``: the least that can be predicted, which is the floor at the timing model's own bandwidth."""

    bar: Bar
    predicted_us: float
    most_us: float
    floor_us: float
    least: Floor

    @property
    def verdict(self) -> Verdict:
        """The verdict by the headline."""
        return verdict(self.predicted_us <= self.most_us)

    @property
    def reachable(self) -> bool:
        """False if the bar is below the least: no kernel meets it under this model."""
        return self.most_us >= self.least.us


@dataclass(frozen=True)
class Row:
    """A case with its prediction. ``bound_us`` is the tensor engine's or HBM's time at documented rates, with the fixed
    cost; ``theirs_us`` the prediction for the published kernel, if its structure is known; ``target_us`` the lowest of
    our targets. ``compared`` are the measured kernels, the fastest first. ``low_us`` and ``high_us`` are the ends of
    the prediction's range; bars, ratios and shares use its headline. ``verdict`` is that of the limit and all targets.
    ``floor``: the least that the timing model allows, by the row's clock. ``held``: the bar beside these, if there is
    one, by its own clock.
    """

    case: str
    target: str
    dtype: str
    clock: DeviceClock
    predicted_us: float
    low_us: float
    high_us: float
    compared: tuple[Compared, ...]
    limit_us: float | None
    target_us: float | None
    bound_us: float
    peak_share: float
    share_target: float | None
    theirs_us: float | None
    verdict: Verdict
    floor: Floor
    held: Held | None

    @property
    def over_floor(self) -> float:
        """The prediction over the floor."""
        return self.predicted_us / self.floor.us

    @property
    def fastest(self) -> Figure | None:
        """The fastest measured kernel."""
        return min((one.figure for one in self.compared), key=lambda figure: figure.us, default=None)

    @property
    def compared_with(self) -> str:
        """The kind of the figure in the row's ratio."""
        return self.compared[0].figure.kind if self.ratio is not None else "no comparison"

    @property
    def ratio(self) -> float | None:
        """The prediction over the fastest measured kernel, by that one's clock."""
        return self.compared[0].ratio if self.compared else None


@dataclass(frozen=True)
class Times:
    """A case and the kernel that it must beat; ``share`` is the share of peak."""

    ours: Range
    theirs_us: float | None
    bound_us: float
    share: float

    def target_us(self, case: Case) -> float | None:
        """The lowest of the case's targets."""
        multiple = None if case.factor is None else case.factor * self.bound_us
        return min((one for one in (case.target_us, multiple, self.theirs_us) if one is not None), default=None)

    def reach(self, case: Case) -> bool:
        """True if the limit and every target is met."""
        fast = all(one is None or self.ours.us <= one for one in (case.limit_us, self.target_us(case)))
        return fast and (case.share_target is None or self.share >= case.share_target)


def tensor_us(case: Case, timing: Timing) -> float:
    """The tensor engine's time for the case's FLOP at a column per cycle (four cycles in float32)."""
    rate = 2 * 128 * 128 * timing.tensor.clock_ghz * 1e3 / (4 if case.dtype == "float32" else 1)
    return case.flops / rate


def case_floor(case: Case, clock: DeviceClock, gbps: float | None = None) -> Floor:
    """The floor of a case by a clock; ``gbps``: at another rate of the DMA engines than the documented one."""
    return floor_of(case.target, case.dtype, clock, case.flops, case.hbm_bytes, case.run, gbps, case.taps)


def row(case: Case) -> Row:
    """Predict a case."""
    program = trace(case.kernel, *case.specs(), target=case.target, **case.options)
    theirs = None if case.against is None else trace(case.against, *case.specs(), target=case.target)
    found = predict(program)
    times = _times(case, found, None if theirs is None else schedule_freely(theirs))
    return Row(
        case=case.name,
        target=case.target,
        dtype=case.dtype,
        clock=case.clock,
        predicted_us=times.ours.us,
        low_us=times.ours.least_us,
        high_us=times.ours.most_us,
        compared=_compare_kernels(case, found),
        limit_us=case.limit_us,
        target_us=times.target_us(case),
        bound_us=times.bound_us,
        peak_share=times.share,
        share_target=case.share_target,
        theirs_us=times.theirs_us,
        verdict=verdict(times.reach(case)),
        floor=case_floor(case, case.clock),
        held=_judge(case, found),
    )


def _judge(case: Case, found: Prediction) -> Held | None:
    """The case's bar beside its own limits."""
    bar = bar_of(case.name, case.target, case.dtype)
    if bar is None:
        return None
    floor_us = case_floor(case, bar.clock).us
    predicted_us = figure_us(bar.clock, found.timeline)
    least = case_floor(case, bar.clock, found.timing.dma.total_gbps)
    return Held(bar, predicted_us, bar.most_us(tensor_us(case, found.timing), floor_us), floor_us, least)


def _times(case: Case, found: Prediction, theirs: Timeline | None) -> Times:
    timing = found.timing
    ours = found.benchmark if case.clock == "benchmark" else found.profiler
    theirs_us = None if theirs is None else figure_us(case.clock, theirs)
    fixed = (timing.benchmark_ns if case.clock == "benchmark" else timing.head_ns + timing.tail_ns) / 1000
    tensor, memory = tensor_us(case, timing), case.hbm_bytes / rates(case.target).gbps / 1000
    share = (tensor if case.flops else memory) / ours.us
    return Times(ours, theirs_us, max(tensor, memory) + fixed, share)


def _compare_kernels(case: Case, prediction: Prediction) -> tuple[Compared, ...]:
    """The case's measured kernels, the one with the worst ratio first."""
    found = []
    for figure in case.measured:
        if figure.clock == "host":
            raise ValueError(f"{case.name}: a kernel's time by the host's clock is no device time")
        predicted = figure_us(figure.clock, prediction.timeline)
        found.append(Compared(figure, predicted, ratio(predicted, figure)))
    return tuple(sorted(found, key=lambda one: -(one.ratio or 0)))
