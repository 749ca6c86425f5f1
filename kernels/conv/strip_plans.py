"""Whether and how a convolution of large images with few channels is computed in strips of rows: see ``strips.py``."""

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes
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

# (strips, kernel columns on partitions of their own); (0, 0): not to be computed in strips.
Strips = tuple[int, int]
# (first, end) of the rows of a strip that are worked on at once, counted from the strip's first, and how many from the
# first on are there with them.
Rows = tuple[int, int, int]

# All numbers here were chosen for the first layers of ResNet, SqueezeNet, Inception and the like at 224 x 224, whose
# strips they came with; when one changes, measure these networks on both targets (docs/kernels.md, Tuned numbers).
# The least rows times columns of an image: a smaller one is computed with others of its batch.
LEAST_PIXELS = 8192
# Bytes a partition for the weights, and of the strip's results that wait to be pooled, of which there are two: a
# half of 112 x 112 results, padded for windows of 3 x 3, fits in float32 (57 x 114 x 4).
WEIGHT_BYTES = 24 * 1024
POOL_BYTES = 28 * 1024
# Bytes a partition that a band may have, and how many bands there are: one is computed, two are loaded. Elements that
# the first should have, as they are filled with zeros before: in less than 2 us.
# (SqueezeNet, predicted: half of FIRST_BAND takes 0.7 % more, twice the same.)
BAND_BYTES = 12 * 1024
BANDS = 3
FIRST_BAND = 2048
# From trn2 on, where packets cost little, more channels are computed no faster so.
MOST_CHANNELS = 8
# In how many parts the pooled results of a strip go to where they belong; those of the last image go as they come.
PARTS = 3
# Nanoseconds until the first padded images lie in HBM, and bytes in a nanosecond at which an engine reads and writes
# them: ``packing.nanoseconds`` takes less for the same, and both are kept, as either changes what is chosen.
PADDING_NS, PADDING_ENGINE = 8000, 20


def strips_of(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, shape: ConvShape, pooling: Pooling, asked: bool = False
) -> Strips:
    """How a convolution is computed in strips, (0, 0) where it is not: what is asked of it stands in
    ``convolve_strips``. Columns stand on partitions as far as the tensor engine gains what DMA loses. ``asked``: it is
    wherever it can be."""
    channels, size, kernel = shape.channels, shape.size, shape.kernel
    outputs = w.shape[3]
    if not is_hbm_tensor(src) or not is_hbm_tensor(w) or outputs > nl.tile_size.pmax:
        return (0, 0)
    strips = 1 if outputs > 64 else 2 if outputs > 32 else 4
    while strips > 1 and (strips * kernel[0] * channels > nl.tile_size.pmax or dst.shape[-2] < 4 * strips):
        strips = strips // 2
    item = item_bytes(src.dtype)
    if (src.shape[2] * src.shape[3] < LEAST_PIXELS and not asked) or size[1] > nl.tile_size.psum_bank_fmax:
        return (0, 0)
    if strips * kernel[0] * channels > nl.tile_size.pmax or kernel[0] * kernel[1] == 1:
        return (0, 0)
    if is_recent() and not asked and (channels > MOST_CHANNELS or (strips == 1 and shape.stride[0] > 2)):
        return (0, 0)  # packets cost little there: other ways bring in less
    rows, cols = pooling.extent(ceil_div(dst.shape[-2], strips), dst.shape[-1])
    width = max(src.shape[-1] + shape.pads[1], shape.extent()[1])
    if width * item > BAND_BYTES or (not pooling.is_none() and rows * cols * item > POOL_BYTES):
        return (0, 0)
    best, least = (0, 0), 0.0
    for columns in range(1, min(kernel[1], places_apart(strips, channels, kernel)) + 1):
        held = ceil_div(kernel[1], columns) * nl.tile_size.pmax * item <= WEIGHT_BYTES
        if held and (columns > 1 or not column_padding(src, shape) or leading_column(src, shape) >= 0):
            takes = _nanoseconds(dst, src, outputs, rows, shape, (strips, columns))
            if best[0] == 0 or takes < least:
                best, least = (strips, columns), takes
    return best


def _nanoseconds(
    dst: nl.NkiTensor, src: nl.NkiTensor, outputs: int, rows: int, shape: ConvShape, plan: Strips
) -> float:
    """About how long the products of ``rows`` rows a strip, their evacuation, or loads and stores take: whichever is
    most; and how long it takes to make padded images, where they are. Rates: docs/timing.md."""
    channels, size, kernel = shape.channels, shape.size, shape.kernel
    strips, columns = plan
    images, item, width = src.shape[0], item_bytes(src.dtype), src.shape[-1]
    results, products = images * rows * size[1], ceil_div(kernel[1], columns)
    takes_ns = product_ns(results * products, item, tensor_ghz())
    # Where vector and scalar engine share the banks, they are twice as fast.
    evacuation_ns = results / (2 * ENGINE_GHZ if is_recent() and products <= FEW_PRODUCTS else ENGINE_GHZ)
    lane_bytes = images * rows * shape.stride[0] * width * item
    moved = strips * columns * kernel[0] * channels * lane_bytes
    triggers = columns * ceil_div(lane_bytes, BAND_BYTES)
    if is_hbm_tensor(dst):
        moved += images * outputs * dst.shape[2] * dst.shape[3] * item
        triggers += images * strips * PARTS
    # A DMA engine serves eight partitions.
    engine_ns = columns * ceil_div(8, places_apart(strips, channels, kernel)) * lane_bytes / dma_engine()
    load_ns = max(max(engine_ns, moved / ALL_DMA_ENGINES), triggers * trigger_ns())
    padded_ns = 0.0
    if columns > 1 and column_padding(src, shape):
        pieces = images * channels * src.shape[2]
        padded_ns = PADDING_NS + pieces * (packet_ns() + 2 * width * item / PADDING_ENGINE) / DMA_ENGINES
    return padded_ns + max(max(takes_ns, evacuation_ns), load_ns)


def windows_in(rows: int, pooling: Pooling) -> int:
    """How many rows of windows the first ``rows`` rows of a strip fill."""
    span = (pooling.window[0] - 1) * pooling.dilation[0] + 1
    return (rows - span) // pooling.stride[0] + 1 if rows >= span else 0


def first_row(strip: int, dst: nl.NkiTensor, pooling: Pooling, strips: int) -> int:
    """The convolution's row at which a strip starts; negative where pooling pads."""
    return strip * ceil_div(dst.shape[-2], strips) * pooling.stride[0] - pooling.pads[0]


def places_apart(strips: int, channels: int, kernel: Pair) -> int:
    """From the partition of one shifted channel to that of the next."""
    return nl.tile_size.pmax // (strips * kernel[0] * channels)


def summed_partitions(shape: ConvShape, plan: Strips) -> int:
    """How many partitions the products sum over."""
    lanes = plan[0] * shape.kernel[0] * shape.channels
    return (lanes - 1) * places_apart(plan[0], shape.channels, shape.kernel) + plan[1]


def has_gaps(shape: ConvShape, plan: Strips) -> bool:
    """Whether products see partitions, or ends of rows, that loads leave out."""
    return plan[1] > 1 or places_apart(plan[0], shape.channels, shape.kernel) > 1


def column_padding(src: nl.NkiTensor, shape: ConvShape) -> bool:
    """Whether some results see columns beside the image."""
    return shape.pads[1] > 0 or shape.extent()[1] > src.shape[3]


def leading_column(src: nl.NkiTensor, shape: ConvShape) -> int:
    """The first kernel column that sees the image under all results; -1 where none does."""
    return leading(src.shape[3], shape, 1)


def bands_of(dst: nl.NkiTensor, src: nl.NkiTensor, shape: ConvShape, pooling: Pooling, plan: Strips) -> list[Rows]:
    """The rows of a strip that are computed from one band each: whole PSUM banks. A short one comes first, so that
    products start early, and the topmost, of which parts come in transfers of their own, only then."""
    size, stride = shape.size, shape.stride
    rows = pooling.extent(ceil_div(dst.shape[-2], plan[0]), 1)[0]
    width = max(src.shape[3], size[1])
    bank = nl.tile_size.psum_bank_fmax // size[1]
    more = (BAND_BYTES // (width * item_bytes(src.dtype)) - 1) // stride[0] + 1
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
