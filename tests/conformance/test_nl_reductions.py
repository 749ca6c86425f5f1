"""``nki.language``: reductions, softmax, rms_norm, matrix products, transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same

from trnrt.errors import KernelError
from trnrt.nki import nl, trace

X = drawn(128, 6, 20, seed=1)
CLOSE_TO_ONE = (1 + X / 10).astype(np.float32)
Function = Callable[..., Any]
REDUCTIONS: dict[Function, tuple[Array, Function]] = {
    nl.sum: (X, np.sum),
    nl.max: (X, np.max),
    nl.min: (X, np.min),
    nl.mean: (X, np.mean),
    nl.prod: (CLOSE_TO_ONE, np.prod),
    nl.var: (X, np.var),
}
Axis = int | tuple[int, ...]


def reduced(function: Function, values: Array, axis: Any, **options: Any) -> Array:
    result: Array = run(lambda x: give(function(load(x), axis, **options)), values)
    return result


@pytest.mark.parametrize("axis", [2, -1, (1, 2), [2, 1], (-1,)])
@pytest.mark.parametrize("function", REDUCTIONS)
def test_reductions_keep_the_axes_as_ones(function: Function, axis: Any) -> None:
    values, meaning = REDUCTIONS[function]
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    expected = meaning(values.astype(np.float64), axis=axes, keepdims=True)
    got = reduced(function, values, axis, keepdims=True)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [function for function in REDUCTIONS if function is not nl.var])
def test_reductions_drop_the_axes(function: Function) -> None:
    values, meaning = REDUCTIONS[function]
    got = reduced(function, values, 2)
    assert got.shape == (128, 6)
    np.testing.assert_allclose(got, meaning(values, axis=2), rtol=1e-5, atol=1e-5)
    assert reduced(function, values, (1, 2)).shape == (128, 1)  # a tile has a free dimension


def test_var_keeps_the_axes_whatever_is_asked_for() -> None:
    assert reduced(nl.var, X, 2, keepdims=False).shape == (128, 6, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_reductions_on_every_target_and_memory(target: str, buffer: nl.MemoryRegion) -> None:
    def kernel(x: Tensor) -> tuple[Tensor, ...]:
        tile = load(x, buffer)
        return tuple(give(f(tile, 1)) for f in (nl.sum, nl.mean, nl.var, nl.softmax))

    row = X.reshape(128, 120)
    total, mean, variance, shares = run(kernel, row, target=target)
    np.testing.assert_allclose(total, row.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean, row.mean(1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, row.var(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(shares.sum(1), np.ones(128), rtol=1e-6)


def test_low_precision_is_reduced_in_float32() -> None:
    low = rounded(np.abs(X), "bfloat16")
    wide = low.astype(np.float64).sum((1, 2), keepdims=True)
    got = reduced(nl.sum, low, (1, 2), dtype=nl.float32, keepdims=True)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wide, rtol=1e-6)
    same(reduced(nl.mean, low, (1, 2), keepdims=True), rounded((wide / 120).astype(np.float32), "bfloat16"))


def test_all() -> None:
    values = np.ones((128, 3, 8), np.float32)
    values[::2, 1, 3] = 0
    values[1, 2] = -7
    same(reduced(nl.all, values, 2), np.asarray(values.all(2), np.float32))
    same(
        reduced(nl.all, values, (1, 2), dtype=nl.uint8),
        np.asarray(values.all((1, 2)), np.uint8)[:, None],
    )


def test_other_axes_are_refused() -> None:
    for axis in (0, (0, 1), 1, (), 3):
        with pytest.raises(KernelError, match="only its last free axes can be reduced"):
            reduced(nl.sum, X, axis)


def softmax_of(x: Array, axis: Axis) -> Array:
    powers: Array = np.exp(x - x.max(axis, keepdims=True))
    result: Array = powers / powers.sum(axis, keepdims=True)
    return result


@pytest.mark.parametrize("axis", [-1, 2, (1, 2)])
def test_softmax(axis: Axis) -> None:
    values = X * np.float32(30)
    got = run(lambda x: give(nl.softmax(load(x), axis)), values)
    np.testing.assert_allclose(got, softmax_of(values.astype(np.float64), axis), rtol=2e-5, atol=1e-12)


def test_softmax_defaults_and_dtype() -> None:
    row = rounded(X.reshape(128, 120), "bfloat16")
    got = run(lambda x: give(nl.softmax(load(x))), row)
    same(got, rounded(softmax_of(row.astype(np.float64), 1).astype(np.float32), "bfloat16"))
    flat = run(lambda: give(nl.softmax(nl.full((128, 512), 1.0, dtype=nl.float32, buffer=nl.sbuf), axis=1)))
    same(flat, np.full((128, 512), 1 / 512, np.float32))


@pytest.mark.parametrize("weights", [(128, 120), (1, 120)])
def test_rms_norm(weights: tuple[int, int]) -> None:
    def kernel(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tiles = load(x), load(w)
        return (
            give(nl.rms_norm(*tiles, axis=1, n=120)),
            give(nl.rms_norm(*tiles, axis=1, n=120, epsilon=0.5)),
            give(nl.rms_norm(*tiles, axis=[1], n=120, dtype=nl.bfloat16, compute_dtype=nl.bfloat16)),
        )

    row, w = X.reshape(128, 120).astype(np.float64), drawn(*weights, seed=4)
    for got, epsilon, tolerance in zip(
        run(kernel, row.astype(np.float32), w), (1e-6, 0.5, 1e-6), (5e-6, 5e-6, 0.03), strict=True
    ):
        expected = row / np.sqrt((row**2).mean(1, keepdims=True) + epsilon) * w
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance)


def test_rms_norm_refuses_other_weights() -> None:
    with pytest.raises(KernelError, match="w is"):
        trace(lambda x, w: nl.rms_norm(load(x), load(w), 1, 120), X.reshape(128, 120), drawn(128, 60))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
def test_matmul(dtype: str, target: str) -> None:
    def kernel(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = load(x), load(y)
        product = nl.matmul(left, right, transpose_x=True)
        assert (product.buffer, product.dtype, product.shape) == (nl.psum, nl.float32, (64, 200))
        return give(product), give(nl.matmul(nl.copy(nl.transpose(left)), right))

    x, y = rounded(drawn(32, 64), dtype), rounded(drawn(32, 200, seed=5), dtype)
    expected = x.astype(np.float64).T @ y.astype(np.float64)
    for got in run(kernel, x, y, target=target):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_transpose(dtype: str, buffer: nl.MemoryRegion) -> None:
    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        turned = nl.transpose(load(x, buffer))
        assert (turned.buffer, turned.dtype) == (nl.psum, x.dtype)
        return give(turned), give(nl.transpose(load(x), dtype=nl.float32))

    values = drawn(128, 50, dtype=dtype)
    turned, wide = run(kernel, values)
    same(turned, values.T)
    same(wide, values.T.astype(np.float32))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (lambda x: nl.transpose(load(x)), "x has 3 dimensions"),
        (lambda x: nl.matmul(load(x), load(x)), "nl.matmul: x has 3 dimensions"),
        (lambda x: nl.transpose(load(x.reshape((128, 120)))[:, 0:1].broadcast(1, 129)), "spans 129 partitions"),
        (lambda x: nl.matmul(nl.zeros((8, 8), nl.float32), nl.zeros((9, 8), nl.float32), True), "8 partitions of x"),
        (lambda x: nl.matmul(nl.zeros((8, 8), nl.int32), nl.zeros((8, 8), nl.int32), True), "stationary is int32"),
        (lambda x: nl.matmul(nl.zeros((8, 129), nl.float32), nl.zeros((8, 8), nl.float32), True), "129"),
    ],
)
def test_what_is_no_product(body: Callable[[Tensor], object], complaint: str) -> None:
    with pytest.raises(KernelError) as error:
        trace(body, X)
    assert complaint in str(error.value)
