"""The k extremes of each row against a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Pair, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trnrt.errors import KernelError
from trnrt.kernels.topk import CHUNK, MAX_COLUMNS, MOST_FOUND, SEARCH_MAX, topk, topk_indices, topk_pairs, topk_values
from trnrt.nki import Spec, nl, simulate, trace

NAN, INF = np.nan, np.inf

CASES = [
    ((1, 1), 1),
    ((3, 5), 5),
    ((3, 8), 1),
    ((200, 49), 9),
    ((2, 1000), 1000),
    ((3, SEARCH_MAX), 8),
    ((3, SEARCH_MAX + 1), 17),
    ((130, 2 * CHUNK + 5), 3),
    ((2, 4 * CHUNK + 3), 20),  # the last chunk has fewer than k
    ((2, 100_003), 100),
]


def run(x: Array, k: int, largest: bool, target: str = "trn2") -> tuple[Array, Array]:
    """(values, indices)."""
    shape = (x.shape[0], k)

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = hbm(shape, x.dtype), hbm(shape, nl.uint32)
        topk(values, indices, x, k, largest)
        return values, indices

    values, indices = simulate(body, target)(x)
    return values, indices.astype(np.int64)


def check_pairs(x: Array, order: Array, k: int, largest: bool, target: str) -> None:
    """Both results side by side are those of the two searches."""

    def body(x: Tensor) -> Tensor:
        dst = hbm((x.shape[0], 2 * k), x.dtype)
        topk_pairs(dst, x, k, largest)
        return dst

    pairs: Array = simulate(body, target)(x)
    np.testing.assert_array_equal(pairs[:, :k], np.take_along_axis(x, order, axis=1))
    np.testing.assert_array_equal(pairs[:, k:], order)


def check(x: Array, k: int, largest: bool, target: str = "trn2") -> None:
    """Exactly what a stable sort gives, NaN last."""
    x64 = x.astype(np.float64)
    order = np.argsort(-x64 if largest else x64, axis=1, kind="stable")[:, :k]
    values, indices = run(x, k, largest, target)
    if x.dtype == np.float32:
        check_pairs(x, order, k, largest, target)
    assert values.dtype == x.dtype
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values.astype(np.float64), np.take_along_axis(x64, order, axis=1))


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("levels", [2, 0], ids=["ties", "normal"])
@pytest.mark.parametrize(("shape", "k"), CASES, ids=str)
def test_every_shape(shape: Pair, k: int, levels: int, largest: bool) -> None:
    x = drawn(shape, 0)
    check(np.round(levels * x) if levels else x, k, largest)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str, largest: bool) -> None:
    x = drawn((130, 33), 0, dtype)
    x[5, 7], x[6, 0], x[7], x[8, 3] = NAN, NAN, -INF, INF
    check(x, 12, largest, target)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize(
    "row",
    [
        [1, 2, 2, 1, 2, 0, 0],
        [NAN, 1, 3, NAN, -INF, INF],
        [-INF] * 20,
        [INF] * 20,
        [NAN] * 20,
        [-INF] * 5 + [NAN] * 5 + [-3e38] * 5 + [-INF, NAN],
        [0] * 9 + [1e-45],
    ],
    ids=str,
)
def test_ties_and_what_is_no_number(row: list[float], largest: bool) -> None:
    check(np.array([row], np.float32), len(row), largest)
    check(np.array([row * 1000], np.float32), 3 * len(row), largest)


@settings(max_examples=60)
@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=20),
        elements=st.sampled_from([NAN, INF, -INF, 0.0, 1.0, 2.0, 3e38, -3e38]),
    ),
    largest=st.booleans(),
    share=st.floats(0, 1),
)
def test_any_rows(x: Array, largest: bool, share: float) -> None:
    check(x, max(1, round(share * x.shape[1])), largest)


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(40, 5 * CHUNK)),
    levels=st.sampled_from([1, 2, 50, 60000]),
    dtype=st.sampled_from(DTYPES),
    k=st.integers(1, 40),
    largest=st.booleans(),
)
def test_any_length(shape: Pair, levels: int, dtype: str, k: int, largest: bool) -> None:
    """Few levels are many ties."""
    x = np.round(levels * np.random.default_rng(0).random(shape)).astype(NUMPY[dtype])
    check(x, k, largest)


def test_one_of_the_two_results() -> None:
    x = drawn((3, 20), 0)

    def values_only(x: Tensor) -> Tensor:
        dst = hbm((3, 4), nl.float32)
        topk_values(dst, x, 4, True)
        return dst

    def indices_only(x: Tensor) -> Tensor:
        dst = hbm((3, 4), nl.uint32)
        topk_indices(dst, x, 4, True)
        return dst

    values, indices = run(x, 4, True)
    np.testing.assert_array_equal(simulate(values_only, "trn2")(x), values)
    np.testing.assert_array_equal(simulate(indices_only, "trn2")(x), indices)


@pytest.mark.parametrize(
    ("shape", "k", "message"),
    [
        ((2, 5), 6, "k=6 of rows of 5 elements; it must be from 1 to their length"),
        ((2, 5), 0, "k=0 of rows of 5 elements; it must be from 1 to their length"),
        ((2, SEARCH_MAX), MOST_FOUND + 1, f"{MOST_FOUND + 8} are found; the limit is {MOST_FOUND}"),
        ((2, 4 * CHUNK), MOST_FOUND // 4 + 1, f"{MOST_FOUND + 32} are found; the limit is {MOST_FOUND}"),
        ((1, MAX_COLUMNS + 1), 1, f"rows of {MAX_COLUMNS + 1} elements; the limit is {MAX_COLUMNS}"),
    ],
)
def test_limits(shape: Pair, k: int, message: str) -> None:
    def body(x: Tensor) -> Tensor:
        dst = hbm((shape[0], max(k, 1)), nl.uint32)
        topk(None, dst, x, k, True)
        return dst

    with pytest.raises(KernelError, match=message):
        trace(body, Spec(shape, "float32"))
