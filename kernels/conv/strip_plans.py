"""Whether and how a convolution of large images with few channels is computed in strips of rows: see ``strips.py``."""

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes
from trnrt.kernels.conv.convolving import FEW_PRODUCTS, Pooling
from trnrt.kernels.conv.packing import ConvShape, input_extent
from trnrt.nki import nisa, nl

# (strips, kernel columns on partitions of their own); (0, 0): not to be computed in strips.
Strips = tuple[int, int]
# (first, end) of the rows of a strip that are worked on at once, counted from the strip's first, and how many from the
# first on are there with them.
Rows = tuple[int, int, int]

# The least rows times columns of an image: a smaller one is computed with others of its batch.
LEAST_PIXELS = 8192
# Bytes a partition for the weights, and of the strip's results that wait to be pooled, of which there are two.
WEIGHT_BYTES = 24 * 1024
POOL_BYTES = 28 * 1024
# Bytes a partition that a band may have, and how many bands there are; elements that the first should have, as they are
# filled with zeros before.
BAND_BYTES = 12 * 1024
BANDS = 3
FIRST_BAND = 2048
# From trn2 on, where packets cost little, more channels are computed no faster so.
MOST_CHANNELS = 8
# In how many parts the pooled results of a strip go to where they belong; those of the last image go as they come.
PARTS = 3


def strips_of(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, shape: ConvShape, pooling: Pooling, asked: bool = False
) -> Strips:
    """How a convolution is computed in strips, (0, 0) where it is not: what is asked of it stands in
    ``convolve_strips``. Columns stand on partitions as far as the tensor engine gains what DMA loses. ``asked``: it is
    wherever it can be."""
    channels, size, kernel, stride, pads, dilation = shape
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
    recent = nisa.get_nc_version() >= nisa.nc_version.gen3
    if recent and not asked and (channels > MOST_CHANNELS or (strips == 1 and stride[0] > 2)):
        return (0, 0)  # packets cost little there: other ways bring in less
    rows, cols = strip_extent(ceil_div(dst.shape[-2], strips), dst.shape[-1], pooling)
    width = max(src.shape[-1] + pads[1], input_extent(size[0], size[1], kernel, stride, dilation)[1])
    if width * item > BAND_BYTES or (is_pooled(pooling) and rows * cols * item > POOL_BYTES):
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
    channels, size, kernel, stride, _, _ = shape
    strips, columns = plan
    images, item, width = src.shape[0], item_bytes(src.dtype), src.shape[-1]
    recent = nisa.get_nc_version() >= nisa.nc_version.gen3
    results = images * rows * size[1]
    product_ns = results * ceil_div(kernel[1], columns) * (4 if item == 4 else 1) / (2.4 if recent else 2.8)
    evacuation_ns = results / (2.4 if recent and ceil_div(kernel[1], columns) <= FEW_PRODUCTS else 1.2)
    lane_bytes = images * rows * stride[0] * width * item
    moved = strips * columns * kernel[0] * channels * lane_bytes
    triggers = columns * ceil_div(lane_bytes, BAND_BYTES)
    if is_hbm_tensor(dst):
        moved += images * outputs * dst.shape[2] * dst.shape[3] * item
        triggers += images * strips * PARTS
    # A DMA engine serves eight partitions.
    engine_ns = columns * ceil_div(8, places_apart(strips, channels, kernel)) * lane_bytes / (27 if recent else 20)
    load_ns = max(max(engine_ns, moved / 320), triggers * (608 if recent else 386))
    padded_ns = 0.0
    if columns > 1 and column_padding(src, shape):
        pieces = images * channels * src.shape[2]
        padded_ns = 8000 + pieces * ((8 if recent else 69) + 2 * width * item / 20) / 16
    return padded_ns + max(max(product_ns, evacuation_ns), load_ns)


def is_pooled(pooling: Pooling) -> bool:
    return pooling[1] != (1, 1) or pooling[2] != (1, 1)


def windows_in(rows: int, pooling: Pooling) -> int:
    """How many rows of windows the first ``rows`` rows of a strip fill."""
    _, pool, stride, _, dilation = pooling
    span = (pool[0] - 1) * dilation[0] + 1
    return (rows - span) // stride[0] + 1 if rows >= span else 0


def strip_extent(rows: int, cols: int, pooling: Pooling) -> Pair:
    """(rows, columns) of the convolution, with the padding of its pooling, for so many results of a strip."""
    return input_extent(rows, cols, pooling[1], pooling[2], pooling[4])


def first_row(strip: int, dst: nl.NkiTensor, pooling: Pooling, strips: int) -> int:
    """The convolution's row at which a strip starts; negative where pooling pads."""
    return strip * ceil_div(dst.shape[-2], strips) * pooling[2][0] - pooling[3][0]


def places_apart(strips: int, channels: int, kernel: Pair) -> int:
    """From the partition of one shifted channel to that of the next."""
    return nl.tile_size.pmax // (strips * kernel[0] * channels)


def summed_partitions(shape: ConvShape, plan: Strips) -> int:
    """How many partitions the products sum over."""
    lanes = plan[0] * shape[2][0] * shape[0]
    return (lanes - 1) * places_apart(plan[0], shape[0], shape[2]) + plan[1]


def has_gaps(shape: ConvShape, plan: Strips) -> bool:
    """Whether products see partitions, or ends of rows, that loads leave out."""
    return plan[1] > 1 or places_apart(plan[0], shape[0], shape[2]) > 1


def column_padding(src: nl.NkiTensor, shape: ConvShape) -> bool:
    """Whether some results see columns beside the image."""
    _, size, kernel, stride, pads, dilation = shape
    extent = input_extent(size[0], size[1], kernel, stride, dilation)
    return pads[1] > 0 or extent[1] > src.shape[3]


def leading_column(src: nl.NkiTensor, shape: ConvShape) -> int:
    """The first kernel column that sees the image under all results; -1 where none does."""
    _, size, kernel, stride, pads, dilation = shape
    column = ceil_div(pads[1], dilation[1])
    last = (size[1] - 1) * stride[1] + column * dilation[1] - pads[1]
    return column if column < kernel[1] and last < src.shape[3] else -1


def bands_of(dst: nl.NkiTensor, src: nl.NkiTensor, shape: ConvShape, pooling: Pooling, plan: Strips) -> list[Rows]:
    """The rows of a strip that are computed from one band each: whole PSUM banks. A short one comes first, so that
    products start early, and the topmost, of which parts come in transfers of their own, only then."""
    _, size, _, stride, _, _ = shape
    rows = strip_extent(ceil_div(dst.shape[-2], plan[0]), 1, pooling)[0]
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
