"""The k extremes of a few long rows, each searched by all partitions, against a stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, drawn, hbm

from trnrt.errors import KernelError
from trnrt.kernels.topk import topk
from trnrt.kernels.topk_spread import MOST_TAKEN, is_spread, spread_constants, spread_search
from trnrt.nki import Spec, nl, simulate, trace
from trnrt.nki.profiling import predicted_us


def run(x: Array, k: int, largest: bool, target: str = "trn2") -> tuple[Array, Array]:
    """(values, indices) of topk, which must search each row by all partitions."""
    shape = (x.shape[0], k)

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        assert is_spread(x, k)
        values, indices = hbm(shape, x.dtype), hbm(shape, nl.uint32)
        topk(values, indices, x, k, largest)
        return values, indices

    values, indices = simulate(body, target)(x)
    return values, indices.astype(np.int64)


def check(x: Array, k: int, largest: bool, target: str = "trn2") -> None:
    """Exactly what a stable sort gives, NaN last."""
    x64 = x.astype(np.float64)
    order = np.argsort(-x64 if largest else x64, axis=1, kind="stable")[:, :k]
    values, indices = run(x, k, largest, target)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values.astype(np.float64), np.take_along_axis(x64, order, axis=1))


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("levels", [2, 0], ids=["ties", "normal"])
@pytest.mark.parametrize(("shape", "k"), [((2, 1600), 300), ((1, 2107), 512), ((1, 24000), 300), ((3, 8400), 130)])
def test_every_shape(shape: tuple[int, int], k: int, levels: int, largest: bool) -> None:
    x = drawn(shape, 0)
    check(np.round(levels * x) if levels else x, k, largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_dtype(dtype: str, target: str) -> None:
    x = drawn((1, 1600), 1).astype(NUMPY[dtype])
    check(x, 200, True, target)
    check(-np.abs(x), 200, False, target)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_nan_zeros_and_the_smallest_numbers(dtype: str, largest: bool) -> None:
    rng, x = np.random.default_rng(2), drawn((1, 1600), 2)
    for number in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 6e4, -6e4):
        x[0, rng.integers(0, 1600, 100)] = number
    for k in (250, 512):
        check(x.astype(NUMPY[dtype]), k, largest)
    check(np.abs(x).astype(NUMPY[dtype]), 300, largest)
    check(-np.abs(x).astype(NUMPY[dtype]), 300, largest)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0.0, -3.5])
def test_equal_numbers_are_taken_in_order(number: float) -> None:
    check(np.full((1, 1601), number, np.float32), 300, True)


def test_a_longer_search_than_it_takes_is_refused() -> None:
    def body(x: Tensor) -> Tensor:
        keys, _ = spread_search(x, MOST_TAKEN + 1, True, spread_constants(x.shape[1], MOST_TAKEN + 1))
        return keys

    with pytest.raises(KernelError, match=f"k={MOST_TAKEN + 1}; the limit is {MOST_TAKEN}"):
        trace(body, Spec((1, 4000), "float32"))


def test_many_short_or_easy_rows_are_searched_together() -> None:
    chosen = []

    def body(x: Tensor, k: int) -> Tensor:
        chosen.append(is_spread(x, k))
        dst = hbm((x.shape[0], k), nl.uint32)
        topk(None, dst, x, k, True)
        return dst

    for rows, columns, k in ((1, 8400, 300), (1, 1000, 5), (128, 8400, 16), (4, 100, 100)):
        trace(body, Spec((rows, columns), "float32"), k)
    assert chosen == [True, False, False, False]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 65.0), ("bfloat16", 50.0)])
def test_the_boxes_of_a_detector_take_microseconds(dtype: str, most: float) -> None:
    """One search of 128 rows at a time takes 1,040 us for a single one."""

    def body(x: Tensor) -> Tensor:
        dst = hbm((1, 300), nl.uint32)
        topk(None, dst, x, 300, True)
        return dst

    assert predicted_us(trace(body, Spec((1, 8400), dtype))) < most
