"""Argmax against numpy's, with onnxruntime's idea of NaN."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Pair, Tensor, call, drawn, hbm, rows_in_sbuf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trnrt.errors import KernelError
from trnrt.kernels.argmax import CHUNK, MAX_COLUMNS, argmax
from trnrt.nki import Spec, nl, trace

NAN, INF = np.nan, np.inf
SHAPES = [
    (1, 1),
    (2, 5),
    (33, 7),
    (3, 8),
    (3, 9),
    (130, 10),
    (257, 129),
    (2, CHUNK),
    (2, CHUNK + 1),
    (3, 2 * CHUNK + 9),
]


def run(x: Array, in_sbuf: bool = False, target: str = "trn2") -> Array:
    """The kernel's answer."""
    rows = x.shape[0]

    def body(x: Tensor) -> Tensor:
        dst = hbm((rows, 1), nl.uint32)
        argmax(dst, rows_in_sbuf(x) if in_sbuf else x, rows)
        return dst

    return call(body, x, target=target)[:, 0]


def expected(x: Array) -> Array:
    """The first largest; NaN is never larger, and nothing is larger than a NaN that comes first."""
    x = x.astype(np.float64)
    found: Array = np.where(np.isnan(x), -np.inf, x).argmax(axis=1)
    return np.where(np.isnan(x[:, 0]), 0, found)


@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place(shape: Pair, in_sbuf: bool) -> None:
    x = drawn(shape, 0)
    np.testing.assert_array_equal(run(x, in_sbuf), expected(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    x = drawn((130, 33), 0, dtype)
    x[5, 7], x[6, 0], x[7] = NAN, NAN, -INF
    np.testing.assert_array_equal(run(x, target=target), expected(x))


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ([1, 2, 2, 1, 2, 0, 0], 1),
        ([0.0, -0.0], 0),
        ([-0.0, 0.0], 0),
        ([1, NAN, 3], 2),
        ([3, NAN, 1], 0),
        ([NAN, 1, 3], 0),
        ([NAN, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([-INF, NAN, -INF], 0),
        ([-INF, NAN, -3e38], 2),
        ([5, INF, INF], 1),
        ([NAN, INF], 0),
        ([0] * 9 + [NAN], 0),
        ([0] * 9 + [1e-45], 9),
    ],
)
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
def test_ties_and_what_is_no_number(row: list[float], place: int, in_sbuf: bool) -> None:
    assert run(np.array([row], np.float32), in_sbuf).tolist() == [place]


@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
def test_rows_longer_than_one_search(in_sbuf: bool) -> None:
    """The first of equals across searches, and searches that see nothing but NaN."""
    x = np.zeros((7, 2 * CHUNK + 3), np.float32)
    x[0, [3, CHUNK + 5]] = 9
    x[1, [CHUNK, 2 * CHUNK + 2]] = 9
    x[2, 2 * CHUNK + 2] = 9
    x[3, CHUNK:] = NAN
    x[4] = -INF
    x[4, 2 * CHUNK :] = NAN
    x[5, 0], x[5, CHUNK] = NAN, 7
    x[6, : CHUNK + 1] = -1
    np.testing.assert_array_equal(run(x, in_sbuf), [3, CHUNK, 2 * CHUNK + 2, 0, 0, 0, CHUNK + 1])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, 2.0, 3e38, -3e38]),
    ),
    in_sbuf=st.booleans(),
)
def test_any_rows(x: Array, in_sbuf: bool) -> None:
    np.testing.assert_array_equal(run(x, in_sbuf), expected(x))


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
