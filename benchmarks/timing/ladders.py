"""Does the model put kernels in the right order? Spearman's rank correlation on the published ladders.

A ladder is one computation in several versions, timed by one clock. All of its steps are left out of the fit before the
model ranks them, and so are other figures of the same kernels. A fit takes minutes, so ``ladders.json`` keeps the
results; ``python -m benchmarks.timing --ladders`` makes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import correlation, mean
from typing import Any

from trnrt.calibration.cases import Case
from trnrt.calibration.fit import Model
from trnrt.calibration.published import CASES

KEPT = Path(__file__).with_name("ladders.json")

TIE = 0.03
"""Steps whose times differ by less are ties: published repetitions of a kernel differ by as much (2.5 to 5.7 %)."""

BAR = 0.9


@dataclass(frozen=True)
class Ladder:
    """``steps``: the ids of its cases. ``beside``: figures of the same kernels, which the fit must not see either."""

    name: str
    steps: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def hidden_ids(self) -> frozenset[str]:
        """The ids of the cases that the fit must not see."""
        return frozenset((*self.steps, *self.beside))


LADDERS = (
    Ladder(
        "additions of 25,600 elements, trn2",
        ("add-rows-1", "add-rows-128", "add-stream-2", "add-stream-200"),
    ),
    Ladder(
        "additions of 25,600 elements, trn1",
        ("add-rows-1-trn1", "add-rows-128-trn1", "add-stream-2-trn1", "add-stream-200-trn1"),
    ),
    Ladder("additions of 256,000 elements, trn2", ("add-stream-2000", "add-stream-1000")),
    Ladder(
        "additions of 256,000 elements, trn1",
        ("add-stream-2000-trn1", "add-stream-1000-trn1"),
        ("add-stream-1000-trn1-benchmark",),
    ),
    Ladder(
        "bf16 products, trn1",
        tuple(f"matmul-ladder-{step}-trn1" for step in range(1, 7)),
        ("matmul-best-trn1",),
    ),
    Ladder(
        "fp32 products, trn2",
        ("matmul-tiled-trn2", "matmul-hoisted-trn2", "matmul-columns-trn2", "matmul-blocked-trn2"),
    ),
    Ladder(
        "convolutions of 224 x 224, trn2",
        (
            "conv-rows-fp32",
            "conv-rows-fp32-pool",
            "conv-rows-fp16",
            "conv-rows-fp16-pool",
            "conv-blocks-fp16",
            "conv-blocks-fp16-pool",
        ),
    ),
)


@dataclass(frozen=True)
class Ranking:
    """A ladder's published and predicted times, in microseconds, in the order of its steps.

    ``predicted_us`` are those of a fit without the ladder, whose numbers are ``values``; ``shipped_us`` those of the
    data files, whose fit saw the ladder.
    """

    ladder: str
    steps: tuple[str, ...]
    published_us: tuple[float, ...]
    predicted_us: tuple[float, ...]
    shipped_us: tuple[float, ...]
    values: Mapping[str, Any]

    @property
    def spearman(self) -> float:
        """The rank correlation of the fit without the ladder."""
        return spearman(self.published_us, self.predicted_us)

    @property
    def shipped_spearman(self) -> float:
        """The rank correlation of the data files."""
        return spearman(self.published_us, self.shipped_us)

    @property
    def pairs(self) -> tuple[int, int]:
        """Of the pairs of steps that the publication tells apart, those in the right order without the ladder; and all
        of them."""
        published = ranks(self.published_us)
        apart = [(i, j) for i, j in combinations(range(len(published)), 2) if published[i] != published[j]]
        right = sum((published[i] < published[j]) == (self.predicted_us[i] < self.predicted_us[j]) for i, j in apart)
        return right, len(apart)

    @property
    def meets_bar(self) -> bool:
        """True if the rank correlation without the ladder is at least ``BAR``."""
        return self.spearman >= BAR

    @property
    def document(self) -> dict[str, Any]:
        """The ranking as JSON."""
        right, apart = self.pairs
        found = {"spearman": self.spearman, "shipped_spearman": self.shipped_spearman, "passed": self.meets_bar}
        return asdict(self) | found | {"pairs_in_order": right, "pairs": apart}


def ranks(times: Sequence[float], tie: float = TIE) -> list[float]:
    """The ranks from 1. In sorted order, a time less than ``tie`` above the one before it is a tie with that one."""
    order = sorted(range(len(times)), key=lambda index: times[index])
    groups: list[list[int]] = [order[:1]]
    for before, index in pairwise(order):
        if times[index] < times[before] * (1 + tie):
            groups[-1].append(index)
        else:
            groups.append([index])
    found, first = [0.0] * len(times), 1
    for group in groups:
        for index in group:
            found[index] = first + (len(group) - 1) / 2
        first += len(group)
    return found


def spearman(published: Sequence[float], predicted: Sequence[float], tie: float = TIE) -> float:
    """Spearman's rank correlation, with times closer than ``tie`` as ties.

    0 if all of one are ties but not of the other; 1 if all of both are.
    """
    one, other = ranks(published, tie), ranks(predicted, tie)
    flat = [len(set(found)) == 1 for found in (one, other)]
    if any(flat):
        return float(all(flat))
    return correlation(one, other)


def rank_ladders(
    model: Model, ladders: Sequence[Ladder] = LADDERS, advance: Callable[[int], None] = lambda count: None
) -> tuple[Ranking, ...]:
    """Fit without each ladder in turn, and rank its steps by that fit. One model keeps what the fits share."""
    cases = {case.id: case for case in model.cases}
    found = []
    for ladder in ladders:
        found.append(_rank(model, ladder, cases))
        advance(1)
    return tuple(found)


def _rank(model: Model, ladder: Ladder, cases: Mapping[str, Case]) -> Ranking:
    point = model.best(ladder.hidden_ids)
    steps = [cases[name] for name in ladder.steps]
    return Ranking(
        ladder.name,
        ladder.steps,
        tuple(mean(case.values_us) for case in steps),
        tuple(model.predicted_us(case, point) for case in steps),
        tuple(model.predict(case, model.timings[case.target]) for case in steps),
        {parameter.name: parameter.value_at(n) for parameter, n in zip(model.parameters, point, strict=True)},
    )


def keep_rankings(found: Sequence[Ranking], path: Path = KEPT) -> None:
    """Write the rankings for ``read_rankings``."""
    path.write_text(json.dumps([asdict(ranking) for ranking in found], indent=1) + "\n", encoding="utf-8")


def read_rankings(path: Path = KEPT) -> tuple[Ranking, ...]:
    """The rankings of the last fit."""
    lists = ("steps", "published_us", "predicted_us", "shipped_us")
    entries = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Ranking(**entry | {name: tuple(entry[name]) for name in lists}) for entry in entries)


def check_ladders(ladders: Sequence[Ladder] = LADDERS, cases: Sequence[Case] = CASES) -> None:
    """ValueError if a step is no case, or the steps of a ladder are of different targets or clocks."""
    known = {case.id: case for case in cases}
    for ladder in ladders:
        missing = ladder.hidden_ids - known.keys()
        if missing:
            raise ValueError(f"{ladder.name}: {', '.join(sorted(missing))} is no case")
        if len({(known[step].target, known[step].clock) for step in ladder.steps}) != 1:
            raise ValueError(f"{ladder.name}: its steps have several targets or clocks")
