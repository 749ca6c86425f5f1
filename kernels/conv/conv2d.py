"""Two-dimensional convolution with bias, activation and pooling in one pass over the image.

Channels are on the partitions. One matmul per kernel tap and channel block accumulates a stretch of output in a PSUM
bank, the scalar engine adds the bias and applies the activation on the way to SBUF, and the vector engine pools there:
no intermediate goes to HBM. Images larger than SBUF are cut into bands of rows, and these into columns if a row is too
long. With few channels, taps of the kernel share the partitions (``packing.py``). Groups with few channels are computed
several at a time, with zeros where an output doesn't see a channel.

Weights are prepared on the host as (P, B, T, O): input channel b*128 + p, tap t = row * kernel columns + column. They
stay in SBUF for the whole batch if 128 outputs' worth fits; otherwise they are loaded as they are used.
"""

from typing import Any

from trnrt.kernels.common import Pair, Rectangle, ceil_div, image_count, image_part, is_hbm_tensor, load, transfer
from trnrt.kernels.conv.abreast import convolve_abreast, goes_abreast
from trnrt.kernels.conv.conv_bands import Area, load_image_band, padded_images, seen_part
from trnrt.kernels.conv.conv_room import (
    WEIGHT_BYTES,
    Steps,
    band_budgets,
    conv_fits,
    images_held,
    steps_with_few_stretches,
)
from trnrt.kernels.conv.conv_weights import load_bias, load_weight_rows, load_weights, turn_weights
from trnrt.kernels.conv.convolving import (
    Layer,
    Method,
    Pooling,
    Weights,
    accumulate,
    accumulate_streamed,
    evacuate,
    make_identity,
    pool_fill,
    pool_windows,
    store_results,
    vector_helps,
)
from trnrt.kernels.conv.double_rows import scale_identity
from trnrt.kernels.conv.grouping import block_of_diagonals, some_channels, spread_diagonals, together, whole_pieces
from trnrt.kernels.conv.packing import (
    PACK_NS,
    ConvShape,
    Packing,
    band_extent,
    is_packed,
    leading_packed,
    leading_tap,
    nanoseconds,
    packing,
    padding_extent,
    products_of,
    spread,
)
from trnrt.kernels.conv.row_groups import (
    RowGroups,
    convolve_row_groups,
    group_area,
    group_biases,
    group_method,
    load_row_groups,
    whole_groups,
)
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.conv.strip_plans import strips_of
from trnrt.kernels.conv.strips import convolve_strips
from trnrt.kernels.conv.whole_images import convolve_whole_images, has_whole_images
from trnrt.kernels.conv.whole_numbers import bias_columns, columns_each
from trnrt.kernels.double_row import is_scaled
from trnrt.kernels.rates import is_recent
from trnrt.kernels.warm_up import warm_up
from trnrt.nki import nisa, nl

# Transposes of zeros ahead of natural weights, which need transposing. The labs' convolution of 256 channels by 3 x 3
# over 32 x 16 pixels (float16, trn2, predicted): none take 5 % more, 7 take 2 % less, 28 take 9 % more.
LABS_WARM_UP = 14
# The images of a band, as a multiple of all before it: a larger band would not be loaded when its turn comes. Of the
# labs' convolutions of 32 x 32 on trn1 (benchmarks/labs), predicted: 6 take up to 1 % more, 9 up to 5 %.
GROWTH = 3


def conv2d(
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
    groups: int = 1,
    added: Any = None,
    band_bytes: int = 0,
    way: str = "best",
    row_groups: Pair = (1, 1),
) -> None:
    """dst = pool(act(conv(src, w) + bias + added)).

    dst: HBM (N, O, PH, PW), or SBUF ``channels`` (P, ceil(O/128), N, PH, PW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, ceil(C/128), N, H, W)
    w: HBM or SBUF (P, ceil(C/128), T, O), prepared; the dtype of src. With groups, C and O count one
        ``groups_together``; its blocks come first, then those of the next one, and likewise the biases' columns. With
        groups of one channel and output also (P, ceil(C/128), T, 1), without the zeros: they are made on chip
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared; (P, 3*ceil(O/128)) if src and w are 8-bit floats, with scales
        (double_rows.py): added is 16-bit then, and groups 1; (P, 5*ceil(O/128)) for act "whole" (whole_numbers.py):
        added is None then, and groups 1
    channels: C
    size: (rows, columns) of the convolution's result, before pooling
    kernel, stride, dilation, pool, pool_stride, pool_dilation: (rows, columns); pool (1, 1) means no pooling
    pads, pool_pads: (top, left); windows beyond the bottom and right edges see padding, too
    act: one of ACTIVATIONS in common.py, "relu6" (at most 6), or "whole": clip(rint(sum * factor), low, high)
    pool_op: "max", or "average": padding is 0 there, and counts
    added: None, or a tensor of dst's shape (without groups and pooling), in HBM or SBUF as dst can be
    band_bytes: bytes per partition of the convolution's results in work at once; 0 means POOL_BYTES
    way: "taps" one by one, "packed" on the partitions, "strips" of an image at once if possible; "best" chooses by
        estimates
    row_groups: rows of the image, and of the result, that share the partitions (row_groups.py). Unless it is (1, 1), w
        is (P, B, T, O) of the convolution of slots, prepared for these numbers, O is at most 128 or whole blocks, and
        ``way`` is ignored
    limits: the input of one result fits BAND_BYTES over all channel blocks, its convolution band_bytes (see conv_fits);
        no pooling window starts beyond the last row or column; ``groups`` divides C and O; where dst or src are in SBUF
        the groups computed together are all, or fill whole blocks of 128 channels and outputs; NaN and infinity reach
        all of them, and all strips of an image (strips.py);
        those of ``added`` can reach all outputs of their pixel

    numpy: y[n, o, i, j] = act(bias[o] + sum(w[o, c, u, v] * padded[n, c, i*s + u*d, j*s + v*d]) + added[n, o, i, j]),
    then the windows' maxima or means; with groups, c runs over the channels of o's group
    """
    pooling = Pooling(pool_op, pool, pool_stride, pool_pads, pool_dilation)
    shape = ConvShape(channels, size, kernel, stride, pads, dilation)
    if is_scaled(src.dtype):
        assert groups == 1, "conv2d: groups of 8-bit floats"
        way = "taps"
    layer = Layer(shape, act, pooling, False, WEIGHT_BYTES, band_bytes, way)
    assert act != "whole" or (groups == 1 and added is None), "conv2d: whole numbers of groups, or with a sum"
    if row_groups != (1, 1):
        _convolve_row_groups(dst, src, w, bias, layer, row_groups, added)
        return
    if groups > 1:
        assert added is None, "conv2d: with groups nothing can be added"
        _convolve_groups(dst, src, w, bias, layer, groups)
        return
    plan: Any = None
    if added is None and (way == "best" or way == "strips") and conv_fits(shape, pooling, band_bytes):
        plan = strips_of(dst, src, w, shape, pooling, way == "strips")
    if plan is not None:
        convolve_strips(plan, w, bias, act)
    else:
        convolve(dst, src, w, bias, layer, added)


def _convolve_groups(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, layer: Layer, groups: int
) -> None:
    """conv2d with groups, as many at a time as are computed together."""
    shape = layer.shape
    channels = shape.channels
    diagonal = w.shape[3] == 1 and groups == channels
    ins, outs = block_of_diagonals(channels) if diagonal else together(dst, w, bias, channels, groups)
    blocks, columns = ceil_div(ins, nl.tile_size.pmax), ceil_div(outs, nl.tile_size.pmax)
    for call in range(ceil_div(channels, ins)):
        c0 = call * ins
        c1 = min(channels, c0 + ins)
        made = (c1 - c0) * outs // ins
        weights = w[0 : min(c1 - c0, nl.tile_size.pmax), call * blocks : (call + 1) * blocks]
        if diagonal:
            weights = spread_diagonals(load(weights) if is_hbm_tensor(w) else weights)
        elif whole_pieces(w, src) and blocks * w.shape[2] * w.shape[3] * 4 <= WEIGHT_BYTES:
            # Include all outputs, although the last groups have fewer: then each partition's weights are contiguous.
            weights = load(weights)
        to, seen = some_channels(dst, call * outs, call * outs + made), some_channels(src, c0, c1)
        weights, column = weights[:, :, :, 0:made], bias[:, call * columns : (call + 1) * columns]
        some = ConvShape(c1 - c0, shape.size, shape.kernel, shape.stride, shape.pads, shape.dilation)
        part = Layer(some, layer.act, layer.pooling, False, WEIGHT_BYTES, layer.band_bytes, layer.way)
        convolve(to, seen, weights, column, part)


def _convolve_row_groups(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    layer: Layer,
    row_groups: Pair,
    added: Any,
) -> None:
    """conv2d with rows of the image and of the result in groups."""
    outputs = bias.shape[0] * (bias.shape[1] // columns_each(src.dtype, layer.act))
    groups = RowGroups(layer.shape, outputs, row_groups[0], row_groups[1])
    how = group_method(src, layer, groups)
    w_sb, bias_sb = load(w) if is_hbm_tensor(w) else w, load_bias(bias, False)
    columns = group_biases(bias_sb, groups, layer, added is not None, src.dtype)
    bands, largest = _plan_bands(dst, layer, how.pack, groups.made)
    slots, areas = 0, []
    for place in bands:
        area = group_area(_area(place, layer.shape, layer.pooling), groups)
        slots = max(slots, (area[0][1] - area[0][0] - 1) * groups.step() + groups.slots())
        areas.append(area)
    most = (largest[0], slots, src.shape[-1])
    loaded = [load_row_groups(src, bands[0].images, areas[0], how, most, 0)]
    for number in range(len(bands)):
        place = bands[number]
        if number + 1 < len(bands):
            # Before the products, as the engines that copy also evacuate PSUM.
            after = bands[number + 1].images
            loaded.append(load_row_groups(src, after, areas[number + 1], how, most, number + 1))
        x_sb, seen = loaded[number]
        for b0 in range(0, outputs, nl.tile_size.pmax):
            b1, block = min(outputs, b0 + nl.tile_size.pmax), b0 // nl.tile_size.pmax
            weights = Weights(w_sb, (b0, b1), how, seen)
            y_sb = _band_tile(dst, block, b1 - b0, place, largest)
            added_sb = _added_tile(added, block, b1 - b0, place, largest)
            _convolve_and_pool(y_sb, x_sb, weights, columns[block], added_sb, place, largest)
            if is_hbm_tensor(dst):
                store_results(dst, y_sb, block, place)


def convolve(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, layer: Layer, added: Any = None
) -> None:
    """conv2d without groups."""
    shape, pooling, natural, weight_bytes = layer.shape, layer.pooling, layer.natural, layer.weight_bytes
    assert conv_fits(shape, pooling, layer.band_bytes), f"conv2d: what one result of {shape} needs does not fit SBUF"
    assert added is None or pooling.is_none(), "conv2d: with pooling nothing can be added"
    channels, kernel = shape.channels, shape.kernel
    outputs = w.shape[0] if natural else w.shape[3]
    if not is_hbm_tensor(w):
        how = Method(layer, False, (1, 1, 0), leading_tap(src, shape))
        _convolve_bands(dst, src, w, w, bias, (0, outputs), how, added)
        return
    pack = _choose_packing(src, outputs, layer, dst.shape[-1])
    lead = leading_packed(src, shape, pack) if is_packed(pack) else (-1, -1)
    if pack[2] > 0 and lead[0] < 0 and padding_extent(src, shape) != (0, 0):
        src, shape = padded_images(src, shape), shape.drop_padding()
        layer = Layer(shape, layer.act, pooling, natural, weight_bytes, layer.band_bytes)
    products = products_of(kernel, pack)
    blocks = ceil_div(channels, nl.tile_size.pmax)
    block_bytes = blocks * products * nl.tile_size.pmax * 4
    turn = natural and not is_packed(pack) and block_bytes <= weight_bytes
    o_step = max(1, weight_bytes // block_bytes) * nl.tile_size.pmax
    for o0 in range(0, outputs, o_step):
        o_end = min(outputs, o0 + o_step)
        w_sb = w
        if blocks * products * (o_end - o0) * 4 <= weight_bytes:
            parts = min(channels, nl.tile_size.pmax) * pack[0] * pack[1] * spread(channels, pack)
            w_sb = nl.ndarray((parts, blocks, products, o_end - o0), dtype=w.dtype, buffer=nl.sbuf)
            if not turn:
                load_weights(w_sb, w, natural, o0, shape, pack)
        if not is_packed(pack):
            lead = leading_tap(src, shape) if w_sb.buffer == nl.sbuf else (-1, -1)
        if turn and has_whole_images(src, layer):
            convolve_whole_images(dst, src, w, w_sb, bias, (o0, o_end), Method(layer, True, pack, lead))
            continue
        _convolve_bands(dst, src, w, w_sb, bias, (o0, o_end), Method(layer, turn, pack, lead), added)


def _choose_packing(src: nl.NkiTensor, outputs: int, layer: Layer, width: int) -> Packing:
    """The fastest packing of taps whose weights stay in SBUF, and whole rows if they fit; ``width``: of the result."""
    shape, way = layer.shape, layer.way
    if way == "taps":
        return (1, 1, 0)
    whole = max(shape.extent()[1], shape.pads[1] + src.shape[-1])
    held_bytes = band_budgets(layer.band_bytes)
    best, least = (1, 1, 0), nanoseconds(src, outputs, shape, (1, 1, 0), held_bytes) - PACK_NS
    for columns in [src.shape[-1], whole, 0]:
        pack = packing(shape.channels, shape.kernel, columns)
        held = products_of(shape.kernel, pack) * min(outputs, nl.tile_size.pmax) * 4 <= layer.weight_bytes
        results = width if columns > 0 else 1
        own = leading_packed(src, shape, pack)[0] >= 0
        there = columns == 0 or own or (columns == whole and is_hbm_tensor(src))
        fits = images_held(1, results, shape, layer.pooling, pack, layer.band_bytes) > 0
        if is_packed(pack) and held and there and fits:
            takes = nanoseconds(src, outputs, shape, pack, held_bytes)
            if takes < least or (way == "packed" and not is_packed(best)):
                best, least = pack, takes
    return best


def _convolve_bands(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    bias: nl.NkiTensor,
    outputs: Pair,
    how: Method,
    added: Any,
) -> None:
    """All results of some outputs, band by band."""
    layer, pack, lead = how.layer, how.pack, how.lead
    shape, pooling, natural = layer.shape, layer.pooling, layer.natural
    held = not is_hbm_tensor(w_sb)
    products = products_of(shape.kernel, pack) * ceil_div(shape.channels, nl.tile_size.pmax)
    how = Method(layer, how.turn, pack, lead, None, make_identity(added, products, layer.act, is_scaled(src.dtype)))
    bands, largest = _plan_bands(dst, layer, pack, 1)
    most = _band_size(largest, src, how)
    rows, bias_sb = [], bias  # as it is: if the first bands go abreast, it is in SBUF, and ready
    # Start loading all weights before the first product, if they fit; those of the first outputs before the images.
    row_bytes = ceil_div(shape.channels, nl.tile_size.pmax) * shape.kernel[0] * shape.kernel[1] * nl.tile_size.pmax * 4
    ahead = max(1, layer.weight_bytes // row_bytes) * nl.tile_size.pmax
    if how.turn:
        rows.append(load_weight_rows(w, outputs[0], shape.channels, False))
    for number in range(len(bands)):
        place = bands[number]
        area = _area(place, shape, pooling)
        seen = seen_part(src, area, shape, pack, lead)
        x_sb = load_image_band(src, place.images, area, shape, pack, most, seen, number)
        if number == 0 and natural:
            warm_up(LABS_WARM_UP)
        if number == 0 and how.turn:
            for b0 in range(outputs[0] + nl.tile_size.pmax, min(outputs[1], outputs[0] + ahead), nl.tile_size.pmax):
                rows.append(load_weight_rows(w, b0, shape.channels, False))
        if w.buffer == bias.buffer == nl.sbuf and goes_abreast(dst, w, place, how, added):
            convolve_abreast(dst, x_sb, Weights(w, outputs, how, seen), bias, place, added)
            continue
        for b0 in range(outputs[0], outputs[1], nl.tile_size.pmax):
            b1 = min(outputs[1], b0 + nl.tile_size.pmax)
            block = b0 // nl.tile_size.pmax
            w_block = w_sb[:, :, :, b0 - outputs[0] : b1 - outputs[0]] if held else w
            if how.turn and number == 0:
                if len(rows) * nl.tile_size.pmax <= b0 - outputs[0]:
                    rows.append(load_weight_rows(w, b0, shape.channels, False))
                tiles = rows[(b0 - outputs[0]) // nl.tile_size.pmax]
                turn_weights(w_block, tiles, len(tiles) * w_block.shape[2], False)
            if number == 0 and b0 == outputs[0]:
                bias_sb = load_bias(bias, natural)
            weights = Weights(w_block, (b0, b1), how, seen)
            column = bias_columns(bias_sb, block, b1 - b0, src.dtype, layer.act)
            y_sb = _band_tile(dst, block, b1 - b0, place, largest)
            added_sb = _added_tile(added, block, b1 - b0, place, largest)
            _convolve_and_pool(y_sb, x_sb, weights, column, added_sb, place, largest)
            if is_hbm_tensor(dst):
                ends = number == len(bands) - 1 and b1 == outputs[1]
                if ends and pooling.is_none() and not is_recent():
                    _store_stretches(dst, y_sb, block, place)
                else:
                    store_results(dst, y_sb, block, place)


def _store_stretches(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, place: Rectangle) -> None:
    """store_results for the last band, stretch by stretch, so that the last store is short. Not from trn2 on, where a
    trigger takes longer than a stretch's data."""
    parts, images, rows, cols = y_sb.shape
    out_hbm = image_part(dst, block, parts, place)
    for part in stretches(images, rows, cols, not is_recent()):
        (n0, n1), (r0, r1), (c0, c1) = part.images, part.rows, part.columns
        nisa.dma_copy(dst=out_hbm[:, n0:n1, r0:r1, c0:c1], src=y_sb[:, n0:n1, r0:r1, c0:c1])


def _plan_bands(dst: nl.NkiTensor, layer: Layer, pack: Packing, together: int) -> tuple[list[Rectangle], Steps]:
    """The results of each band, and (images, rows, columns) of the largest; the first band is small, but fills a PSUM
    bank, so that the first product starts early. Bands have whole groups of rows that are computed ``together``, if
    they have that many."""
    images, height, width = image_count(dst), dst.shape[-2], dst.shape[-1]
    n_step, r_step, c_step = steps_with_few_stretches(images, height, width, layer, pack)
    bank = nl.tile_size.psum_bank_fmax
    row = c_step * layer.pooling.stride[0] * layer.pooling.stride[1]  # about the convolution results of a row
    n_first = min(n_step, ceil_div(bank, r_step * row))
    r_first = min(r_step, max(ceil_div(r_step, 4), ceil_div(bank, row))) if n_first == 1 else r_step
    if together > 1:
        # The groups of the first band fill a bank.
        r_first = min(r_step, ceil_div(bank, row) * together)
        r_first, r_step = whole_groups(r_first, together), whole_groups(r_step, together)
    bands = []
    n0 = 0
    while n0 < images:
        most = n_step if is_recent() else min(n_step, GROWTH * n0)
        n1 = min(images, n0 + (n_first if n0 == 0 else most))
        r0 = 0
        while r0 < height:
            r1 = min(height, r0 + (r_first if n0 + r0 == 0 else r_step))
            for c0 in range(0, width, c_step):
                bands.append(Rectangle((n0, n1), (r0, r1), (c0, min(width, c0 + c_step))))
            r0 = r1
        n0 = n1
    return bands, (n_step, r_step, c_step)


def _band_size(results: Steps, src: nl.NkiTensor, how: Method) -> Steps:
    """(images, rows, columns) of the input of a band of results, without padding where a tap leads."""
    shape, pooling, pack, lead = how.layer.shape, how.layer.pooling, how.pack, how.lead
    rows, cols = pooling.extent(results[1], results[2])
    extent = band_extent(min(rows, shape.size[0]), min(cols, shape.size[1]), shape, pack)
    if lead[0] < 0 or is_packed(pack):
        return (results[0], extent[0], extent[1])
    height, width = src.shape[-2], src.shape[-1]
    whole = width - extent[1] < shape.stride[1]
    return (results[0], min(extent[0], height), width if whole else extent[1])


def _area(place: Rectangle, shape: ConvShape, pooling: Pooling) -> Area:
    """The rows and columns of the convolution that a band of results needs."""
    return (
        _needed_range(place.rows, shape.size[0], 0, pooling),
        _needed_range(place.columns, shape.size[1], 1, pooling),
    )


def _needed_range(pooled: Pair, size: int, axis: int, pooling: Pooling) -> Pair:
    """(first, end) of the existing rows (axis 0) or columns of the convolution that pooled ones need."""
    stride = pooling.stride[axis]
    start = pooled[0] * stride - pooling.pads[axis]
    end = (pooled[1] - 1) * stride - pooling.pads[axis] + (pooling.window[axis] - 1) * pooling.dilation[axis] + 1
    return (max(0, start), min(size, end))


def _band_tile(dst: nl.NkiTensor, block: int, outputs: int, place: Rectangle, most: Steps) -> nl.NkiTensor:
    """The tile to compute a band of results in: in dst itself, or on its way to HBM."""
    part = image_part(dst, block, outputs, place)
    if not is_hbm_tensor(dst):
        return part
    _, images, rows, cols = part.shape
    tile_sb = nl.ndarray((outputs, most[0], most[1], most[2]), dtype=dst.dtype, buffer=nl.sbuf)
    return tile_sb[:, 0:images, 0:rows, 0:cols]


def _added_tile(added: Any, block: int, outputs: int, place: Rectangle, most: Steps) -> Any:
    """The part of ``added`` for a band of results, in SBUF; None without ``added``."""
    if added is None:
        return None
    tile_sb = _band_tile(added, block, outputs, place, most)
    if is_hbm_tensor(added):
        transfer(tile_sb, image_part(added, block, outputs, place))
    return tile_sb


def _convolve_and_pool(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    added_sb: Any,
    place: Rectangle,
    most: Steps,
) -> None:
    """y_sb (o, n, rows, columns) = the pooled convolution; the convolution itself stays in an SBUF tile."""
    layer = weights.how.layer
    pooling = layer.pooling
    op, stride, pads = pooling.op, pooling.stride, pooling.pads
    if pooling.is_none():
        _convolve_band(y_sb, x_sb, weights, bias_column, added_sb, (place.rows, place.columns))
        return
    outputs, images, rows, cols = y_sb.shape
    need_rows, need_cols = pooling.extent(rows, cols)
    area = _area(place, layer.shape, pooling)
    (row0, row1), (col0, col1) = area
    top, left = row0 - (place.rows[0] * stride[0] - pads[0]), col0 - (place.columns[0] * stride[1] - pads[1])
    dtype = y_sb.dtype if op == "max" else nl.float32
    most_rows, most_cols = pooling.extent(most[1], most[2])
    tile_sb = nl.ndarray((outputs, most[0], most_rows, most_cols), dtype=dtype, buffer=nl.sbuf)
    conv_sb = tile_sb[:, 0:images, 0:need_rows, 0:need_cols]
    if row1 - row0 < need_rows or col1 - col0 < need_cols:
        nisa.memset(dst=conv_sb, value=pool_fill(op))
    inner_sb = conv_sb[:, :, top : top + row1 - row0, left : left + col1 - col0]
    _convolve_band(inner_sb, x_sb, weights, bias_column, None, area)
    pool_windows(y_sb, conv_sb, pooling)


def _convolve_band(
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, weights: Weights, bias_column: nl.NkiTensor, added_sb: Any, area: Area
) -> None:
    """y_sb (o, n, rows, columns) = act(conv(x_sb) + bias + added_sb) for results ``area``, one PSUM bank after the
    other."""
    if weights.how.groups is not None:
        convolve_row_groups(y_sb, x_sb, weights, bias_column, added_sb, area)
        return
    layer, identity_sb = weights.how.layer, weights.how.identity
    shape, act = layer.shape, layer.act
    outputs, images, rows, cols = y_sb.shape
    products = products_of(shape.kernel, weights.how.pack) * ceil_div(shape.channels, nl.tile_size.pmax)
    # Otherwise the vector engine pools, or narrows what other convolutions of 8 bits read.
    alternate = layer.pooling.is_none() and vector_helps(products, act) and not is_scaled(x_sb.dtype)
    by_vector = False
    eye = None if identity_sb is None else identity_sb[0:outputs, 0:outputs]
    if identity_sb is not None and bias_column.shape[1] > 1:
        eye = scale_identity(identity_sb, bias_column)
    for place in stretches(images, rows, cols, not is_recent()):
        (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
        sum_psum = nl.ndarray((outputs, n1 - n0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.psum)
        x_part = x_sb[:, :, n0:n1]
        if is_hbm_tensor(weights.tensor):
            accumulate_streamed(sum_psum, x_part, weights, (r0, c0))
        else:
            accumulate(sum_psum, x_part, weights, (r0, c0))
        more = None if added_sb is None else added_sb[:, n0:n1, r0:r1, c0:c1]
        if more is not None and eye is not None:
            nisa.nc_matmul(dst=sum_psum, stationary=eye, moving=more, accumulate=True)
            more = None
        evacuate(y_sb[:, n0:n1, r0:r1, c0:c1], sum_psum, bias_column, act, by_vector, more)
        by_vector = alternate and not by_vector
