"""What a planner can choose of a convolution (how much at once, in which way) changes no answer: the same tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_conv2d
import test_conv2d_general
import test_conv2d_strips
from calling import Pair
from convolutions import Conv, Pool, compare

from trnrt.errors import KernelError
from trnrt.kernels.conv.conv_room import conv_fits
from trnrt.kernels.conv.convolving import Pooling
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.strip_plans import LEAST_PIXELS

WAYS = ("taps", "packed", "strips")
SIZES = (2048, 4096, 8192, 32768)
TABLE = {
    **test_conv2d.TABLE,
    **{f"packed: {name}": conv for name, conv in test_conv2d_general.PACKED.items()},
    **{f"strips: {name}": conv for name, conv in test_conv2d_strips.TABLE.items()},
}
# Those of which more than a bank is computed, or which have a way of their own.
LARGE = [name for name, conv in TABLE.items() if conv.images[0] * conv.size[0] * conv.size[1] > 1024]


def fits(conv: Conv, size: int) -> bool:
    pool = conv.pool or Pool((1, 1), (1, 1))
    shape = ConvShape(conv.images[1], conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation)
    return conv_fits(shape, Pooling(pool.op, pool.kernel, pool.stride, pool.pads[:2], pool.dilation), size)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TABLE)
def test_ways(name: str, way: str, target: str) -> None:
    compare(replace(TABLE[name], way=way, target=target))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LARGE)
def test_sizes(name: str, size: int, target: str) -> None:
    conv = replace(TABLE[name], band_bytes=size, target=target, places=(0, 1) if TABLE[name].outputs <= 128 else (0, 0))
    if fits(conv, size):
        compare(conv)
    else:
        with pytest.raises(KernelError, match="does not fit SBUF"):
            compare(conv)


@pytest.mark.parametrize("places", [(1, 1), (1, 0)], ids=["sbuf", "sbuf-hbm"])
@pytest.mark.parametrize("way", ["best", *WAYS])
@pytest.mark.parametrize("size", [2048, 8192])
def test_both_from_sbuf(size: int, way: str, places: Pair) -> None:
    compare(replace(Conv((3, 20, 40, 41), 140, act="relu"), band_bytes=size, way=way, places=places))


def products(conv: Conv) -> int:
    return sum(i.operation.name == "nc_matmul" for i in conv.program().instructions)


def test_a_smaller_band_is_more_and_smaller_tiles() -> None:
    conv = Conv((4, 64, 32, 32), 64, act="relu", pool=Pool((2, 2)))
    programs = [replace(conv, band_bytes=size, way="taps").program() for size in (4096, 16384)]
    largest = [max(s.partition_bytes for s in p.storages if s.on_chip and s.shape[0] == 64) for p in programs]
    assert largest[0] < largest[1]


def test_each_way_is_taken() -> None:
    """Few channels, a large image: 9 products a bank, then 3 or fewer, then those of several strips at once."""
    conv = Conv((1, 3, 96, 96), 64)
    assert conv.images[2] * conv.images[3] > LEAST_PIXELS
    taps, packed, strips = (products(replace(conv, way=way)) for way in WAYS)
    assert taps > 2 * packed > 2 * strips
    assert products(replace(conv, way="best")) == strips
