"""Tensors to the layouts of SBUF and back: every element at its place, which is stated in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels import layouts
from trnrt.nki import Spec, nisa, nl, simulate, trace

Shape = tuple[int, ...]
LAYOUTS = {
    "rows": (layouts.load_rows, layouts.store_rows, 0),
    "features": (layouts.load_features, layouts.store_features, 1),
    "channels": (layouts.load_channels, layouts.store_channels, 1),
}
SIZES = (1, 3, 128, 129, 300)


def shape_of(layout: str, size: int) -> Shape:
    """A tensor with ``size`` rows, features or channels."""
    return {"rows": (size, 7), "features": (5, size), "channels": (2, size, 3, 4)}[layout]


def tile_of(layout: str, shape: Shape) -> Shape:
    """The tile that holds a tensor."""
    axis = LAYOUTS[layout][2]
    across = shape[axis]
    rest = tuple(size for d, size in enumerate(shape) if d != axis)
    return min(across, 128), -(-across // 128), *rest


def placed(layout: str, x: Array) -> Array:
    """The tile's content by numpy; NaN where nothing stands."""
    first = np.moveaxis(x, LAYOUTS[layout][2], 0)
    tile = np.full(tile_of(layout, x.shape), np.nan, np.float64)
    for number, row in enumerate(first):
        tile[number % 128, number // 128] = row
    return tile


def run(layout: str, x: Array, target: str = "trn2") -> tuple[Array, Array]:
    """The tile, as it lies in SBUF, and what is stored of it again."""
    load, store, _ = LAYOUTS[layout]

    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        tile = nl.ndarray(tile_of(layout, x.shape), x.dtype, nl.sbuf)
        load(tile, x)
        seen, back = hbm(tile.shape, x.dtype), hbm(x.shape, x.dtype)
        nisa.dma_copy(dst=seen, src=tile)
        store(back, tile)
        return seen, back

    seen, back = simulate(body, target)(x)
    return seen.astype(np.float64), back


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_is_at_its_place(layout: str, size: int, dtype: str) -> None:
    x = drawn(shape_of(layout, size), seed=size, dtype=dtype)
    seen, back = run(layout, x)
    np.testing.assert_array_equal(seen, placed(layout, x.astype(np.float64)))
    assert back.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(back.astype(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", TARGETS)
def test_targets(layout: str, target: str) -> None:
    x = drawn(shape_of(layout, 130), seed=1)
    np.testing.assert_array_equal(run(layout, x, target)[1], x)


@given(st.tuples(*[st.integers(1, size) for size in (3, 260, 4, 5)]), st.integers(0, 9))
@settings(max_examples=20)
def test_images_of_any_shape(shape: Shape, seed: int) -> None:
    x = drawn(shape, seed)
    seen, back = run("channels", x)
    np.testing.assert_array_equal(seen, placed("channels", x))
    np.testing.assert_array_equal(back, x)


def test_what_is_no_number_passes() -> None:
    x = drawn((200, 6), seed=0)
    x[3, 2], x[150, 0], x[199, 5] = np.nan, np.inf, -np.inf
    for layout in ("rows", "features"):
        np.testing.assert_array_equal(run(layout, x)[1], x)


@pytest.mark.parametrize("function", [layouts.load_features, layouts.store_features])
def test_a_tile_of_other_blocks_is_refused(function: Callable[[Tensor, Tensor], None]) -> None:
    def body(x: Tensor) -> Tensor:
        tile = nl.ndarray((128, 1, 4), x.dtype, nl.sbuf)
        function(*((tile, x) if function is layouts.load_features else (x, tile)))
        return x

    with pytest.raises(KernelError, match="a tile of 1 blocks for 200; it needs 2"):
        trace(body, Spec((4, 200), "float32"), target="trn2")
