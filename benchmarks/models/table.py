"""The rows: each network's predicted time, the hardware's least time, and AWS's measurements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from benchmarks.comparing import Figure, Verdict, ratio, verdict, worst
from benchmarks.documented import Bound
from benchmarks.models.bounds import Outline, Work, outline, work_of
from benchmarks.models.host_part import HostFit, Latency, fit_host
from benchmarks.models.networks import NETWORKS, Network, light_networks
from trnrt.errors import OptionError
from trnrt.nki.machine.timing import Range
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.session import InferenceSession

LIGHT_DTYPES = ("float32", "bfloat16")
ELEMENT_BYTES = 4
"""Bytes per element of the models' inputs and outputs on the host: float32, whatever dtype the device computes in."""


@dataclass(frozen=True)
class Published:
    """AWS's figures for a batch, and the bars: ``target_us``, and ``most_bounds`` times the physical bound.

    ``measured`` is the table's figure, end to end or from a throughput; no ratio uses it. ``device`` is that less the
    host's part, ``residual_us`` the row's residual in the fit; both are None for a throughput.
    """

    measured: Figure
    target_us: float
    most_bounds: float | None = None
    device: Figure | None = None
    residual_us: float | None = None


@dataclass(frozen=True)
class Bar:
    """The highest allowed prediction, and whether it is met: see ``benchmarks.comparing.verdict``."""

    kind: Literal["bound", "own target"]
    most_us: float
    verdict: Verdict


@dataclass(frozen=True)
class Row:
    """One prediction. ``published`` is None if nothing is published; then there is no bar, either. ``choices`` are
    those found by the planner's search."""

    model: str
    target: str
    dtype: str
    batch: int
    predicted: Range
    work: Work
    published: Published | None
    choices: Choices = DEFAULT

    @property
    def predicted_us(self) -> float:
        """The headline, which bars and ratios use."""
        return self.predicted.us

    @property
    def bound(self) -> Bound:
        """The hardware's least time, at documented rates."""
        return self.work.bound(self.target, self.dtype)

    @property
    def device_ratio(self) -> float | None:
        """The prediction over AWS's latency less the host's part; None if there is no such figure."""
        return None if self.published is None else ratio(self.predicted_us, self.published.device)

    @property
    def bars(self) -> tuple[Bar, ...]:
        """The limits of the prediction."""
        if self.published is None:
            return ()
        bars = [self._bar("own target", self.published.target_us)]
        if self.published.most_bounds is not None:
            bars.insert(0, self._bar("bound", self.published.most_bounds * self.bound.us))
        return tuple(bars)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of all bars; None without bars."""
        return worst(bar.verdict for bar in self.bars)

    @property
    def host_bytes(self) -> tuple[int, int]:
        """The bytes that the host sends to the device and receives back."""
        return self.work.inputs * ELEMENT_BYTES, self.work.outputs * ELEMENT_BYTES

    def _bar(self, kind: Literal["bound", "own target"], most_us: float) -> Bar:
        return Bar(kind, most_us, verdict(self.predicted_us <= most_us))


@cache
def _document() -> dict[str, Any]:
    text = (files("benchmarks.models") / "published.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def latencies() -> tuple[Latency, ...]:
    """AWS's batch-1 rows, the data for the fit of the host's part."""
    rows = _document()["latency"]["rows"]
    return tuple(
        Latency(one["model"], one["value"] * 1e3, 2 * one["weights"] / 1e6, 2 * one["multiplications"] / 1e9)
        for one in rows
    )


@cache
def host_fit() -> HostFit:
    """The host's part of AWS's latencies, fitted to all rows."""
    return fit_host(latencies())


@cache
def published() -> dict[tuple[str, str, str, int], Published]:
    """(model, target, dtype, batch) -> AWS's measurement, from ``published.json``. A throughput is converted to one
    core's time for its batch."""
    document = _document()
    latency, throughput, source = document["latency"], document["throughput"], document["source"]
    fitted, found = host_fit(), {}
    for one in latency["rows"]:
        measured = Figure(one["value"] * 1e3, "end to end", "host", source)
        device = Figure(measured.us - fitted.constant_us, "less host", "host", source)
        residual = fitted.residuals[one["model"]]
        bars = Published(measured, one["target_us"], latency["most_bounds"], device, residual)
        found[one["model"], document["target"], document["dtype"], latency["batch"]] = bars
    for one in throughput["rows"]:
        us = throughput["batch"] * throughput["cores"] / one["value"] * 1e6
        bars = Published(Figure(us, "throughput", "host", source), one["target_us"])
        found[one["model"], document["target"], document["dtype"], throughput["batch"]] = bars
    return found


def networks() -> tuple[Network, ...]:
    """All networks, in the table's order."""
    return (*NETWORKS, *light_networks())


def named(names: Sequence[str]) -> tuple[Network, ...]:
    """The networks with these names, or all if none are given. Raises OptionError for an unknown name."""
    known = {network.name: network for network in networks()}
    for name in names:
        if name not in known:
            raise OptionError(f"there is no network {name!r}", hint=f"there are {', '.join(known)}")
    return tuple(network for name, network in known.items() if name in names or not names)


def kinds(network: Network) -> list[tuple[str, int]]:
    """The (dtype, batch) of a network's rows, on any target."""
    wanted = {(dtype, batch) for model, _, dtype, batch in published() if model == network.name}
    return sorted(wanted) or [(dtype, 1) for dtype in LIGHT_DTYPES]


class Model:
    """A network as a session's argument, built once for all its rows."""

    def __init__(self, network: Network) -> None:
        model = network.build()
        self.network = network
        self._outline: Outline = outline(model)
        self._content: bytes = model.SerializeToString()

    def rows(self, target: str, found: Mapping[tuple[str, int], Choices] | None = None) -> Iterator[Row]:
        """The network's rows on a target. Raises the session's error for a model that can't be planned.

        ``found``: the choices of an earlier search, by dtype and batch; if given, no search runs.
        """
        name = self.network.name
        session = InferenceSession(self._content, target=target, backend="simulator", cache=False, effort=1)
        for dtype, batch in kinds(self.network):
            one = session.with_options(replace(session.options, dtype=dtype))
            if found is not None:
                one = one.with_options(replace(one.options, choices=found[dtype, batch], effort=0))
            partition = one.partition(batch, cached=True)
            known = published().get((name, target, dtype, batch))
            work = work_of(self._outline, batch)
            predicted = one.latency(batch, partition)
            yield Row(name, target, dtype, batch, predicted, work, known, partition.choices)
