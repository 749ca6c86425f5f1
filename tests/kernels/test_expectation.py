"""Sums weighted by a softmax over the middle dimension, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, FUNCTION, ROUNDING, TARGETS, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.expectation import MAX_BINS, TOGETHER, partitions_of_row, weighted_softmax
from trnrt.nki import Spec, trace

SHAPES = [(1, 1, 1), (4, 16, 300), (3, 5, 131), (130, 2, 7), (128, MAX_BINS, 3), (1, 3, 40000), (2, MAX_BINS, TOGETHER)]


def run(x: Array, factors: Array, target: str = "trn2") -> Array:
    def body(x: Tensor, factors: Tensor) -> Tensor:
        dst = hbm((x.shape[0], x.shape[2]), x.dtype)
        weighted_softmax(dst, x, factors)
        return dst

    return call(body, x, np.tile(factors.astype(np.float32), (128, 1)), target=target)


def expected(x: Array, factors: Array) -> tuple[Array, Array]:
    """The sums in float64, and their magnitudes."""
    x, factors = x.astype(np.float64), factors.astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    share = e / e.sum(axis=1, keepdims=True)
    weights = factors[:-1, None]
    return (share * weights).sum(axis=1) + factors[-1], (share * np.abs(weights)).sum(axis=1) + abs(factors[-1])


def check_sums(got: Array, x: Array, factors: Array, dtype: str) -> None:
    """Each exponential is rounded in the numerator and the denominator, a weight once, and the result once."""
    wanted, magnitude = expected(x, factors)
    bound = (4 * ROUNDING[dtype] + 4 * FUNCTION + 2 * x.shape[1] * 2.0**-24) * magnitude
    # The rounded difference in float32 is an error of the exponential's argument.
    bound += 2.0**-23 * np.abs(x.astype(np.float64)).max() * magnitude
    assert got.shape == wanted.shape
    assert np.all(np.abs(got - wanted) <= bound + 1e-30)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    x, factors = drawn((4, 16, 300), 0, dtype) * 3, np.arange(17.0) / 4
    x = x.astype(drawn((1,), 0, dtype).dtype)
    check_sums(run(x, factors, target), x, factors, dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: tuple[int, int, int]) -> None:
    x, factors = drawn(shape, 1), drawn((shape[1] + 1,), 2)
    check_sums(run(x, factors), x, factors, "float32")


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 140), bins=st.integers(1, MAX_BINS), columns=st.integers(1, 400), dtype=st.sampled_from(DTYPES)
)
def test_any_size(rows: int, bins: int, columns: int, dtype: str) -> None:
    x = drawn((rows, bins, columns), 3, dtype)
    factors = drawn((bins + 1,), 4, dtype).astype(np.float32)
    check_sums(run(x, factors), x, factors, dtype)


def test_large_numbers_do_not_overflow() -> None:
    x = drawn((2, 16, 40), 5) * np.float32(1e30)
    factors = np.arange(17.0)
    np.testing.assert_allclose(run(x, factors), expected(x, factors)[0], rtol=1e-6)


def test_rows_are_shared_evenly_if_few_partitions_are_idle() -> None:
    assert partitions_of_row(4, 8400) == 30
    assert partitions_of_row(4, 8192) == 32
    assert partitions_of_row(4, 8191) == 32
    assert partitions_of_row(128, 7) == 1


def test_too_many_bins() -> None:
    def body(x: Tensor, factors: Tensor) -> Tensor:
        dst = hbm((1, 4), x.dtype)
        weighted_softmax(dst, x, factors)
        return dst

    with pytest.raises(KernelError, match="33 bins"):
        trace(body, Spec((1, 33, 4), "float32"), Spec((128, 34), "float32"))
