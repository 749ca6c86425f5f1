"""Rotated features against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from calling import (
    NUMPY,
    ROUNDING,
    TARGETS,
    Array,
    Tensor,
    call,
    drawn,
    features_in_sbuf,
    features_to_hbm,
    hbm,
    sbuf_features,
)
from test_budgets import peak

from trnrt.errors import KernelError
from trnrt.kernels.rotate import rotate_features, rotate_tile_bytes
from trnrt.nki import Spec, trace

PLACES = ["features to features", "features to hbm", "hbm to features", "hbm to hbm"]
DTYPES = ["float32", "bfloat16"]
# items, tokens, heads, width
SHAPES = [(1, 1, 1, 32), (3, 7, 3, 32), (2, 130, 5, 64), (1, 530, 2, 128), (5, 201, 3, 64), (40, 13, 4, 64)]


def tables(tokens: int, width: int, columns: int, order: Array, dtype: str) -> tuple[Array, Array, Array, Array]:
    """(swap, cosines, sines) as the kernel wants them, and the sines of what an element gets."""
    parts = min(columns, 128)
    place = np.arange(parts) // width * width + order[np.arange(parts) % width]
    swap = np.zeros((parts, parts), NUMPY[dtype])
    swap[place, np.arange(parts)] = 1
    cosines, sines = (np.tile(drawn((width, tokens), k, dtype), (parts // width, 1)) for k in (1, 2))
    laid = np.zeros_like(sines)
    laid[place] = sines
    return swap, cosines, laid, sines


def body(x: Tensor, swap: Tensor, cosines: Tensor, sines: Tensor, places: str, columns: int, first: int) -> Tensor:
    """The kernel between two places."""
    source, result = places.split(" to ")
    rows = x.shape[0]
    dst = sbuf_features(rows, columns, x.dtype) if result == "features" else hbm((rows, columns), x.dtype)
    rotate_features(dst, features_in_sbuf(x) if source == "features" else x, swap, cosines, sines, columns, first)
    return features_to_hbm(dst, columns) if result == "features" else dst


def check(
    shape: tuple[int, int, int, int],
    places: str,
    target: str = "trn2",
    dtype: str = "float32",
    first: int = 0,
    interleaved: bool = False,
) -> None:
    """Two roundings of products, and one of the sum."""
    items, tokens, heads, width = shape
    columns = heads * width
    order = np.arange(width) ^ 1 if interleaved else np.roll(np.arange(width), width // 2)
    swap, cosines, laid, sines = tables(tokens, width, columns, order, dtype)
    x = drawn((items * tokens, first + columns), 0, dtype)
    got = call(lambda a, m, c, s: body(a, m, c, s, places, columns, first), x, swap, cosines, laid, target=target)
    exact = x[:, first:].astype(np.float64).reshape(items, tokens, heads, width)
    near, far = exact * cosines[:width].T[:, None], exact[..., order] * sines[:width].T[:, None]
    bound = 1.02 * ROUNDING[dtype] * (np.abs(near) + np.abs(far) + np.abs(near + far)) + 4 * 2.0**-24 * np.abs(far)
    off = np.abs(got.reshape(exact.shape) - near - far) / (bound + 1e-30)
    assert off.max() <= 1, off.max()


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_place(shape: tuple[int, int, int, int], dtype: str, places: str) -> None:
    # Every block has the same tables: heads that don't fill it are repeated in the next.
    check(shape, places, dtype=dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("places", PLACES)
def test_targets(places: str, dtype: str, target: str) -> None:
    check((2, 21, 5, 64), places, target, dtype, interleaved=True)


@pytest.mark.parametrize("places", PLACES)
def test_columns_of_wider_rows(places: str) -> None:
    check((2, 21, 5, 64), places, first=256)


def test_rows_that_are_no_whole_items() -> None:
    swap, cosines, laid, _ = tables(7, 32, 32, np.arange(32), "float32")
    with pytest.raises(KernelError, match="8 rows aren't items of 7 tokens"):
        call(lambda a, m, c, s: body(a, m, c, s, PLACES[0], 32, 0), drawn((8, 32), 0), swap, cosines, laid)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("tokens", [1, 201, 600])
@pytest.mark.parametrize("places", PLACES)
def test_the_tiles_fit_their_budget(places: str, tokens: int, target: str) -> None:
    rows, columns, dtype = 1200 // tokens * tokens, 2048, "float32"
    square, table = Spec((128, 128), dtype), Spec((128, tokens), dtype)
    program = trace(
        lambda a, m, c, s: body(a, m, c, s, places, columns, 0),
        Spec((rows, columns), dtype),
        square,
        table,
        table,
        target=target,
    )
    held = places.count("features") * columns // 128 * rows * 4
    assert peak(program) - held <= rotate_tile_bytes(columns, tokens, 4, places.count("hbm"))
