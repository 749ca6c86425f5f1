"""Max pooling against the maxima of windows of the padded images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import (
    DTYPES,
    LOWEST,
    TARGETS,
    Array,
    Pads,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    drawn,
    hbm,
    result_size,
    sbuf_channels,
    windows,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.pool2d import BAND_BYTES, max_pool2d, max_pool_fits
from trnrt.nki import Spec, nl, trace
from trnrt.nki.machine.program import Program


@dataclass(frozen=True)
class Pool:
    """Max pooling of images (N, C, H, W); ``pads`` are (top, left, bottom, right)."""

    images: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    places: Pair = (0, 0)  # source, result: 0 HBM, 1 SBUF
    target: str = "trn2"

    @property
    def result(self) -> tuple[int, int, int, int]:
        """(N, C, rows, columns) of the result."""
        return *self.images[:2], *result_size(self.images[2:], self.kernel, self.stride, self.pads, self.dilation)

    def body(self, x: Tensor) -> Tensor:
        """The kernel."""
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        max_pool2d(dst, source, self.images[1], self.kernel, self.stride, self.pads[:2], self.dilation)
        return channels_to_hbm(dst, self.images[1]) if self.places[1] else dst

    def program(self) -> Program:
        """The kernel, traced only."""
        return trace(self.body, Spec(self.images, "float32"), target=self.target)


def compare(pool: Pool, dtype: str = "float32") -> None:
    """Nothing is computed, so every bit must be right."""
    x = drawn(pool.images, 0, dtype)
    seen = windows(x.astype(np.float64), pool.kernel, pool.stride, pool.pads, pool.dilation, LOWEST[dtype])
    got = call(pool.body, x, target=pool.target)
    assert got.shape == pool.result
    assert (got == seen.max(axis=(4, 5))).all()


PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
TABLE = {
    "one pixel": Pool((1, 1, 1, 1), (1, 1)),
    "batch of 33": Pool((33, 3, 8, 8), (2, 2), (2, 2)),
    "129 channels, overlapping": Pool((2, 129, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
    "257 channels": Pool((1, 257, 6, 6), (3, 2), (3, 2)),
    "everything different": Pool((2, 5, 9, 30), (3, 2), (1, 2), (1, 0, 1, 1), (2, 3)),
    "wide rows": Pool((1, 2, 9, 1500), (3, 3), (2, 2), (1, 1, 1, 1)),
    "gaps between windows": Pool((2, 3, 10, 11), (2, 1), (4, 3)),
    "ceil_mode: the last window is partly outside": Pool((1, 2, 7, 7), (2, 2), (2, 2), (0, 0, 1, 1)),
    "padding only": Pool((1, 2, 1, 2), (2, 2), (1, 1), (1, 1, 1, 1), (2, 3)),
    "kernel larger than the image": Pool((1, 2, 3, 4), (6, 5), (1, 1), (5, 4, 3, 3)),
    "bands of rows": Pool((2, 3, 112, 112), (3, 3), (2, 2), (1, 1, 1, 1)),
    "many images at once": Pool((300, 2, 4, 4), (2, 2), (2, 2)),
}


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair) -> None:
    compare(replace(TABLE[name], places=places))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str) -> None:
    compare(Pool((3, 130, 6, 7), (3, 3), (2, 2), (1, 1, 1, 1), target=target), dtype)


def test_nan_and_infinity_reach_the_windows_that_see_them() -> None:
    pool = Pool((1, 2, 6, 6), (2, 2), (2, 2))
    x = drawn(pool.images, 0)
    x[0, 0, 2, 3], x[0, 1, 5, 5], x[0, 1, 0:2, 0:2] = np.nan, np.inf, -np.inf
    seen: Array = windows(x, pool.kernel, pool.stride, pool.pads, pool.dilation, LOWEST["float32"]).max(axis=(4, 5))
    np.testing.assert_array_equal(call(pool.body, x), seen.astype(np.float64))
    assert np.isnan(seen[0, 0, 1, 1]) and np.isnan(seen).sum() == 1


# One row of results needs 2 rows of the image: 32 KiB hold two of 4096 float32.
@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (Pool((1, 1, 4, 4096), (2, 2), (2, 2)), Pool((1, 1, 4, 4098), (2, 2), (2, 2))),
        (Pool((1, 1, 70, 128), (64, 1)), Pool((1, 1, 70, 128), (65, 1))),
    ],
    ids=["wide", "high"],
)
def test_limits(inside: Pool, outside: Pool) -> None:
    for pool, fits in ((inside, True), (outside, False)):
        assert max_pool_fits(pool.result[3], pool.kernel, pool.stride, pool.dilation) is fits
    inside.program()
    with pytest.raises(KernelError, match=r"max_pool2d: \d+ rows of \d+ exceed SBUF"):
        outside.program()


def test_images_larger_than_sbuf() -> None:
    """Bands of rows stay in their budget, and every result is stored once."""
    pool = Pool((1, 128, 1024, 1024), (3, 3), (2, 2), (1, 1, 1, 1))
    program = pool.program()
    assert max(s.partition_bytes for s in program.storages if s.buffer is nl.sbuf) <= BAND_BYTES
    stored = sum(i["dst"].size for i in program.instructions if i["dst"].storage is program.outputs[0].storage)
    assert stored == np.prod(pool.result)


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """Small ones with any attributes that give a result."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel = pair(1, 5)
    ends = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    pool = Pool(
        (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 128, 129])), *pair(1, 14)),
        kernel,
        pair(1, 4),
        (ends[0], ends[1], ends[2], ends[3]),
        pair(1, 3),
        draw(st.sampled_from(PLACES)),
        draw(st.sampled_from(TARGETS)),
    )
    assume(min(pool.result) >= 1)
    return pool


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pool=pools(), dtype=st.sampled_from(DTYPES))
def test_any_pool(pool: Pool, dtype: str) -> None:
    compare(pool, dtype)
