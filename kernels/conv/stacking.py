"""Convolutions of few channels and small images: all rows of the kernel on the partitions at once.

Channel c of the image, shifted by kernel row u, is on partition 32*u + c, where an engine can write it: two engines
copy it on chip. One product then sums over a column of taps, so a 3x3 kernel takes three products instead of nine. That
pays off if a product takes little more than its least time; for larger images conv2d packs taps as it loads them.
"""

from trnrt.kernels.common import Pair, ceil_div, image_count, is_hbm_tensor, transfer
from trnrt.kernels.conv.conv2d import convolve
from trnrt.kernels.conv.conv_room import WEIGHT_BYTES
from trnrt.kernels.conv.convolving import Layer, Pooling
from trnrt.kernels.conv.packing import PACK_NS, ConvShape, columns_saved
from trnrt.kernels.rates import product_ns
from trnrt.nki import nisa, nl

# Partitions from one kernel row to the next; an engine's tile starts at a multiple of this.
APART = 32
# The most kernel rows on the partitions.
MOST_ROWS = 4


def is_worth_stacking(shape: ConvShape, images: int, image: Pair, outputs: int, item: int) -> bool:
    """True if conv2d_stacked should compute a convolution without groups: its images are small and float32 (products of
    16 bits are four times as fast), and conv2d would pack nothing, as that would save less than PACK_NS."""
    if item != 4 or shape.channels > APART or not 1 < shape.kernel[0] <= MOST_ROWS:
        return False
    # The number of pixels bounds the copies on chip; chosen for the first layers of the digits.
    pixels = images * max(image[0], shape.size[0]) * image[1]
    saved = columns_saved(shape, images, outputs)
    return product_ns(pixels, item) <= PACK_NS and product_ns(saved, item) < PACK_NS


def stack_bytes(images: int, image: Pair, rows: int) -> int:
    """Bytes per partition of the stack, with ``rows`` per image, and of images (rows, columns) loaded from HBM."""
    return 4 * images * (rows + image[0]) * image[1]


def conv2d_stacked(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    pads: Pair = (0, 0),
    dilation: Pair = (1, 1),
    act: str = "none",
    pool: Pair = (1, 1),
    pool_stride: Pair = (1, 1),
    pool_pads: Pair = (0, 0),
    pool_dilation: Pair = (1, 1),
    pool_op: str = "max",
) -> None:
    """conv2d with its kernel's rows on the partitions, for whole images in SBUF.

    w: HBM or SBUF (32*(KH-1) + C, 1, KW, O), prepared: row 32*u + c is channel c of kernel row u, other rows are 0
    dst, src, bias, channels, size, kernel and all that follows: as in conv2d
    limits: those of conv2d; C <= 32; KH <= 4; all images and their stack fit SBUF beside the rest

    numpy: as conv2d
    """
    assert channels <= APART, f"conv2d_stacked: {channels} channels; the limit is {APART}"
    assert kernel[0] <= MOST_ROWS, f"conv2d_stacked: a kernel of {kernel[0]} rows; the limit is {MOST_ROWS}"
    parts = APART * (kernel[0] - 1) + channels
    stack_sb = nl.ndarray((parts, 1, image_count(src), size[0], src.shape[-1]), dtype=src.dtype, buffer=nl.sbuf)
    # Zero them even if no kernel row is written there: zero weights don't hide a NaN.
    nisa.memset(dst=stack_sb, value=0.0, engine=nisa.engine.gpsimd)
    image_sb = _at_hand(src, channels)
    for u in range(kernel[0]):
        # Row r of the result sees row r * stride + shift of the image.
        shift = u * dilation[0] - pads[0]
        r0 = max(0, ceil_div(-shift, stride[0]))
        r1 = min(size[0], ceil_div(src.shape[-2] - shift, stride[0]))
        if r0 < r1:
            y = r0 * stride[0] + shift
            seen = image_sb[0:channels, 0, :, y : y + (r1 - r0 - 1) * stride[0] + 1 : stride[0], :]
            _copy_in_turn(stack_sb[APART * u : APART * u + channels, 0, :, r0:r1, :], seen, u)
    shape = ConvShape(parts, size, (1, kernel[1]), (1, stride[1]), (0, pads[1]), (1, dilation[1]))
    pooling = Pooling(pool_op, pool, pool_stride, pool_pads, pool_dilation)
    convolve(dst, stack_sb, w, bias, Layer(shape, act, pooling, False, WEIGHT_BYTES))


def _at_hand(src: nl.NkiTensor, channels: int) -> nl.NkiTensor:
    """The images in SBUF (C, 1, N, H, W); those in HBM load through the scalar engine's queue, beside the weights, if
    there are hardware descriptors."""
    if not is_hbm_tensor(src):
        return src
    images, _, height, width = src.shape
    image_sb = nl.ndarray((channels, 1, images, height, width), dtype=src.dtype, buffer=nl.sbuf)
    by_channel = src.permute((1, 0, 2, 3))
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        nisa.dma_copy(dst=image_sb[:, 0], src=by_channel, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    else:
        transfer(image_sb[:, 0], by_channel)
    return image_sb


def _copy_in_turn(dst: nl.NkiTensor, src: nl.NkiTensor, number: int) -> None:
    """Copies alternate: the scalar engine takes the second of three, the vector engine the others."""
    if number % 2 == 1:
        nisa.activation(dst=dst, op=nl.copy, data=src)
    else:
        nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)
