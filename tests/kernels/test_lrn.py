"""Local response normalisation against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from calling import (
    DTYPES,
    ROUNDING,
    TARGETS,
    TINY,
    Array,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    drawn,
    hbm,
    sbuf_channels,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.lrn import POSITIONS, lrn
from trnrt.nki import Spec, nl, trace

Shape = tuple[int, int, int, int]
ALPHA, BETA, BIAS = 0.9, 0.75, 1.5

SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 5),
    (2, 96, 27, 27),
    (1, 128, 3, 3),
    (1, 129, 3, 3),
    (1, 256, 13, 13),
    (3, 400, 2, 2),
    (2, 5, 1, POSITIONS + 7),
    (50, 64, 3, 3),
    (1, 1300, 10, 10),
]


PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
PLACE_NAMES = ["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"]


def run(
    x: Array, size: int, places: Pair = (0, 0), target: str = "trn2", alpha: float = ALPHA, bias: float = BIAS
) -> Array:
    """The kernel's answer; ``places`` of source and result: 0 HBM, 1 SBUF."""
    images, channels, height, width = x.shape
    flat = (images, channels, height * width)

    def body(x: Tensor) -> Tensor:
        src = channels_in_sbuf(x) if places[0] else x.reshape(flat)
        dst = sbuf_channels(x.shape, x.dtype) if places[1] else hbm(flat, x.dtype)
        lrn(dst, src, channels, size, alpha, BETA, bias)
        return channels_to_hbm(dst, channels) if places[1] else dst.reshape(x.shape)

    return call(body, x, target=target)


def expected(x: Array, size: int, alpha: float = ALPHA, bias: float = BIAS) -> Array:
    """ONNX's formula, a channel at a time."""
    squares = np.square(x.astype(np.float64))
    sums = np.zeros_like(squares)
    for c in range(x.shape[1]):
        first, last = c - (size - 1) // 2, c + -(-(size - 1) // 2)
        sums[:, c] = squares[:, max(0, first) : last + 1].sum(axis=1)
    return x / (bias + alpha / size * sums) ** BETA


def compare(x: Array, got: Array, size: int, dtype: str = "float32") -> None:
    """The sum is within a rounding a term, of which the power takes three quarters; the rest are a few roundings."""
    wanted = expected(x, size)
    relative = (min(size, x.shape[1]) + 16) * 2.0**-24 + 1.01 * ROUNDING[dtype]
    assert got.shape == wanted.shape
    assert (np.abs(got - wanted) <= relative * np.abs(wanted) + TINY[dtype]).all()


@pytest.mark.parametrize("places", PLACES, ids=PLACE_NAMES)
@pytest.mark.parametrize("size", [1, 2, 5, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: Shape, size: int, places: Pair) -> None:
    x = 3 * drawn(shape, 0)
    compare(x, run(x, size, places), size)


@pytest.mark.parametrize("places", PLACES, ids=PLACE_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str, places: Pair) -> None:
    x = drawn((2, 130, 4, 5), 0, dtype)
    compare(x, run(x, 4, places, target), 4, dtype)


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 400), st.integers(1, 9), st.integers(1, 9)),
    size=st.integers(1, 40),
    places=st.sampled_from(PLACES),
)
def test_any_shape(shape: Shape, size: int, places: Pair) -> None:
    x = drawn(shape, 1)
    compare(x, run(x, size, places), size)


def test_a_negative_base_is_no_number_and_zero_is_infinite() -> None:
    x = np.ones((1, 1, 1, 2), np.float32)
    assert np.isnan(run(x, 1, alpha=1.0, bias=-2.0)).all()
    assert np.isinf(run(x, 1, alpha=1.0, bias=-1.0)).all()


def test_what_is_no_number_stays_at_its_position() -> None:
    x = drawn((2, 10, 3, 3), 0)
    plain = run(x, 3)
    x[0, 4, 1, 1], x[1, 0, 0, 0] = np.nan, np.inf
    got = run(x, 3)
    assert np.isnan(got[0, 3:6, 1, 1]).all() and np.isnan(got[1, 0:2, 0, 0]).any()
    plain[0, :, 1, 1], plain[1, :, 0, 0] = got[0, :, 1, 1], got[1, :, 0, 0]
    np.testing.assert_array_equal(got, plain)


def test_a_window_of_no_channel() -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm((1, 2, 3), nl.float32)
        lrn(dst, x, 2, 0, ALPHA, BETA, BIAS)
        return dst

    with pytest.raises(KernelError, match="size is 0; it must be at least 1"):
        trace(body, Spec((1, 2, 3), "float32"))
