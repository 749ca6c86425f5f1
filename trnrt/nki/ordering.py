"""Which of two kernels is faster, and how sure the model is of that.

Two predictions of one target share their uncertain numbers: if its DMA starts take longer, they do so for both kernels.
So ranges that overlap don't mean that the order is open. Both kernels are timed with each uncertain number at its ends,
one number at a time, and with all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trnrt.nki.machine.timing import Cause, Range
from trnrt.nki.profiling import Profile

TIE = 0.03
"""Kernels whose headlines differ by less are a tie: repetitions of one kernel differ by as much."""


class Certainty(StrEnum):
    """The certainty of an order."""

    TIE = "tie"  # the headlines are closer than TIE
    CERTAIN = "certain"  # the ranges don't overlap
    LIKELY = "likely"  # they overlap, but the order is the same at both ends of every uncertain number
    OPEN = "open"  # some uncertain number, or all together, turn the order round


@dataclass(frozen=True)
class Pair:
    """Two predictions with an uncertain number at an end: the time of each kernel, in microseconds."""

    cause: str
    first_us: float
    second_us: float


@dataclass(frozen=True)
class Order:
    """The order of two kernels. ``ratio``: the second's headline over the first's.

    ``overlap``: their ranges have a time in common. ``common``: the uncertain numbers that move both, the one that
    moves them most first. ``turned``: where the order is another than that of the headlines.
    """

    certainty: Certainty
    first: Range
    second: Range
    overlap: bool
    common: tuple[str, ...]
    turned: tuple[Pair, ...]

    @property
    def ratio(self) -> float:
        return self.second.us / self.first.us


def order_ranges(first: Range, second: Range) -> Certainty:
    """The order by the ranges alone, without a look at their causes."""
    if _is_tie(first, second):
        return Certainty.TIE
    if not overlap(first, second):
        return Certainty.CERTAIN
    same = (first.us < second.us) == (first.least_us < second.least_us) == (first.most_us < second.most_us)
    return Certainty.LIKELY if same else Certainty.OPEN


def order_profiles(first: Profile, second: Profile) -> Order:
    """The order of two profiles on one target, by a benchmark's figure. Times both a few times more."""
    return order_causes(first.benchmark, second.benchmark, first.causes, second.causes)


def order_causes(
    one: Range, other: Range, first_causes: Sequence[Cause] = (), second_causes: Sequence[Cause] = ()
) -> Order:
    """The order of two ranges, given what makes each of them wide."""
    causes = {cause.name: cause for cause in first_causes}, {cause.name: cause for cause in second_causes}
    common = sorted(causes[0].keys() & causes[1].keys(), key=lambda name: -_widest(causes[0][name], causes[1][name]))
    pairs = [Pair("all uncertain numbers at their best", one.least_us, other.least_us)]
    pairs.append(Pair("all at their worst in program order", one.most_us, other.most_us))
    for name in dict.fromkeys([*causes[0], *causes[1]]):
        a, b = (found[name].range if name in found else None for found in causes)
        for end in ("least_us", "most_us"):
            pairs.append(Pair(name, getattr(a or one, end if a else "us"), getattr(b or other, end if b else "us")))
    turned = tuple(pair for pair in pairs if (pair.first_us < pair.second_us) != (one.us < other.us))
    meets = overlap(one, other)
    certainty = Certainty.OPEN if turned else Certainty.LIKELY
    if _is_tie(one, other):
        certainty = Certainty.TIE
    elif not meets:
        certainty = Certainty.CERTAIN
    return Order(certainty, one, other, meets, tuple(common), turned)


def overlap(first: Range, second: Range) -> bool:
    """True if two ranges have a time in common."""
    return first.least_us <= second.most_us and second.least_us <= first.most_us


def _is_tie(first: Range, second: Range) -> bool:
    return max(first.us, second.us) < min(first.us, second.us) * (1 + TIE)


def _widest(first: Cause, second: Cause) -> float:
    return min(first.range.ratio, second.range.ratio)
