"""Normalised rows against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, ROUNDING, TARGETS, TINY, Array, Pair, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.normalize import (
    MAX_COLUMNS,
    NORMALIZED_CHUNK,
    divide_rows_by_norm,
    inverse_deviations,
    normalize_rows,
    normalize_rows_rms,
)
from trnrt.nki import Spec, nl, trace

SHAPES = [
    (1, 1),
    (3, 5),
    (129, 2),
    (200, 49),
    (5, 513),
    (3, NORMALIZED_CHUNK),
    (3, NORMALIZED_CHUNK + 1),
    (130, 2 * NORMALIZED_CHUNK + 7),
    (1, 100_003),
]
EPS = 1e-5
# "column": one number a column, "row": one a row.
KINDS = ("column", "row", "none")


def coefficients(kind: str, shape: Pair) -> list[Array]:
    """Scale and bias."""
    if kind == "none":
        return []
    held = (1, shape[1]) if kind == "column" else (shape[0], 1)
    return [drawn(held, 1), drawn(held, 2)]


def run(x: Array, kind: str = "none", target: str = "trn2", eps: float = EPS) -> Array:
    """What normalize_rows answers."""

    def body(x: Tensor, *given: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        normalize_rows(dst, x, given[0] if given else None, given[1] if given else None, eps)
        return dst

    return call(body, x, *coefficients(kind, x.shape), target=target)


def run_rms(x: Array, kind: str = "none", target: str = "trn2", eps: float = EPS) -> Array:
    """What normalize_rows_rms answers."""

    def body(x: Tensor, *given: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        normalize_rows_rms(dst, x, given[0] if given else None, eps)
        return dst

    return call(body, x, *coefficients(kind, x.shape)[:1], target=target)


def compare(x: Array, got: Array, kind: str, dtype: str = "float32", eps: float = EPS, rms: bool = False) -> None:
    """The differences to the mean are exact to a rounding of the largest of them; the sums to one a term's root, and
    the power is a few off."""
    x64 = x.astype(np.float64)
    centred = x64 if rms else x64 - x64.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + eps)
    given = [c.astype(np.float64) for c in coefficients(kind, x.shape)]
    scale = given[0] if given else np.ones((1, 1))
    bias = given[1] if given and not rms else np.zeros((1, 1))
    expected = normal * scale + bias
    relative = (16 + 4 * np.sqrt(x.shape[1])) * 2.0**-24
    error = relative * (np.abs(normal * scale) + np.abs(scale)) + 4 * 2.0**-24 * np.abs(bias)
    error = error + 1.01 * ROUNDING[dtype] * np.abs(expected) + TINY[dtype]
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= error).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: Pair, kind: str) -> None:
    x = drawn(shape, 0)
    compare(x, run(x, kind), kind)
    compare(x, run_rms(x, kind), kind, rms=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_targets_and_dtypes(target: str, dtype: str, kind: str) -> None:
    for shape in [(130, 33), (2, NORMALIZED_CHUNK + 5)]:
        x = drawn(shape, 0, dtype)
        compare(x, run(x, kind, target), kind, dtype)
        compare(x, run_rms(x, kind, target), kind, dtype, rms=True)


@pytest.mark.parametrize("shape", [(130, 700), (2, 3 * NORMALIZED_CHUNK + 1)], ids=str)
@pytest.mark.parametrize("far", [1e3, -3e4, 1e6])
def test_rows_far_from_zero(shape: Pair, far: float) -> None:
    """Their mean of squares alone would leave no digit of the variance."""
    x = (drawn(shape, 0) + far).astype(np.float32)
    compare(x, run(x), "none")


@pytest.mark.parametrize("shape", [(130, 700), (2, 3 * NORMALIZED_CHUNK + 1)], ids=str)
def test_rows_that_rise(shape: Pair) -> None:
    """Their first part's mean is far from that of the row."""
    x = np.broadcast_to(np.arange(shape[1], dtype=np.float32), shape).copy()
    compare(x, run(x), "none")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(130, 70), (2, NORMALIZED_CHUNK + 1)], ids=str)
def test_inverse_deviations(shape: Pair, dtype: str) -> None:
    x = (drawn(shape, 0) + 50).astype(NUMPY[dtype])

    def body(x: Tensor) -> Tensor:
        dst = hbm((shape[0], 1), x.dtype)
        inverse_deviations(dst, x, EPS)
        return dst

    deviations = np.sqrt(x.astype(np.float64).var(axis=1, keepdims=True) + EPS)
    rtol = (16 + np.sqrt(shape[1])) * 2.0**-24 + 1.01 * ROUNDING[dtype]
    np.testing.assert_allclose(call(body, x), 1 / deviations, rtol=rtol)


def test_rows_of_equal_numbers() -> None:
    x = np.full((3, 10), 7, np.float32)
    assert (run(x) == 0).all()
    assert np.isnan(run(x, eps=0.0)).all()  # 0 / 0
    np.testing.assert_allclose(run_rms(x, eps=0.0), 1, rtol=1e-6)


@pytest.mark.parametrize("columns", [8, NORMALIZED_CHUNK + 8])
def test_nan_and_infinity_stay_in_their_row(columns: int) -> None:
    x = drawn((5, columns), 0)
    plain, plain_rms = run(x), run_rms(x)
    x[1, -3], x[2, 0], x[3] = np.nan, np.inf, -np.inf
    got, got_rms = run(x), run_rms(x)
    assert np.isnan(got[1:4]).all()
    assert np.isnan(got_rms[1]).all()
    np.testing.assert_array_equal(got[[0, 4]], plain[[0, 4]])
    np.testing.assert_array_equal(got_rms[[0, 4]], plain_rms[[0, 4]])


@settings(max_examples=40)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 3), st.integers(1, 3 * NORMALIZED_CHUNK)),
        st.tuples(st.integers(1, 700), st.integers(1, 64)),
    ),
    far=st.sampled_from([0.0, 1.0, 1e4]),
    kind=st.sampled_from(KINDS),
    target=st.sampled_from(TARGETS),
)
def test_any_rows(shape: Pair, far: float, kind: str, target: str) -> None:
    x = (drawn(shape, 3) + far).astype(NUMPY["float32"])
    compare(x, run(x, kind, target), kind)
    compare(x, run_rms(x, kind, target), kind, rms=True)


@pytest.mark.parametrize(
    ("shape", "scale", "bias", "message"),
    [
        ((1, MAX_COLUMNS + 1), (1, 1), (1, 1), f"rows of {MAX_COLUMNS + 1} elements; the limit is {MAX_COLUMNS}"),
        ((4, 6), (6, 1), (6, 1), r"scale is \(6, 1\); of rows \(4, 6\) it must be \(1, 6\) or \(4, 1\)"),
        ((4, 6), (4, 1), (1, 6), r"scale is \(4, 1\), bias \(1, 6\); they must be equal"),
    ],
)
def test_limits(shape: Pair, scale: Pair, bias: Pair, message: str) -> None:
    def body(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        dst = hbm(shape, nl.float32)
        normalize_rows(dst, x, scale, bias, EPS)
        return dst

    with pytest.raises(KernelError, match=message):
        trace(body, Spec(shape, "float32"), Spec(scale, "float32"), Spec(bias, "float32"))


def run_unit(x: Array, least: float = 0.0, target: str = "trn2") -> Array:
    """What divide_rows_by_norm answers."""

    def body(x: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        divide_rows_by_norm(dst, x, least)
        return dst

    return call(body, x, target=target)


def unit(x: Array, least: float) -> Array:
    """What it must answer, in float64."""
    x64 = x.astype(np.float64)
    made: Array = x64 / np.maximum(np.sqrt(np.square(x64).sum(axis=1, keepdims=True)), least)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("least", [0.0, 1e-12, 0.5])
@pytest.mark.parametrize("shape", [(1, 1), (130, 33), (2, NORMALIZED_CHUNK + 5)], ids=str)
def test_rows_over_their_norms(shape: Pair, least: float, target: str, dtype: str) -> None:
    x = drawn(shape, 0, dtype)
    x[0] = x[0] / 16
    expected = unit(x, least)
    error = ((16 + np.sqrt(shape[1])) * 2.0**-24 + 1.01 * ROUNDING[dtype]) * np.abs(expected) + TINY[dtype]
    assert (np.abs(run_unit(x, least, target) - expected) <= error).all()


@settings(max_examples=20)
@given(rows=st.integers(1, 300), columns=st.integers(1, 600), size=st.integers(-14, 14))
def test_norms_of_any_size(rows: int, columns: int, size: int) -> None:
    x = drawn((rows, columns), rows) * np.float32(10.0**size)
    np.testing.assert_allclose(run_unit(x, 1e-12), unit(x, 1e-12), rtol=(16 + np.sqrt(columns)) * 2.0**-24, atol=1e-38)


def test_rows_without_a_norm() -> None:
    x = np.array([[0, 0, 0], [1, np.nan, 2], [3e30, 1, 0], [0, 0, 5]], np.float32)
    got = run_unit(x, 1e-12)
    np.testing.assert_array_equal(got, [[0, 0, 0], [np.nan] * 3, [0, 0, 0], [0, 0, 1]])
    assert np.isnan(run_unit(x)[0]).all()
    with pytest.raises(KernelError, match="least is 1e-30"):
        run_unit(x, 1e-30)
