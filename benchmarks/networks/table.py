"""The rows: each network's prediction at a batch, the hardware's least time, and where its critical path goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files

import onnx

from benchmarks.baseline.networks import BY_NAME
from benchmarks.baseline.yolo import yolov8n
from benchmarks.documented import Bound, guide_rates, rates
from benchmarks.models.bounds import Outline, Work, list_products, outline, work_of
from benchmarks.networks.floor import floor_us
from trnrt.errors import OptionError
from trnrt.nki.breakdown import Holder, holders_of
from trnrt.nki.machine.timing import Range, add_ranges
from trnrt.running.profiler import profile_plan
from trnrt.session import InferenceSession

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": BY_NAME["resnet18"].build,
    "resnet50": BY_NAME["resnet50"].build,
    "vgg16": BY_NAME["vgg16"].build,
    "unet": BY_NAME["unet"].build,
    "convnext_tiny": BY_NAME["convnext_tiny"].build,
    "mobilenet_v2": BY_NAME["mobilenet_v2"].build,
    "efficientnet_b0": BY_NAME["efficientnet_b0"].build,
    "yolov8n": partial(yolov8n, "N"),
}
BATCHES = (1, 2, 4, 8)

BARS_TARGET, BARS_DTYPE = "trn2", "bfloat16"
"""The rows that have bars."""
BY_BOUND = ("resnet18", "resnet50", "vgg16", "unet")
"""Networks whose bars are multiples of the bound: products and weights are most of their work."""
MOST_AT_ONE, MOST_AT_BEST = 1.45, 1.4
"""The most multiples of the bound of ``BY_BOUND``, at batch 1 and at the batch with the most images a second."""
LEFT = 0.75
"""The bar of the others at batch 1: this share of what the kernels of 1e68255 take (``benchmarks/baseline``), as fixed
costs and the vector engine count there, which no physical bound has."""


@dataclass(frozen=True)
class Row:
    """A network at a batch, on one core. ``instructions``: of its kernels, unrolled. ``held``: the parts of its
    critical path, which add up to the headline, the longest first. ``shared``: the prediction for two physical cores as
    one, if it was asked for. ``floor_us``: the least time that the timing model allows (``floor.py``)."""

    network: str
    target: str
    dtype: str
    batch: int
    predicted: Range
    work: Work
    instructions: int
    kernels: int
    held: tuple[Holder, ...]
    shared: Range | None = None
    floor_us: float = 0.0

    @property
    def scaling(self) -> Range | None:
        """The time of one core over that of two, by the headlines and by either end."""
        return None if self.shared is None else _quotient(self.predicted, self.shared)

    @property
    def least_time(self) -> Bound:
        """The least time with the bandwidth that AWS's guide gives a DMA engine: the bars are multiples of this."""
        return self.work.bound(self.target, self.dtype, guide_rates(self.target))

    @property
    def theoretical_time(self) -> Bound:
        """The least time with the highest documented bandwidth of an engine."""
        return self.work.bound(self.target, self.dtype, rates(self.target))

    @property
    def bound_ratio(self) -> Range:
        """The prediction as a multiple of the bound."""
        found, least = self.predicted, self.least_time.us
        return Range(found.least_us / least, found.us / least, found.most_us / least)

    @property
    def floor_ratio(self) -> float:
        """The floor as a multiple of the bound."""
        return self.floor_us / self.least_time.us

    @property
    def images_per_second(self) -> float:
        """Of one core, by the headline."""
        return self.batch / self.predicted.us * 1e6


@dataclass(frozen=True)
class Bar:
    """A network's bar: the most that is allowed, the ``value`` that is predicted, and the ``floor`` below which no plan
    can be predicted; multiples of the bound or microseconds."""

    network: str
    what: str
    batch: int
    value: float
    most: float
    floor: float = 0.0

    @property
    def meets_bar(self) -> bool:
        return self.value <= self.most


def measure(
    target: str,
    dtype: str,
    names: Sequence[str],
    batches: Sequence[int],
    effort: int,
    done: Callable[[int], None],
    lnc: int = 1,
) -> Iterator[Row]:
    """The rows of the networks called ``names``; ``done`` is called with 1 after each. With ``lnc`` 2 also for two
    cores as one.

    Raises OptionError for an invalid option, and the session's errors for a model that can't be planned.
    """
    for name in names:
        model = NETWORKS[name]()
        outlined = outline(model)
        content = model.SerializeToString()
        session = InferenceSession(content, target=target, dtype=dtype, backend="simulator", cache=False, effort=effort)
        sharing = session.with_options(replace(session.options, lnc=lnc)) if lnc > 1 else None
        for batch in batches:
            row = _row(name, session, outlined, batch)
            yield row if sharing is None else replace(row, shared=sharing.latency(batch))
            done(1)


def choose_networks(names: Sequence[str]) -> tuple[str, ...]:
    """The networks to measure, all if none is named. Raises OptionError for an unknown name."""
    for name in names:
        if name not in NETWORKS:
            raise OptionError(f"no network is called {name!r}", hint=f"there are {', '.join(NETWORKS)}")
    return tuple(names or NETWORKS)


def _row(name: str, session: InferenceSession, outlined: Outline, batch: int) -> Row:
    work = work_of(outlined, batch)
    partition = session.partition(batch)
    profiles = [profile_plan(plan) for plan in partition.plans]
    return Row(
        network=name,
        target=session.target,
        dtype=session.dtype,
        batch=batch,
        predicted=add_ranges((one.benchmark for one in profiles), partition.crossings_us),
        work=work,
        instructions=sum(plan.size.unrolled for plan in partition.plans),
        kernels=len(partition.plans),
        held=holders_of(profile.timeline for profile in profiles),
        floor_us=floor_us(list_products(outlined, batch), work, session.target, session.dtype),
    )


def _quotient(one: Range, other: Range) -> Range:
    """Each number of a range over the same one of another; the ends in order."""
    ends = one.least_us / other.least_us, one.most_us / other.most_us
    return Range(min(ends), one.us / other.us, max(ends))


def best_of(rows: Sequence[Row]) -> Row:
    """The row with the most images a second."""
    return max(rows, key=lambda row: row.images_per_second)


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """The bars of all networks for which there are rows of the bars' target and dtype.

    A network without a row of batch 1 has no bar at batch 1; one with fewer than two batches has none at the best.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (row.target, row.dtype) == (BARS_TARGET, BARS_DTYPE):
            found.setdefault(row.network, []).append(row)
    return [bar for network, own in found.items() for bar in _bars_of_network(network, own)]


def _bars_of_network(network: str, rows: Sequence[Row]) -> Iterator[Bar]:
    first = next((row for row in rows if row.batch == 1), None)
    if network not in BY_BOUND:
        if first is not None:
            most = LEFT * baseline_us()[network]
            yield Bar(network, "us of 1e68255's kernels", 1, first.predicted.us, most, first.floor_us)
        return
    if first is not None:
        yield Bar(network, "x bound at batch 1", 1, first.bound_ratio.us, MOST_AT_ONE, first.floor_ratio)
    if len(rows) > 1:
        best = best_of(rows)
        what = "x bound at the best batch"
        yield Bar(network, what, best.batch, best.bound_ratio.us, MOST_AT_BEST, best.floor_ratio)


@cache
def baseline_us() -> dict[str, float]:
    """Network -> the headline of 1e68255's kernels under the present model, of the bars' target and dtype, batch 1."""
    table = json.loads((files("benchmarks.baseline") / "table.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in table["rows"] if (row["target"], row["dtype"]) == (BARS_TARGET, BARS_DTYPE)}
    return {name: float(rows[name]["headline_us"]) for name in NETWORKS}
