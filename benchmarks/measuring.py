"""Compare two functions on a busy machine: run them in turns, and compare medians.

A machine that slows down for a second slows both, so the ratio of neighbouring runs stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Run = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One result. ``bar`` is the highest (or, with ``at_least``, the lowest) value that passes; None for no bar.

    ``value`` is None if it could not be measured; ``note`` says why, or gives the baseline.
    """

    case: str
    value: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """None without a bar or without a value."""
        if self.value is None or self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def seconds(run: Run) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turns(runs: Sequence[Run], rounds: int) -> list[list[float]]:
    """The seconds of each function, in turns, after one uncounted call of each."""
    for run in runs:
        run()
    taken: list[list[float]] = [[] for _ in runs]
    for number in range(rounds):
        order = list(enumerate(runs))
        for position, run in order if number % 2 == 0 else reversed(order):
            taken[position].append(seconds(run))
    return taken


def ratio(run: Run, yardstick: Run, rounds: int) -> tuple[float, float, float]:
    """The median of the rounds' ratios, and the median seconds of each of the two."""
    ours, theirs = in_turns([run, yardstick], rounds)
    return median(a / b for a, b in zip(ours, theirs, strict=True)), median(ours), median(theirs)
