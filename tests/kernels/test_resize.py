"""Resizing by matrices against two products in float64, and the matrices against their definition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import (
    DTYPES,
    NUMPY,
    ROUNDING,
    TARGETS,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    drawn,
    hbm,
    sbuf_channels,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_budgets import peak

from trnrt.errors import KernelError
from trnrt.kernels import resize as module
from trnrt.kernels.resize import MAX_SIZE, images_together, repeat_images, repeat_pixels, resize
from trnrt.nki import Spec, trace
from trnrt.planner.steps import WORKING_BYTES


@dataclass(frozen=True)
class Resized:
    """Images (N, C, H, W) resized to ``size``, ``together`` at a time: as many as go together where it is 0."""

    images: tuple[int, int, int, int]
    size: Pair
    target: str = "trn2"
    together: int = 0

    @property
    def shared(self) -> int:
        """How many images share the partitions."""
        return self.together or min(self.images[1], images_together(self.images[3], self.size[1]))

    def body(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The kernel."""
        dst = hbm((*self.images[:2], *self.size), x.dtype)
        resize(dst, x, rows, columns)
        return dst

    def specs(self) -> list[Spec]:
        """Its arguments, without data."""
        (_, _, height, width), k = self.images, self.shared
        shapes = [self.images, (height, self.size[0]), (k * width, k * self.size[1])]
        return [Spec(shape, "float32") for shape in shapes]


def compare(case: Resized, dtype: str = "float32") -> None:
    """What is between the products is rounded to the dtype: that comes on top of the float32 sums."""
    x = drawn(case.images, 0, dtype)
    rows = drawn((case.images[2], case.size[0]), 1, dtype)
    columns = drawn((case.images[3], case.size[1]), 2, dtype)
    diagonal = np.kron(np.eye(case.shared), columns.astype(np.float64)).astype(NUMPY[dtype])
    got = call(case.body, x, rows, diagonal, target=case.target)
    terms = [array.astype(np.float64) for array in (rows.T, x, columns)]
    expected = terms[0] @ terms[1] @ terms[2]
    magnitude = np.abs(terms[0]) @ np.abs(terms[1]) @ np.abs(terms[2])
    rounded = ROUNDING[dtype] / 2.0**-24 / (sum(case.images[2:]) + 2)
    check(got, expected, magnitude * (1 + rounded), sum(case.images[2:]), dtype)


TABLE = {
    "one pixel": Resized((1, 1, 1, 1), (1, 1)),
    "twice as large": Resized((2, 5, 6, 7), (12, 14)),
    "smaller": Resized((2, 3, 9, 11), (4, 5)),
    "a row of pixels": Resized((2, 3, 1, 20), (1, 33)),
    "one column": Resized((2, 3, 20, 1), (33, 1)),
    "many narrow images": Resized((2, 70, 5, 3), (7, 4)),
    "one image at a time": Resized((1, 5, 6, 7), (12, 14), together=1),
    "two of five at a time": Resized((1, 5, 6, 7), (12, 14), together=2),
    "128 columns": Resized((1, 3, 10, 128), (20, 256)),
    "blocks of rows and columns": Resized((1, 2, 200, 140), (150, 300)),
    "more than a bank": Resized((1, 2, 130, 20), (600, 700)),
    "a bank of columns": Resized((1, 3, 4, 30), (5, 512)),
    "many channels": Resized((1, 300, 8, 8), (16, 16)),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind(name: str, dtype: str) -> None:
    compare(TABLE[name], dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str) -> None:
    compare(replace(TABLE["many narrow images"], target=target))


def test_what_does_not_stay_in_sbuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and matrices that come in by parts."""
    monkeypatch.setattr(module, "IMAGE_BYTES", 200 * 4)
    compare(Resized((2, 3, 140, 150), (160, 170)))
    monkeypatch.setattr(module, "MATRIX_BYTES", 200 * 4)
    compare(Resized((2, 3, 140, 150), (530, 540)))
    compare(Resized((2, 7, 300, 20), (530, 40)))


SIZES = st.integers(1, 40)


@settings(max_examples=40)
@given(images=st.tuples(st.integers(1, 2), st.integers(1, 9), SIZES, SIZES), size=st.tuples(SIZES, SIZES))
def test_any_size(images: tuple[int, int, int, int], size: Pair) -> None:
    compare(Resized(images, size))


BUDGETS = {
    "the largest images": Resized((1, 1, MAX_SIZE, MAX_SIZE), (512, 512)),
    "images just held": Resized((1, 64, 256, 256), (512, 512)),
    "narrow images": Resized((1, 256, 2000, 8), (512, 32)),
    "wide images": Resized((1, 64, 8, 2000), (16, 520)),
    "small images": Resized((1, 512, 14, 14), (28, 28)),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_working_memory(name: str) -> None:
    case = BUDGETS[name]
    assert peak(trace(case.body, *case.specs())) <= WORKING_BYTES


def test_images_that_are_too_large() -> None:
    case = Resized((1, 1, 2, MAX_SIZE + 1), (1, 1))
    with pytest.raises(KernelError, match=r"resize: images of 2 x 2049; the limit is 2048"):
        trace(case.body, *case.specs())


def repeated(dst: tuple[int, int, int, int], dtype: str = "float32", target: str = "trn2") -> None:
    """Every bit is right, NaN and infinity included."""

    def body(src: Tensor) -> Tensor:
        out = hbm(dst, src.dtype)
        repeat_pixels(out, src)
        return out

    src = drawn((dst[0], dst[2]), 0, dtype)
    src[0, 0] = np.nan
    src[-1, -1] = np.inf
    got = call(body, src, target=target)
    np.testing.assert_array_equal(got, np.broadcast_to(src.astype(np.float64)[:, None, :, None], dst))


@pytest.mark.parametrize(
    "dst", [(1, 1, 1, 1), (5, 2, 7, 2), (300, 2, 8, 3), (129, 1, 5, 4), (1000, 3, 6, 1), (130, 2, 5000, 2)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_pixels(dst: tuple[int, int, int, int], dtype: str) -> None:
    repeated(dst, dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_repeated_pixels_on_each_target(target: str) -> None:
    repeated((300, 2, 8, 2), target=target)


@settings(max_examples=30)
@given(rows=st.integers(1, 400), width=st.integers(1, 9), times=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_any_repetition(rows: int, width: int, times: Pair) -> None:
    repeated((rows, times[0], width, times[1]))


@settings(max_examples=20)
@given(
    images=st.tuples(st.integers(1, 2), st.sampled_from([1, 5, 128, 130]), st.integers(1, 4), st.integers(1, 5)),
    times=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_any_repeated_images(images: tuple[int, int, int, int], times: Pair, dtype: str, target: str) -> None:
    """In SBUF; every bit is right, NaN and infinity included."""
    shape = (*images[:2], times[0] * images[2], times[1] * images[3])

    def body(src: Tensor) -> Tensor:
        tile = sbuf_channels(shape, src.dtype)
        repeat_images(tile, channels_in_sbuf(src), images[1], times)
        return channels_to_hbm(tile, images[1])

    src = drawn(images, 0, dtype)
    src.flat[0], src.flat[-1] = np.nan, np.inf
    expected = src.astype(np.float64).repeat(times[0], axis=2).repeat(times[1], axis=3)
    np.testing.assert_array_equal(call(body, src, target=target), expected)


def test_repeated_pixels_stay_in_their_budget() -> None:
    def body(src: Tensor) -> Tensor:
        out = hbm((1000, 2, src.shape[1], 2), src.dtype)
        repeat_pixels(out, src)
        return out

    for width in (14, 2048, 2049, 5000):
        assert peak(trace(body, Spec((1000, width), "float32"))) <= 48 * 1024
