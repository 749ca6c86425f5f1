"""Argmax and argmin against numpy's, with onnxruntime's idea of NaN."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Kernel, Pair, Tensor, drawn, hbm, rows_in_sbuf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trnrt.errors import KernelError
from trnrt.kernels.argmax import CHUNK, MAX_COLUMNS, argmax, argmin
from trnrt.nki import Spec, nl, simulate, trace

NAN, INF = np.nan, np.inf
SHAPES = [
    (1, 1),
    (2, 5),
    (33, 7),
    (3, 8),
    (3, 9),
    (130, 10),
    (129, 1),
    (5000, 3),
    (300, 128),
    (257, 129),
    (2, CHUNK),
    (2, CHUNK + 1),
    (3, 2 * CHUNK + 9),
    (2, 32000),
]


def run(x: Array, in_sbuf: bool = False, target: str = "trn2", kernel: Kernel = argmax, last: bool = False) -> Array:
    """The kernel's answer; the values with it must be those that stand there."""
    rows = x.shape[0]

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        dst, values = hbm((rows, 1), nl.uint32), hbm((rows, 1), x.dtype)
        kernel(dst, rows_in_sbuf(x) if in_sbuf else x, rows, values, last)
        return dst, values

    found, values = simulate(body, target)(x)
    places: Array = found.astype(np.int64)
    standing = np.take_along_axis(x, places, axis=1)
    np.testing.assert_array_equal(values.astype(np.float64), standing.astype(np.float64))
    return places[:, 0]


def expected(x: Array, kernel: Kernel = argmax, last: bool = False) -> Array:
    """The first extreme, or the last; NaN never is one, and nothing is more extreme than a NaN that comes first."""
    x = x.astype(np.float64)
    if kernel is argmin:
        x = -x
    most = np.where(np.isnan(x), -np.inf, x).max(axis=1, keepdims=True)
    places = np.arange(x.shape[1])
    found: Array = np.where(x == most, places, -1).max(axis=1) if last else (x == most).argmax(axis=1)
    return np.where(np.isnan(x[:, 0]), 0, found)


@pytest.mark.parametrize("kernel", [argmax, argmin])
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place(shape: Pair, in_sbuf: bool, kernel: Kernel) -> None:
    x = drawn(shape, 0, "float16" if in_sbuf else "float32")
    np.testing.assert_array_equal(run(x, in_sbuf, kernel=kernel), expected(x, kernel))


@pytest.mark.parametrize("kernel", [argmax, argmin])
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_last_of_equals(shape: Pair, in_sbuf: bool, kernel: Kernel) -> None:
    x = np.round(2 * drawn(shape, 0)).astype(np.float16 if in_sbuf else np.float32)
    np.testing.assert_array_equal(run(x, in_sbuf, kernel=kernel, last=True), expected(x, kernel, last=True))


@pytest.mark.parametrize("kernel", [argmax, argmin])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str, kernel: Kernel) -> None:
    x = drawn((130, 33), 0, dtype)
    x[5, 7], x[6, 0], x[7], x[8, 3] = NAN, NAN, -INF, INF
    np.testing.assert_array_equal(run(x, target=target, kernel=kernel), expected(x, kernel))


@pytest.mark.parametrize(
    ("row", "place", "last_place"),
    [
        ([1, 2, 2, 1, 2, 0, 0], 1, 4),
        ([0.0, -0.0], 0, 1),
        ([-0.0, 0.0], 0, 1),
        ([1, NAN, 3], 2, 2),
        ([3, NAN, 1], 0, 0),
        ([3, 1, NAN], 0, 0),
        ([NAN, 1, 3], 0, 0),
        ([NAN, NAN], 0, 0),
        ([-INF, -INF, -INF], 0, 2),
        ([-INF, NAN, -INF], 0, 2),
        ([-INF, -INF, NAN], 0, 1),
        ([-INF, NAN, -3e38], 2, 2),
        ([5, INF, INF], 1, 2),
        ([NAN, INF], 0, 0),
        ([0] * 9 + [NAN], 0, 8),
        ([0] * 9 + [1e-45], 9, 9),
    ],
)
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
def test_ties_and_what_is_no_number(row: list[float], place: int, last_place: int, in_sbuf: bool) -> None:
    x = np.array([row], np.float32)
    assert run(x, in_sbuf).tolist() == [place]
    assert run(-x, in_sbuf, kernel=argmin).tolist() == [place]
    assert run(x, in_sbuf, last=True).tolist() == [last_place]
    assert run(-x, in_sbuf, kernel=argmin, last=True).tolist() == [last_place]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_ties_and_what_is_no_number_in_many_rows(target: str, dtype: str) -> None:
    """Short rows stand side by side on a partition."""
    draw = np.random.default_rng(0)
    x = draw.choice(np.array([NAN, INF, -INF, 0.0, 1.0, 2.0]), (3000, 5)).astype(NUMPY[dtype])
    for last in (False, True):
        for kernel in (argmax, argmin):
            got = run(x, target=target, kernel=kernel, last=last)
            np.testing.assert_array_equal(got, expected(x, kernel, last))


@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
def test_rows_longer_than_one_search(in_sbuf: bool) -> None:
    """The first of equals across searches, and searches that see nothing but NaN."""
    x = np.zeros((7, 2 * CHUNK + 3), np.float16 if in_sbuf else np.float32)
    x[0, [3, CHUNK + 5]] = 9
    x[1, [CHUNK, 2 * CHUNK + 2]] = 9
    x[2, 2 * CHUNK + 2] = 9
    x[3, CHUNK:] = NAN
    x[4] = -INF
    x[4, 2 * CHUNK :] = NAN
    x[5, 0], x[5, CHUNK] = NAN, 7
    x[6, : CHUNK + 1] = -1
    places = [3, CHUNK, 2 * CHUNK + 2, 0, 0, 0, CHUNK + 1]
    np.testing.assert_array_equal(run(x, in_sbuf), places)
    np.testing.assert_array_equal(run(-x, in_sbuf, kernel=argmin), places)
    last_places = [CHUNK + 5, 2 * CHUNK + 2, 2 * CHUNK + 2, CHUNK - 1, 2 * CHUNK - 1, 0, 2 * CHUNK + 2]
    np.testing.assert_array_equal(run(x, in_sbuf, last=True), last_places)
    np.testing.assert_array_equal(run(-x, in_sbuf, kernel=argmin, last=True), last_places)


@settings(max_examples=60)
@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, 2.0, 3e38, -3e38]),
    ),
    in_sbuf=st.booleans(),
    kernel=st.sampled_from([argmax, argmin]),
    last=st.booleans(),
)
def test_any_rows(x: Array, in_sbuf: bool, kernel: Kernel, last: bool) -> None:
    np.testing.assert_array_equal(run(x, in_sbuf, kernel=kernel, last=last), expected(x, kernel, last))


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3 * CHUNK)),
    levels=st.sampled_from([1, 2, 50, 60000]),
    dtype=st.sampled_from(DTYPES),
    kernel=st.sampled_from([argmax, argmin]),
    last=st.booleans(),
)
def test_any_length(shape: Pair, levels: int, dtype: str, kernel: Kernel, last: bool) -> None:
    """Few levels are many ties."""
    x = np.round(levels * np.random.default_rng(0).random(shape)).astype(NUMPY[dtype])
    np.testing.assert_array_equal(run(x, kernel=kernel, last=last), expected(x, kernel, last))


def test_an_index_that_float32_just_holds() -> None:
    """The last column of the longest row that is taken."""
    x = np.zeros((1, MAX_COLUMNS), np.float32)
    x[0, -1] = 1
    assert run(x).tolist() == [MAX_COLUMNS - 1]


def test_rows_of_too_many_columns() -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm((1, 1), nl.uint32)
        argmax(dst, x, 1)
        return dst

    with pytest.raises(KernelError, match=f"rows of {MAX_COLUMNS + 1} elements; the limit is {MAX_COLUMNS}"):
        trace(body, Spec((1, MAX_COLUMNS + 1), "float32"))
