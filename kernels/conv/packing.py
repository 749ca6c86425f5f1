"""Choose the taps of a convolution that share the partitions, and the part of the image that a band must then hold.

Products have input channels on the partitions. With few channels, several taps of the kernel go there, too: the band is
loaded once for each, shifted, and one product sums over (kernel rows, kernel columns) of them at a time. Partition (j *
rows + u) * channels + c then holds channel c of the image shifted by tap (u, j). If the image needs no padding, a band
holds its whole rows, so that each partition is a single contiguous piece of HBM, wherever the tap starts. The same
holds if only one column of taps at a time shares the partitions: then padding at the sides need not exist.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, ceil_div, image_count, is_hbm_tensor, item_bytes
from trnrt.kernels.rates import (
    ALL_DMA_ENGINES,
    DMA_ENGINE,
    DMA_ENGINES,
    ENGINE_GHZ,
    TRANSFER_NS,
    dma_engine,
    is_recent,
    packet_ns,
    product_ns,
)
from trnrt.nki import nl

# (kernel rows, kernel columns) of the taps on the partitions, and the columns of an image whose whole rows a band
# holds, or 0. (1, 1, 0): one tap at a time.
Packing = tuple[int, int, int]

# Nanoseconds that packing taps must save: it takes more transfers, each of some microseconds. Kept from the first
# tuning of convolutions. LeNet and the digits, predicted: 8000 slow LeNet in bfloat16 on trn1 by 24 %, 2000 change
# nothing. If less is saved, conv2d_stacked can serve.
PACK_NS = 4000
# How is_worth_packing decides before the target is known: four taps on the partitions are always worth their loads;
# fewer are if they save this many columns, which take about 12 us at one per cycle. Chosen when layers of 33 to 64
# channels began to be packed, for VGG-16 on trn1; measure the VGGs and ResNets when one changes. Two taps, for any
# number of columns, slow small ResNet-18 and VGG-11 by 11 % on average; eight, and half and twice the columns, change
# nothing there.
PACKED_TAPS, PACKED_COLUMNS = 4, 32768
# Nanoseconds for each row of taps of a band at an image's edge, which needs transfers of its own; and until the first
# padded images are in HBM, three transfers in sequence. Kept from when convolutions of any kind were tuned (November
# 2026), there is no record of how; measure the labs' convolutions and the networks.
TAP_ROW_NS = 400
PADDING_NS = 6000


@dataclass
class ConvShape(nl.NKIObject):
    """A convolution without its tensors; each attribute is the argument of conv2d."""

    channels: int
    size: Pair
    kernel: Pair
    stride: Pair
    pads: Pair
    dilation: Pair

    def drop_padding(self) -> Any:
        """The same over images that hold their padding."""
        return ConvShape(self.channels, self.size, self.kernel, self.stride, (0, 0), self.dilation)

    def extent(self) -> Pair:
        """(rows, columns) of the padded image that all results need."""
        return input_extent(self.size[0], self.size[1], self.kernel, self.stride, self.dilation)


def input_extent(rows: int, cols: int, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """(rows, columns) of the padded image that ``rows`` x ``cols`` results need."""
    return (
        (rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1,
        (cols - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1,
    )


def packing(channels: int, kernel: Pair, width: int) -> Packing:
    """As many of the kernel's taps on the partitions as fit; all rows before a second column."""
    most = max(1, nl.tile_size.pmax // channels)
    if most < kernel[0]:
        return (ceil_div(kernel[0], ceil_div(kernel[0], most)), 1, width)
    columns = min(kernel[1], most // kernel[0])
    return (kernel[0], ceil_div(kernel[1], ceil_div(kernel[1], columns)), width)


def spread(channels: int, pack: Packing) -> int:
    """The distance between the taps' partitions. A DMA engine serves eight adjacent partitions: if few are used, zeros
    between them spread the work over all engines."""
    return max(1, nl.tile_size.pmax // (channels * pack[0] * pack[1])) if is_packed(pack) else 1


def is_packed(pack: Packing) -> bool:
    """True if several taps share the partitions."""
    return pack[0] * pack[1] > 1


def band_row_step(shape: ConvShape, pack: Packing) -> int:
    """Rows of a band from one row of results to the next: 1 if the rows between them were left out."""
    return 1 if is_packed(pack) and pack[0] == shape.kernel[0] and pack[2] == 0 else shape.stride[0]


def products_of(kernel: Pair, pack: Packing) -> int:
    """The number of products that sum up all taps of a block of channels."""
    return ceil_div(kernel[0], pack[0]) * ceil_div(kernel[1], pack[1])


def band_extent(rows: int, cols: int, shape: ConvShape, pack: Packing) -> Pair:
    """(rows, columns) of a band on a partition. If a partition serves a single kernel row, it has only that row's
    rows."""
    kernel, dilation = shape.kernel, shape.dilation
    if not is_packed(pack):
        return input_extent(rows, cols, kernel, shape.stride, dilation)
    last_row = (ceil_div(kernel[0], pack[0]) - 1) * pack[0] * dilation[0]
    last_col = (ceil_div(kernel[1], pack[1]) - 1) * pack[1] * dilation[1]
    band_cols = (cols - 1) * shape.stride[1] + last_col + 1
    return ((rows - 1) * band_row_step(shape, pack) + last_row + 1, pack[2] if pack[2] > 0 else band_cols)


def columns_saved(shape: ConvShape, images: int, outputs: int) -> int:
    """The columns of products saved by packing as many taps as fit."""
    kernel = shape.kernel
    saved = kernel[0] * kernel[1] - products_of(kernel, packing(shape.channels, kernel, 0))
    return saved * images * shape.size[0] * shape.size[1] * ceil_div(outputs, nl.tile_size.pmax)


def is_worth_packing(shape: ConvShape, images: int, outputs: int) -> bool:
    """True if a plan should leave the weights in HBM, so that conv2d can pack taps as it loads them. Prefetched weights
    are used tap by tap; for those in HBM ``nanoseconds`` decides, which knows the target."""
    saves = columns_saved(shape, images, outputs) >= PACKED_COLUMNS
    enough = saves or shape.channels * PACKED_TAPS <= nl.tile_size.pmax
    return enough and is_packed(packing(shape.channels, shape.kernel, 0))


def leading_tap(src: nl.NkiTensor, shape: ConvShape) -> Pair:
    """The first tap (row, column) that sees the image under every result; (-1, -1) if there is none. With one, padding
    need not exist: that tap's product starts each sum, and others add to the results that see the image."""
    tap = (leading(src.shape[-2], shape, 0), leading(src.shape[-1], shape, 1))
    return tap if min(tap[0], tap[1]) >= 0 else (-1, -1)


def leading_packed(src: nl.NkiTensor, shape: ConvShape, pack: Packing) -> Pair:
    """The same for packed taps (row 0, column), if a band holds the image's own rows and zeros for those above and
    below: there is one if no two columns of taps share the partitions. (-1, -1): padding has to exist."""
    own = is_packed(pack) and pack[1] == 1 and pack[2] == src.shape[-1]
    column = leading(src.shape[-1], shape, 1)
    return (0, column) if own and column >= 0 else (-1, -1)


def leading(length: int, shape: ConvShape, axis: int) -> int:
    """The first kernel row (axis 0) or column that sees one of ``length`` of the image under every result, or -1."""
    pad, dilation = shape.pads[axis], shape.dilation[axis]
    tap = ceil_div(pad, dilation)
    last = (shape.size[axis] - 1) * shape.stride[axis] + tap * dilation - pad
    return tap if tap < shape.kernel[axis] and last < length else -1


def padding_extent(src: nl.NkiTensor, shape: ConvShape) -> Pair:
    """The rows and columns of padding that a convolution sees, on both sides together."""
    extent, pads = shape.extent(), shape.pads
    ends = (extent[0] - pads[0] - src.shape[-2], extent[1] - pads[1] - src.shape[-1])
    return (pads[0] + max(0, ends[0]), pads[1] + max(0, ends[1]))


def nanoseconds(src: nl.NkiTensor, outputs: int, shape: ConvShape, pack: Packing, most_bytes: Pair) -> float:
    """Estimate the longer of the tensor engine's time and the loads' time. Each eight partitions load through one DMA
    engine, piece after piece; padded images are made in HBM first, and spread taps need their bands filled with zeros.

    most_bytes: per partition, of a band, and of the results of one
    """
    channels, size, kernel = shape.channels, shape.size, shape.kernel
    images, height, width, item = image_count(src), src.shape[-2], src.shape[-1], item_bytes(src.dtype)
    piece = packet_ns()
    columns = images * size[0] * size[1] * ceil_div(outputs, nl.tile_size.pmax)
    takes_ns = product_ns(products_of(kernel, pack) * ceil_div(channels, nl.tile_size.pmax) * columns, item)
    apart = spread(channels, pack)
    lanes = min(min(8, channels * pack[0] * pack[1]), ceil_div(8, apart)) * images
    padded = padding_extent(src, shape) != (0, 0)
    if not is_packed(pack):
        pieces = height if padded and leading_tap(src, shape)[0] < 0 else 1
        return max(takes_ns, lanes * (pieces * piece + height * width * item / DMA_ENGINE))
    if padded and leading_packed(src, shape, pack)[0] >= 0:
        # A band of few rows reloads some that others have, too; at the edges each row of taps is a load of its own.
        bands = images * ceil_div(size[0] * size[1] * 4, most_bytes[1])
        rows_in = images * height + bands * ((kernel[0] - 1) * shape.dilation[0])
        load_ns = bands * 8 * piece + 8 * rows_in * width * item / dma_engine()
        load_ns += (bands + images) * pack[0] * TAP_ROW_NS
        # If images in SBUF leave room for only one band, the products wait for its load; from trn2 on the tensor
        # engine's clock falls meanwhile.
        waits = is_recent() and not is_hbm_tensor(src)
        return takes_ns + load_ns if waits else max(takes_ns, load_ns)
    rows, cols = (height, pack[2]) if pack[2] > 0 else (size[0], width)
    pieces = 1 if pack[2] > 0 else rows
    load_ns = lanes * (pieces * piece + rows * cols * item / DMA_ENGINE)
    bands = ceil_div(images * rows * cols * 4, most_bytes[0])
    transfers = pack[1] * bands
    first_ns = 0.0
    if padded and pack[2] > 0:
        each_ns = cols * item / ALL_DMA_ENGINES + (piece + width * item / DMA_ENGINE) / DMA_ENGINES
        first_ns = PADDING_NS + images * channels * height * each_ns
    elif padded:
        transfers += pack[0] * pack[1] * min(bands, 2 * images)
        load_ns *= 2  # rows of padded images are separate loads
    zero_ns = images * rows * cols / ENGINE_GHZ if apart > 1 else 0.0
    return first_ns + max(max(takes_ns, zero_ns), load_ns + transfers * TRANSFER_NS)
