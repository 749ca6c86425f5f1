"""The kernel ``cumsum`` against numpy: sizes, dtypes, chunks."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels.cumsum import CUMSUM_CHUNK, cumsum


def summed(x: Array, exclusive: bool = False, target: str = "trn2") -> Array:
    def body(src: Tensor) -> Tensor:
        dst = hbm(x.shape, src.dtype)
        cumsum(dst, src, x.shape[0], exclusive)
        return dst

    return call(body, x, target=target)


def exact(x: Array, exclusive: bool) -> Array:
    wide = x.astype(np.float64)
    return np.cumsum(wide, axis=1) - (wide if exclusive else 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exclusive", [False, True])
def test_dtypes(target: str, dtype: str, exclusive: bool) -> None:
    x = drawn((5, 40), 0, dtype)
    unit = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
    expected = exact(x, exclusive)
    np.testing.assert_allclose(summed(x, exclusive, target), expected, rtol=unit, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 70), exclusive=st.booleans(), seed=st.integers(0, 99))
def test_whole_numbers_are_exact(rows: int, columns: int, exclusive: bool, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-1000, 1000, (rows, columns)).astype(np.float32)
    np.testing.assert_array_equal(summed(x, exclusive), exact(x, exclusive))


@pytest.mark.parametrize("exclusive", [False, True])
def test_chunks(exclusive: bool) -> None:
    """The sum goes on from one chunk to the next."""
    x = np.random.default_rng(0).integers(-9, 9, (3, 2 * CUMSUM_CHUNK + 5)).astype(np.float32)
    np.testing.assert_array_equal(summed(x, exclusive), exact(x, exclusive))


def test_infinity_stays() -> None:
    x = np.array([[1, np.inf, 1, -np.inf, 1], [1, 2, np.nan, 3, 4]], NUMPY["float32"])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(summed(x), np.cumsum(x, axis=1))
