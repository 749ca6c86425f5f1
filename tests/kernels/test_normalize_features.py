"""Normalised rows with their features on the partitions, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from calling import (
    DTYPES,
    NUMPY,
    ROUNDING,
    TARGETS,
    Array,
    Tensor,
    call,
    drawn,
    features_in_sbuf,
    features_to_hbm,
    hbm,
    prepared_columns,
    sbuf_features,
)
from test_budgets import peak

from trnrt.errors import KernelError
from trnrt.kernels.normalize_features import LEAST_WIDTH, MAX_WIDTH, normalize_features, normalize_features_bytes
from trnrt.nki import Spec, nl, trace

EPS = 1e-5
SHAPES = [(1, 3), (5, 128), (130, 40), (300, 200), (700, 129), (197, 768), (9, MAX_WIDTH)]
PLACES = ["features to features", "features to hbm", "hbm to features"]


def body(x: Tensor, scale: Tensor, bias: Tensor, places: str, together: int) -> Tensor:
    """The kernel between two places."""
    source, result = places.split(" to ")
    rows, columns = x.shape
    dst = sbuf_features(rows, columns, x.dtype) if result == "features" else hbm((rows, columns), x.dtype)
    src = features_in_sbuf(x) if source == "features" else x
    normalize_features(dst, src, scale, bias, columns, EPS, together)
    return features_to_hbm(dst, columns) if result == "features" else dst


def run(x: Array, places: str, target: str = "trn2", together: int = 0) -> tuple[Array, Array, Array]:
    """What the kernel gives, what it should, and this without the bias."""
    scale, bias = drawn((1, x.shape[1]), 1), drawn((1, x.shape[1]), 2)
    laid_out = [prepared_columns(c[0]) if places.endswith("features") else c for c in (scale, bias)]
    got = call(lambda x, s, b: body(x, s, b, places, together), x, *laid_out, target=target)
    exact = x.astype(np.float64)
    unit = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + EPS)
    return got, unit * scale + bias, unit * scale


def check(got: Array, expected: Array, scaled: Array, dtype: str) -> None:
    """A rounding of the unit rows to the dtype, one of the result, and some of float32."""
    bound = 1.02 * ROUNDING[dtype] * (np.abs(scaled) + np.abs(expected)) + 32 * 2.0**-24 * (np.abs(scaled) + 4)
    assert (np.abs(got - expected) <= bound).all(), np.max(np.abs(got - expected) / bound)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_place(shape: tuple[int, int], places: str) -> None:
    check(*run(drawn(shape, 0), places), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("places", PLACES)
def test_targets_and_dtypes(places: str, target: str, dtype: str) -> None:
    check(*run(drawn((150, 260), 0, dtype), places, target), dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("places", ["features to features", "features to hbm"])
@pytest.mark.parametrize("shape", [(197, LEAST_WIDTH), (530, 769), (1, MAX_WIDTH)])
def test_wide_rows_of_bfloat16_stay_on_the_partitions(shape: tuple[int, int], places: str, target: str) -> None:
    got, expected, scaled = run(drawn(shape, 0, "bfloat16"), places, target)
    squares = 0.5 * ROUNDING["bfloat16"] * np.abs(scaled)  # a variance of rounded squares
    bound = 1.02 * ROUNDING["bfloat16"] * (np.abs(scaled) + np.abs(expected)) + squares + 1e-5
    assert (np.abs(got - expected) <= bound).all(), np.max(np.abs(got - expected) / bound)


def test_wide_rows_of_bfloat16_far_from_zero() -> None:
    x = np.where(np.arange(768) % 2, 1000, 1008).astype(NUMPY["bfloat16"])[None].repeat(3, 0)
    got, expected, _ = run(x, "features to features")
    assert np.abs(got - expected).max() <= 2 * ROUNDING["bfloat16"] * np.abs(expected).max()


@pytest.mark.parametrize("target", TARGETS)
def test_nan_stays_in_its_wide_row(target: str) -> None:
    x = drawn((40, LEAST_WIDTH), 0, "bfloat16")
    x[17, 5] = np.nan
    got, _, _ = run(x, "features to features", target, together=40)
    assert np.array_equal(np.flatnonzero(np.isnan(got).sum(axis=1)), [17])


def test_rows_far_from_zero_keep_their_precision() -> None:
    x = drawn((20, 300), 0) + np.float32(1000)
    got, expected, _ = run(x, "features to features")
    assert np.abs(got - expected).max() < 1e-4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_stays_in_its_item(target: str, dtype: str) -> None:
    x = drawn((120, 64), 0, dtype)
    x[47, 5] = np.nan
    got, _, _ = run(x, "features to features", target, together=40)
    spoilt = np.flatnonzero(np.isnan(got).sum(axis=1))
    assert 47 in spoilt
    assert set(spoilt) <= set(range(40, 80))


def test_rows_that_are_too_long() -> None:
    with pytest.raises(KernelError, match=f"the limit is {MAX_WIDTH}"):
        run(drawn((2, MAX_WIDTH + 1), 0), "features to features")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tiles_fit_their_budget_to_hbm(dtype: str) -> None:
    def kernel(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        normalize_features(dst, features_in_sbuf(x), scale, bias, 768, EPS)
        return dst

    item = NUMPY[dtype].itemsize
    row = Spec((1, 768), "float32")
    program = trace(kernel, Spec((1024, 768), dtype), row, row)
    assert peak(program) - 6 * 1024 * item <= normalize_features_bytes(768, item) + 2 * 768 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tiles_fit_their_budget(dtype: str) -> None:
    def kernel(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        src = features_in_sbuf(x)
        dst = nl.ndarray((128, 6, 1024), x.dtype, nl.sbuf)
        normalize_features(dst, src, scale, bias, 768, EPS)
        return features_to_hbm(dst, 768)

    item = NUMPY[dtype].itemsize
    columns = Spec((128, 6), "float32")
    program = trace(kernel, Spec((1024, 768), dtype), columns, columns)
    assert peak(program) - 2 * 6 * 1024 * item <= normalize_features_bytes(768, item) + 2 * 6 * 4
