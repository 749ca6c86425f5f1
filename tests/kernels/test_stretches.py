"""The stretches of a band of results: each once, none larger than a PSUM bank, and few."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels.conv.stretches import stretches

BANK = 512


@settings(max_examples=200)
@given(images=st.integers(1, 20), rows=st.integers(1, 60), cols=st.integers(1, 600), fewest=st.booleans())
def test_each_result_is_in_one_stretch(images: int, rows: int, cols: int, fewest: bool) -> None:
    seen = np.zeros((images, rows, cols), dtype=int)
    for place in stretches(images, rows, cols, fewest):
        part = seen[slice(*place.images), slice(*place.rows), slice(*place.columns)]
        assert 0 < part.size <= BANK
        part += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("size", "number"),
    [
        ((1, 14, 14), 1),
        ((8, 7, 7), 1),
        ((1, 56, 56), 7),
        ((1, 16, 222), 7),  # whole rows: 8
        ((16, 28, 28), 25),  # image by image: 32
        ((16, 30, 30), 29),
        ((1, 3, 1200), 8),
    ],
    ids=str,
)
def test_there_are_few(size: tuple[int, int, int], number: int) -> None:
    assert len(stretches(*size, True)) == number


def test_the_last_images_are_finished_one_after_the_other() -> None:
    last = stretches(16, 30, 30, True)[-2:]
    assert [place.images for place in last] == [(14, 15), (15, 16)]
