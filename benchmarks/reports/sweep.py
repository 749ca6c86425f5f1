"""Every number of a target changed alone, and three decided ones together: what a fit of the reports finds again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from benchmarks.reports.rehearsal import HOST, Host, made_up_report, predictions
from trnrt.calibration.learning import NAMES, Learned, learn
from trnrt.calibration.reports import probed_observations, report_of

FACTORS = (0.75, 1.3)
TOGETHER = 3
BAR = 0.05


@dataclass(frozen=True)
class Found:
    """The result of a fit after ``changes`` (factors by name). ``errors``: fitted over true, less 1, of changed numbers
    that it decided; ``left``: changed ones that it left. ``others``: the largest such error of the other numbers that
    it decided."""

    changes: Mapping[str, float]
    errors: Mapping[str, float]
    left: tuple[str, ...]
    others: float

    @property
    def has_passed(self) -> bool:
        """True if all that is decided is within BAR of the truth."""
        return max([self.others, *map(abs, self.errors.values())]) <= BAR


def find_again(target: str, changes: Mapping[str, float], seed: int, host: Host | None = HOST) -> tuple[Found, Learned]:
    """Fit a made-up report with these changes."""
    report = report_of(made_up_report(target, changes, seed, host), str(seed), f"rehearsal {seed}")
    learned = learn(probed_observations([report]), predictions(target))
    off = {one.name: one.value / (one.before * changes.get(one.name, 1.0)) - 1 for one in learned.decided_numbers}
    errors = {name: off[name] for name in changes if name in off}
    others = max((abs(error) for name, error in off.items() if name not in changes), default=0.0)
    return Found(changes, errors, tuple(name for name in changes if name not in off), others), learned


def sweep(target: str, triples: int, tell: Callable[[], None]) -> Iterator[Found]:
    """Each number alone at both FACTORS; then ``triples`` random threes of those that were decided alone."""
    timing = predictions(target).timing
    decided: dict[str, list[float]] = {}
    for seed, name in enumerate(name for name in NAMES if attrgetter(name)(timing) > 0):
        for k, factor in enumerate(FACTORS):
            found, _ = find_again(target, {name: factor}, 2 * seed + k)
            if not found.left:
                decided.setdefault(name, []).append(factor)
            yield found
        tell()
    draw = random.Random(0)
    for seed in range(triples):
        changes = {name: draw.choice(decided[name]) for name in draw.sample(sorted(decided), TOGETHER)}
        yield find_again(target, changes, 1000 + seed)[0]
        tell()
