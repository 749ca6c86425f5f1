"""Weights on their way to SBUF: what arrives, in how many transfers, and convolutions that read it there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calling import (
    ACTIVATIONS,
    TARGETS,
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

from trnrt.errors import KernelError
from trnrt.kernels.common import load
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.prefetch import prefetch, reserve
from trnrt.nki import Spec, nisa, nl, trace

Tensor = Any


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reserved_tile_is_filled_later(dtype: str, target: str) -> None:
    shape = (128, 100)

    def body(x: Tensor, y: Tensor) -> Tensor:
        tile_sb = reserve(x)
        sum_sb = load(y)
        nisa.tensor_tensor(dst=sum_sb, data1=sum_sb, data2=prefetch(x, 60, tile_sb), op=nl.subtract)
        out = hbm(shape, x.dtype)
        nisa.dma_copy(dst=out, src=sum_sb)
        return out

    x = drawn(shape, 0, dtype)
    np.testing.assert_array_equal(call(body, x, 2 * x, target=target), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "piece"), [((128, 100), 30), ((3, 7), 100), ((128, 64), 64), ((1, 1), 1)], ids=str)
def test_all_of_it_arrives_in_pieces(shape: tuple[int, int], piece: int, dtype: str) -> None:
    def body(x: Tensor) -> Tensor:
        out = hbm(shape, x.dtype)
        nisa.dma_copy(dst=out, src=prefetch(x, piece))
        return out

    x = drawn(shape, 0, dtype)
    np.testing.assert_array_equal(call(body, x), x)
    program = trace(body, Spec(shape, dtype))
    assert len(program.instructions) == 1 + -(-shape[1] // piece)


class Held(Conv):
    """A convolution whose weights and bias are in SBUF."""

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        parts, taps = w.shape[0], w.shape[1:]
        held = prefetch(w.reshape((parts, w.size // parts)), 1000).reshape((parts, *taps))
        return super().body(x, held, load(b))


@pytest.mark.parametrize("places", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("images", [(1, 130, 9, 7), (3, 5, 12, 12), (2, 256, 7, 7)], ids=str)
@pytest.mark.parametrize("pool", [None, Pool((3, 3), (2, 2), (1, 1, 1, 1))], ids=["plain", "pooled"])
def test_convolutions_read_weights_in_sbuf(images: Any, places: Any, pool: Pool | None) -> None:
    compare(Held(images, 140, act="relu", pool=pool, places=places))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_in_every_dtype(target: str, dtype: str) -> None:
    compare(Held((2, 200, 6, 5), 30, stride=(2, 1), act="sigmoid", target=target), dtype)


ADDED = {
    "one block": Conv((2, 5, 8, 7), 6),
    "several blocks, strided": Conv((2, 130, 9, 9), 140, stride=(2, 2), act="relu"),
    "1x1": Conv((1, 256, 7, 7), 300, (1, 1), pads=(0, 0, 0, 0), act="relu"),
    "bands of rows": Conv((1, 64, 70, 90), 64, act="tanh"),
    "few channels": Conv((1, 3, 40, 40), 64, (7, 7), (2, 2), (3, 3, 3, 3), act="relu"),
}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("places", [(0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("name", ADDED)
def test_a_residual_is_added(name: str, places: tuple[int, int, int], dtype: str, target: str) -> None:
    """``places``: source, result and what is added, each in HBM (0) or SBUF (1)."""
    conv = replace(ADDED[name], target=target)

    def body(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        source = channels_in_sbuf(x) if places[0] else x
        dst = (sbuf_channels if places[1] else hbm)(conv.result, x.dtype)
        added = channels_in_sbuf(r) if places[2] else r
        settings = (conv.images[1], conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation, conv.act)
        conv2d(dst, source, w, b, *settings, added=added)
        return channels_to_hbm(dst, conv.outputs) if places[1] else dst

    x, w, b = arrays(conv, dtype)
    r = drawn(conv.result, 9, dtype)
    got = call(body, x, prepared_conv(w), prepared_columns(b), r, target=target)
    r64, b64 = r.astype(np.float64), b.astype(np.float64)[:, None, None]
    expected = ACTIVATIONS[conv.act](conv.sums(x, w) + b64 + r64)
    sizes = conv.sums(np.abs(x), np.abs(w)) + np.abs(b64) + np.abs(r64)
    check(got, expected, sizes, conv.length + 2, dtype)


@pytest.mark.parametrize(
    ("size", "settings", "why"),
    [
        (2, {"pool": (2, 2), "pool_stride": (2, 2)}, "with pooling nothing can be added"),
        (4, {"groups": 4}, "with groups nothing can be added"),
    ],
)
def test_nothing_is_added_to_pools_or_groups(size: int, settings: dict[str, Any], why: str) -> None:
    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((1, 4, size, size), nl.float32)
        conv2d(dst, x, w, b, 4, (4, 4), (1, 1), added=dst, **settings)
        return dst

    specs = [Spec(shape, "float32") for shape in ((1, 4, 4, 4), (4, 1, 1, 4), (4, 1))]
    with pytest.raises(KernelError, match=why):
        trace(body, *specs)


@pytest.mark.parametrize("columns", [100, 40, 7, 41])
def test_the_last_piece_comes_in_smaller_ones(columns: int) -> None:
    def body(x: Tensor) -> Tensor:
        out = hbm((5, columns), x.dtype)
        nisa.dma_copy(dst=out, src=prefetch(x, 40, last=10))
        return out

    x = drawn((5, columns), 0)
    np.testing.assert_array_equal(call(body, x), x)
    whole = -(-max(0, columns - 40) // 40)
    assert len(trace(body, Spec((5, columns), "float32")).instructions) == 1 + whole + min(4, -(-columns // 10))
