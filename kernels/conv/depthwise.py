"""Convolutions with as many outputs as channels, in groups of few channels: adjacent rows share the partitions.

A product with one tap of 128 channels uses one weight in 128. Here ``rows`` (2 or 4) adjacent rows of an image are on
the partitions, of 64 or 32 channels: row ``slot * rows + j`` of channel c on partition ``j * apart + c``. One product
makes as many adjacent rows of the result, row ``group * rows + j`` on partition ``j * apart + c`` of PSUM. So it is a
convolution again, of fewer rows, whose kernel is a few slots high, each of which holds several taps: 3 x 3 takes six
products instead of nine for as many results, 5 x 5 ten instead of 25. A last block of few channels fills the
partitions, too. The rows are copied on chip, and each row of a group leaves PSUM by itself: that is why full blocks of
some kernels stay as they are.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, Rectangle, block_rows, ceil_div, image_count, image_part, is_hbm_tensor, load
from trnrt.kernels.conv.conv2d import convolve
from trnrt.kernels.conv.conv_room import WEIGHT_BYTES, result_bytes, source_tile_bytes
from trnrt.kernels.conv.convolving import (
    Layer,
    Method,
    Pooling,
    Weights,
    accumulate,
    evacuate,
    store_results,
)
from trnrt.kernels.conv.grouping import some_channels
from trnrt.kernels.conv.packing import ConvShape, leading
from trnrt.kernels.conv.row_groups import BY_BOTH, repeat_column
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.rates import COPIED_BYTES_PER_NS, ENGINE_GHZ, INSTRUCTION_NS, TENSOR_GHZ, is_recent
from trnrt.nki import nisa, nl

# Bytes per partition of a band of slots: the next one is copied during the products of this one.
SLOT_BYTES = 8 * 1024
# Rows that may share the partitions: engines' tiles start at multiples of 32.
ROWS_TOGETHER = (2, 4)
# Activations with which the vector engine evacuates the last of four rows, while the scalar engine evacuates the
# others: the copies leave it time for one. Not "none": where ConvNeXt has it, a normalisation follows on that engine.
BY_EITHER = ("relu", "relu6")
# Passes of the tensor engine for a product of elements of so many bytes.
PASSES = {1: 1, 2: 1, 4: 4}
# Nanoseconds that rows together must save in a block: products of rows apart overlap with the steps before and after,
# whose evacuation the copies would delay. MobileNetV2 and EfficientNet-B0 at batch 1 take as long with 1000, more with
# 400 or 3000.
TOGETHER_NS = 1500


@dataclass
class Slots(nl.NKIObject):
    """A convolution of at most 128 channels whose ``rows`` adjacent rows share the partitions."""

    shape: ConvShape
    rows: int

    def apart(self) -> int:
        """Partitions from a row to the next, and the most channels."""
        return nl.tile_size.pmax // self.rows

    def height(self) -> int:
        """The slots that a group of results sees."""
        shape = self.shape
        return ceil_div((self.rows - 1) * shape.stride[0] + (shape.kernel[0] - 1) * shape.dilation[0] + 1, self.rows)

    def products(self) -> int:
        """Products of a group of results of ``apart`` channels."""
        return self.height() * self.shape.kernel[1]

    def matrices(self) -> int:
        """Prepared matrices of weights of all channels."""
        if self.rows == 1:
            return self.shape.kernel[0] * self.shape.kernel[1]
        return ceil_div(self.shape.channels, self.apart()) * self.products()

    def grouped_shape(self, groups: int) -> ConvShape:
        """The convolution of slots to so many groups of results."""
        shape = self.shape
        return ConvShape(
            nl.tile_size.pmax,
            (groups, shape.size[1]),
            (self.height(), shape.kernel[1]),
            shape.stride,
            (0, shape.pads[1]),
            (1, shape.dilation[1]),
        )

    def nanoseconds(self, width: int, images: int, itemsize: int) -> float:
        """Estimate the longest engine's time for images of ``width`` columns in SBUF."""
        groups = ceil_div(self.shape.size[0], self.rows)
        columns = max(nl.tile_size.pmax // 2, images * groups * self.shape.size[1])
        takes = self.matrices() * columns * PASSES[itemsize] / TENSOR_GHZ
        if self.rows == 1:
            return takes
        parts = ceil_div(self.shape.channels, self.apart()) * self.rows
        copied = images * ((groups - 1) * self.shape.stride[0] + self.height()) * width
        copying = parts * (copied * itemsize / COPIED_BYTES_PER_NS + INSTRUCTION_NS)
        return max(takes, max(copying, parts * (columns / ENGINE_GHZ + INSTRUCTION_NS)))


@dataclass
class Band(nl.NKIObject):
    """Groups of rows of results (first, end) of some images, of ``channels`` (first, count), and their weights."""

    slots: Slots
    channels: Pair
    weights_sb: Any
    images: Pair
    groups: Pair

    def result_rows(self) -> Pair:
        """(first, end) of the rows of results."""
        return self.groups[0] * self.slots.rows, min(self.slots.shape.size[0], self.groups[1] * self.slots.rows)


def choose_block_rows(shape: ConvShape, width: int, group: int, images: int, itemsize: int) -> Pair:
    """The rows of full blocks of channels that should share the partitions, and those of a last block: 1, 2 or 4.

    width: columns of the image
    group: channels of a group
    itemsize: bytes of an element
    """
    full, left = shape.channels // nl.tile_size.pmax, shape.channels % nl.tile_size.pmax
    rows = (1, 1)
    if full > 0:
        rows = (_choose_rows(block_slots(shape, 0, rows).shape, width, group, images, itemsize), 1)
    if left > 0:
        rows = (rows[0], _choose_rows(block_slots(shape, full, rows).shape, width, group, images, itemsize))
    return rows


def _choose_rows(shape: ConvShape, width: int, group: int, images: int, itemsize: int) -> int:
    """The rows of a block of at most 128 channels that should share the partitions."""
    best, least = 1, Slots(shape, 1).nanoseconds(width, images, itemsize) - TOGETHER_NS
    if leading(width, shape, 1) < 0:
        return 1
    for rows in ROWS_TOGETHER:
        slots = Slots(shape, rows)
        if slots.apart() % group == 0 and slots.height() * width * 4 <= SLOT_BYTES:
            takes = slots.nanoseconds(width, images, itemsize)
            if takes < least:
                best, least = rows, takes
    return best


def block_slots(shape: ConvShape, block: int, rows: Pair) -> Slots:
    """A block of channels of a convolution; ``rows`` together in full blocks, and in a last one of fewer channels."""
    channels = block_rows(shape.channels, block)
    some = ConvShape(channels, shape.size, shape.kernel, shape.stride, shape.pads, shape.dilation)
    return Slots(some, rows[0] if channels == nl.tile_size.pmax else rows[1])


def depthwise2d(
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
    rows: Pair = (1, 1),
) -> None:
    """dst = act(conv(src, w) + bias), with groups of few channels.

    dst: HBM (N, C, OH, OW), or SBUF ``channels`` (P, ceil(C/128), N, OH, OW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, ceil(C/128), N, H, W)
    w: HBM or SBUF (P, M, P), the matrices of all blocks of channels one after the other, prepared for ``rows``; the
        dtype of src
    bias: HBM or SBUF (P, ceil(C/128)) float32, prepared
    channels, size, kernel, stride, pads, dilation, act: see conv2d
    rows: adjacent rows that share the partitions, 1, 2 or 4: of full blocks of channels, of a last one of fewer
    limits: a group has at most 128 / rows channels, and divides that; where rows share the partitions, one column of
        taps sees the image under every result, and a group of slots fits SLOT_BYTES; NaN and infinity reach all
        groups computed together

    numpy: y[n, o, i, j] = act(bias[o] + sum(w[o, c, u, v] * padded[n, c, i*s + u*d, j*s + v*d])), c over the channels
    of o's group
    """
    shape = ConvShape(channels, size, kernel, stride, pads, dilation)
    layer = Layer(shape, act, Pooling("max", (1, 1), (1, 1), (0, 0), (1, 1)), False, WEIGHT_BYTES)
    bias_sb = load(bias) if is_hbm_tensor(bias) else bias
    bands: list[Band] = []
    apart, first = [], 0
    for block in range(ceil_div(channels, nl.tile_size.pmax)):
        slots = block_slots(shape, block, rows)
        parts, end = slots.shape.channels, first + slots.matrices()
        if slots.rows > 1:
            own = w[:, first:end]
            bands = bands + _plan_block(src, load(own) if is_hbm_tensor(w) else own, block, slots)
        else:
            apart.append((block, w.expand_dim(1)[0:parts, :, first:end, 0:parts]))
        first = end
    # The next band is copied before the products of one, as the engine that copies also evacuates PSUM.
    loaded: list[nl.NkiTensor] = []
    if len(bands) > 0:
        loaded.append(_load_slots(src, bands[0]))
    for pair in apart:
        block, weights = pair
        c0, c1 = block * nl.tile_size.pmax, min(channels, (block + 1) * nl.tile_size.pmax)
        column = bias_sb[0 : c1 - c0, block : block + 1]
        some = ConvShape(c1 - c0, size, kernel, stride, pads, dilation)
        part = Layer(some, act, layer.pooling, False, WEIGHT_BYTES)
        convolve(some_channels(dst, c0, c1), some_channels(src, c0, c1), weights, column, part)
    for number in range(len(bands)):
        if number + 1 < len(bands):
            loaded.append(_load_slots(src, bands[number + 1]))
        _convolve_slots(dst, loaded[number], bias_sb, bands[number], act)


def _plan_block(src: nl.NkiTensor, w_sb: nl.NkiTensor, block: int, slots: Slots) -> list[Band]:
    """The bands of a block of channels, 32 or 64 at a time."""
    shape = slots.shape
    groups, row_bytes, images = ceil_div(shape.size[0], slots.rows), src.shape[-1] * 4, image_count(src)
    g_step = min(groups, (SLOT_BYTES // row_bytes - slots.height()) // shape.stride[0] + 1)
    all_bytes = ((groups - 1) * shape.stride[0] + slots.height()) * row_bytes
    n_step = max(1, SLOT_BYTES // all_bytes) if g_step == groups else 1
    bands = []
    for p0 in range(0, shape.channels, slots.apart()):
        channels = (block * nl.tile_size.pmax + p0, min(slots.apart(), shape.channels - p0))
        product = p0 // slots.apart() * slots.products()
        own_sb = w_sb[:, product : product + slots.products()].expand_dim(1)
        for n0 in range(0, images, n_step):
            for g0 in range(0, groups, g_step):
                some = ((n0, min(images, n0 + n_step)), (g0, min(groups, g0 + g_step)))
                bands.append(Band(slots, channels, own_sb, some[0], some[1]))
    return bands


def _channels_part(images: nl.NkiTensor, channels: Pair, place: Rectangle) -> nl.NkiTensor:
    """A view (p, n, rows, columns) of ``channels`` (first, count) of images in HBM or SBUF, all in one block."""
    first, count = channels
    if is_hbm_tensor(images):
        return image_part(images[:, first : first + count], 0, count, place)
    p0 = first % nl.tile_size.pmax
    return image_part(images[p0 : p0 + count], first // nl.tile_size.pmax, count, place)


def _result_part(dst: nl.NkiTensor, channels: Pair, place: Rectangle) -> nl.NkiTensor:
    """The tile to compute some results in: in dst itself, or on its way to HBM."""
    part = _channels_part(dst, channels, place)
    return nl.ndarray(part.shape, dtype=dst.dtype, buffer=nl.sbuf) if is_hbm_tensor(dst) else part


def _load_slots(src: nl.NkiTensor, band: Band) -> nl.NkiTensor:
    """The slots (P, 1, n, slots, columns) that a band of results sees; zeros for rows outside of the image."""
    slots, images, channels = band.slots, band.images, band.channels
    rows, apart, height, width = slots.rows, slots.apart(), src.shape[-2], src.shape[-1]
    count = (band.groups[1] - band.groups[0] - 1) * slots.shape.stride[0] + slots.height()
    x_sb = nl.ndarray((nl.tile_size.pmax, 1, images[1] - images[0], count, width), dtype=src.dtype, buffer=nl.sbuf)
    if channels[1] < apart:
        nisa.memset(dst=x_sb, value=0.0, engine=nisa.engine.vector)
    row0 = band.groups[0] * rows * slots.shape.stride[0] - slots.shape.pads[0]
    for j in range(rows):
        # Slot k holds row row0 + j + k * rows of the image.
        k0 = min(count, max(0, ceil_div(-row0 - j, rows)))
        k1 = max(k0, min(count, ceil_div(height - row0 - j, rows)))
        own_sb = x_sb[j * apart : j * apart + channels[1], 0]
        for outside in [(0, k0), (k1, count)]:
            if outside[0] < outside[1] and channels[1] == apart:
                nisa.memset(dst=own_sb[:, :, outside[0] : outside[1]], value=0.0, engine=nisa.engine.vector)
        if k0 == k1:
            continue
        first = row0 + j + k0 * rows
        seen = Rectangle(images, (first, first + (k1 - k0 - 1) * rows + 1), (0, width))
        part = _channels_part(src, channels, seen)[:, :, ::rows]
        if is_hbm_tensor(src):
            nisa.dma_copy(dst=own_sb[:, :, k0:k1], src=part)
        else:
            nisa.tensor_copy(dst=own_sb[:, :, k0:k1], src=part, engine=nisa.engine.vector)
    return x_sb


def _convolve_slots(dst: nl.NkiTensor, x_sb: nl.NkiTensor, bias_sb: nl.NkiTensor, band: Band, act: str) -> None:
    """A band of dst = act(conv(x_sb) + bias), a PSUM bank of groups of rows after the other."""
    slots, (first, channels) = band.slots, band.channels
    rows, apart, groups, left = slots.rows, slots.apart(), band.groups[1] - band.groups[0], slots.shape.pads[1]
    divided = rows == ROWS_TOGETHER[-1] and is_recent() and act in BY_EITHER
    layer = Layer(slots.grouped_shape(groups), act, Pooling("max", (1, 1), (1, 1), (0, 0), (1, 1)), False, WEIGHT_BYTES)
    how = Method(layer, False, (1, 1, 0), (0, leading(x_sb.shape[4], slots.shape, 1)))
    whole = Weights(band.weights_sb, (0, apart), how, ((0, left), (x_sb.shape[3], left + x_sb.shape[4])))
    place = Rectangle(band.images, band.result_rows(), (0, dst.shape[-1]))
    y_sb = _result_part(dst, band.channels, place)
    p0, block = first % nl.tile_size.pmax, first // nl.tile_size.pmax
    column = bias_sb[p0 : p0 + channels, block : block + 1]
    together = is_recent() and act not in BY_BOTH
    if together:
        column = repeat_column(column, rows, apart)
    for part in stretches(y_sb.shape[1], groups, y_sb.shape[3], not is_recent()):
        (n0, n1), (g0, g1), (c0, c1) = part.images, part.rows, part.columns
        shape = (nl.tile_size.pmax, n1 - n0, g1 - g0, c1 - c0)
        sum_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
        accumulate(sum_psum, x_sb[:, :, n0:n1], whole, (g0, c0))
        all_sb = sum_psum
        if together:
            all_sb = nl.ndarray(shape, dtype=y_sb.dtype, buffer=nl.sbuf)
            evacuate(all_sb, sum_psum, column, act, False)
        for j in range(rows):
            g_end = min(g1, ceil_div(y_sb.shape[2] - j, rows))
            if g_end > g0:
                row_sb = all_sb[j * apart : j * apart + channels, :, 0 : g_end - g0]
                made = y_sb[:, n0:n1, g0 * rows + j : (g_end - 1) * rows + j + 1 : rows, c0:c1]
                if together:
                    nisa.tensor_copy(dst=made, src=row_sb, engine=nisa.engine.vector)
                else:
                    evacuate(made, row_sb, column, act, divided and j == rows - 1)
    if is_hbm_tensor(dst):
        store_results(dst[:, first : first + channels], y_sb, 0, place)


def depthwise_tile_bytes(shape: ConvShape, images: int, image: Pair, rows: Pair, in_hbm: bool) -> int:
    """The most bytes per partition of the tiles, for planners, for a call with images (rows, columns): three bands of
    slots, and results on their way to HBM; or what conv2d takes for a block whose rows are apart."""
    slots = SLOT_BYTES * (3 + (2 * max(rows[0], rows[1]) if in_hbm else 0))
    apart = source_tile_bytes(shape, images, image, not in_hbm, False) + result_bytes(shape, images, not in_hbm, "", 0)
    return max(slots, apart) if min(rows[0], rows[1]) == 1 else slots
