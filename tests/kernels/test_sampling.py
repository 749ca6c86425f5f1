"""Images sampled at computed places, against numpy: modes, borders, any size, and places far outside."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels import sampling
from trnrt.kernels.sampling import sample_images
from trnrt.nki import simulate

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


def sampled(images: Array, grid: Array, mode: str, padding: str, align: bool, target: str = "trn2") -> Array:
    """images (N, H, W, C) or (N, D, H, W, C), grid (N, R, 2) or (N, R, 3)."""
    count, *size, channels = images.shape

    def body(table: Tensor, grid: Tensor) -> Tensor:
        dst = hbm((count, grid.shape[1], channels), table.dtype)
        sample_images(dst, table, grid, tuple(size), mode, padding, align)
        return dst

    table = np.ascontiguousarray(images.reshape(-1, channels))
    result: Array = simulate(body, target)(table, grid)
    return result.astype(np.float32)


def taps(place: np.float32, mode: str) -> list[tuple[float, float]]:
    """The pixels along an axis, and their weights."""
    if mode == "nearest":
        return [(np.rint(place), 1.0)]
    low = np.floor(place)
    t = place - low
    if mode == "linear":
        return [(low, 1 - t), (low + 1, t)]
    a = -0.75
    far = [((a * u - 5 * a) * u + 8 * a) * u - 4 * a for u in (t + 1, 2 - t)]
    near = [((a + 2) * u - (a + 3)) * u * u + 1 for u in (t, 1 - t)]
    return [(low - 1, far[0]), (low, near[0]), (low + 1, near[1]), (low + 2, far[1])]


def mirrored(pixel: float, length: int, align: bool) -> float:
    """A pixel reflected until it is in the image."""
    lowest, highest = (0, length - 1) if align else (-0.5, length - 0.5)
    while not lowest <= pixel <= highest and highest > lowest:
        pixel = 2 * (lowest if pixel < lowest else highest) - pixel
    return pixel


def expected(images: Array, grid: Array, mode: str, padding: str, align: bool) -> Array:
    """The definition, place by place."""
    lengths = images.shape[1:-1]
    sizes = np.array(lengths[::-1], np.float32)
    near = grid.astype(np.float32) + np.float32(1)
    places = near / np.float32(2) * (sizes - 1) if align else (near * sizes - np.float32(1)) / np.float32(2)
    result = np.zeros((*grid.shape[:2], images.shape[-1]), np.float32)
    for n, r in np.ndindex(*grid.shape[:2]):
        for chosen in product(*(taps(place, mode) for place in places[n, r][::-1])):
            pixels = [pixel for pixel, _ in chosen]
            if padding == "reflection":
                pixels = [mirrored(pixel, length, align) for pixel, length in zip(pixels, lengths, strict=True)]
            inside = np.clip(pixels, 0, np.array(lengths) - 1).astype(int)
            if padding != "zeros" or (inside == pixels).all():
                result[n, r] += np.prod([w for _, w in chosen]) * images[(n, *inside)].astype(np.float32)
    return result


def grids(*shape: int, seed: int = 0, axes: int = 2) -> Array:
    """Places inside and outside of the image, some of them by several of its sizes."""
    return np.random.default_rng(seed).uniform(-3.4, 3.4, (*shape, axes)).astype(np.float32)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_mode(target: str, mode: str, padding: str, align: bool) -> None:
    images, grid = drawn((2, 5, 7, 3), 0, "float32"), grids(2, 150)
    got = sampled(images, grid, mode, padding, align, target)
    np.testing.assert_allclose(got, expected(images, grid, mode, padding, align), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_dtypes(mode: str, dtype: str) -> None:
    images, grid = drawn((1, 6, 4, 5), 0, dtype), grids(1, 40).astype(drawn((1,), 0, dtype).dtype)
    wanted = expected(images, grid, mode, "zeros", False)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(sampled(images, grid, mode, "zeros", False), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=40)
@given(data=st.data())
def test_any_size(data: st.DataObject) -> None:
    axes = data.draw(st.integers(2, 3))
    mode = data.draw(st.sampled_from(MODES if axes == 2 else MODES[:2]))
    padding, align = data.draw(st.sampled_from(PADDINGS)), data.draw(st.booleans())
    count, channels, *size = (data.draw(st.integers(1, most)) for most in (2, 6, *[9 if axes == 2 else 4] * axes))
    images = drawn((count, *size, channels), data.draw(st.integers(0, 99)))
    grid = grids(count, data.draw(st.integers(1, 300)), seed=data.draw(st.integers(0, 99)), axes=axes)
    got = sampled(images, grid, mode, padding, align)
    np.testing.assert_allclose(got, expected(images, grid, mode, padding, align), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_places_far_outside(mode: str) -> None:
    """No number leaves the table, whatever the grid has."""
    images = drawn((1, 4, 5, 2), 0)
    grid = np.array([[[np.nan, 0], [np.inf, 0], [0, -np.inf], [3e38, -3e38], [1e9, 0]]], np.float32)
    assert (sampled(images, grid, mode, "zeros", False) == 0).all()
    for padding in ("border", "reflection"):
        for align in (False, True):
            assert np.isfinite(sampled(images, grid, mode, padding, align)).all()


@pytest.mark.parametrize("align", [False, True])
def test_reflections_of_many_trips(align: bool) -> None:
    images, grid = drawn((1, 4, 5, 2), 0), grids(1, 60) * np.float32(1000)
    wanted = expected(images, grid, "nearest", "reflection", align)
    np.testing.assert_array_equal(sampled(images, grid, "nearest", "reflection", align), wanted)


def test_long_rows_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK", 16)
    monkeypatch.setattr(sampling, "BLOCKS", 2)
    images, grid = drawn((1, 5, 7, 40), 0), grids(1, 700)
    wanted = expected(images, grid, "linear", "zeros", False)
    np.testing.assert_allclose(sampled(images, grid, "linear", "zeros", False), wanted, rtol=1e-5, atol=1e-5)
