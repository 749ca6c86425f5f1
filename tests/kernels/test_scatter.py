"""Rows written to places by numbers: any size and dtype, and what the simulator says of a number outside."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels import scatter
from trnrt.kernels.scatter import scatter_rows
from trnrt.nki import simulate


def scattered(height: int, numbers: Array, rows: Array, target: str = "trn2") -> Array:
    def body(numbers: Tensor, rows: Tensor) -> Tensor:
        dst = hbm((height, rows.shape[1]), rows.dtype)
        scatter_rows(dst, numbers, rows)
        return dst

    result: Array = simulate(body, target)(numbers.astype(np.int32).reshape(-1, 1), rows)
    return result


def expected(height: int, numbers: Array, rows: Array) -> Array:
    made = np.zeros((height, rows.shape[1]), rows.dtype)
    made[numbers] = rows
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(target: str, dtype: str) -> None:
    rows = drawn((200, 17), 0, dtype)
    numbers = np.random.default_rng(1).permutation(300)[:200]
    np.testing.assert_array_equal(scattered(300, numbers, rows, target), expected(300, numbers, rows))


@settings(max_examples=15)
@given(height=st.integers(1, 300), width=st.integers(1, 40), seed=st.integers(0, 99), share=st.floats(0, 1))
def test_any_size(height: int, width: int, seed: int, share: float) -> None:
    numbers = np.random.default_rng(seed).permutation(height)[: max(1, int(height * share))]
    rows = drawn((len(numbers), width), seed)
    np.testing.assert_array_equal(scattered(height, numbers, rows), expected(height, numbers, rows))


def test_long_rows_and_many_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "CHUNK", 16)
    monkeypatch.setattr(scatter, "FILLED", 3)
    numbers, rows = np.random.default_rng(0).permutation(70)[:30], drawn((30, 50), 0)
    np.testing.assert_array_equal(scattered(70, numbers, rows), expected(70, numbers, rows))


@pytest.mark.parametrize("number", [-1, 5, 2**31 - 1])
def test_a_number_outside_stops_the_kernel(number: int) -> None:
    with pytest.raises(KernelError):
        scattered(5, np.array([0, number]), np.ones((2, 3), NUMPY["float32"]))
