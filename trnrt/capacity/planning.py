"""The whole answer: the question, the candidates, the chosen one, and the instances for its cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from trnrt.capacity.assumptions import Host
from trnrt.capacity.choosing import Candidate, Demand, best, candidates, curve
from trnrt.capacity.instances import Fleet, Instance, fleets
from trnrt.capacity.prices import Prices, usd_per_million
from trnrt.capacity.queueing import Waiting
from trnrt.capacity.workers import Served
from trnrt.nki.machine.timing import Range


@dataclass(frozen=True)
class Question:
    """The demand, the model, and what is known and assumed.

    ``serve``: the words of the command line that serves the model, without workers and batch. ``ranges``: the ranges
    of latencies by bucket (``served`` has the headlines); empty if unknown. ``prices``: of instances; with some, the
    cheapest plan is chosen.
    """

    model: str
    target: str
    dtype: str
    serve: Sequence[str]
    demand: Demand
    host: Host
    served: Served
    ranges: Mapping[int, Range] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """The choice if the device takes one end of every range; ``chosen`` and ``fleets`` are as in Answer."""

    name: Literal["low", "high"]
    predicted_us: Mapping[int, float]
    chosen: Candidate | None
    fleets: Sequence[Fleet]


@dataclass(frozen=True)
class Answer:
    """``chosen`` is None if no request can be answered in time. ``fleets``: the best comes first.

    ``curve``: one core's latencies with the chosen limit, by rate. ``ends``: the choices for the low and the high end
    of the predicted ranges; empty if no range is known.
    """

    question: Question
    candidates: Sequence[Candidate]
    chosen: Candidate | None
    fleets: Sequence[Fleet]
    curve: Sequence[tuple[float, Waiting]]
    ends: Sequence[End] = ()

    @property
    def least_us(self) -> float:
        """The shortest possible time of a request."""
        return min(candidate.worker.alone_us for candidate in self.candidates)

    def usd_per_million(self, fleet: Fleet) -> float | None:
        """The cost of a million requests at the asked rate; None without a price."""
        cost = fleet.usd_per_hour
        return None if cost is None else usd_per_million(cost, self.question.demand.rps)


def answer(question: Question, limits: Iterable[int], known: Iterable[Instance]) -> Answer:
    """Compare the batch limits, and count the instances of these types. If there are prices, one type must have one."""
    sizes, types = list(limits), list(known)
    found = candidates(question.served, sizes, question.demand, question.host)
    chosen = _choose(question, found, types)
    shape = [] if chosen is None else curve(chosen.worker, question.demand.burst)
    return Answer(question, found, chosen, _fleets(question, chosen, types), shape, _ends(question, sizes, types))


def _ends(question: Question, limits: Sequence[int], known: Sequence[Instance]) -> list[End]:
    """The answers for the low and the high end of the predicted ranges."""
    if not question.ranges:
        return []
    low = {size: found.least_us for size, found in question.ranges.items()}
    high = {size: found.most_us for size, found in question.ranges.items()}
    return [_end(question, "low", low, limits, known), _end(question, "high", high, limits, known)]


def _end(
    question: Question,
    name: Literal["low", "high"],
    predicted_us: Mapping[int, float],
    limits: Sequence[int],
    known: Sequence[Instance],
) -> End:
    served = replace(question.served, predicted_us=predicted_us)
    chosen = _choose(question, candidates(served, limits, question.demand, question.host), known)
    return End(name, predicted_us, chosen, _fleets(question, chosen, known))


def _choose(question: Question, found: Sequence[Candidate], known: Sequence[Instance]) -> Candidate | None:
    """The best candidate: with prices the one whose instances cost least."""

    def usd_per_hour(candidate: Candidate) -> float:
        cost = _fleets(question, candidate, known)[0].usd_per_hour
        assert cost is not None, "there is no price for any of the types: see check_priced"
        return cost

    return best(found, usd_per_hour if question.prices else None)


def _fleets(question: Question, chosen: Candidate | None, known: Sequence[Instance]) -> list[Fleet]:
    """The fleets for the chosen cores, the best first."""
    if chosen is None or chosen.waiting is None:
        return []
    demand = question.demand
    cpu_s = demand.rps * question.served.cpu_us(demand.rows, chosen.waiting.batch, question.host) / 1e6
    hourly = {name: price.usd_per_hour for name, price in question.prices.items()}
    return fleets(known, chosen.cores, cpu_s, demand.utilisation, hourly)
