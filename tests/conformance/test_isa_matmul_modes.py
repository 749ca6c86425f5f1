"""nc_matmul's modes: transposes that pass data through, tiles of the array, double rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulating import Array, close, drawn, give, load, run, same, tile

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl, simulate

WIDE = ("float32", "bfloat16", "float16")


def passed(x: Array, moving: Array, target: str = "trn2", out: str | None = None) -> Array:
    def kernel(data: nl.NkiTensor, identity: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(data.shape[1], identity.shape[1], dtype=out or data.dtype, buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=load(data), moving=load(identity), is_transpose=True)
        return give(dst)

    result: Array = run(kernel, x, moving, target=target)
    return result


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_transpose_is_bit_accurate(dtype: str, target: str) -> None:
    """NaN, infinity and the sign of zero arrive; the result has the dtype of the data."""
    x = drawn(96, 40, dtype=dtype)
    x[3, 5], x[7, 9], x[0, 0], x[1, 0] = np.nan, np.inf, -0.0, -np.inf
    got = passed(x, np.eye(96).astype(x.dtype), target)
    same(got, np.ascontiguousarray(x.T))
    assert np.signbit(got[0, 0].astype(np.float32))


def test_part_of_an_identity_matrix_passes_part() -> None:
    x = drawn(32, 8)
    same(passed(x, np.eye(32, dtype=np.float32)[:, [4, 0, 31]]), np.ascontiguousarray(x.T[:, [4, 0, 31]]))


def test_trn1_multiplies() -> None:
    """Its result is float32, and NaN spreads."""
    x = drawn(16, 8, dtype="bfloat16")
    identity = np.eye(16).astype(x.dtype)
    same(passed(x, identity, "trn1", "float32"), np.ascontiguousarray(x.T.astype(np.float32)))
    x[2, 3] = np.nan
    assert np.isnan(passed(x, identity, "trn1", "float32")[3]).all()
    with pytest.raises(KernelError, match="dst is bfloat16; on trn1 it must be float32"):
        passed(x, identity, "trn1")


@pytest.mark.parametrize("scale", [2.0, np.nan])
def test_another_moving_operand_is_an_error(scale: float) -> None:
    with pytest.raises(KernelError, match="moving operand that is no identity matrix") as refused:
        passed(drawn(16, 8), np.eye(16, dtype=np.float32) * np.float32(scale))
    assert "test_isa_matmul_modes.py" in str(refused.value)
    with pytest.raises(KernelError, match="no identity matrix"):
        passed(drawn(16, 8), np.ones((16, 16), np.float32))


def test_float8_has_no_dtype_for_its_transpose() -> None:
    x = drawn(16, 8, dtype="float8_e5m2")
    with pytest.raises(KernelError, match="stationary is float8_e5m2, whose transpose has elements of 16 bits"):
        passed(x, np.eye(16).astype(x.dtype))


def test_a_transpose_does_not_accumulate() -> None:
    def kernel(x: nl.NkiTensor, identity: nl.NkiTensor, again: bool | None) -> nl.NkiTensor:
        a, b = load(x), load(identity)
        dst = tile(8, 8, buffer=nl.psum)
        nisa.nc_matmul(dst, a, b, is_transpose=True)
        nisa.nc_matmul(dst, a, b, is_transpose=True, accumulate=again)
        return give(dst)

    x, identity = drawn(8, 8), np.eye(8, dtype=np.float32)
    for again in (None, True):
        with pytest.raises(KernelError, match="a transpose overwrites"):
            run(kernel, x, identity, again)
    same(run(kernel, x, identity, False), np.ascontiguousarray(x.T))


@pytest.mark.parametrize("dtypes", [("float8_e4m3", "float8_e4m3"), ("float8_e4m3", "float8_e5m2")])
@pytest.mark.parametrize("mode", [nisa.matmul_perf_mode.double_row, "double_row"])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_double_rows(dtypes: tuple[str, str], mode: Any, target: str) -> None:
    """The documented shapes: a contraction of 256 as 128 partitions by 2."""

    def kernel(w: nl.NkiTensor, x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(w.shape[2], x.shape[2], buffer=nl.psum)
        a, b = load(w), load(x)
        for _ in range(2):
            nisa.nc_matmul(dst, a, b, perf_mode=mode)
        return give(dst)

    w, x = drawn(128, 2, 64, dtype=dtypes[0]), drawn(128, 2, 96, seed=1, dtype=dtypes[1])
    wide = [a.astype(np.float64) for a in (w, x)]
    expected = 2 * np.einsum("kim,kin->mn", *wide)
    np.testing.assert_allclose(run(kernel, w, x, target=target), expected, rtol=1e-5, atol=1e-3)


def test_double_rows_of_strided_views() -> None:
    def kernel(w: nl.NkiTensor, x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(3, 4, 5, buffer=nl.psum)
        a, b = load(w), load(x)
        rows = a.ap([[24, 16], [3, 2], [6, 3]], offset=1)
        nisa.nc_matmul(dst, rows, b[:, :, :, 0:5], perf_mode="double_row")  # type: ignore[arg-type]
        return give(dst)

    w, x = drawn(16, 24, dtype="float8_e5m2"), drawn(16, 2, 4, 7, seed=1, dtype="float8_e5m2")
    picked = np.stack([w[:, 1::6][:, :3], w[:, 4::6][:, :3]], axis=1).astype(np.float64)
    expected = np.einsum("kim,kinl->mnl", picked, x[..., 0:5].astype(np.float64))
    np.testing.assert_allclose(run(kernel, w, x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "modes", "target", "says"),
    [
        ((8, 4), {}, "trn2", "stationary has shape \\(8, 4\\); with double_row it must have \\(P, 2, ...\\)"),
        ((8, 3, 4), {}, "trn2", "stationary has shape \\(8, 3, 4\\)"),
        ((8, 2, 4), {}, "trn1", "trn1 has no performance mode"),
        ((8, 2, 4), {"is_transpose": True}, "trn2", "is_transpose=True with double_row"),
        ((8, 2, 4), {"tile_position": (0, 64), "tile_size": (128, 64)}, "trn2", "its column size must be 128"),
    ],
)
def test_what_double_rows_exclude(shape: tuple[int, ...], modes: dict[str, Any], target: str, says: str) -> None:
    def kernel() -> nl.NkiTensor:
        operand = tile(*shape, dtype=nl.float8_e5m2)
        size = int(np.prod(shape[1:])) // 2
        nisa.nc_matmul(tile(size, size, buffer=nl.psum), operand, operand, perf_mode="double_row", **modes)  # type: ignore[arg-type]
        return tile(1, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match=says):
        run(kernel, target=target)


@pytest.mark.parametrize(("target", "quarter"), [("trn1", 64), ("trn2", 32), ("trn3", 32)])
def test_column_tiles_compute_what_the_whole_array_does(target: str, quarter: int) -> None:
    """As kernels use them: each tile writes its own partitions of one PSUM tile."""

    def kernel(w: nl.NkiTensor, x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(128, 40, buffer=nl.psum)
        a, b = load(w), load(x)
        for start in range(0, 128, quarter):
            part = a[:, start : start + quarter]
            where = {"tile_position": (0, start), "tile_size": (128, quarter)}
            nisa.nc_matmul(dst[start : start + quarter], part, b, **where)  # type: ignore[arg-type]
        return give(dst)

    w, x = drawn(128, 128), drawn(128, 40, seed=1)
    np.testing.assert_allclose(run(kernel, w, x, target=target), w.T @ x, rtol=1e-4, atol=1e-4)


def test_row_tiles_contract_over_their_rows() -> None:
    def kernel(w: nl.NkiTensor, x: nl.NkiTensor) -> nl.NkiTensor:
        dst = tile(16, 40, buffer=nl.psum)
        a, b = load(w), load(x)
        for start in (0, 64):
            rows = slice(start, start + 64)
            nisa.nc_matmul(dst, a[rows], b[rows], tile_position=(start, 0), tile_size=(64, 128))
        return give(dst)

    w, x = drawn(128, 16), drawn(128, 40, seed=1)
    np.testing.assert_allclose(run(kernel, w, x), w.T @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("position", "size", "says"),
    [
        ((0, 48), (128, 32), "tile_position=\\(0, 48\\): its column must be a multiple of 32 from 0 to 96"),
        ((128, 0), (64, 128), "its row must be a multiple of 64 from 0 to 64"),
        ((0, 0), (96, 128), "its row size must be 32, 64 or 128"),
        ((0, 64), (), "tiling takes both"),
        ((), (64, 64), "tiling takes both"),
        ((0,), (64, 64), "tile_position=\\(0,\\); it must be a pair of integers"),
        ((0, 0.5), (64, 64), "it must be a pair of integers"),
    ],
)
def test_tiles_that_are_none(position: Any, size: Any, says: str) -> None:
    def kernel() -> nl.NkiTensor:
        operand = tile(16, 16)
        nisa.nc_matmul(tile(16, 16, buffer=nl.psum), operand, operand, tile_position=position, tile_size=size)
        return tile(1, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match=says):
        run(kernel)


def test_the_whole_array_has_many_names() -> None:
    names: list[dict[str, Any]] = [
        {},
        {"tile_position": (0, 0)},
        {"tile_size": (128, 128)},
        {"tile_position": [0, 0], "tile_size": [128, 128], "perf_mode": "none", "is_stationary_onezero": True},
    ]
    w, x = drawn(64, 16), drawn(64, 8, seed=1)
    for modes in names:

        def kernel(w: nl.NkiTensor, x: nl.NkiTensor, modes: dict[str, Any] = modes) -> nl.NkiTensor:
            dst = tile(16, 8, buffer=nl.psum)
            nisa.nc_matmul(dst, load(w), load(x), **modes)
            return give(dst)

        close(simulate(kernel)(w, x), w.T @ x, ulps=64)


def test_modes_have_names() -> None:
    def kernel() -> nl.NkiTensor:
        operand = tile(16, 16)
        nisa.nc_matmul(tile(16, 16, buffer=nl.psum), operand, operand, perf_mode="quad_row")  # type: ignore[arg-type]
        return tile(1, buffer=nl.shared_hbm)

    with pytest.raises(KernelError, match="perf_mode='quad_row'; it must be none or double_row"):
        run(kernel)
