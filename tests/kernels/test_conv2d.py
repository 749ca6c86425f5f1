"""The fused convolution against windows times weights, an activation, and the maxima of windows of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from calling import DTYPES, IMAGE_ACTIVATIONS, TARGETS, Pair
from convolutions import Conv, Pool, arrays, compare
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv.conv_room import BAND_BYTES, POOL_BYTES, WEIGHT_BYTES, conv_fits
from trnrt.kernels.conv.convolving import Pooling
from trnrt.kernels.conv.packing import ConvShape
from trnrt.nki import nl
from trnrt.nki.machine.program import Program

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
TABLE = {
    "one pixel": Conv((1, 1, 1, 1), 1, (1, 1), pads=(0, 0, 0, 0)),
    "one pixel, padded": Conv((2, 3, 1, 1), 4),
    "one channel": Conv((3, 1, 8, 8), 16, act="relu", pool=Pool((2, 2))),
    "batch of 33": Conv((33, 16, 4, 4), 32, act="relu", pool=Pool((2, 2))),
    "3 channels, everything different": Conv((2, 3, 17, 23), 8, (5, 3), (2, 3), (2, 1, 0, 2), (1, 2)),
    "129 channels to 130": Conv((1, 129, 5, 7), 130),
    "130 channels to 257, pooled with overlap": Conv(
        (2, 130, 9, 7), 257, act="relu", pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))
    ),
    "257 channels, 1x1": Conv((3, 257, 4, 5), 129, (1, 1), pads=(0, 0, 0, 0), act="sigmoid"),
    "wide rows": Conv((1, 2, 6, 1030), 3, pads=(1, 1, 1, 1)),
    "wide rows, pooled": Conv((1, 3, 12, 600), 4, act="tanh", pool=Pool((3, 2), (1, 2), (1, 0, 1, 1), (2, 1))),
    "stride larger than the kernel": Conv((1, 4, 11, 11), 4, (2, 2), (3, 4), (0, 0, 0, 0)),
    "kernel larger than the image": Conv((2, 2, 3, 2), 3, (7, 5), pads=(4, 3, 3, 2)),
    "dilated beyond the image": Conv((1, 2, 4, 4), 3, (2, 3), pads=(3, 8, 4, 7), dilation=(5, 6)),
    "padding at the end only": Conv((1, 2, 5, 5), 2, (2, 2), pads=(0, 0, 1, 1)),
    "much padding": Conv((1, 1, 2, 3), 2, (2, 2), (2, 1), pads=(5, 4, 3, 6)),
    "pool with gaps": Conv((2, 3, 9, 9), 4, act="relu", pool=Pool((2, 1), (3, 4))),
    "pool of single pixels": Conv((2, 3, 6, 6), 4, pool=Pool((1, 1), (2, 3))),
    "pool with dilation and uneven pads": Conv((2, 2, 8, 9), 3, pool=Pool((2, 3), (1, 2), (1, 2, 0, 1), (3, 2))),
    "pool of rows and columns outside": Conv((1, 2, 3, 3), 2, pool=Pool((3, 3), (1, 1), (2, 2, 2, 2))),
    "pool as large as the image": Conv((3, 5, 6, 6), 7, act="relu", pool=Pool((6, 6), (6, 6))),
    "ceil_mode: the last window is partly outside": Conv((1, 2, 7, 7), 2, pool=Pool((2, 2), (2, 2), (0, 0, 1, 1))),
    "bands of rows": Conv((1, 64, 70, 90), 64, act="relu"),
    "bands of rows, pooled": Conv((2, 5, 66, 90), 6, (7, 7), (2, 2), (3, 3, 3, 3), act="relu", pool=Pool((3, 3))),
    "bands, pooled with padding": Conv((1, 2, 62, 110), 3, pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))),
}


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair) -> None:
    compare(replace(TABLE[name], places=places))


@pytest.mark.parametrize("pool", [None, Pool((2, 2))], ids=["plain", "pooled"])
@pytest.mark.parametrize("act", IMAGE_ACTIVATIONS)
def test_activations(act: str, pool: Pool | None) -> None:
    compare(Conv((2, 3, 6, 6), 5, act=act, pool=pool))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pool", [None, Pool((3, 3), (2, 2), (1, 1, 1, 1))], ids=["plain", "pooled"])
def test_targets_and_dtypes(pool: Pool | None, target: str, dtype: str) -> None:
    compare(Conv((3, 130, 6, 7), 20, act="relu", pool=pool, target=target), dtype)


# At 128 outputs, 96 pairs of channel block and tap fit WEIGHT_BYTES; what has more is brought in while it is used.
@pytest.mark.parametrize(
    "conv",
    [
        Conv((2, 1, 8, 12), 128, (8, 12), pads=(3, 5, 4, 6)),
        Conv((2, 1, 8, 12), 129, (1, 97), pads=(0, 48, 0, 48)),
        Conv((1, 385, 4, 4), 130, (5, 5), pads=(2, 2, 2, 2), act="relu", pool=Pool((2, 2))),
        Conv((1, 129, 3, 3), 128, (10, 10), pads=(5, 5, 4, 4)),
        Conv((2, 1, 8, 12), 3, (20, 70), pads=(10, 35, 9, 34)),
    ],
    ids=["just held", "in two parts", "by block", "by block and part", "few outputs"],
)
def test_weights_that_do_not_fit(conv: Conv) -> None:
    compare(conv)
    program = conv.program()
    weights = [i["src"] for i in program.instructions if i.operation.name == "dma_copy"]
    loaded = max(v.free_size * 4 for v in weights if v.storage is program.inputs[1])
    assert loaded <= WEIGHT_BYTES


def test_nan_and_infinity_reach_the_windows_that_see_them() -> None:
    conv = Conv((2, 130, 9, 9), 5, act="relu", pool=None)
    x, w, b = arrays(conv)
    plain = conv.run(x, w, b)
    x[0, 129, 4, 4], x[1, 3, 0, 8] = np.nan, np.inf
    got = conv.run(x, w, b)
    assert np.isnan(got[0, :, 3:6, 3:6]).all()
    assert set(got[1, :, 0:2, 7:9].ravel()) == {0.0, np.inf}
    untouched = np.ones_like(got, dtype=bool)
    untouched[0, :, 3:6, 3:6] = untouched[1, :, 0:2, 7:9] = False
    assert (got[untouched] == plain[untouched]).all()


def test_padding_around_infinity_is_zero() -> None:
    conv = Conv((1, 1, 3, 3), 1)
    x = np.full(conv.images, np.inf, np.float32)
    assert (conv.run(x, np.ones((1, 1, 3, 3), np.float32), np.zeros(1, np.float32)) == np.inf).all()


# 40 KiB hold the 101 x 101 float32 that one result sees, or 71 x 71 of two blocks; 16 KiB a window of 64 x 64.
NO_PADS = (0, 0, 0, 0)
LIMITS = [
    (
        Conv((1, 1, 101, 103), 2, (2, 2), pads=NO_PADS, dilation=(100, 100)),
        Conv((1, 1, 103, 103), 2, (2, 2), pads=NO_PADS, dilation=(102, 100)),
    ),
    (
        Conv((1, 129, 71, 71), 2, (2, 2), pads=NO_PADS, dilation=(70, 70)),
        Conv((1, 129, 73, 73), 2, (2, 2), pads=NO_PADS, dilation=(70, 72)),
    ),
    (Conv((1, 3, 64, 64), 2, pool=Pool((64, 64))), Conv((1, 3, 64, 65), 2, pool=Pool((64, 65)))),
]


@pytest.mark.parametrize(("inside", "outside"), LIMITS, ids=range(len(LIMITS)))
def test_limits(inside: Conv, outside: Conv) -> None:
    assert fits(inside) and not fits(outside)
    inside.program()
    with pytest.raises(KernelError, match=r"what one result of .* needs does not fit SBUF"):
        outside.program()


def fits(conv: Conv) -> bool:
    """What the planner asks."""
    pool = conv.pool or Pool((1, 1), (1, 1))
    shape = ConvShape(conv.images[1], conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation)
    return conv_fits(shape, Pooling("max", pool.kernel, pool.stride, pool.pads[:2], pool.dilation))


@pytest.mark.parametrize("pool", [None, Pool((2, 2))], ids=["plain", "pooled"])
def test_images_larger_than_sbuf(pool: Pool | None) -> None:
    """256 KiB a partition: the bands of rows and the tiles of results stay in their budgets."""
    conv = Conv((1, 64, 1024, 1024), 64, act="relu", pool=pool)
    program = conv.program()
    tiles = [s for s in program.storages if s.buffer is nl.sbuf]
    assert max(tile.partition_bytes for tile in tiles) <= max(BAND_BYTES, WEIGHT_BYTES, POOL_BYTES)
    # Taps of the two outer columns are not added where they see padding at the sides; rows of padding are made.
    assert multiply_accumulates(program) == 3 * 64 * 64 * 1024 * (3 * 1024 - 2)
    stored = sum(i["dst"].size for i in program.instructions if i["dst"].storage is program.outputs[0].storage)
    assert stored == np.prod(conv.result)


def multiply_accumulates(program: Program) -> int:
    """Products of all matmuls together."""
    found = (i for i in program.instructions if i.operation.name == "nc_matmul")
    return sum(i["stationary"].partitions * i["stationary"].free_size * i["moving"].free_size for i in found)


@pytest.mark.parametrize("images", [7, 49, 98, 103])
def test_as_many_images_at_once_as_fit(images: int) -> None:
    """Whole divisors of the budget must not be lost to rounding."""
    width = POOL_BYTES // 4 // images
    program = Conv((images, 1, 1, width), 1, (1, 1), pads=(0, 0, 0, 0)).program()
    loads = [i for i in program.instructions if any(v.storage is program.inputs[0] for v in i.reads())]
    assert len(loads) == 2, "a first band that fills a PSUM bank, and all others"


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    """Small ones with any attributes that give a result."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    images = (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 127, 128, 129])), *pair(1, 12))
    conv = Conv(
        images,
        draw(st.sampled_from([1, 2, 7, 128, 130])),
        pair(1, 4),
        pair(1, 3),
        (*pair(0, 4), *pair(0, 4)),
        pair(1, 3),
        draw(st.sampled_from(list(IMAGE_ACTIVATIONS))),
        places=draw(st.sampled_from(PLACES)),
        target=draw(st.sampled_from(TARGETS)),
    )
    assume(min(conv.size) >= 1)
    if draw(st.booleans()):
        kernel = pair(1, 4)
        ends = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
        pool = Pool(kernel, pair(1, 3), (ends[0], ends[1], ends[2], ends[3]), pair(1, 2))
        conv = replace(conv, pool=pool)
        assume(min(conv.result) >= 1)
    return conv


@settings(max_examples=300)
@given(conv=convolutions(), dtype=st.sampled_from(DTYPES))
def test_any_convolution(conv: Conv, dtype: str) -> None:
    compare(conv, dtype)
