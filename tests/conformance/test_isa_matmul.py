"""The tensor engine: products, accumulation in PSUM, and transposes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same, tile

from trnrt.nki import nisa, nl


def product(a: Array, b: Array) -> Array:
    """a.T @ b, free dimensions flattened, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    result: Array = a.reshape(len(a), -1).T @ b.reshape(len(b), -1)
    return result


def check(got: Array, expected: Array, terms: int) -> None:
    """As near as a float32 sum of so many products of order 1 is."""
    np.testing.assert_allclose(got, expected, rtol=terms * 2.0**-23, atol=terms * 2.0**-21)


@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (128, 128, 512), (3, 5, 7), (64, 1, 512), (100, 128, 3)])
@pytest.mark.parametrize(
    "dtypes",
    [("float32", "float32"), ("bfloat16", "float16"), ("float8_e4m3", "bfloat16"), ("float8_e5m2", "float8_e4m3")],
)
def test_nc_matmul(k: int, m: int, n: int, dtypes: tuple[str, str]) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(m, n, buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=load(a), moving=load(b))
        return give(dst)

    a, b = drawn(k, m, dtype=dtypes[0]), drawn(k, n, seed=1, dtype=dtypes[1])
    check(run(body, a, b), product(a, b), k)


def test_operands_in_tfloat32_are_rounded_to_it() -> None:
    def body(a: Tensor) -> Tensor:
        w, dst = tile(1, 1, dtype=nl.tfloat32), tile(1, 1, buffer=nl.psum)
        nisa.tensor_copy(dst=w, src=load(a))
        nisa.nc_matmul(dst=dst, stationary=w, moving=load(a))
        return give(dst)

    one = np.array([[1 + 2.0**-12]], np.float32)
    assert run(body, one).item() == one.item()


def test_a_product_with_a_bfloat16_result() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(4, 6, dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=load(a), moving=load(b), accumulate=False)
        nisa.nc_matmul(dst=dst, stationary=load(a), moving=load(b), accumulate=True)
        return give(dst)

    a, b = np.full((1, 4), 1, np.float32), np.full((1, 6), 1 + 2.0**-7 + 2.0**-9, np.float32)
    once = rounded(b, "bfloat16").astype(np.float32)
    same(run(body, a, b, target="trn3"), np.repeat(rounded(once + b, "bfloat16"), 4, axis=0))


def test_operands_are_views() -> None:
    """A convolution's operands: a tap of the weights, and the image's window moved and strided."""

    def body(w: Tensor, x: Tensor) -> Tensor:
        w_sb, x_sb = load(w), load(x)
        dst = tile(3, 2, 3, 4, buffer=nl.psum)
        for tap in range(4):
            window = x_sb[:, :, tap // 2 : tap // 2 + 5 : 2, tap % 2 : tap % 2 + 7 : 2]
            nisa.nc_matmul(dst=dst, stationary=w_sb[:, tap, :], moving=window, accumulate=tap > 0)
        return give(dst)

    w, x = drawn(5, 4, 3), drawn(5, 2, 7, 9, seed=1)
    windows = [x[:, :, t // 2 : t // 2 + 5 : 2, t % 2 : t % 2 + 7 : 2] for t in range(4)]
    expected = sum(product(w[:, t], windows[t]) for t in range(4))
    check(run(body, w, x), np.reshape(expected, (3, 2, 3, 4)), 20)


def test_the_result_may_be_a_strided_view() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(4, 6, 2, buffer=nl.psum)
        nisa.memset(dst=dst, value=0.0)
        nisa.nc_matmul(dst=dst[:, :, 1], stationary=load(a), moving=load(b))
        return give(dst)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    got = run(body, a, b)
    check(got[:, :, 1], product(a, b), 8)
    same(got[:, :, 0], np.zeros((4, 6), np.float32))


@pytest.mark.parametrize("accumulate", [(False, True, True), (None, None, None), (False, None, True), (0, 1, np.True_)])
def test_accumulation(accumulate: tuple[bool | None, ...]) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, dst = load(a), load(b), tile(4, 6, buffer=nl.psum)
        for adds in accumulate:
            nisa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=adds)
        return give(dst)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    check(run(body, a, b), 3 * product(a, b), 24)


@pytest.mark.parametrize("overwrite", [False, 0, np.False_])
def test_overwriting_starts_anew(overwrite: bool) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, dst = load(a), load(b), tile(4, 6, buffer=nl.psum)
        for accumulate in (None, None, overwrite, None):
            nisa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=accumulate)
        return give(dst)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    check(run(body, a, b), 2 * product(a, b), 16)


def test_none_is_tracked_element_by_element() -> None:
    """Where windows overlap products add up; elsewhere the first one overwrites the NaN of unwritten memory."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, dst = load(a), load(b), tile(8, 12, buffer=nl.psum)
        nisa.nc_matmul(dst=dst[0:4, 0:6], stationary=x[:, 0:4], moving=y[:, 0:6])
        nisa.nc_matmul(dst=dst[:, 3:9], stationary=x, moving=y[:, 3:9])
        nisa.nc_matmul(dst=dst, stationary=x, moving=y)
        nisa.nc_matmul(dst=dst[:, ::2], stationary=x, moving=y[:, ::2])
        return give(dst)

    a, b = drawn(16, 8), drawn(16, 12, seed=1)
    count = np.ones((8, 12))
    count[0:4, 0:6] += 1
    count[:, 3:9] += 1
    count[:, ::2] += 1
    check(run(body, a, b), count * product(a, b), 64)


def test_a_cleared_tile_starts_anew() -> None:
    """As nki-library's attention does it: memset with 0, then products with accumulate=None into parts of the tile."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, dst = load(a), load(b), tile(4, 12, buffer=nl.psum)
        for _ in range(2):
            nisa.memset(dst=dst, value=0.0)
            for _ in range(2):
                nisa.nc_matmul(dst=dst[:, 0:6], stationary=x, moving=y)
        return give(dst)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    check(run(body, a, b), np.hstack([2 * product(a, b), np.zeros((4, 6))]), 16)


def sliced(dst: Tensor, part: int) -> Tensor:
    return dst[:, 4 * part : 4 * part + 4]


def pattern(dst: Tensor, part: int) -> Tensor:
    return dst.ap([[12, 8], [1, 4]], offset=4 * part)


def pattern_of_its_dtype(dst: Tensor, part: int) -> Tensor:
    """As nki-library's TensorView makes them."""
    return dst.ap([[12, 8], [1, 4]], offset=4 * part, dtype=nl.float32)


def seen_as_its_dtype(dst: Tensor, part: int) -> Tensor:
    return sliced(dst, part).view(nl.float32)


def seen_as_int32_and_back(dst: Tensor, part: int) -> Tensor:
    return sliced(dst.view(nl.int32), part).view(nl.float32)


def seen_as_bfloat16_and_back(dst: Tensor, part: int) -> Tensor:
    return dst.view(nl.bfloat16)[:, 8 * part : 8 * part + 8].view(nl.float32)


WAYS = (
    sliced,
    pattern,
    pattern_of_its_dtype,
    seen_as_its_dtype,
    seen_as_int32_and_back,
    seen_as_bfloat16_and_back,
)


@pytest.mark.parametrize("way", WAYS)
def test_each_part_of_a_psum_tile_is_overwritten_first(way: Callable[[Tensor, int], Tensor]) -> None:
    """However a part of a tile is named, the first product into it overwrites what nothing wrote, the second adds."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        dst, x, y = tile(8, 12, buffer=nl.psum), load(a), load(b)
        for part in (0, 1, 2, 1):
            nisa.nc_matmul(dst=way(dst, part), stationary=x, moving=y)
        return give(dst)

    a, b = drawn(16, 8), drawn(16, 4, seed=1)
    once = product(a, b)
    check(run(body, a, b), np.hstack([once, 2 * once, once]), 32)


@pytest.mark.parametrize("storage", [nl.bfloat16, nl.uint8, nl.int32], ids=str)
def test_products_into_a_psum_tile_of_another_dtype(storage: nl.DType) -> None:
    """Elements smaller than float32's: each part is tracked by the bytes that it is."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        tiles, x, y = tile(8, 48 // storage.itemsize, dtype=storage, buffer=nl.psum), load(a), load(b)
        dst = tiles.view(nl.float32)
        for part in (0, 1, 2, 1):
            nisa.nc_matmul(dst=sliced(dst, part), stationary=x, moving=y)
        return give(dst)

    a, b = drawn(16, 8), drawn(16, 4, seed=1)
    once = product(a, b)
    check(run(body, a, b), np.hstack([once, 2 * once, once]), 32)


@pytest.mark.parametrize("accumulate", [True, None])
def test_trn3_accumulates_on_what_another_instruction_wrote(accumulate: bool | None) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, dst = load(a), load(b), tile(4, 6, buffer=nl.psum)
        nisa.memset(dst=dst, value=3.0)
        nisa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=accumulate)
        return give(dst)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    check(run(body, a, b, target="trn3"), 3 + product(a, b), 16)


def test_a_reused_tile_forgets() -> None:
    """Every replay, and every tile at the same address, starts from memory that no matmul has written."""

    def body(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        results = []
        for _ in range(3):
            dst = tile(4, 6, buffer=nl.psum, address=(0, 0))
            nisa.nc_matmul(dst=dst, stationary=load(a), moving=load(b))
            results.append(give(dst))
        return tuple(results)

    a, b = drawn(8, 4), drawn(8, 6, seed=1)
    for result in run(body, a, b):
        check(result, product(a, b), 8)


def test_infinities_spread_as_in_numpy() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(2, 2, buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=load(a), moving=load(b))
        return give(dst)

    a = np.array([[np.inf, 1], [0, 1]], np.float32)
    got = run(body, a, np.eye(2, dtype=np.float32))
    assert got[0, 0] == np.inf
    assert np.isnan(got[0, 1])
    assert got[1].tolist() == [1, 1]


# Transposes.
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(128, 128), (1, 128), (128, 1), (5, 3, 4)])
def test_nc_transpose(shape: tuple[int, ...], dtype: str, target: str) -> None:
    def body(a: Tensor) -> Tensor:
        x = load(a)
        dst = tile(x.free_size, x.shape[0], dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=dst, data=x, engine=nisa.engine.tensor)
        return give(dst)

    a = drawn(*shape, dtype=dtype)
    expected = a.reshape(shape[0], -1).T
    if dtype == "int32" and target == "trn1":  # as a product of float32
        np.testing.assert_allclose(run(body, a, target=target), expected, rtol=2.0**-23)
    else:
        same(run(body, a, target=target), expected)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_the_vector_engine_transposes(buffer: nl.MemoryRegion) -> None:
    def body(a: Tensor) -> Tensor:
        x, dst = load(a, buffer), tile(4, 3, 8, buffer=buffer)
        nisa.nc_transpose(dst=dst[0:4], data=x.permute((0, 2, 1))[:, 0:2], engine=nisa.engine.vector)
        return give(dst)

    a = drawn(24, 2, 2)
    same(run(body, a), a.transpose(0, 2, 1).reshape(24, 4).T.reshape(4, 3, 8))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("engine", [nisa.engine.tensor, nisa.engine.vector])
def test_only_trn1_s_tensor_engine_spreads_infinity(target: str, engine: nisa.engine) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(3, 2, buffer=nl.psum)
        nisa.nc_transpose(dst=dst, data=load(a), engine=engine)
        return give(dst)

    a = np.array([[1, np.inf, np.nan], [2, 3, 4]], np.float32)
    got = run(body, a, target=target)
    if target == "trn1" and engine is nisa.engine.tensor:
        assert np.isnan(got[1, 1])
        assert np.isnan(got[2]).all()
        assert got[0].tolist() == [1, 2]
    else:
        same(got, a.T.copy())
