"""A case of a lab: a kernel, its arguments, what was published or demanded of it, and what its numbers must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trnrt.nki import Profile, Spec, profile
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.targets import get_target

Clock = Literal["benchmark", "profiler"]
Array = NDArray[Any]

LARGE = 20e9  # FLOP: a fleet case above must also reach FLEET_SHARE
FLEET_SHARE = 0.75
FLEET_FACTOR = 1.35


@dataclass(frozen=True)
class Tolerance:
    """How near to the reference: |difference| <= atol + rtol * |reference|."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """One line of the table.

    ``flops`` are the useful ones of matrix products, ``hbm_bytes`` the least that must be moved. ``bar_us`` is the most
    that the predicted time may be, ``share_bar`` the least share of peak; ``factor`` demands so many times the physical
    bound, ``against`` the predicted time of another kernel on the same arguments. ``reference`` computes the result (or
    a tuple of them) from the inputs in float64, for ``--check``.
    """

    name: str
    target: str
    dtype: str
    clock: Clock
    kernel: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    reference: Callable[..., Any]
    flops: float = 0.0
    hbm_bytes: int = 0
    published_us: float | None = None
    bar_us: float | None = None
    share_bar: float | None = None
    factor: float | None = None
    against: Callable[..., Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[np.random.Generator, Sequence[tuple[int, ...]]], list[Array]] | None = None
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(1e-4, 1e-4))

    def specs(self) -> list[Spec]:
        """The kernel's tensor arguments."""
        return [Spec(shape, self.dtype) for shape in self.shapes]

    def predict(self) -> Profile:
        """The kernel's profile."""
        return profile(self.kernel, *self.specs(), target=self.target, **self.options)


@dataclass(frozen=True)
class Row:
    """A case with its prediction. ``bound_us`` is what the tensor engine or HBM would need, with the fixed cost;
    ``theirs_us`` what the model predicts for the published kernel, where its structure is known.
    """

    case: str
    target: str
    dtype: str
    clock: Clock
    predicted_us: float
    published_us: float | None
    bar_us: float | None
    bound_us: float
    peak_share: float
    share_bar: float | None
    theirs_us: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the prediction is within its bars."""
        fast = self.bar_us is None or self.predicted_us <= self.bar_us
        return fast and (self.share_bar is None or self.peak_share >= self.share_bar)


def tensor_us(case: Case, timing: Timing) -> float:
    """What the tensor engine needs for the case's FLOP at a column a cycle (four in float32)."""
    rate = 2 * 128 * 128 * timing.tensor.clock_ghz * 1e3 / (4 if case.dtype == "float32" else 1)
    return case.flops / rate


def row(case: Case) -> Row:
    """Predict a case."""
    found, timing = case.predict(), get_target(case.target).timing
    benchmark = case.clock == "benchmark"
    predicted = found.benchmark_us if benchmark else found.profiler_us
    fixed = (timing.benchmark_ns if benchmark else timing.head_ns + timing.tail_ns) / 1000
    tensor, memory = tensor_us(case, timing), case.hbm_bytes / timing.dma.total_gbps / 1000
    bound = max(tensor, memory) + fixed
    theirs = _theirs(case)
    bars = [bar for bar in (case.bar_us, case.factor and case.factor * bound, theirs) if bar is not None]
    return Row(
        case=case.name,
        target=case.target,
        dtype=case.dtype,
        clock=case.clock,
        predicted_us=predicted,
        published_us=case.published_us,
        bar_us=min(bars) if bars else None,
        bound_us=bound,
        peak_share=(tensor if case.flops else memory) / predicted,
        share_bar=case.share_bar,
        theirs_us=theirs,
    )


def _theirs(case: Case) -> float | None:
    """The predicted time of the kernel that the case's is to be ahead of."""
    if case.against is None:
        return None
    found = profile(case.against, *case.specs(), target=case.target)
    return found.benchmark_us if case.clock == "benchmark" else found.profiler_us
