"""``nki.isa``: means and variances, reductions across partitions, bounds of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same, tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

F32 = np.float32


def statistics(rows: Array) -> Array:
    """(P, N) -> (P, 6) in float64, as the reference lists them."""
    found = np.zeros((rows.shape[0], 6))
    for first in (0, 1):
        part = rows[:, first::2].astype(np.float64)
        found[:, 3 * first] = part.shape[1]
        if part.shape[1]:
            found[:, 3 * first + 1] = part.mean(axis=1)
            found[:, 3 * first + 2] = part.var(axis=1) * part.shape[1]
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 511, 512])
def test_bn_stats(count: int, target: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(16, 6)
        nisa.bn_stats(dst, load(a))
        return give(dst)

    a = drawn(16, count) + F32(3)
    np.testing.assert_allclose(run(body, a, target=target), statistics(a), rtol=1e-5, atol=1e-6)


def test_bn_stats_of_integers_in_psum_to_bfloat16() -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(4, 6, dtype=nl.bfloat16, buffer=nl.psum)
        nisa.bn_stats(dst, load(a, nl.psum))
        return give(dst)

    a = np.arange(48, dtype=np.int16).reshape(4, 3, 4)
    same(run(body, a), rounded(statistics(a.reshape(4, 12)).astype(F32), "bfloat16"))


@pytest.mark.parametrize(("size", "parts"), [(128, [128]), (1024, [512, 512]), (1000, [512, 488]), (7, [3, 4])])
def test_mean_and_variance_of_a_row_in_parts(size: int, parts: list[int]) -> None:
    """The reference's examples: each bn_stats writes its part of one tile, and bn_aggr puts them together."""

    def body(a: Tensor) -> Tensor:
        x, stats, both = load(a), tile(128, 6 * len(parts)), tile(128, 2)
        start = 0
        for i, part in enumerate(parts):
            nisa.bn_stats(stats[:, 6 * i : 6 * i + 6], x[:, start : start + part])
            start += part
        nisa.bn_aggr(both, stats)
        return give(both)

    a = drawn(128, size) * F32(100) + F32(50)
    got = run(body, a)
    np.testing.assert_allclose(got[:, 0], a.mean(axis=1, dtype=np.float64), rtol=1e-4)
    np.testing.assert_allclose(got[:, 1], a.var(axis=1, dtype=np.float64), rtol=1e-5)


def test_bn_aggr_of_odd_tuples() -> None:
    """Any number of (count, mean, variance * count) will do."""

    def body(a: Tensor) -> Tensor:
        both = tile(2, 2)
        nisa.bn_aggr(both, load(a))
        return give(both)

    tuples = np.array([[2, 1, 4, 6, 5, 8, 0, 0, 0], [1, 3, 0, 1, 5, 0, 2, 4, 6]], F32)
    mean = [(2 * 1 + 6 * 5) / 8, (3 + 5 + 8) / 4]
    variance = [(4 + 8 + 2 * 9 + 6 * 1) / 8, (6 + 1 + 1) / 4]
    np.testing.assert_allclose(run(body, tuples), np.array([mean, variance], F32).T)


@pytest.mark.parametrize(("op", "meaning"), [("add", np.sum), ("maximum", np.max), ("average", np.mean)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_tensor_partition_reduce(op: str, meaning: Any, dtype: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(1, 3, 4)
        nisa.tensor_partition_reduce(dst, getattr(nl, op), load(a))
        return give(dst)

    a = drawn(128, 3, 4, dtype=dtype)
    expected = meaning(a.astype(np.float64), axis=0, keepdims=True)
    np.testing.assert_allclose(run(body, a), expected, rtol=1e-5, atol=1e-4 * float(np.abs(expected).max()))


@pytest.mark.parametrize(("op", "ufunc"), [("bitwise_or", np.bitwise_or), ("bitwise_and", np.bitwise_and)])
def test_bits_across_partitions(op: str, ufunc: Any) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(1, 5, dtype=a.dtype)
        nisa.tensor_partition_reduce(dst, getattr(nl, op), load(a))
        return give(dst)

    a = drawn(7, 5, dtype="int32")
    same(run(body, a), ufunc.reduce(a, axis=0, keepdims=True))


def test_the_gpsimd_engine_does_not_reach_psum() -> None:
    with pytest.raises(KernelError, match="data is in PSUM"):
        traced(lambda: nisa.tensor_partition_reduce(tile(1, 4), nl.add, zeros(8, 4, buffer=nl.psum)))


def bounds(sequence: Array) -> Array:
    """The reference's numpy equivalent (SDK 2.26), one element at a time."""
    n = len(sequence)
    found = np.empty((2, n))
    for i in range(n):
        first = last = i
        while first > 0 and sequence[first - 1] == sequence[i]:
            first -= 1
        while last < n - 1 and sequence[last + 1] == sequence[i]:
            last += 1
        found[:, i] = (n, -1) if sequence[i] == 0 else (first, last + 1)
    return found


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize(
    "ids",
    [
        [0, 1, 1, 2, 2, 2, 0, 3, 3],
        [1],
        [0],
        [0, 0, 0],
        [5, 5, 5],
        [1, 0, 1, 1, 0],
        sorted(np.random.default_rng(0).integers(0, 32, 512).tolist()),
    ],
)
def test_sequence_bounds(ids: list[int], dtype: Any) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(1, 2, len(ids), dtype=a.dtype)
        nisa.sequence_bounds(dst, load(a))
        return give(dst)

    a = np.array([ids], dtype)
    same(run(body, a), bounds(a[0]).astype(dtype)[None])


def test_the_documented_bounds() -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(1, 2, 9, dtype=nl.int32)
        nisa.sequence_bounds(dst, load(a))
        return give(dst)

    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.int32)
    begins, ends = [9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]
    same(run(body, ids), np.array([[begins, ends]], np.int32))
