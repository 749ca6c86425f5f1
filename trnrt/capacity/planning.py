"""The whole answer: what was asked, each limit of a batch, the chosen one, and the instances that hold its cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trnrt.capacity.assumptions import Host
from trnrt.capacity.choosing import Candidate, Demand, best, candidates, curve
from trnrt.capacity.instances import Fleet, Instance, fleets
from trnrt.capacity.queueing import Waiting
from trnrt.capacity.workers import Served


@dataclass(frozen=True)
class Question:
    """What is asked for, of which model, and what is known and assumed.

    ``serve`` are the words of the command line that serves the model so, all but those for the workers and the batch.
    """

    model: str
    target: str
    dtype: str
    serve: Sequence[str]
    demand: Demand
    host: Host
    served: Served


@dataclass(frozen=True)
class Answer:
    """``chosen`` is None where no request can be answered in time. ``fleets``: the best is the first.

    ``curve`` has what requests see of one core with the chosen limit, by rate.
    """

    question: Question
    candidates: Sequence[Candidate]
    chosen: Candidate | None
    fleets: Sequence[Fleet]
    curve: Sequence[tuple[float, Waiting]]

    @property
    def least_us(self) -> float:
        """What a request takes at least."""
        return min(candidate.worker.alone_us for candidate in self.candidates)


def answer(question: Question, limits: Iterable[int], known: Iterable[Instance]) -> Answer:
    """Weigh the limits of a batch, and count the instances of these types."""
    demand = question.demand
    found = candidates(question.served, limits, demand, question.host)
    chosen = best(found)
    if chosen is None or chosen.waiting is None:
        return Answer(question, found, None, [], [])
    cpu_s = demand.rps * question.served.cpu_us(demand.rows, chosen.waiting.batch, question.host) / 1e6
    counted = fleets(known, chosen.cores, cpu_s, demand.utilisation)
    return Answer(question, found, chosen, counted, curve(chosen.worker, demand.burst))
