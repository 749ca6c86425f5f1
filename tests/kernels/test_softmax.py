"""Softmax against exp(x - max) / sum of each row."""

from __future__ import annotations

import numpy as np
import pytest
from calling import (
    DTYPES,
    FUNCTION,
    ROUNDING,
    TARGETS,
    TINY,
    Array,
    Pair,
    Tensor,
    call,
    drawn,
    hbm,
    rows_in_sbuf,
    rows_to_hbm,
    sbuf_rows,
)

from trnrt.errors import KernelError
from trnrt.kernels.softmax import MAX_COLUMNS, softmax
from trnrt.nki import Spec, trace

SHAPES = [(1, 1), (1, 10), (33, 7), (128, 3), (129, 130), (257, 600), (2, MAX_COLUMNS)]
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def run(x: Array, places: Pair = (0, 0), target: str = "trn2") -> Array:
    """The kernel's answer; ``places`` of source and result: 0 HBM, 1 SBUF."""
    rows, columns = x.shape

    def body(x: Tensor) -> Tensor:
        dst = (sbuf_rows if places[1] else _matrix)(rows, columns, x.dtype)
        softmax(dst, rows_in_sbuf(x) if places[0] else x, rows)
        return rows_to_hbm(dst, rows) if places[1] else dst

    return call(body, x, target=target)


def _matrix(rows: int, columns: int, dtype: object) -> Tensor:
    return hbm((rows, columns), dtype)


def compare(x: Array, got: Array, dtype: str = "float32") -> None:
    """Relative: numerator and sum are within FUNCTION and a rounding a column; exp doubles a difference's error."""
    x64 = x.astype(np.float64)
    expected = np.exp(x64 - x64.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    spread = (x64.max() - x64.min()) * 2.0**-24
    relative = 2 * FUNCTION + spread + x.shape[1] * 2.0**-24 + 1.01 * ROUNDING[dtype]
    assert (np.abs(got - expected) <= relative * expected + TINY[dtype]).all()


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place(shape: Pair, places: Pair) -> None:
    x = 5 * drawn(shape, 0)
    compare(x, run(x, places))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    x = drawn((130, 33), 0, dtype)
    compare(x, run(x, (0, 0), target), dtype)


def test_numbers_whose_exponential_overflows() -> None:
    x = np.array([[1e4, 1e4, 0], [-1e4, -1e4, -2e4], [3e38, -3e38, 0]], np.float32)
    np.testing.assert_allclose(run(x), np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [1, 0, 0]]), rtol=1e-6)


def test_nan_and_infinity_stay_in_their_row() -> None:
    x = drawn((5, 8), 0)
    plain = run(x)
    x[1, 3], x[2, 0], x[3] = np.nan, np.inf, -np.inf
    got = run(x)
    assert np.isnan(got[1:4]).all()
    assert (got[[0, 4]] == plain[[0, 4]]).all()


def test_minus_infinity_is_probability_zero() -> None:
    x = np.array([[-np.inf, 1, 1]], np.float32)
    np.testing.assert_allclose(run(x), np.array([[0, 0.5, 0.5]]), rtol=1e-6)


def test_rows_of_too_many_columns() -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        softmax(dst, x, x.shape[0])
        return dst

    trace(body, Spec((1, MAX_COLUMNS), "float32"))
    with pytest.raises(KernelError, match=f"rows of {MAX_COLUMNS + 1} elements; the limit is {MAX_COLUMNS}"):
        trace(body, Spec((1, MAX_COLUMNS + 1), "float32"))
