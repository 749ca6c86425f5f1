"""Reductions along the free dimensions, and the vector engine's searches, against their numpy meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulating import Array, Tensor, close, drawn, give, load, rounded, run, same, tile

from trnrt.nki import nisa, nl

REDUCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def reduced(op: str, values: Array, kept: int) -> Array:
    """Float64 reduction of all but the first ``kept`` dimensions."""
    flat = values.astype(np.float64).reshape(*values.shape[:kept], -1)
    result: Array = REDUCTIONS[op].reduce(flat, axis=-1)
    return result


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axis", [(3,), (2, 3), (1, 2, 3), (-1, -2)])
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_reduce(op: str, axis: tuple[int, ...], negate: bool) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(*a.shape[: 4 - len(axis)], *(1,) * (len(axis) == 3))
        nisa.tensor_reduce(dst, getattr(nl, op), load(a), axis, negate)
        return give(dst)

    a = drawn(5, 2, 3, 4)
    expected = reduced(op, a, 4 - len(axis)) * (-1 if negate else 1)
    got = run(body, a)
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    op=st.sampled_from(sorted(REDUCTIONS)),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    window=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    stride=st.integers(1, 3),
    negate=st.booleans(),
)
def test_reductions_of_windows_that_overlap(
    op: str, rows: int, columns: int, window: tuple[int, int], stride: int, negate: bool
) -> None:
    height, width = (stride * (count - 1) + size for count, size in zip((rows, columns), window, strict=True))

    def body(a: Tensor) -> Tensor:
        pattern = [[height * width, 5], [stride * width, rows], [stride, columns], [width, window[0]], [1, window[1]]]
        x = load(a)
        nisa.tensor_reduce(x[:, 0:rows, 0:columns], getattr(nl, op), x.ap(pattern=pattern), (3, 4), negate)
        return give(x[:, 0:rows, 0:columns])

    a = drawn(5, height, width)
    windows = np.lib.stride_tricks.sliding_window_view(a, window, axis=(1, 2))[:, ::stride, ::stride]
    expected = reduced(op, windows, 3) * (-1 if negate else 1)
    np.testing.assert_allclose(run(body, a), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "to"), [("bfloat16", "bfloat16"), ("int8", "float32"), ("float32", "int16")])
def test_reductions_compute_in_float32(dtype: str, to: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(5, 1, dtype=to)
        nisa.tensor_reduce(dst=dst, op=nl.add, data=load(a), axis=1, keepdims=True)
        return give(dst)

    a = (drawn(5, 12) * 20).astype(np.int8).astype(drawn(1, dtype=dtype).dtype)
    same(run(body, a), rounded(a.astype(np.float32).sum(axis=1, keepdims=True), to))


def test_reductions_of_views_in_psum() -> None:
    def body(a: Tensor) -> Tensor:
        x, dst = load(a, nl.psum), tile(5, 4, buffer=nl.psum)
        nisa.tensor_reduce(dst=dst, op=nl.maximum, data=x.permute((0, 2, 1)), axis=2)
        return give(dst)

    a = drawn(5, 3, 4)
    same(run(body, a), a.max(axis=1))


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_of_not_a_number(op: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(1, 1)
        nisa.tensor_reduce(dst=dst, op=getattr(nl, op), data=load(a), axis=1)
        return give(dst)

    assert np.isnan(run(body, np.array([[1, np.nan, 2]], np.float32))).all()


# Searches.
@pytest.mark.parametrize("shape", [(4, 8), (128, 100), (3, 5, 7)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_max8(shape: tuple[int, ...], dtype: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(a.shape[0], 8)
        nisa.max8(dst=dst, src=load(a))
        return give(dst)

    a = drawn(*shape, dtype=dtype)
    rows = a.reshape(shape[0], -1).astype(np.float32)
    same(run(body, a), np.sort(rows, axis=1)[:, ::-1][:, :8].copy())


def find(data: Array, values: Array, dtype: nl.DType = nl.uint32) -> Array:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(a.shape[0], 8, dtype=dtype)
        nisa.nc_find_index8(dst=dst, data=load(a), vals=load(b))
        return give(dst)

    found: Array = run(body, data, values)
    return found


def test_find_index8_finds_what_max8_found() -> None:
    a = np.random.default_rng(0).permuted(np.tile(np.arange(300, dtype=np.float32), (16, 1)), axis=1)
    places = np.argsort(-a, axis=1)[:, :8]
    same(find(a, np.take_along_axis(a, places, axis=1)), places.astype(np.uint32))


def test_duplicates_are_found_one_after_the_other() -> None:
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    values = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    assert find(data, values).tolist() == [[2, 4, 5, 6, 7, 8, 9, 10]]


@pytest.mark.parametrize(("dtype", "miss"), [(nl.uint32, 0xFFFFFFFF), (nl.uint16, 0xFFFF)])
def test_a_miss_is_all_ones(dtype: nl.DType, miss: int) -> None:
    data = np.arange(10, dtype=np.float32)[None]
    values = np.array([[0, 9, 10, -1, np.nan, 5, 5, 0.5]], np.float32)
    assert find(data, values, dtype).tolist() == [[0, 9, miss, miss, miss, 5, miss, miss]]


def test_searches_flatten_three_dimensions() -> None:
    def body(a: Tensor) -> Tensor:
        x, top, dst = load(a), tile(2, 8), tile(2, 8, dtype=nl.uint16)
        view = x.permute((0, 2, 1))
        nisa.max8(dst=top, src=view)
        nisa.nc_find_index8(dst=dst, data=view, vals=top.reshape((2, 2, 4)))
        return give(dst)

    a = drawn(2, 4, 5)
    rows = a.transpose(0, 2, 1).reshape(2, 20)
    same(run(body, a), np.argsort(-rows, axis=1)[:, :8].astype(np.uint16))


def test_sums_do_not_lose_more_than_float32_does() -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(2, 1)
        nisa.tensor_reduce(dst=dst, op=nl.add, data=load(a), axis=1)
        return give(dst)

    a = np.abs(drawn(2, 5000))
    close(run(body, a), a.astype(np.float64).sum(axis=1, keepdims=True), 16)
