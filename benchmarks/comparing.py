"""Which figures a prediction may be compared with. Each published figure declares its kind; most kinds allow no ratio.

A ratio compares our kernel with another one. So the other figure must be the time of a kernel that does the same work,
on the device alone, by the same clock. End-to-end latencies, throughputs that the host may limit, a course's grading
limits and our own targets are shown, but never divided by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["measured kernel", "less host", "end to end", "throughput", "course limit", "own target"]
Clock = Literal["benchmark", "profiler", "host"]
Verdict = Literal["pass", "missed"]

RATIO_KINDS: frozenset[Kind] = frozenset({"measured kernel", "less host"})
"""The kinds that allow a ratio: the device's time of the same work."""


@dataclass(frozen=True)
class Figure:
    """A published or required time in microseconds, with its clock and its source."""

    us: float
    kind: Kind
    clock: Clock
    source: str


def ratio(predicted_us: float, figure: Figure | None) -> float | None:
    """The prediction over the figure; None if the figure's kind allows no ratio. Both must use the same clock."""
    if figure is None or figure.kind not in RATIO_KINDS:
        return None
    return predicted_us / figure.us


def verdict(reached: bool) -> Verdict:
    """A bar's verdict: ``reached`` says if the prediction's headline meets it."""
    return "pass" if reached else "missed"


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The combined verdict of several bars; None without bars."""
    found = set(verdicts)
    order: tuple[Verdict, ...] = ("missed", "pass")
    return next((one for one in order if one in found), None)
