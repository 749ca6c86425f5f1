"""Max and average pooling against the windows of the padded images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

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
    check,
    drawn,
    hbm,
    result_size,
    sbuf_channels,
    windows,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.kernels.pool2d import INPUT_BAND_BYTES, avg_pool2d, max_pool2d
from trnrt.nki import Spec, nl, trace
from trnrt.nki.machine.program import Program


@dataclass(frozen=True)
class Pool:
    """Pooling of images (N, C, H, W); ``pads`` are (top, left, bottom, right)."""

    images: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    places: Pair = (0, 0)  # source, result: 0 HBM, 1 SBUF
    target: str = "trn2"
    average: str = ""  # "": maxima; "all": the padding counts, "inside": it does not
    over: Pair = (0, 0)  # what the last windows need beyond the padding: ceil_mode

    @property
    def result(self) -> tuple[int, int, int, int]:
        """(N, C, rows, columns) of the result."""
        return *self.images[:2], *result_size(self.images[2:], self.kernel, self.stride, self.all_pads, self.dilation)

    @property
    def all_pads(self) -> Pads:
        """What the windows see around the image."""
        return self.pads[0], self.pads[1], self.pads[2] + self.over[0], self.pads[3] + self.over[1]

    def body(self, x: Tensor) -> Tensor:
        """The kernel."""
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        channels, windows = self.images[1], (self.kernel, self.stride)
        if self.average:
            avg_pool2d(dst, source, channels, *windows, self.pads, self.dilation, self.average == "all")
        else:
            max_pool2d(dst, source, channels, *windows, self.pads[:2], self.dilation)
        return channels_to_hbm(dst, self.images[1]) if self.places[1] else dst

    def program(self) -> Program:
        """The kernel, traced only."""
        return trace(self.body, Spec(self.images, "float32"), target=self.target)


def compare(pool: Pool, dtype: str = "float32") -> None:
    """Of maxima nothing is computed, so every bit must be right."""
    x = drawn(pool.images, 0, dtype)
    attributes = (pool.kernel, pool.stride, pool.all_pads, pool.dilation)
    got = call(pool.body, x, target=pool.target)
    assert got.shape == pool.result
    if not pool.average:
        seen = windows(x.astype(np.float64), *attributes, LOWEST[dtype])
        assert (got == seen.max(axis=(4, 5))).all()
        return
    seen = windows(x.astype(np.float64), *attributes, 0.0)
    size = np.maximum(counts(pool), 1)
    check(got, seen.sum(axis=(4, 5)) / size, np.abs(seen).sum(axis=(4, 5)) / size, prod(pool.kernel), dtype)


def counts(pool: Pool) -> Array:
    """(1, 1, rows, columns): how many elements of each window count."""
    around = ((pool.pads[0], pool.pads[2]), (pool.pads[1], pool.pads[3]))
    padded = np.pad(np.ones(pool.images[2:]), around, constant_values=1 if pool.average == "all" else 0)
    image = np.pad(padded, ((0, pool.over[0]), (0, pool.over[1])))[None, None]
    taken: Array = windows(image, pool.kernel, pool.stride, (0, 0, 0, 0), pool.dilation, 0.0).sum(axis=(4, 5))
    return taken


AVERAGES = ["", "all", "inside"]
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
TABLE = {
    "one pixel": Pool((1, 1, 1, 1), (1, 1)),
    "batch of 33": Pool((33, 3, 8, 8), (2, 2), (2, 2)),
    "129 channels, overlapping": Pool((2, 129, 9, 7), (3, 3), (2, 2), (1, 1, 1, 1)),
    "257 channels": Pool((1, 257, 6, 6), (3, 2), (3, 2)),
    "everything different": Pool((2, 5, 9, 30), (3, 2), (1, 2), (1, 0, 1, 1), (2, 3)),
    "wide rows": Pool((1, 2, 9, 1500), (3, 3), (2, 2), (1, 1, 1, 1)),
    "gaps between windows": Pool((2, 3, 10, 11), (2, 1), (4, 3)),
    "ceil_mode: the last window is partly outside": Pool((1, 2, 7, 7), (2, 2), (2, 2), over=(1, 1)),
    "ceil_mode beyond padding": Pool((1, 2, 9, 8), (3, 3), (3, 3), (1, 1, 1, 1), over=(1, 2)),
    "padding only": Pool((1, 2, 1, 2), (2, 2), (1, 1), (1, 1, 1, 1), (2, 3)),
    "kernel larger than the image": Pool((1, 2, 3, 4), (6, 5), (1, 1), (5, 4, 3, 3)),
    "bands of rows": Pool((2, 3, 112, 112), (3, 3), (2, 2), (1, 1, 1, 1)),
    "many images at once": Pool((300, 2, 4, 4), (2, 2), (2, 2)),
    "the whole image": Pool((3, 130, 13, 11), (13, 11)),
    "the whole image, shared by two engines": Pool((2, 130, 24, 23), (24, 23)),
    "a whole row": Pool((2, 3, 1, 600), (1, 600)),
}
# What a band does not hold: rows of results, windows, rows of windows.
LARGE = {
    "wide images": Pool((1, 2, 5, 8209), (2, 2), (2, 2), (1, 1, 0, 0)),
    "high windows": Pool((1, 1, 70, 131), (65, 1)),
    "large windows": Pool((2, 3, 121, 127), (101, 97), (3, 5), (4, 5, 6, 7)),
    "wide windows": Pool((1, 2, 3, 8300), (2, 8209), (1, 3), (1, 0, 0, 2)),
    "dilated windows": Pool((1, 2, 300, 301), (7, 5), (2, 3), (5, 4, 3, 2), (41, 53)),
}


@pytest.mark.parametrize("average", AVERAGES, ids=["max", "all", "inside"])
@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair, average: str) -> None:
    compare(replace(TABLE[name], places=places, average=average))


@pytest.mark.parametrize("average", AVERAGES, ids=["max", "all", "inside"])
@pytest.mark.parametrize("places", [(0, 0), (0, 1)], ids=["hbm-hbm", "hbm-sbuf"])
@pytest.mark.parametrize("name", LARGE)
def test_what_no_band_holds(name: str, places: Pair, average: str) -> None:
    compare(replace(LARGE[name], places=places, average=average))


@pytest.mark.parametrize("name", LARGE)
def test_bands_stay_in_their_budget(name: str) -> None:
    program = LARGE[name].program()
    assert max(s.partition_bytes for s in program.storages if s.buffer is nl.sbuf) <= INPUT_BAND_BYTES


@pytest.mark.parametrize("average", AVERAGES, ids=["max", "all", "inside"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_dtypes(target: str, dtype: str, average: str) -> None:
    compare(Pool((3, 130, 6, 7), (3, 3), (2, 2), (1, 1, 1, 1), target=target, average=average), dtype)


def test_averages_of_nan_and_infinity() -> None:
    pool = Pool((1, 1, 4, 6), (2, 2), (2, 2), average="all")
    x = np.ones(pool.images, np.float32)
    x[0, 0, 0, 0], x[0, 0, 2, 2], x[0, 0, 2, 4:6] = np.nan, -np.inf, [np.inf, -np.inf]
    np.testing.assert_array_equal(call(pool.body, x)[0, 0], [[np.nan, 1, 1], [1, -np.inf, np.nan]])


def test_nan_and_infinity_reach_the_windows_that_see_them() -> None:
    pool = Pool((1, 2, 6, 6), (2, 2), (2, 2))
    x = drawn(pool.images, 0)
    x[0, 0, 2, 3], x[0, 1, 5, 5], x[0, 1, 0:2, 0:2] = np.nan, np.inf, -np.inf
    seen: Array = windows(x, pool.kernel, pool.stride, pool.pads, pool.dilation, LOWEST["float32"]).max(axis=(4, 5))
    np.testing.assert_array_equal(call(pool.body, x), seen.astype(np.float64))
    assert np.isnan(seen[0, 0, 1, 1]) and np.isnan(seen).sum() == 1


def test_images_larger_than_sbuf() -> None:
    """Bands of rows stay in their budget, and every result is stored once."""
    pool = Pool((1, 128, 1024, 1024), (3, 3), (2, 2), (1, 1, 1, 1))
    program = pool.program()
    assert max(s.partition_bytes for s in program.storages if s.buffer is nl.sbuf) <= INPUT_BAND_BYTES
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
        draw(st.sampled_from(AVERAGES)),
        pair(0, 2),
    )
    assume(min(pool.result) >= 1)
    return pool


@settings(max_examples=200)
@given(pool=pools(), dtype=st.sampled_from(DTYPES))
def test_any_pool(pool: Pool, dtype: str) -> None:
    compare(pool, dtype)
