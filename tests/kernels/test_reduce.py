"""Reductions of the middle dimension against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calling import DTYPES, FUNCTION, ROUNDING, TARGETS, TINY, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.reduce import CHUNK, COLUMNS, LEAST_PART, LEAST_RUN, reduce, take_logarithm
from trnrt.nki import Spec, nisa, nl, trace

Shape = tuple[int, int, int]
NAN, INF = np.nan, np.inf

SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (129, 1, 3),
    (200, 49, 1),  # several groups a partition
    (1000, 49, 1),
    (130, 2, 3),
    (130, CHUNK + 1, 1),  # a group in parts
    (1, 100_003, 1),  # one group on all partitions
    (2, 64 * LEAST_PART + 1, 1),  # and a rest
    (2, 10007, 3),
    (1, 64, 1001),  # columns on the partitions, and a rest
    (8, 20, 16 * LEAST_RUN),
    (1, 3, 128 * (COLUMNS + 1)),
    (65, 4, COLUMNS + 3),
]
BEFORE: dict[str, Callable[[Array], Array]] = {"none": lambda x: x, "square": np.square, "abs": np.abs, "exp": np.exp}
REDUCE: dict[str, Callable[..., Array]] = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


def run(
    x: Array, op: str, before: str = "none", factor: float = 1.0, after: str = "none", target: str = "trn2"
) -> Array:
    """The kernel's answer."""
    shape = (x.shape[0], x.shape[2])

    def body(x: Tensor) -> Tensor:
        dst = hbm(shape, x.dtype)
        reduce(dst, x, op, before, factor, after)
        return dst

    return call(body, x, target=target)


def compare(x: Array, op: str, before: str, got: Array, dtype: str = "float32", factor: float = 1.0) -> None:
    """Sums and products are within a rounding a term; maxima and minima of numbers that are exact are."""
    terms = BEFORE[before](x.astype(np.float64))
    expected = factor * REDUCE[op](terms, axis=1)
    length = x.shape[1]
    error = ROUNDING[dtype] * 1.01 * np.abs(expected) + TINY[dtype]
    if op == "add":
        error += (length + 2) * 2.0**-24 * np.abs(factor) * np.abs(terms).sum(axis=1)
    elif op == "multiply":
        error += (length + 2) * 2.0**-24 * np.abs(expected)
    if before == "exp":
        error += FUNCTION * np.abs(factor) * np.abs(terms).sum(axis=1)
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= error).all()


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: Shape, op: str) -> None:
    x = drawn(shape, 0) if op != "multiply" else (1 + drawn(shape, 0) / 1e3).astype(np.float32)
    compare(x, op, "none", run(x, op))


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("shape", [(3, 20, 2), (1, 2000, 3), (2, 5, 300)], ids=str)
def test_what_is_done_first(shape: Shape, op: str, before: str) -> None:
    x = drawn(shape, 1) if op != "multiply" else (1 + drawn(shape, 1) / 1e3).astype(np.float32)
    if op == "multiply" and before == "exp":
        x = (x / 1e3).astype(np.float32)
    compare(x, op, before, run(x, op, before, -0.25), factor=-0.25)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    for shape in [(130, 33, 1), (1, 700, 2), (2, 9, 200)]:
        x = drawn(shape, 2, dtype)
        compare(x, "add", "square", run(x, "add", "square", 1 / shape[1], target=target), dtype, 1 / shape[1])
        compare(x, "maximum", "none", run(x, "maximum", target=target), dtype)


@pytest.mark.parametrize("shape", [(3, 20, 2), (1, 2000, 3), (2, 5, 300)], ids=str)
def test_what_is_done_last(shape: Shape) -> None:
    x = drawn(shape, 3)
    x64 = x.astype(np.float64)
    norm = np.sqrt(np.square(x64).sum(axis=1))
    np.testing.assert_allclose(run(x, "add", "square", after="sqrt"), norm, rtol=shape[1] * 2.0**-24)
    logarithms = np.log(np.exp(x64).sum(axis=1))
    bound = 2 * FUNCTION + shape[1] * 2.0**-24
    np.testing.assert_allclose(run(x, "add", "exp", after="log"), logarithms, atol=bound, rtol=bound)


def test_square_roots_and_logarithms_of_extremes() -> None:
    x = np.array([0, 1e-45, 1e-38, 1e-20, 1, 1e19, 3e38, INF, NAN, -1], np.float32).reshape(-1, 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.log(x.astype(np.float64))[:, 0], np.sqrt(x.astype(np.float64))[:, 0]
    np.testing.assert_allclose(run(x, "add", after="log"), expected[0], rtol=1e-6)
    np.testing.assert_allclose(run(x, "add", after="sqrt"), expected[1], rtol=1e-6)


@settings(max_examples=60)
@given(exponent=st.floats(-149, 127.9), target=st.sampled_from(TARGETS))
def test_the_logarithm_of_any_number(exponent: float, target: str) -> None:
    x = np.array([[2.0**exponent]], np.float32)

    def body(x: Tensor) -> Tensor:
        tile = nl.ndarray((1, 1), nl.float32, nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        take_logarithm(tile, tile)
        dst = hbm((1, 1), nl.float32)
        nisa.dma_copy(dst=dst, src=tile)
        return dst

    np.testing.assert_allclose(call(body, x, target=target), np.log(x.astype(np.float64)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("shape", [(5, 20, 2), (1, 2000, 3), (2, 5, 300)], ids=str)
def test_nan_and_infinity_reach_their_own_results_only(shape: Shape, op: str) -> None:
    x = np.abs(drawn(shape, 4)) + np.float32(0.5)
    plain = run(x, op)
    x[0, 3, 1], x[-1, 4, 0] = NAN, INF
    got = run(x, op)
    assert np.isnan(got[0, 1])
    assert got[-1, 0] == (INF if op != "minimum" else x[-1, :, 0].min())
    got[0, 1], got[-1, 0] = plain[0, 1], plain[-1, 0]
    np.testing.assert_array_equal(got, plain)


def test_a_long_sum_keeps_its_digits() -> None:
    """A million equal terms: one running float32 sum would be off by a percent."""
    x = np.full((1, 1_000_000, 1), 0.1, np.float32)
    np.testing.assert_allclose(run(x, "add"), 1e6 * np.float64(np.float32(0.1)), rtol=1e-5)


@settings(max_examples=60)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 400), st.integers(1, 70), st.integers(1, 5)),
        st.tuples(st.integers(1, 9), st.integers(1, 3000), st.integers(1, 40)),
        st.tuples(st.integers(1, 9), st.integers(1, 30), st.integers(1, 5000)),
    ),
    op=st.sampled_from(["add", "maximum", "minimum"]),
    target=st.sampled_from(TARGETS),
)
def test_any_shape(shape: Shape, op: str, target: str) -> None:
    x = drawn(shape, 5)
    compare(x, op, "abs", run(x, op, "abs", target=target))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"op": "mean"}, "op=mean; it must be add, multiply, maximum or minimum"),
        ({"op": "add", "before": "sin"}, "before=sin; it must be none, square, abs or exp"),
        ({"op": "add", "after": "exp"}, "after=exp; it must be none, sqrt or log"),
    ],
)
def test_what_it_does_not_know(kwargs: dict[str, Any], message: str) -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm((2, 4), nl.float32)
        reduce(dst, x, **kwargs)
        return dst

    with pytest.raises(KernelError, match=message):
        trace(body, Spec((2, 3, 4), "float32"))


def test_a_result_of_another_shape() -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm((4, 2), nl.float32)
        reduce(dst, x, "add")
        return dst

    with pytest.raises(KernelError, match=r"dst is \(4, 2\); of \(2, 3, 4\) it must be \(2, 4\)"):
        trace(body, Spec((2, 3, 4), "float32"))
