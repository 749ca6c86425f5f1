"""Images sampled at computed places, against numpy: modes, borders, any size, and places far outside."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels import sampling
from trnrt.kernels.sampling import sample_images
from trnrt.nki import simulate


def sampled(images: Array, grid: Array, mode: str, border: bool, align: bool, target: str = "trn2") -> Array:
    """images (N, H, W, C), grid (N, R, 2)."""
    count, height, width, channels = images.shape

    def body(table: Tensor, grid: Tensor) -> Tensor:
        dst = hbm((count, grid.shape[1], channels), table.dtype)
        sample_images(dst, table, grid, (height, width), mode, border, align)
        return dst

    table = np.ascontiguousarray(images.reshape(-1, channels))
    result: Array = simulate(body, target)(table, grid)
    return result.astype(np.float32)


def expected(images: Array, grid: Array, mode: str, border: bool, align: bool) -> Array:
    """The definition, place by place."""
    sizes = np.array([images.shape[2], images.shape[1]], np.float32)
    near = grid.astype(np.float32) + np.float32(1)
    places = near / np.float32(2) * (sizes - 1) if align else (near * sizes - np.float32(1)) / np.float32(2)
    result = np.zeros((*grid.shape[:2], images.shape[3]), np.float32)
    for n, r in np.ndindex(*grid.shape[:2]):
        x, y = places[n, r]
        taps = [(np.rint(x), np.rint(y), 1.0)]
        if mode == "linear":
            fx, fy = x - np.floor(x), y - np.floor(y)
            taps = [
                (np.floor(x) + i, np.floor(y) + j, (fx if i else 1 - fx) * (fy if j else 1 - fy))
                for i in (0, 1)
                for j in (0, 1)
            ]
        for column, row, weight in taps:
            inside = np.clip([column, row], 0, sizes - 1)
            if border or (inside == (column, row)).all():
                result[n, r] += weight * images[n, int(inside[1]), int(inside[0])].astype(np.float32)
    return result


def grids(*shape: int, seed: int = 0) -> Array:
    """Places inside and outside of the image."""
    return np.random.default_rng(seed).uniform(-1.4, 1.4, (*shape, 2)).astype(np.float32)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("border", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_mode(target: str, mode: str, border: bool, align: bool) -> None:
    images, grid = drawn((2, 5, 7, 3), 0, "float32"), grids(2, 150)
    got = sampled(images, grid, mode, border, align, target)
    np.testing.assert_allclose(got, expected(images, grid, mode, border, align), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    images, grid = drawn((1, 6, 4, 5), 0, dtype), grids(1, 40).astype(drawn((1,), 0, dtype).dtype)
    wanted = expected(images, grid, "linear", False, False)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(sampled(images, grid, "linear", False, False), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=25)
@given(data=st.data())
def test_any_size(data: st.DataObject) -> None:
    count, height, width, channels = (data.draw(st.integers(1, most)) for most in (2, 9, 9, 6))
    mode, border, align = (
        data.draw(st.sampled_from(["linear", "nearest"])),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )
    images = drawn((count, height, width, channels), data.draw(st.integers(0, 99)))
    grid = grids(count, data.draw(st.integers(1, 300)), seed=data.draw(st.integers(0, 99)))
    got = sampled(images, grid, mode, border, align)
    np.testing.assert_allclose(got, expected(images, grid, mode, border, align), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_places_far_outside(mode: str) -> None:
    """No number leaves the table, whatever the grid has."""
    images = drawn((1, 4, 5, 2), 0)
    grid = np.array([[[np.nan, 0], [np.inf, 0], [0, -np.inf], [3e38, -3e38], [1e9, 0]]], np.float32)
    assert (sampled(images, grid, mode, False, False) == 0).all()
    assert np.isfinite(sampled(images, grid, mode, True, True)).all()


def test_long_rows_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK", 16)
    monkeypatch.setattr(sampling, "BLOCKS", 2)
    images, grid = drawn((1, 5, 7, 40), 0), grids(1, 700)
    wanted = expected(images, grid, "linear", False, False)
    np.testing.assert_allclose(sampled(images, grid, "linear", False, False), wanted, rtol=1e-5, atol=1e-5)
