"""Regions: two views that share an element always overlap; ones that are boxes and share none never do."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import tile, traced, zeros

from trnrt.nki import nisa, nl
from trnrt.nki.machine.program import View
from trnrt.nki.machine.regions import Region, region_of

SHAPE = (4, 6, 5)


def elements(view: View) -> set[int]:
    """The elements of the storage that a view touches, one by one."""
    return {
        view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
        for index in product(*(range(size) for size in view.shape))
    }


@st.composite
def slices(draw: st.DrawFn) -> tuple[slice, ...]:
    found = []
    for size in SHAPE:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        found.append(slice(start, stop, draw(st.integers(1, 3))))
    return tuple(found)


def views(*keys: tuple[slice, ...], buffer: nl.MemoryRegion) -> list[View]:
    found: list[View] = []

    def body() -> None:
        storage = tile(*SHAPE, buffer=buffer)
        found.extend(storage[key] for key in keys)

    traced(body)
    return found


@settings(max_examples=300)
@given(slices(), slices(), st.sampled_from((nl.sbuf, nl.private_hbm)))
def test_slices_overlap_where_they_share_an_element(
    one: tuple[slice, ...], other: tuple[slice, ...], buffer: nl.MemoryRegion
) -> None:
    first, second = views(one, other, buffer=buffer)
    shared = bool(elements(first) & elements(second))
    mine, theirs = region_of(first), region_of(second)
    if shared:
        assert mine.overlaps(theirs) and theirs.overlaps(mine)
    steps = {key.step for key in (*one, *other)}
    if not shared and steps == {1}:
        assert not mine.overlaps(theirs)
    if mine.covers(theirs):
        assert elements(second) <= elements(first)


def region(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Region:
    (whole,) = views((slice(None),) * 3, buffer=nl.private_hbm)
    return region_of(View(whole.storage, shape, strides, offset))


def test_merged_dimensions_are_boxes() -> None:
    assert region((4, 30), (30, 1)).box == ((0, 3, 1), (0, 5, 1), (0, 4, 1))
    assert region((120,), (1,)).whole
    assert region((10,), (1,), 60).box == ((2, 2, 1), (0, 1, 1), (0, 4, 1))


def test_reordered_dimensions_are_boxes() -> None:
    assert region((5, 4, 6), (1, 30, 5)).whole


def test_columns_of_different_parity_do_not_meet() -> None:
    even, odd = region((4, 6, 3), (30, 5, 2)), region((4, 6, 2), (30, 5, 2), 1)
    assert not even.overlaps(odd)
    assert even.overlaps(region((4, 6, 3), (30, 5, 1), 2))


def test_what_is_no_box_is_a_range() -> None:
    diagonal = region((4,), (31,))
    assert diagonal.box is None
    assert (diagonal.first, diagonal.last) == (0, 93)
    assert diagonal.overlaps(region((2,), (31,), 1))  # too much, never too little
    assert not diagonal.overlaps(region((1, 1, 5), (30, 5, 1), 115))


def test_reinterpreted_bits_are_bytes_of_their_storage() -> None:
    found: list[View] = []

    def body() -> None:
        storage = zeros(128, 8)
        found.append(storage.view(nl.bfloat16)[:, 4:8])
        nisa.memset(dst=storage, value=0.0)

    traced(body)
    half = region_of(found[0])
    assert (half.first, half.last) == (2, 3)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.private_hbm])
def test_a_whole_storage(buffer: nl.MemoryRegion) -> None:
    (whole,) = views((slice(None),) * 3, buffer=buffer)
    assert region_of(whole).whole


def test_a_dimension_that_is_split_stays_a_box() -> None:
    assert region((4, 2, 2, 5), (30, 10, 5, 1), 5).box == ((0, 3, 1), (1, 4, 1), (0, 4, 1))
    assert region((4, 3), (30, 10)).box == ((0, 3, 1), (0, 4, 2), (0, 0, 1))
    assert region((6, 2), (10, 5)).box == ((0, 1, 1), (0, 5, 1), (0, 0, 1))


def test_wider_bits_reach_to_the_end_of_their_last_element() -> None:
    found: list[View] = []

    def body() -> None:
        storage = zeros(128, 8, dtype=nl.bfloat16)
        found.append(storage.view(nl.float32)[:, 1:2])

    traced(body)
    wide = region_of(found[0])
    assert (wide.first, wide.last) == (2, 3)
