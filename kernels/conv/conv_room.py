"""The sizes of a convolution's pieces, and their tiles' bytes in SBUF: the kernel and the planner ask.

The bytes are an upper bound, so that a plan needs no trace: ``tests/planner/test_planner_working.py`` compares it with
traced tiles. If you change a tile of conv2d, change its bound here.
"""

from trnrt.kernels.common import Pair, ceil_div
from trnrt.kernels.conv.convolving import Layer, Pooling
from trnrt.kernels.conv.packing import ConvShape, Packing, band_extent, is_packed
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.rates import is_recent
from trnrt.nki import nl

# Bytes per partition for the weights at hand, for a band of input (all its channel blocks), and for a band of
# convolution results, pooled or not. Kept from the first convolutions of any kind (November 2026): the weights of a 3x3
# kernel over 1280 channels fit, and all tiles together the planner's WORKING_BYTES (``test_budgets.py``). When one
# changes, measure the networks. The search tries other POOL_BYTES, as ``band_bytes``.
WEIGHT_BYTES = 48 * 1024
BAND_BYTES = 40 * 1024
POOL_BYTES = 16 * 1024

# (images, rows, columns) of the results that are worked on at once.
Steps = tuple[int, int, int]


def conv_fits(shape: ConvShape, pooling: Pooling, band_bytes: int = 0) -> bool:
    """True if at least single results can be computed: the limits of conv2d, for planners."""
    return images_held(1, 1, shape, pooling, (1, 1, 0), band_bytes) > 0


def band_steps(
    images: int,
    height: int,
    width: int,
    shape: ConvShape,
    pooling: Pooling,
    pack: Packing,
    band_bytes: int,
    source_bytes: int = 0,
) -> Steps:
    """(images, rows, columns) of results to work on at once: whole images if they fit, else bands of rows of one image,
    else parts of these."""
    most = (band_bytes, source_bytes)
    cols = width
    tall = min(height, 2 * shape.kernel[0]) if pack[2] == 0 else 1
    while cols > nl.tile_size.psum_bank_fmax and images_held(tall, cols, shape, pooling, pack, most[0], most[1]) == 0:
        cols = ceil_div(cols, 2)
    while cols > 1 and images_held(1, cols, shape, pooling, pack, most[0], most[1]) == 0:
        cols = ceil_div(cols, 2)
    rows = height
    while rows > 1 and images_held(rows, cols, shape, pooling, pack, most[0], most[1]) == 0:
        rows = ceil_div(rows, 2)
    if rows < height or cols < width:
        return (1, rows, cols)
    return (min(images, images_held(rows, cols, shape, pooling, pack, most[0], most[1])), rows, cols)


def steps_with_few_stretches(images: int, height: int, width: int, layer: Layer, pack: Packing) -> Steps:
    """``band_steps`` of a layer. On trn1, where passes of the tensor engine are far apart, up to half as many as fit,
    if all bands have fewer stretches then."""
    shape, pooling, of_results, of_source = layer.shape, layer.pooling, layer.band_bytes, layer.source_bytes
    n_step, r_step, c_step = band_steps(images, height, width, shape, pooling, pack, of_results, of_source)
    if is_recent() or c_step < width or is_packed(pack):
        return (n_step, r_step, c_step)
    if r_step == height:
        return (fewest_stretches(n_step, images, (height, width), pooling, True), r_step, c_step)
    while images_held(r_step + 1, width, shape, pooling, pack, of_results, of_source) > 0:
        r_step += 1
    return (1, fewest_stretches(r_step, height, (height, width), pooling, False), c_step)


def fewest_stretches(most: int, total: int, size: Pair, pooling: Pooling, of_images: bool) -> int:
    """The number of images, or of rows of one, in each band of ``total`` of them, at most ``most``: that with the
    fewest stretches in all bands together."""
    best, fewest = most, 0
    for step in range(most, most // 2, -1):
        made = 0
        for part in ((step, total // step), (total % step, 1)):
            images, rows = (part[0], size[0]) if of_images else (1, part[0])
            if part[0] > 0:
                need = pooling.extent(rows, size[1])
                made += part[1] * len(stretches(images, need[0], need[1], True))
        if step == most or made < fewest:
            best, fewest = step, made
    return best


def band_budgets(band_bytes: int, source_bytes: int = 0) -> Pair:
    """The bytes per partition of a band of input and of its results, for these attributes of ``Layer``."""
    return (source_bytes if source_bytes > 0 else BAND_BYTES, band_bytes if band_bytes > 0 else POOL_BYTES)


def images_held(
    rows: int,
    cols: int,
    shape: ConvShape,
    pooling: Pooling,
    pack: Packing,
    band_bytes: int,
    source_bytes: int = 0,
) -> int:
    """The number of images whose bands of ``rows`` x ``cols`` results fit at once."""
    conv_rows, conv_cols = pooling.extent(rows, cols)
    extent = band_extent(min(conv_rows, shape.size[0]), min(conv_cols, shape.size[1]), shape, pack)
    input_bytes = ceil_div(shape.channels, nl.tile_size.pmax) * extent[0] * extent[1] * 4
    of_input, of_results = band_budgets(band_bytes, source_bytes)
    return min(of_input // input_bytes, of_results // (conv_rows * conv_cols * 4))


def conv_weight_bytes(shape: ConvShape, outputs: int) -> int:
    """The most bytes per partition of resident weights, if conv2d loads them itself."""
    taps = shape.kernel[0] * shape.kernel[1]
    row = ceil_div(shape.channels, nl.tile_size.pmax) * taps * min(outputs, nl.tile_size.pmax) * 4
    return min(WEIGHT_BYTES, row)


def source_tile_bytes(shape: ConvShape, images: int, image: Pair, on_chip: bool, packs: bool) -> int:
    """The most bytes per partition of bands of images (rows, columns); 0 if a source that is ``on_chip`` is read in
    place. With packed taps there are several per band, and the next band loads meanwhile."""
    extent = shape.extent()
    seen = (max(extent[0], image[0]), max(extent[1], image[1]))
    if on_chip and seen == image and shape.pads == (0, 0):
        return 0
    band = ceil_div(shape.channels, nl.tile_size.pmax) * images * seen[0] * seen[1] * 4
    if packs:
        return 2 * min(BAND_BYTES, band * shape.kernel[0] * shape.kernel[1])
    return min(BAND_BYTES, band)


def result_bytes(shape: ConvShape, images: int, in_place: bool, added: str, band_bytes: int) -> int:
    """The most bytes per partition of results: three bands, as one is computed, pooled or stored while others wait.
    ``in_place``: they are computed in their final place. ``added``: the place of the added tensor, "hbm" or "sbuf", or
    ""; it is added one PSUM bank at a time."""
    each = images * shape.size[0] * shape.size[1] * 4
    _, most = band_budgets(band_bytes)
    taken = 0 if in_place else min(most, each)
    if added == "hbm":
        taken += most
    sums = 0 if added == "" else min(nl.tile_size.psum_bank_fmax * 4, each)
    return 3 * taken + sums
