"""Transposes: every element must arrive as it was."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Tensor, call, drawn, hbm

from trnrt.kernels.transpose import COLUMNS, permute_dims, transpose_matrices

MATRICES = [
    (1, 1, 1),
    (3, 1, 130),
    (3, 130, 1),
    (33, 3, 5),
    (2, 129, 257),
    (1, 128, COLUMNS),
    (1, 129, COLUMNS + 1),
    (1, 300, 130),
]


def transposed(x: Array, target: str) -> Array:
    """The kernel's transposes of matrices."""

    def body(x: Tensor) -> Tensor:
        dst = hbm((x.shape[0], x.shape[2], x.shape[1]), x.dtype)
        transpose_matrices(dst, x)
        return dst

    return call(body, x, target=target)


def permuted(x: Array, order: tuple[int, ...], target: str) -> Array:
    """The kernel's permutation."""

    def body(x: Tensor) -> Tensor:
        dst = hbm(tuple(x.shape[d] for d in order), x.dtype)
        permute_dims(dst, x, order)
        return dst

    return call(body, x, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_matrices(shape: tuple[int, int, int], target: str) -> None:
    x = drawn(shape, 0)
    x[0, 0, 0], x[-1, -1, -1] = np.nan, -np.inf
    np.testing.assert_array_equal(transposed(x, target), x.transpose(0, 2, 1).astype(np.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_every_dtype(dtype: str, target: str) -> None:
    x = drawn((2, 130, 3), 0, dtype)
    np.testing.assert_array_equal(transposed(x, target), x.transpose(0, 2, 1).astype(np.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", [o for n in range(1, 5) for o in permutations(range(n))] + [(4, 2, 0, 3, 1)], ids=str)
def test_orders(order: tuple[int, ...], target: str) -> None:
    x = drawn((2, 3, 130, 5, 4)[: len(order)], 0)
    np.testing.assert_array_equal(permuted(x, order, target), x.transpose(order).astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_orders_of_every_dtype(dtype: str) -> None:
    x = drawn((3, 4, 5), 0, dtype)
    np.testing.assert_array_equal(permuted(x, (2, 0, 1), "trn2"), x.transpose(2, 0, 1).astype(np.float64))
