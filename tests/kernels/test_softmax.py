"""Softmax against exp(x - max) / sum of each row, log-softmax against x - max - log(sum)."""

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
    Kernel,
    Pair,
    Tensor,
    call,
    drawn,
    hbm,
    rows_in_sbuf,
    rows_to_hbm,
    sbuf_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.softmax import (
    KEPT_BYTES,
    MAX_COLUMNS,
    SHORT_COLUMNS,
    SOFTMAX_CHUNK,
    WHOLE_COLUMNS,
    log_softmax,
    softmax,
)
from trnrt.nki import Spec, trace

SHAPES = [(1, 1), (1, 10), (33, 7), (128, 3), (129, 130), (257, 600), (2, WHOLE_COLUMNS)]
SHAPES += [(1300, 5), (5000, 1), (129, SHORT_COLUMNS), (9000, SHORT_COLUMNS)]
LONG = [(1, WHOLE_COLUMNS + 1), (130, 10007), (3, 32000), (2, KEPT_BYTES // 4), (2, KEPT_BYTES // 4 + 1), (1, 100003)]
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def run(x: Array, places: Pair = (0, 0), target: str = "trn2", kernel: Kernel = softmax) -> Array:
    """The kernel's answer; ``places`` of source and result: 0 HBM, 1 SBUF."""
    rows, columns = x.shape

    def body(x: Tensor) -> Tensor:
        dst = (sbuf_rows if places[1] else _matrix)(rows, columns, x.dtype)
        kernel(dst, rows_in_sbuf(x) if places[0] else x, rows)
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


def compare_log(x: Array, got: Array, dtype: str = "float32") -> None:
    """Absolute: the difference to the maximum and the sum's logarithm are as far off as the sum is relatively."""
    x64 = x.astype(np.float64)
    differences = x64 - x64.max(axis=1, keepdims=True)
    logarithms = np.log(np.exp(differences).sum(axis=1, keepdims=True))
    expected = differences - logarithms
    spread = (x64.max() - x64.min()) * 2.0**-24
    bound = FUNCTION * (2 + logarithms) + 2 * spread + x.shape[1] * 2.0**-24 + 1.01 * ROUNDING[dtype] * np.abs(expected)
    assert (np.abs(got - expected) <= bound).all()


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place(shape: Pair, places: Pair) -> None:
    x = 5 * drawn(shape, 0)
    compare(x, run(x, places))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    for shape in [(120, 33), (700, 33)]:
        x = drawn(shape, 0, dtype)
        compare(x, run(x, (0, 0), target), dtype)
        compare_log(x, run(x, (0, 0), target, log_softmax), dtype)


@pytest.mark.parametrize("shape", LONG, ids=str)
def test_rows_longer_than_sbuf(shape: Pair) -> None:
    x = 5 * drawn(shape, 0)
    compare(x, run(x))
    compare_log(x, run(x, kernel=log_softmax))


@pytest.mark.parametrize("places", PLACES[1:], ids=["hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("kernel", [softmax, log_softmax])
def test_long_rows_in_every_place(kernel: Kernel, places: Pair) -> None:
    x = 5 * drawn((130, WHOLE_COLUMNS + 1), 0)
    got = run(x, places, kernel=kernel)
    (compare if kernel is softmax else compare_log)(x, got)


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logarithms_in_every_place(shape: Pair, places: Pair) -> None:
    x = 5 * drawn(shape, 0)
    compare_log(x, run(x, places, kernel=log_softmax))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [33, WHOLE_COLUMNS + 131])
def test_logarithms_of_targets_and_dtypes(columns: int, target: str, dtype: str) -> None:
    x = drawn((130, columns), 0, dtype)
    compare_log(x, run(x, (0, 0), target, log_softmax), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_long_rows_of_targets_and_dtypes(target: str, dtype: str) -> None:
    x = drawn((3, WHOLE_COLUMNS + 131), 0, dtype)
    compare(x, run(x, (0, 0), target), dtype)


def rising(chunks: int) -> Array:
    """Rows of chunks whose maxima rise, fall, and stay."""
    x = np.zeros((3, chunks * SOFTMAX_CHUNK), np.float32)
    for chunk in range(chunks):
        x[0, chunk * SOFTMAX_CHUNK :] = 300 * chunk
        x[1, chunk * SOFTMAX_CHUNK :] = -300 * chunk
    return x


def test_the_maximum_may_stand_anywhere() -> None:
    x = rising(6)
    compare(x, run(x))
    compare_log(x, run(x, kernel=log_softmax))


@settings(max_examples=40)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 3), st.integers(1, WHOLE_COLUMNS + 3 * SOFTMAX_CHUNK)),
        st.tuples(st.integers(1, 2000), st.integers(1, 64)),
    ),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
    log=st.booleans(),
    target=st.sampled_from(TARGETS),
)
def test_any_rows(shape: Pair, scale: float, log: bool, target: str) -> None:
    x = (scale * drawn(shape, 0)).astype(np.float32)
    got = run(x, target=target, kernel=log_softmax if log else softmax)
    (compare_log if log else compare)(x, got)


@pytest.mark.parametrize("kernel", [softmax, log_softmax])
@pytest.mark.parametrize("columns", [8, WHOLE_COLUMNS + SOFTMAX_CHUNK + 8])
def test_nan_and_infinity_stay_in_their_row_of_any_length(columns: int, kernel: Kernel) -> None:
    x = drawn((6 if columns > SHORT_COLUMNS else 400, columns), 0)
    plain = run(x, kernel=kernel)
    x[1, -3], x[2, 0], x[3], x[4, -1] = np.nan, np.inf, -np.inf, np.inf
    got = run(x, kernel=kernel)
    assert np.isnan(got[1:5]).all()
    assert (got[0] == plain[0]).all() and (got[5:] == plain[5:]).all()


def test_chunks_of_nothing_but_minus_infinity() -> None:
    x = np.full((3, WHOLE_COLUMNS + SOFTMAX_CHUNK), -np.inf, np.float32)
    x[0, [-2, -1]], x[1, [0, SOFTMAX_CHUNK]], x[2, 0] = 7, -3e38, 3e38
    expected = np.where(np.isfinite(x), np.array([[0.5], [0.5], [1]]), 0)
    np.testing.assert_allclose(run(x), expected, rtol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(run(x, kernel=log_softmax), np.log(expected), rtol=1e-6)


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


@pytest.mark.parametrize("kernel", [softmax, log_softmax])
def test_rows_of_too_many_columns(kernel: Kernel) -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        kernel(dst, x, x.shape[0])
        return dst

    with pytest.raises(KernelError, match=f"rows of {MAX_COLUMNS + 1} elements; the limit is {MAX_COLUMNS}"):
        trace(body, Spec((1, MAX_COLUMNS + 1), "float32"))
