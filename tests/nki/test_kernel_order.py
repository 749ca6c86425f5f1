"""The order of two kernels: ties, ranges that overlap or not, and uncertain numbers that both share."""

from __future__ import annotations

import pytest

from trnrt.nki.machine.timing import Cause, Range
from trnrt.nki.ordering import Certainty, order_causes, order_ranges, overlap


def cause(name: str, least: float, us: float, most: float) -> Cause:
    return Cause(name, Range(least, us, most), "", "")


@pytest.mark.parametrize(
    ("first", "second", "certainty"),
    [
        ((9, 10, 11), (9, 10.2, 11), Certainty.TIE),
        ((10, 10, 10), (10.2, 10.2, 10.2), Certainty.TIE),  # although the ranges don't overlap
        ((9, 10, 11), (12, 13, 14), Certainty.CERTAIN),
        ((12, 13, 14), (9, 10, 11), Certainty.CERTAIN),
        ((9, 10, 12), (11, 13, 14), Certainty.LIKELY),
        ((9, 10, 15), (10, 13, 14), Certainty.OPEN),  # the most has another order
        ((9, 10, 12), (8, 13, 14), Certainty.OPEN),  # the least has
    ],
)
def test_orders_by_ranges_alone(first: tuple[float, ...], second: tuple[float, ...], certainty: Certainty) -> None:
    assert order_ranges(Range(*first), Range(*second)) is certainty
    assert order_causes(Range(*first), Range(*second)).certainty is certainty


def test_ranges_that_touch_overlap() -> None:
    assert overlap(Range(1, 2, 3), Range(3, 4, 5)) and overlap(Range(3, 4, 5), Range(1, 2, 3))
    assert not overlap(Range(1, 2, 3), Range(3.1, 4, 5))


def test_a_number_that_moves_both_alike_leaves_the_order() -> None:
    found = order_causes(Range(9, 10, 14), Range(11, 12, 16), [cause("DMA", 9, 10, 14)], [cause("DMA", 11, 12, 16)])
    assert (found.certainty, found.overlap, found.common, found.turned) == (Certainty.LIKELY, True, ("DMA",), ())
    assert found.ratio == pytest.approx(1.2)


def test_a_number_of_one_kernel_may_turn_the_order() -> None:
    causes = [cause("tables", 9, 10, 13)]
    found = order_causes(Range(9, 10, 14), Range(11, 12, 16), causes, [cause("DMA", 11, 12, 16)])
    assert found.certainty is Certainty.OPEN
    assert [(pair.cause, pair.first_us, pair.second_us) for pair in found.turned] == [("tables", 13, 12)]
    assert found.common == ()


def test_a_number_that_moves_both_but_one_more_may_turn_the_order() -> None:
    found = order_causes(Range(9, 10, 14), Range(11, 12, 16), [cause("DMA", 9, 10, 14)], [cause("DMA", 11, 12, 13)])
    assert [(pair.cause, pair.first_us, pair.second_us) for pair in found.turned] == [("DMA", 14, 13)]


def test_common_numbers_come_by_the_width_that_they_give_to_both() -> None:
    narrow, wide = [cause("a", 9, 10, 10.5), cause("b", 9, 10, 12)], [cause("a", 11, 12, 16), cause("b", 11, 12, 14)]
    assert order_causes(Range(9, 10, 14), Range(11, 12, 16), narrow, wide).common == ("b", "a")


def test_a_tie_is_a_tie_whatever_the_numbers() -> None:
    found = order_causes(Range(9, 10, 11), Range(9, 10.1, 11), [cause("a", 9, 10, 11)])
    assert found.certainty is Certainty.TIE and found.turned
