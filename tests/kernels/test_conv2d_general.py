"""Convolutions with groups, with few channels, over wide images, over rows of one pixel's height, and averaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calling import (
    DTYPES,
    TARGETS,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    drawn,
    hbm,
    prepared_columns,
    prepared_conv,
    sbuf_channels,
)
from convolutions import Conv, Pool, arrays, compare
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv import conv2d, conv_room, packing
from trnrt.kernels.conv.convolving import Pooling
from trnrt.kernels.conv.packing import ConvShape
from trnrt.nki import Spec, nl, profile

NO_PADS = (0, 0, 0, 0)
GROUPED = {
    "depthwise": Conv((2, 7, 6, 5), 7, groups=7),
    "depthwise, 129 channels": Conv((1, 129, 5, 4), 129, groups=129, act="relu"),
    "depthwise, 300 channels, stride 2": Conv((2, 300, 7, 7), 300, (5, 5), (2, 2), (2, 2, 2, 2), groups=300),
    "depthwise with a multiplier": Conv((1, 50, 5, 6), 150, groups=50),
    "many outputs see one channel": Conv((1, 3, 5, 6), 402, groups=3, act="tanh"),
    "groups of 3": Conv((1, 129, 5, 6), 86, groups=43),
    "groups of 64": Conv((2, 192, 4, 5), 192, groups=3),
    "groups of 65": Conv((2, 130, 4, 5), 130, groups=2),
    "groups of 129": Conv((1, 258, 4, 5), 260, (3, 1), pads=NO_PADS, groups=2),
    "the last are fewer": Conv((1, 35, 6, 6), 210, groups=7),
    "pooled": Conv((2, 20, 9, 9), 20, groups=20, act="relu", pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "averaged": Conv((2, 20, 9, 9), 40, groups=10, act="relu", pool=Pool((2, 3), (2, 3), op="average")),
    "dilated": Conv((1, 6, 12, 13), 9, (3, 2), (2, 1), (2, 1, 0, 3), (3, 2), groups=3),
    "a row": Conv((3, 12, 1, 50), 12, (1, 9), pads=(0, 4, 0, 4), groups=12),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups(name: str) -> None:
    compare(GROUPED[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_groups_everywhere(target: str, dtype: str) -> None:
    compare(Conv((3, 48, 6, 7), 96, groups=24, act="relu", pool=Pool((2, 2)), target=target), dtype)


IN_BLOCKS = [
    "depthwise",
    "depthwise, 129 channels",
    "depthwise, 300 channels, stride 2",
    "groups of 64",
    "pooled",
    "averaged",
    "dilated",
    "a row",
]


@pytest.mark.parametrize("places", [(1, 0), (0, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_groups_in_sbuf(name: str, places: Pair) -> None:
    compare(replace(GROUPED[name], places=places))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_groups_in_sbuf_everywhere(target: str, dtype: str) -> None:
    compare(Conv((2, 192, 6, 7), 192, groups=96, act="relu", places=(1, 1), target=target), dtype)


def test_what_groups_need_in_sbuf() -> None:
    """130 channels a group do not fill blocks of 128."""
    with pytest.raises(KernelError, match="groups from channel 130 on do not fill blocks of 128"):
        compare(Conv((1, 260, 5, 5), 260, groups=2, places=(1, 0)))


PACKED = {
    "1 channel": Conv((3, 1, 12, 11), 16, (5, 5), pads=NO_PADS),
    "3 channels, as a residual network begins": Conv((2, 3, 32, 30), 64, (7, 7), (2, 2), (3, 3, 3, 3), act="relu"),
    "3 channels, pooled": Conv((2, 3, 20, 22), 13, act="relu", pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "some rows of the kernel": Conv((2, 50, 9, 8), 10, (5, 3), pads=(2, 1, 2, 1)),
    "some rows, strided": Conv((2, 50, 13, 9), 10, (5, 3), (2, 3), (2, 1, 3, 1), (2, 1)),
    "half of the partitions": Conv((1, 64, 9, 8), 130),
    "one channel too many": Conv((1, 65, 9, 8), 13),
    "padding larger than the image": Conv((1, 2, 2, 3), 2, (3, 3), (1, 1), (5, 6, 4, 5)),
    "dilated": Conv((2, 3, 13, 14), 5, (3, 4), (1, 2), (2, 3, 4, 1), (3, 2)),
    "a row": Conv((3, 2, 1, 70), 20, (1, 11), (1, 2), (0, 5, 0, 5)),
    "a column": Conv((3, 2, 70, 1), 20, (11, 1), (2, 1), (5, 0, 5, 0)),
    "bands": Conv((1, 3, 150, 90), 8, (3, 3), act="relu"),
    "129 taps": Conv((2, 1, 4, 140), 3, (1, 129), pads=NO_PADS),
    "131 rows of the kernel": Conv((1, 1, 140, 4), 3, (131, 2), pads=NO_PADS),
    "weights that would not stay": Conv((1, 1, 101, 100), 128, (100, 100), pads=NO_PADS),
}


BANDS = {"own rows": 0, "whole rows": 1, "parts of rows": 2}


def prefer(patch: pytest.MonkeyPatch, bands: str) -> None:
    """Pack taps wherever they can be, in bands of the image's own rows, of padded whole rows, or of just what results
    see."""

    def nanoseconds(src: Tensor, outputs: int, shape: Any, pack: tuple[int, int, int], most: Pair) -> float:
        if pack == (1, 1, 0):
            return 9e6
        kind = 2 if pack[2] == 0 else 0 if packing.leading_packed(src, shape, pack)[0] >= 0 else 1
        return 1e6 * (kind - BANDS[bands]) ** 2

    patch.setattr(conv2d, "nanoseconds", nanoseconds)


@pytest.mark.parametrize("places", [(0, 0), (1, 1)], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("bands", BANDS)
@pytest.mark.parametrize("name", PACKED)
def test_packed_taps(name: str, bands: str, places: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, bands)
    compare(replace(PACKED[name], places=places))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bands", BANDS)
def test_packed_taps_everywhere(bands: str, target: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, bands)
    compare(Conv((3, 3, 14, 15), 20, (5, 5), act="relu", pool=Pool((2, 2)), target=target), dtype)


OWN_ROWS = {
    "33 channels": Conv((2, 33, 11, 9), 40, act="relu"),
    "64 channels": Conv((2, 64, 13, 12), 70),
    "no padding": Conv((2, 64, 9, 11), 20, pads=NO_PADS),
    "padding of 2, pooled": Conv((2, 40, 11, 13), 30, (5, 5), pads=(2, 2, 2, 2), act="relu", pool=Pool((2, 2))),
    "stride 2": Conv((3, 64, 15, 13), 20, (3, 3), (2, 2), act="tanh"),
    "stride 2, padded at the end": Conv((1, 64, 14, 12), 20, (3, 3), (2, 2), (0, 0, 1, 1)),
    "dilated": Conv((2, 64, 13, 15), 20, pads=(2, 3, 2, 3), dilation=(2, 3)),
    "rows of padding only": Conv((2, 50, 8, 9), 20, pads=(1, 0, 1, 0)),
    "columns of padding only": Conv((2, 50, 8, 9), 20, pads=(0, 1, 0, 1)),
    "more padding than rows": Conv((1, 64, 2, 9), 20, (5, 3), pads=(4, 1, 4, 1)),
    "many outputs, in bands": Conv((2, 64, 70, 61), 140, act="relu"),
    "pooled, in bands": Conv((1, 64, 90, 70), 30, act="relu", pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "4 kernel rows": Conv((2, 48, 9, 10), 20, (4, 2), pads=(2, 1, 1, 0)),
    "one column": Conv((2, 64, 20, 1), 20, (3, 1), pads=(1, 0, 1, 0)),
    "three rows at once": Conv((2, 40, 9, 8), 20, (3, 3)),
    "spread": Conv((2, 30, 12, 11), 20, (2, 1), pads=(1, 0, 1, 0), act="relu"),
}


@pytest.mark.parametrize("places", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("name", OWN_ROWS)
def test_own_rows(name: str, places: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taps are packed in bands of the images' own rows: no padding at the sides is made, here or in HBM."""
    prefer(monkeypatch, "own rows")
    conv = replace(OWN_ROWS[name], places=places)
    compare(conv)
    products = [i for i in conv.program().instructions if i.operation.name == "nc_matmul"]
    assert max(i["moving"].shape[0] for i in products) > conv.images[1]
    assert not [s for s in conv.program().storages if s.buffer is nl.private_hbm]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("places", [(0, 0), (1, 1)], ids=["hbm", "sbuf"])
def test_own_rows_everywhere(places: Pair, target: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "own rows")
    compare(Conv((2, 64, 13, 11), 70, act="relu", pool=Pool((2, 2)), places=places, target=target), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("places", [0, 1], ids=["hbm", "sbuf"])
def test_a_residual_is_added_to_packed_taps(places: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, "own rows")
    conv = Conv((2, 64, 12, 11), 70, stride=(2, 1), act="relu")

    def body(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        source, more = (channels_in_sbuf(x), channels_in_sbuf(r)) if places else (x, r)
        dst = (sbuf_channels if places else hbm)(conv.result, x.dtype)
        conv2d.conv2d(dst, source, w, b, 64, conv.size, conv.kernel, conv.stride, (1, 1), act="relu", added=more)
        return channels_to_hbm(dst, conv.outputs) if places else dst

    x, w, b = arrays(conv, dtype)
    r = drawn(conv.result, 9, dtype)
    got = call(body, x, prepared_conv(w), prepared_columns(b), r, target=conv.target)
    more = b.astype(np.float64)[:, None, None], r.astype(np.float64)
    sizes = conv.sums(np.abs(x), np.abs(w)) + np.abs(more[0]) + np.abs(more[1])
    check(got, np.maximum(conv.sums(x, w) + more[0] + more[1], 0), sizes, conv.length + 2, dtype)


@pytest.mark.parametrize(("size", "packed"), [(112, True), (14, False)])
def test_taps_are_packed_where_it_gains(size: int, packed: bool) -> None:
    """64 channels: 6 products a bank instead of 9, and faster by the timing model."""
    conv = Conv((1, 64, size, size), 64, act="relu", target="trn1")
    specs = [Spec(conv.images, "bfloat16"), Spec((64, 1, 9, 64), "bfloat16"), Spec((64, 1), "float32")]
    chosen = profile(conv.body, *specs, target="trn1").benchmark_us
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv2d, "PACK_NS", 10**12)
        alone = profile(conv.body, *specs, target="trn1").benchmark_us
    assert (chosen < alone) if packed else (chosen == alone)


@pytest.mark.parametrize(
    ("channels", "kernel", "products"),
    [(1, (5, 5), 1), (3, (7, 7), 2), (3, (3, 3), 1), (16, (3, 3), 2), (64, (3, 3), 6), (65, (3, 3), 9)],
)
def test_taps_share_products(channels: int, kernel: Pair, products: int) -> None:
    """A large image: all products but those of the last bank are as few as the partitions allow."""
    conv = Conv((1, channels, 64 + kernel[0] - 1, 64 + kernel[1] - 1), 8, kernel, pads=NO_PADS)
    made = [i for i in conv.program().instructions if i.operation.name == "nc_matmul"]
    assert sum(i["moving"].free_size for i in made) == products * 64 * 64


@pytest.mark.parametrize(("dtype", "times"), [("float32", 6.0), ("float16", 2.5)])
def test_a_first_layer_is_faster_for_it(dtype: str, times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicted: 3 channels of 224 x 224, 3 x 3, to 64."""
    conv = Conv((1, 3, 224, 224), 64, act="relu")
    specs = [Spec(conv.images, dtype), Spec((3, 1, 9, 64), dtype), Spec((64, 1), "float32")]
    monkeypatch.setattr(conv2d, "strips_of", lambda *given: None)
    packed = profile(conv.body, *specs, target="trn2").benchmark_us
    monkeypatch.setattr(conv2d, "PACK_NS", 10**12)
    assert profile(conv.body, *specs, target="trn2").benchmark_us > times * packed


@pytest.mark.parametrize("places", [(0, 0), (1, 1)], ids=["hbm", "sbuf"])
def test_padding_is_not_made(places: Pair) -> None:
    """Where a tap sees the image under every result, others are added where they do: nothing is filled or copied."""
    conv = Conv((2, 130, 6, 7), 20, act="relu", places=places)
    names = [i.operation.name for i in conv.program().instructions]
    assert set(names) == {"dma_copy", "nc_matmul", "activation"}
    moved = sum(i["moving"].free_size for i in conv.program().instructions if i.operation.name == "nc_matmul")
    assert moved == 2 * 2 * (6 + 5 + 5) * (7 + 6 + 6)


WIDE = {
    "one row of many columns": Conv((1, 3, 1, 20001), 2, (1, 5), pads=(0, 2, 0, 2)),
    "rows that do not fit": Conv((1, 2, 3, 9000), 2),
    "of many channels": Conv((1, 257, 4, 2003), 3, act="relu"),
    "strided": Conv((1, 130, 5, 4100), 3, (3, 3), (2, 3), act="relu"),
    "pooled": Conv((1, 130, 6, 4099), 3, pool=Pool((3, 3), (2, 2), (1, 1, 1, 1))),
    "pooled over many columns": Conv((1, 1, 3, 9001), 2, pool=Pool((2, 700), (1, 9), (0, 300, 1, 300))),
    "averaged": Conv((1, 2, 4, 9001), 2, pool=Pool((3, 3), (2, 2), (1, 1, 1, 1), op="average")),
}


@pytest.mark.parametrize("places", [(0, 0), (0, 1)], ids=["hbm", "sbuf"])
@pytest.mark.parametrize("name", WIDE)
def test_wide_images(name: str, places: Pair) -> None:
    conv = replace(WIDE[name], places=places)
    compare(conv)
    tiles = [s for s in conv.program().storages if s.buffer is nl.sbuf]
    if places == (0, 0):
        assert max(tile.partition_bytes for tile in tiles) <= conv_room.BAND_BYTES


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "pool",
    [
        Pool((2, 2), op="average"),
        Pool((3, 2), (1, 2), (1, 0, 1, 1), op="average"),
        Pool((7, 9), (1, 1), op="average"),
        Pool((2, 3), (1, 1), (1, 2, 0, 1), (3, 2), op="average"),
    ],
    ids=["2x2", "padded", "global", "dilated"],
)
def test_averages(pool: Pool, target: str) -> None:
    compare(Conv((3, 5, 7, 9), 6, act="sigmoid", pool=pool, target=target))


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    """Small ones: groups, or few channels."""

    def pair(low: int, high: int) -> Pair:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    groups = draw(st.sampled_from([1, 1, 2, 3, 31]))
    ins, outs = draw(st.sampled_from([1, 2, 3, 5, 44, 64])), draw(st.sampled_from([1, 2, 7, 43]))
    assume(groups * max(ins, outs) < 400)
    conv = Conv(
        (draw(st.integers(1, 3)), groups * ins, *pair(1, 12)),
        groups * outs,
        pair(1, 5),
        pair(1, 3),
        (*pair(0, 4), *pair(0, 4)),
        pair(1, 3),
        draw(st.sampled_from(["none", "relu", "tanh"])),
        places=(0, 0) if groups > 1 else draw(st.sampled_from([(0, 0), (1, 0), (0, 1)])),
        target=draw(st.sampled_from(TARGETS)),
        groups=groups,
    )
    assume(min(conv.size) >= 1)
    if draw(st.booleans()):
        window = pair(1, 4)
        ends = [draw(st.integers(0, k - 1)) for k in (*window, *window)]
        pads = (ends[0], ends[1], ends[2], ends[3])
        pool = Pool(window, pair(1, 3), pads, pair(1, 2), draw(st.sampled_from(["max", "average"])))
        conv = replace(conv, pool=pool)
        assume(min(conv.result) >= 1)
    return conv


@settings(max_examples=200)
@given(conv=convolutions(), dtype=st.sampled_from(DTYPES), bands=st.sampled_from(list(BANDS)), small=st.booleans())
def test_any_convolution(conv: Conv, dtype: str, bands: str, small: bool) -> None:
    """``small``: in budgets that only a little of it fits."""
    with pytest.MonkeyPatch.context() as patch:
        prefer(patch, bands)
        if small:
            patch.setattr(conv_room, "BAND_BYTES", 4096)
            patch.setattr(conv_room, "POOL_BYTES", 512)
        assume(not small or fits(conv))
        compare(conv, dtype)


def fits(conv: Conv) -> bool:
    pool = conv.pool or Pool((1, 1), (1, 1))
    channels = conv.images[1] // conv.groups * conv.together
    shape = ConvShape(channels, conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation)
    return conv_room.conv_fits(shape, Pooling("max", pool.kernel, pool.stride, pool.pads[:2], pool.dilation))


def test_infinity_reaches_the_groups_that_are_computed_with_its_own() -> None:
    """The price of the zeros where an output does not see a channel: infinity times zero. Not further."""
    conv = Conv((2, 130, 5, 5), 130, groups=130)
    x, w, b = arrays(conv)
    x[0, 129, 2, 2] = np.inf
    got = conv.run(x, w, b)
    assert not np.isfinite(got[0, 129, 1:4, 1:4]).any()
    assert np.isfinite(got[0, :128]).all() and np.isfinite(got[1]).all()
    assert np.isfinite(got[0, 129, 0]).all()
