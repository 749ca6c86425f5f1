"""How much of a convolution is worked on at once, and what its tiles then take of SBUF: the kernel and the planner ask.

What the tiles take is an upper bound, so that a plan needs no trace: ``tests/planner/test_planner_working.py``
holds it against traced tiles. Whoever changes a tile of conv2d changes its bound here.
"""

from trnrt.kernels.common import Pair, ceil_div
from trnrt.kernels.conv.convolving import Pooling
from trnrt.kernels.conv.packing import ConvShape, Packing, band_extent
from trnrt.nki import nl

# Bytes a partition for the weights at hand, for a band of input (all its channel blocks), and for a band of
# convolution results, pooled or not. Kept from the first convolutions of any kind (November 2026): the weights of a 3x3
# kernel over 1280 channels fit, and all tiles together the planner's WORKING_BYTES (``test_budgets.py``). When one
# changes, measure the networks. The search tries other POOL_BYTES, as ``band_bytes``.
WEIGHT_BYTES = 48 * 1024
BAND_BYTES = 40 * 1024
POOL_BYTES = 16 * 1024

# (images, rows, columns) of the results that are worked on at once.
Steps = tuple[int, int, int]


def conv_fits(shape: ConvShape, pooling: Pooling, band_bytes: int = 0) -> bool:
    """Whether one result can be computed at a time: the limits of conv2d, for whoever plans a call."""
    return images_held(1, 1, shape, pooling, (1, 1, 0), band_bytes) > 0


def band_steps(
    images: int, height: int, width: int, shape: ConvShape, pooling: Pooling, pack: Packing, band_bytes: int
) -> Steps:
    """(images, rows, columns) of results that are worked on at once: whole images where they fit, else bands of rows
    of one, else parts of these."""
    cols = width
    tall = min(height, 2 * shape.kernel[0]) if pack[2] == 0 else 1
    while cols > nl.tile_size.psum_bank_fmax and images_held(tall, cols, shape, pooling, pack, band_bytes) == 0:
        cols = ceil_div(cols, 2)
    while cols > 1 and images_held(1, cols, shape, pooling, pack, band_bytes) == 0:
        cols = ceil_div(cols, 2)
    rows = height
    while rows > 1 and images_held(rows, cols, shape, pooling, pack, band_bytes) == 0:
        rows = ceil_div(rows, 2)
    if rows < height or cols < width:
        return (1, rows, cols)
    return (min(images, images_held(rows, cols, shape, pooling, pack, band_bytes)), rows, cols)


def band_budgets(band_bytes: int) -> Pair:
    """Bytes a partition of a band of input, and of its results: what conv2d's argument means."""
    return (BAND_BYTES, band_bytes if band_bytes > 0 else POOL_BYTES)


def images_held(rows: int, cols: int, shape: ConvShape, pooling: Pooling, pack: Packing, band_bytes: int) -> int:
    """Of how many images a band of ``rows`` x ``cols`` results can be worked on at once."""
    conv_rows, conv_cols = pooling.extent(rows, cols)
    extent = band_extent(min(conv_rows, shape.size[0]), min(conv_cols, shape.size[1]), shape, pack)
    input_bytes = ceil_div(shape.channels, nl.tile_size.pmax) * extent[0] * extent[1] * 4
    of_input, of_results = band_budgets(band_bytes)
    return min(of_input // input_bytes, of_results // (conv_rows * conv_cols * 4))


def weight_bytes(shape: ConvShape, outputs: int) -> int:
    """Bytes a partition that weights at hand take at most, where conv2d brings them in itself."""
    taps = shape.kernel[0] * shape.kernel[1]
    row = ceil_div(shape.channels, nl.tile_size.pmax) * taps * min(outputs, nl.tile_size.pmax) * 4
    return min(WEIGHT_BYTES, row)


def source_bytes(shape: ConvShape, images: int, image: Pair, on_chip: bool, packs: bool) -> int:
    """Bytes a partition that bands of images (rows, columns) take at most; none are needed where a source that is
    ``on_chip`` is read in place. With packed taps a band holds several, and the next one comes in meanwhile."""
    extent = shape.extent()
    seen = (max(extent[0], image[0]), max(extent[1], image[1]))
    if on_chip and seen == image and shape.pads == (0, 0):
        return 0
    band = ceil_div(shape.channels, nl.tile_size.pmax) * images * seen[0] * seen[1] * 4
    if packs:
        return 2 * min(BAND_BYTES, band * shape.kernel[0] * shape.kernel[1])
    return min(BAND_BYTES, band)


def result_bytes(shape: ConvShape, images: int, in_place: bool, added: str, band_bytes: int) -> int:
    """Bytes a partition that results take at most: three bands, as one is computed, pooled or stored while others wait.
    ``in_place``: they are computed where they stay. ``added``: "" or where that is which is added, "hbm" or "sbuf"; it
    is summed up a PSUM bank after the other."""
    each = images * shape.size[0] * shape.size[1] * 4
    _, most = band_budgets(band_bytes)
    taken = 0 if in_place else min(most, each)
    if added == "hbm":
        taken += most
    sums = 0 if added == "" else min(nl.tile_size.psum_bank_fmax * 4, each)
    return 3 * taken + sums
