"""Plan a convolution of large images with few channels in strips of rows: see ``strips.py``."""

from dataclasses import dataclass

from trnrt.kernels.common import ceil_div, is_hbm_tensor, item_bytes
from trnrt.kernels.conv.convolving import FEW_PRODUCTS, Pooling
from trnrt.kernels.conv.packing import ConvShape, leading
from trnrt.kernels.rates import (
    ALL_DMA_ENGINES,
    DMA_ENGINES,
    ENGINE_GHZ,
    dma_engine,
    is_recent,
    packet_ns,
    product_ns,
    tensor_ghz,
    trigger_ns,
)
from trnrt.nki import nl

# (first, end) of the rows of a strip to work on at once, counted from the strip's first, and how many of them are
# already loaded.
Rows = tuple[int, int, int]

# All numbers here were chosen for the first layers of ResNet, SqueezeNet, Inception and the like at 224 x 224, when
# strips were added; when one changes, measure these networks on both targets (docs/kernels.md, Tuned numbers). The
# least rows times columns of an image: a smaller one is computed together with others of its batch.
LEAST_PIXELS = 8192
# Bytes per partition for the weights, and for each of the two tiles in which a strip's results wait to be pooled: a
# half of 112 x 112 results, padded for windows of 3 x 3, fits in float32 (57 x 114 x 4).
STRIP_WEIGHT_BYTES = 24 * 1024
STRIP_POOL_BYTES = 28 * 1024
# The most bytes per partition of a band with all its rows, and the number of such bands: one is computed, two are
# loaded; if rows are left out, as many more fit in their place. The elements of the first one, small enough to be
# zeroed in less than 2 us. (SqueezeNet, predicted: half of FIRST_BAND takes 0.7 % more, twice the same.)
STRIP_BAND_BYTES = 12 * 1024
BANDS = 3
FIRST_BAND = 2048
# From trn2 on, where packets cost little, more channels gain nothing from strips.
MOST_CHANNELS = 8
# The number of parts in which a strip's pooled results move to their place; those of the last image move as they are
# computed.
PARTS = 3
# Nanoseconds until the first padded images are in HBM, and an engine's bytes per nanosecond to read and write them:
# ``packing.nanoseconds`` assumes less for the same, and both are kept, as either changes the choice.
STRIP_PADDING_NS, PADDING_ENGINE = 8000, 20


@dataclass
class Strips(nl.NKIObject):
    """A convolution without groups, computed in ``count`` strips of rows at once, with ``columns`` of the kernel's
    columns on partitions of their own."""

    dst: nl.NkiTensor
    src: nl.NkiTensor
    outputs: int
    shape: ConvShape
    pooling: Pooling
    count: int
    columns: int

    def height(self) -> int:
        """Rows of dst in a strip; the last strip may have fewer."""
        return ceil_div(self.dst.shape[-2], self.count)

    def first_row(self, strip: int) -> int:
        """The convolution's row at which a strip starts; negative with padded pooling."""
        return strip * self.height() * self.pooling.stride[0] - self.pooling.pads[0]

    def each(self) -> int:
        """Partitions of results from one strip to the next."""
        return self.outputs if self.count == 1 else nl.tile_size.pmax // self.count

    def lanes(self) -> int:
        """The number of shifted channels of all strips."""
        return self.count * self.shape.kernel[0] * self.shape.channels

    def is_aligned(self) -> bool:
        """True if a product sees ``columns`` pixels of a row that start at a multiple of that number: the image has all
        of them or none, and padding need not exist."""
        alike = self.shape.stride[1] % self.columns == 0 and self.src.shape[3] % self.columns == 0
        return alike and self.columns > 1 and self.shape.dilation[1] == 1

    def zero_columns(self) -> int:
        """Kernel columns of the first product ahead of the kernel's own, whose weights are zero."""
        return -self.shape.pads[1] % self.columns if self.is_aligned() else 0

    def row_step(self) -> int:
        """Rows of the image from one row of a band to the next: those between are left out if loading them in one piece
        takes longer than loading the others row by row."""
        stride, row_bytes = self.shape.stride[0], self.src.shape[3] * item_bytes(self.src.dtype)
        alone = self.columns == 1 and packet_ns() < (stride - 1) * row_bytes / dma_engine()
        return stride if alone or self.is_aligned() else 1

    def loads_by_rows(self) -> bool:
        """True if each row of a band is a piece of its own; otherwise they are one."""
        return self.row_step() > 1 or self.is_aligned()

    def band_rows(self, rows: int) -> int:
        """The rows of a band for ``rows`` rows of the convolution."""
        return (rows - 1) * (self.shape.stride[0] // self.row_step()) + 1

    def apart(self) -> int:
        """Partitions from one shifted channel to the next: the most that fit, so that all DMA engines have some. Of
        several images, columns are adjacent: then the edges of an image take half as many transfers. (Of ResNet-18,
        predicted: columns that are not take 2 % less at batch 1, 5 % more at batch 8.)"""
        if self.is_aligned() and (self.src.shape[0] > 1 or self.products() < FEW_PRODUCTS):
            return self.columns
        return nl.tile_size.pmax // self.lanes()

    def products(self) -> int:
        """The number of products that sum up a result."""
        return ceil_div(self.shape.kernel[1] + self.zero_columns(), self.columns)

    def partitions(self) -> int:
        """The number of partitions that a product sums over."""
        return (self.lanes() - 1) * self.apart() + self.columns

    def has_gaps(self) -> bool:
        """True if products see partitions, or ends of rows, that loads leave out."""
        return self.apart() > self.columns if self.is_aligned() else self.columns > 1 or self.apart() > 1

    def has_column_padding(self) -> bool:
        """True if some results see columns outside the image."""
        return self.shape.pads[1] > 0 or self.shape.extent()[1] > self.src.shape[3]

    def leading_product(self) -> int:
        """The first product that sees the image under all results; -1 if there is none."""
        if self.columns > 1 and not self.is_aligned():
            return 0
        tap = leading(self.src.shape[3], self.shape, 1)
        return (tap + self.zero_columns()) // self.columns if tap >= 0 else -1


def strips_of(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, shape: ConvShape, pooling: Pooling, asked: bool = False
) -> Strips | None:
    """The plan to compute a convolution in strips; None if impossible, or if other ways are faster.

    Kernel columns go on partitions as long as the tensor engine gains more than DMA loses. ``asked``: use strips
    wherever possible.
    """
    kernel, outputs, item = shape.kernel, w.shape[3], item_bytes(src.dtype)
    if not is_hbm_tensor(src) or not is_hbm_tensor(w) or outputs > nl.tile_size.pmax:
        return None
    count = 1 if outputs > 64 else 2 if outputs > 32 else 4
    lanes = kernel[0] * shape.channels
    while count > 1 and (count * lanes > nl.tile_size.pmax or dst.shape[-2] < 4 * count):
        count = count // 2
    if (src.shape[2] * src.shape[3] < LEAST_PIXELS and not asked) or shape.size[1] > nl.tile_size.psum_bank_fmax:
        return None
    if count * lanes > nl.tile_size.pmax or kernel[0] * kernel[1] == 1:
        return None
    if is_recent() and not asked and (shape.channels > MOST_CHANNELS or (count == 1 and shape.stride[0] > 2)):
        return None  # packets cost little there: other ways load less
    rows, cols = pooling.extent(ceil_div(dst.shape[-2], count), dst.shape[-1])
    width = max(src.shape[-1] + shape.pads[1], shape.extent()[1])
    if width * item > STRIP_BAND_BYTES or (not pooling.is_none() and rows * cols * item > STRIP_POOL_BYTES):
        return None
    best: Strips | None = None
    least = 0.0
    for columns in range(1, min(kernel[1], nl.tile_size.pmax // (count * lanes)) + 1):
        plan = Strips(dst, src, outputs, shape, pooling, count, columns)
        fits = plan.products() * nl.tile_size.pmax * item <= STRIP_WEIGHT_BYTES
        if fits and (not plan.has_column_padding() or plan.leading_product() >= 0):
            takes = _nanoseconds(plan, rows)
            if best is None or takes < least:
                best, least = plan, takes
    return best


def _nanoseconds(plan: Strips, rows: int) -> float:
    """The longest of three estimated times for ``rows`` rows per strip: products, their evacuation, or loads and
    stores; and the time to make padded images, if needed. Rates: docs/timing.md."""
    src, dst, shape, columns = plan.src, plan.dst, plan.shape, plan.columns
    images, item, width = src.shape[0], item_bytes(src.dtype), src.shape[-1]
    results = images * rows * shape.size[1]
    takes_ns = product_ns(results * plan.products(), item, tensor_ghz())
    # Vector and scalar engine together are twice as fast on the banks.
    evacuation_ns = results / (2 * ENGINE_GHZ if is_recent() and plan.products() <= FEW_PRODUCTS else ENGINE_GHZ)
    lane_rows = images * rows * shape.stride[0] // plan.row_step()
    lane_bytes = lane_rows * width * item
    moved = columns * plan.lanes() * lane_bytes
    triggers = columns * ceil_div(lane_bytes, STRIP_BAND_BYTES)
    if is_hbm_tensor(dst):
        moved += images * plan.outputs * dst.shape[2] * dst.shape[3] * item
        triggers += images * plan.count * PARTS
    # A DMA engine serves eight partitions.
    pieces = lane_rows if plan.loads_by_rows() else 0
    engine_ns = columns * ceil_div(8, plan.apart()) * (pieces * packet_ns() + lane_bytes / dma_engine())
    load_ns = max(max(engine_ns, moved / ALL_DMA_ENGINES), triggers * trigger_ns())
    padded_ns = 0.0
    if columns > 1 and plan.has_column_padding() and not plan.is_aligned():
        pieces = images * shape.channels * src.shape[2]
        padded_ns = STRIP_PADDING_NS + pieces * (packet_ns() + 2 * width * item / PADDING_ENGINE) / DMA_ENGINES
    return padded_ns + max(max(takes_ns, evacuation_ns), load_ns)


def windows_in(rows: int, pooling: Pooling) -> int:
    """The rows of windows that the first ``rows`` rows of a strip fill."""
    span = (pooling.window[0] - 1) * pooling.dilation[0] + 1
    return (rows - span) // pooling.stride[0] + 1 if rows >= span else 0


def bands_of(plan: Strips) -> list[Rows]:
    """The rows of a strip that are computed from one band each: whole PSUM banks. A short one comes first, so that
    products start early; the topmost, which takes more transfers, comes after it."""
    size, stride = plan.shape.size, plan.shape.stride
    rows = plan.pooling.extent(plan.height(), 1)[0]
    width = max(plan.src.shape[3], size[1])
    bank = nl.tile_size.psum_bank_fmax // size[1]
    more = (STRIP_BAND_BYTES // (width * item_bytes(plan.src.dtype)) - 1) // stride[0] + 1
    more = more // bank * bank if more > bank else more
    short = max(1, min(bank, (FIRST_BAND // width - 1) // stride[0] + 1))
    bands = []
    ready = 0
    if rows >= 2 * short + more:
        ready = 2 * short + more
        bands = [(short, 2 * short, 0), (2 * short, ready, 0), (0, short, ready)]
    while ready < rows:
        end = min(rows, ready + (short if ready == 0 else more))
        bands.append((ready, end, end))
        ready = end
    return bands
