"""The rows: what each network is predicted to take, beside what the hardware needs at least and what AWS measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from trnrt.bench.models.bounds import Outline, Work, outline, work_of
from trnrt.bench.models.networks import NETWORKS, Network, light_networks
from trnrt.errors import OptionError
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.session import InferenceSession

LIGHT_DTYPES = ("float32", "bfloat16")
ELEMENT_BYTES = 4
"""Of the models' inputs and outputs as a host has them: float32, whatever they are computed in."""


@dataclass(frozen=True)
class Published:
    """AWS's time for a batch, and the bars: the most that a prediction may be of it, and of the physical bound."""

    us: float
    most_ratio: float
    most_bounds: float | None


@dataclass(frozen=True)
class Row:
    """One prediction. ``published`` is None where nothing is; then there is no bar, either. ``choices`` are what the
    planner's search has found."""

    model: str
    target: str
    dtype: str
    batch: int
    predicted_us: float
    work: Work
    published: Published | None
    choices: Choices = DEFAULT

    @property
    def bound_us(self) -> float:
        """What the hardware needs at least: see ``Work.bound_us``."""
        return self.work.bound_us(self.target, self.dtype)

    @property
    def published_us(self) -> float | None:
        return None if self.published is None else self.published.us

    @property
    def ratio(self) -> float | None:
        """The predicted time over the published one, of a batch."""
        return None if self.published is None else self.predicted_us / self.published.us

    @property
    def bar_us(self) -> float | None:
        """The most that the prediction may be."""
        if self.published is None:
            return None
        bar = self.published.most_ratio * self.published.us
        return bar if self.published.most_bounds is None else min(bar, self.published.most_bounds * self.bound_us)

    @property
    def passed(self) -> bool | None:
        """None where there is no bar."""
        return None if self.bar_us is None else self.predicted_us <= self.bar_us

    @property
    def host_bytes(self) -> tuple[int, int]:
        """What the host sends to the device, and gets back."""
        return self.work.inputs * ELEMENT_BYTES, self.work.outputs * ELEMENT_BYTES


@cache
def published() -> dict[tuple[str, str, str, int], Published]:
    """(model, target, dtype, batch) -> what AWS measured, from ``published.json``.

    A throughput becomes the time that one core takes for its batch; a bar on it becomes the inverse ratio of times.
    """
    text = (files("trnrt.bench.models") / "published.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    latency, throughput = document["latency"], document["throughput"]
    found = {}
    for one in latency["rows"]:
        bars = Published(one["value"] * 1e3, one["most_ratio"], one["most_bounds"])
        found[one["model"], document["target"], document["dtype"], latency["batch"]] = bars
    for one in throughput["rows"]:
        us = throughput["batch"] * throughput["cores"] / one["value"] * 1e6
        bars = Published(us, 1 / one["least_speedup"], None)
        found[one["model"], document["target"], document["dtype"], throughput["batch"]] = bars
    return found


def networks() -> tuple[Network, ...]:
    """All networks, in the table's order."""
    return (*NETWORKS, *light_networks())


def named(names: Sequence[str]) -> tuple[Network, ...]:
    """The networks of these names, all where there are none. OptionError for a name that no network has."""
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
    """A network as a session takes it, built once for all its rows."""

    def __init__(self, network: Network) -> None:
        model = network.build()
        self.network = network
        self._outline: Outline = outline(model)
        self._content: bytes = model.SerializeToString()

    def rows(self, target: str, found: Mapping[tuple[str, int], Choices] | None = None) -> Iterator[Row]:
        """The network's rows on a target. Raises what a session raises for a model that can't be planned.

        ``found``: by dtype and batch what a search has found before; where it is given nothing is searched for.
        """
        name = self.network.name
        session = InferenceSession(self._content, target=target, backend="simulator", cache=False, effort=1)
        for dtype, batch in kinds(self.network):
            one = session.in_dtype(dtype)
            if found is not None:
                one = one.choosing(found[dtype, batch], 0)
            partition = one.planned_for(batch)
            known = published().get((name, target, dtype, batch))
            work = work_of(self._outline, batch)
            yield Row(name, target, dtype, batch, one.predicted(partition), work, known, partition.choices)
