"""Normalised channels of images against numpy in float64."""

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
from trnrt.kernels.normalize_channels import MAX_CHANNELS, normalize_channels
from trnrt.nki import Spec, nl, trace

Shape = tuple[int, int, int, int]
EPS = 1e-6
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 5),
    (1, 96, 28, 28),
    (1, 128, 3, 3),
    (1, 129, 3, 3),
    (3, 384, 14, 14),
    (3, 400, 2, 2),
    (2, 5, 1, 519),
    (50, 64, 3, 3),
    (1, 1300, 10, 10),
]
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def columns(numbers: Array) -> Array:
    """One number per channel in the kernel's layout (P, blocks)."""
    made = np.zeros((min(128, numbers.size), -(-numbers.size // 128)), np.float32)
    for c, number in enumerate(numbers):
        made[c % 128, c // 128] = number
    return made


def compare(x: Array, places: Pair = (0, 0), target: str = "trn2", dtype: str = "float32", scaled: bool = True) -> None:
    """The mean is a float32 sum; the squares of bfloat16 are rounded to it, which moves their root half as much."""
    images, channels, height, width = x.shape
    flat = (images, channels, height * width)
    scale, bias = (drawn((channels,), seed) if scaled else np.full(channels, 2.0 - seed, np.float32) for seed in (1, 2))

    def body(x: Tensor, *given: Tensor) -> Tensor:
        src = channels_in_sbuf(x) if places[0] else x.reshape(flat)
        dst = sbuf_channels(x.shape, x.dtype) if places[1] else hbm(flat, x.dtype)
        normalize_channels(dst, src, given[0] if given else None, given[1] if given else None, channels, EPS)
        return channels_to_hbm(dst, channels) if places[1] else dst.reshape(x.shape)

    got = call(body, x, *((columns(scale), columns(bias)) if scaled else ()), target=target)
    x64, g, b = x.astype(np.float64), np.abs(scale)[:, None, None], np.abs(bias)[:, None, None]
    centred = x64 - x64.mean(axis=1, keepdims=True)
    rate = 1 / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + EPS)
    expected = centred * rate * scale[:, None, None] + bias[:, None, None]
    sums = (channels + 4) * 2.0**-24
    mean_error = sums * np.abs(x64).mean(axis=1, keepdims=True) + 2.0**-24 * np.abs(x64)
    squares = sums + (ROUNDING[dtype] if dtype == "bfloat16" else 0)
    # The mean's error moves each difference, and the root of the mean square of the differences.
    error = g * rate * (mean_error + np.abs(centred) * rate * mean_error.max(axis=1, keepdims=True))
    error = error + g * np.abs(centred) * rate * (squares / 2 + 16 * 2.0**-24) + 4 * 2.0**-24 * (b + np.abs(expected))
    error = error + 1.01 * ROUNDING[dtype] * np.abs(expected) + TINY[dtype]
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= error).all()


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: Shape, places: Pair) -> None:
    compare(drawn(shape, 0), places)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str, scaled: bool) -> None:
    compare(drawn((2, 200, 5, 7), 0, dtype), (1, 1), target, dtype, scaled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("far", [10.0, -3e4])
def test_positions_far_from_zero(far: float, dtype: str) -> None:
    """Their mean of squares alone would leave no digit of the variance."""
    x = drawn((1, 130, 6, 6), 0, dtype)
    compare((x.astype(np.float32) + far).astype(x.dtype), dtype=dtype)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_spreads_over_its_position(value: float) -> None:
    x = drawn((1, 5, 2, 2), 0)
    x[0, 2, 1, 1] = value
    got = call(_plain, x)
    assert np.isnan(got[0, :, 1, 1]).all()
    assert np.isfinite(got[0, :, 0]).all()


def _plain(x: Tensor) -> Tensor:
    images, channels, height, width = x.shape
    dst = hbm((images, channels, height * width), x.dtype)
    normalize_channels(dst, x.reshape(dst.shape), None, None, channels, EPS)
    return dst.reshape(x.shape)


def test_too_many_channels() -> None:
    with pytest.raises(KernelError, match="the limit is"):
        trace(_plain, Spec((1, MAX_CHANNELS + 1, 1, 1), nl.float32))


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 300), st.integers(1, 25), st.integers(1, 25)),
    places=st.sampled_from(PLACES),
    dtype=st.sampled_from(DTYPES),
)
def test_any_size(shape: Shape, places: Pair, dtype: str) -> None:
    compare(drawn(shape, 3, dtype), places, dtype=dtype)
