"""nc_stream_shuffle, local_gather, nc_n_gather, topk and nonzero_with_count against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulating import NUMPY, Array, drawn, give, load, run, same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

NEXT = [(i - 1) % 32 for i in range(32)]
KEEP = 255
DTYPES = ("float32", "bfloat16", "float8_e5m2", "int32", "uint8")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_shuffle_within_a_quadrant(dtype: str, buffer: nl.MemoryRegion) -> None:
    """The documented example: partition i goes to the next one, in place."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        a = load(x, buffer)
        nisa.nc_stream_shuffle(src=a, dst=a, shuffle_mask=NEXT)
        return give(a)

    x = drawn(32, 16, dtype=dtype)
    same(run(kernel, x), x[NEXT])


def test_shuffle_broadcasts_one_partition() -> None:
    """The documented example of one source partition; free dimensions may be grouped otherwise."""

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(32, 4, 8)
        nisa.nc_stream_shuffle(src=load(x)[0:1, :], dst=dst, shuffle_mask=[0] * 32)
        return give(dst)

    x = drawn(1, 32)
    same(run(kernel, x), np.broadcast_to(x, (32, 32)).reshape(32, 4, 8))


@pytest.mark.parametrize("partitions", [64, 96, 100, 128])
def test_shuffle_treats_each_quadrant_alike(partitions: int) -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(partitions, 8)
        nisa.nc_stream_shuffle(dst, load(x), NEXT)
        return give(dst)

    x = drawn(128, 8)
    expected = np.concatenate([x[q : q + 32][NEXT] for q in range(0, 128, 32)])[:partitions]
    same(run(kernel, x), expected)


def test_shuffle_to_another_quadrant_leaves_what_the_mask_does_not_name() -> None:
    mask = [KEEP] * 32
    mask[3], mask[31] = 7, 0

    def kernel(x: nl.NkiTensor, y: nl.NkiTensor) -> nl.NkiTensor:
        a, b = load(x), load(y)
        nisa.nc_stream_shuffle(dst=b[96:128], src=a[32:64], shuffle_mask=mask)
        return give(b)

    x, y = drawn(64, 8), drawn(128, 8, seed=1)
    expected = y.copy()
    expected[99], expected[127] = x[39], x[32]
    same(run(kernel, x, y), expected)


def test_shuffle_reads_what_nothing_wrote_as_nan() -> None:
    def kernel() -> nl.NkiTensor:
        dst = tile(32, 2)
        nisa.nc_stream_shuffle(dst, tile(32, 2), [KEEP] * 16 + [0] * 16)
        return give(dst)

    assert np.isnan(run(kernel)).all()


@pytest.mark.parametrize("mask", [[0.5] * 32, ["1"] * 32])
def test_a_mask_is_of_integers(mask: list[Any]) -> None:
    def kernel() -> nl.NkiTensor:
        nisa.nc_stream_shuffle(tile(32, 2), tile(32, 2), mask)
        return tile(1, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match=r"nc_stream_shuffle: shuffle_mask=.*; it must be a list of 32 integers"):
        run(kernel)


@pytest.mark.parametrize("dtype", DTYPES)
def test_local_gather_as_documented(dtype: str) -> None:
    """The documented numpy equivalent: 64 indices a core, four elements from each on."""
    index = np.random.default_rng(0).integers(0, 512, (128, 4), dtype=np.uint16) * np.uint16(4)

    def kernel(src: nl.NkiTensor, places: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(128, 4, 16, 4, dtype=src.dtype)
        nisa.local_gather(dst, load(src), load(places), num_elem_per_idx=4, num_valid_indices=64)
        return give(dst)

    src = drawn(128, 512, 4, dtype=dtype)
    expected = np.empty((128, 64, 4), src.dtype)
    for core in range(8):
        rows = slice(core * 16, core * 16 + 16)
        expected[rows] = np.take(src[rows], index[rows].flatten(order="F") // 4, axis=1)
    same(run(kernel, src, index), expected.reshape(128, 4, 16, 4))


def test_local_gather_of_a_part_into_a_part() -> None:
    def kernel(src: nl.NkiTensor, places: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(32, 20)
        nisa.memset(dst, 0.0)
        nisa.local_gather(dst[:, 4:9], load(src), load(places), num_valid_indices=5)
        return give(dst)

    src, places = drawn(32, 8), np.random.default_rng(1).integers(0, 8, (32, 1), dtype=np.uint16)
    expected = np.zeros((32, 20), np.float32)
    for core in (0, 1):
        rows = slice(core * 16, core * 16 + 16)
        expected[rows, 4:9] = src[rows][:, places[rows, 0][:5]]
    same(run(kernel, src, places), expected)


def gather(x: Array, indices: Array) -> Array:
    def kernel(data: nl.NkiTensor, places: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(*places.shape, dtype=data.dtype)
        nisa.nc_n_gather(dst=dst, data=load(data), indices=load(places))
        return give(dst)

    result: Array = run(kernel, x, indices)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_n_gather(dtype: str) -> None:
    x = drawn(5, 6, 7, dtype=dtype)
    indices = np.random.default_rng(0).integers(0, 42, (5, 3, 11), dtype=np.uint32)
    expected = np.take_along_axis(x.reshape(5, 42), indices.reshape(5, 33).astype(np.int64), axis=1)
    same(gather(x, indices), expected.reshape(5, 3, 11))


def test_a_gather_out_of_bounds_is_an_error_that_names_the_line() -> None:
    x, indices = drawn(4, 6), np.zeros((4, 2), np.uint32)
    indices[2, 1] = 6
    with pytest.raises(KernelError, match="nc_n_gather: index 6 is out of the 6 elements") as refused:
        gather(x, indices)
    assert "test_isa_shuffle.py" in str(refused.value)


def test_gathering_a_miss_reads_as_what_nothing_wrote() -> None:
    """All ones is what nc_find_index8 gives for a value that is not there."""
    x, indices = drawn(4, 6), np.zeros((4, 2), np.uint32)
    indices[2, 1] = 0xFFFFFFFF
    got = gather(x, indices)
    assert np.isnan(got[2, 1])
    assert np.count_nonzero(np.isnan(got)) == 1
    assert gather(x.astype(np.int32), indices)[2, 1] == 4


def test_local_gather_out_of_bounds() -> None:
    def kernel(places: nl.NkiTensor) -> nl.NkiTensor:
        dst, src = tile(16, 32), tile(16, 8)
        nisa.memset(src, 1.0)
        nisa.local_gather(dst, src, load(places), num_elem_per_idx=2)
        return give(dst)

    places = np.full((16, 1), 6, np.uint16)
    assert (run(kernel, places) == 1).all()
    with pytest.raises(KernelError, match="local_gather: index 7 is out of the 8 elements"):
        run(kernel, places + np.uint16(1))
    assert np.isnan(run(kernel, np.full((16, 1), 0xFFFF, np.uint16))).all()


def topk(x: Array, n: int, k: int) -> tuple[Array, Array]:
    """Values and places of each 16 partitions, unrolled: (groups, k)."""

    def kernel(src: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        values, places = tile(src.shape[0], k, dtype=nl.bfloat16), tile(src.shape[0], k, dtype=nl.uint32)
        nisa.memset(values, -1.0)
        nisa.memset(places, 7)
        nisa.topk(val_dst=values, idx_dst=places, src=load(src), n=n)
        return give(values), give(places)

    groups, columns = x.shape[0] // 16, -(-k // 16)
    values, places = run(kernel, x)
    assert (values[:, columns:] == -1).all()
    assert (places[:, columns:] == 7).all()
    snakes = [a.reshape(groups, 16, k).transpose(0, 2, 1).reshape(groups, 16 * k)[:, :k] for a in (values, places)]
    return snakes[0], snakes[1]


@pytest.mark.parametrize(("n", "k"), [(42, 8), (48, 48), (8, 1), (33, 17)])
def test_topk(n: int, k: int) -> None:
    x = drawn(32, 3, dtype="bfloat16")
    values, places = topk(x, n, k)
    for group in (0, 1):
        snake = x[group * 16 : group * 16 + 16].flatten(order="F")[:n].astype(np.float32)
        order = np.argsort(snake, kind="stable")[-k:]
        same(values[group], snake[order].astype(NUMPY["bfloat16"]))
        same(snake[places[group]].astype(NUMPY["bfloat16"]), values[group])
        assert len(set(places[group].tolist())) == k


def test_topk_prefers_the_first_of_equals() -> None:
    x = np.zeros((16, 2), NUMPY["bfloat16"])
    x[5, 1] = 2.0
    values, places = topk(x, 32, 3)
    assert values.tolist() == [[0.0, 0.0, 2.0]]
    assert places.tolist() == [[1, 0, 21]]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_nonzero_with_count_as_documented(dtype: str) -> None:
    row = np.array([0, 1, 1, 0, 0, 1, 0, 0], dtype)

    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        out = tile(128, 9, dtype=nl.int32)
        nisa.memset(out, 77)
        nisa.nonzero_with_count(dst=out, src=load(x), index_offset=16, padding_val=-1)
        return give(out)

    got = run(kernel, np.tile(row, (128, 1)))
    assert (got[::16] == [17, 18, 21, -1, -1, -1, -1, -1, 3]).all()
    assert (np.delete(got, range(0, 128, 16), axis=0) == 77).all()


def test_nonzero_of_one_partition_and_more_dimensions() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        out = tile(1, 1, 13, dtype=nl.int32)
        nisa.nonzero_with_count(dst=out, src=load(x), padding_val=-9)
        return give(out)

    x = np.zeros((1, 3, 4), np.float32)
    x[0, 2, 3] = np.nan
    assert run(kernel, x, target="trn3").tolist() == [[[11] + [-9] * 11 + [1]]]
