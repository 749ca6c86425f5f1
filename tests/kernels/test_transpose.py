"""Transposes: every element must arrive as it was."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Kernel, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.transpose import (
    DMA_ROWS,
    TURNED_COLUMNS,
    permute_dims,
    transpose_by_dma,
    transpose_by_tensor,
    transpose_matrices,
)
from trnrt.nki import Spec, profile, simulate, trace

MATRICES = [
    (1, 1, 1),
    (3, 1, 130),
    (3, 130, 1),
    (33, 3, 5),
    (2, 129, 257),
    (1, 128, TURNED_COLUMNS),
    (1, 129, TURNED_COLUMNS + 1),
    (1, 300, 130),
    (1, 1301, 67),
]


def transposed(x: Array, target: str) -> Array:
    """The kernel's transposes of matrices."""

    def body(x: Tensor) -> Tensor:
        dst = hbm((x.shape[0], x.shape[2], x.shape[1]), x.dtype)
        transpose_matrices(dst, x)
        return dst

    return call(body, x, target=target)


def one(kernel: Kernel) -> Kernel:
    """A kernel that transposes one matrix."""

    def body(x: Tensor) -> Tensor:
        dst = hbm((x.shape[1], x.shape[0]), x.dtype)
        kernel(dst, x)
        return dst

    return body


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


SHAPES = [(1, 1), (1, 257), (257, 1), (127, 131), (128, 128), (129, 33), (300, 1021), (DMA_ROWS + 1, 5), (1031, 260)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_by_the_tensor_engine(shape: tuple[int, int], target: str) -> None:
    x = drawn(shape, 0)
    x[0, 0], x[-1, -1] = np.nan, -np.inf
    np.testing.assert_array_equal(call(one(transpose_by_tensor), x, target=target), x.T.astype(np.float64))


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_by_dma(shape: tuple[int, int], dtype: str, target: str) -> None:
    x = drawn(shape, 0, dtype)
    x[0, 0], x[-1, -1] = np.nan, -np.inf
    np.testing.assert_array_equal(call(one(transpose_by_dma), x, target=target), x.T.astype(np.float64))


@pytest.mark.parametrize(
    ("target", "dtype", "message"),
    [("trn1", "bfloat16", "trn1 has no DMA transpose"), ("trn2", "float32", "it takes those of 2 bytes")],
)
def test_what_dma_does_not_turn(target: str, dtype: str, message: str) -> None:
    with pytest.raises(KernelError, match=f"transpose_by_dma: .*{message}"):
        trace(one(transpose_by_dma), Spec((128, 128), dtype), target=target)


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 700), st.integers(1, 1300)),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_any_matrices(shape: tuple[int, int, int], dtype: str, target: str) -> None:
    x = drawn(shape, 0, dtype)
    np.testing.assert_array_equal(transposed(x, target), x.transpose(0, 2, 1).astype(np.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_arrives(dtype: str, target: str) -> None:
    """NaNs with their payloads, subnormal numbers, both zeros: 131 x 257 random patterns."""
    bits = np.random.default_rng(0).integers(0, 2**16, (131, 257 * NUMPY[dtype].itemsize // 2), np.uint16)
    if dtype == "bfloat16":  # ml_dtypes, which hold it in the simulator, know one NaN of either sign
        bits[(bits & 0x7FFF) > 0x7F80] = 0x7FC0
    x = bits.view(NUMPY[dtype])
    got = simulate(one(transpose_by_tensor), target)(x)
    np.testing.assert_array_equal(got.view(f"u{x.itemsize}"), x.T.copy().view(f"u{x.itemsize}"))


def test_the_memory_is_the_limit() -> None:
    """The published kernel takes 46.5 us; 14.1 of 42 are fixed, 25.5 the 8 MiB at the memory's rate."""
    assert profile(one(transpose_by_tensor), Spec((1024, 1024), "float32"), target="trn2").profiler_us <= 42
