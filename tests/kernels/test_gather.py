"""Rows by numbers: any table, any numbers, and what the simulator says of a number outside it."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels import gather
from trnrt.kernels.gather import gather_rows
from trnrt.nki import simulate


def gathered(table: Array, numbers: Array, target: str = "trn2") -> Array:
    def body(numbers: Tensor, table: Tensor) -> Tensor:
        dst = hbm((numbers.shape[0], table.shape[1]), table.dtype)
        gather_rows(dst, numbers, table)
        return dst

    result: Array = simulate(body, target)(numbers.astype(np.int32).reshape(-1, 1), table)
    return result


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(target: str, dtype: str) -> None:
    table = drawn((300, 17), 0, dtype)
    numbers = np.random.default_rng(1).integers(0, 300, 200)
    np.testing.assert_array_equal(gathered(table, numbers, target), table[numbers])


@settings(max_examples=30)
@given(rows=st.integers(1, 300), height=st.integers(1, 200), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_size(rows: int, height: int, width: int, seed: int) -> None:
    table = drawn((height, width), seed)
    numbers = np.random.default_rng(seed).integers(0, height, rows)
    np.testing.assert_array_equal(gathered(table, numbers), table[numbers])


def test_long_rows_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "CHUNK", 64)
    table = drawn((9, 200), 0)
    numbers = np.array([8, 0, 8, 3])
    np.testing.assert_array_equal(gathered(table, numbers), table[numbers])


def test_bits_are_kept() -> None:
    """NaN, infinity and negative zero go through."""
    table = np.array([[np.nan, np.inf], [-0.0, -np.inf]], NUMPY["float32"])
    got = gathered(table, np.array([1, 0, 1]))
    np.testing.assert_array_equal(got.view(np.uint32), table[[1, 0, 1]].view(np.uint32))


@pytest.mark.parametrize("number", [5, -1])
def test_no_such_row(number: int) -> None:
    with pytest.raises(KernelError, match="out of bounds"):
        gathered(drawn((5, 3), 0), np.array([0, number]))


def test_shapes_must_fit() -> None:
    def body(numbers: Tensor, table: Tensor) -> Tensor:
        dst = hbm((3, 4), table.dtype)
        gather_rows(dst, numbers, table)
        return dst

    for numbers, table, told in (((2, 1), (5, 4), "numbers are"), ((3, 1), (5, 6), "rows of 6 elements")):
        with pytest.raises(KernelError, match=told):
            simulate(body, "trn2")(np.zeros(numbers, np.int32), np.zeros(table, np.float32))
