"""Two-dimensional convolution with bias, activation and pooling in one pass over the image.

Channels are on the partitions, one matmul a kernel tap and channel block accumulates a stretch of output in a
PSUM bank, the scalar engine adds the bias and applies the activation on the way to SBUF, and the vector engine
pools there: what lies between never goes to HBM. Images larger than SBUF are cut into bands of rows, and these into
columns where a row is too long. Few channels share the partitions with taps of the kernel (``packing.py``). Groups
with few channels are computed several at a time, with zeros where an output does not see a channel.

Weights are prepared on the host as (P, B, T, O): input channel b*128 + p, tap t = row * kernel columns + column.
They stay in SBUF for the whole batch where 128 outputs' worth fits; else they are brought in as they are used.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, load
from trnrt.kernels.conv.conv_bands import Area, load_image_band, padded_images, seen_part
from trnrt.kernels.conv.conv_room import (
    WEIGHT_BYTES,
    Steps,
    band_budgets,
    band_steps,
    conv_fits,
    images_held,
)
from trnrt.kernels.conv.conv_weights import load_bias, load_weight_rows, load_weights, turn_weights
from trnrt.kernels.conv.convolving import (
    Pooling,
    accumulate,
    accumulate_streamed,
    evacuate,
    pool_fill,
    pool_windows,
    store_rows,
    stretches,
    vector_helps,
)
from trnrt.kernels.conv.grouping import some_channels, together, whole_pieces
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
from trnrt.kernels.conv.strip_plans import strips_of
from trnrt.kernels.conv.strips import convolve_strips
from trnrt.kernels.warm_up import warm_up
from trnrt.nki import nisa, nl

# Transposes of zeros ahead of natural weights, which have to be turned. Of the labs' convolution of 256 channels by
# 3 x 3 over 32 x 16 pixels (float16, trn2, predicted) none take 5 % more, 7 take 2 % less, 28 take 9 % more.
LABS_WARM_UP = 14


@dataclass
class Method(nl.NKIObject):
    """How some outputs are computed.

    natural: the weights are as they are in a model; ``turn``: they are turned on chip
    pack: the taps on the partitions; ``lead``: the tap that comes first (see leading_tap)
    weight_bytes, band_bytes: a partition, the most of weights, and of results
    """

    natural: bool
    turn: bool
    pack: Packing
    lead: Pair
    weight_bytes: int
    band_bytes: int


@dataclass
class Weights(nl.NKIObject):
    """The weights of ``outputs`` (first, end), and what of its padded input a band holds."""

    tensor: Any
    outputs: Pair
    how: Method
    seen: tuple[Pair, Pair]


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
) -> None:
    """dst = pool(act(conv(src, w) + bias + added)).

    dst: HBM (N, O, PH, PW), or SBUF ``channels`` (P, ceil(O/128), N, PH, PW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, ceil(C/128), N, H, W)
    w: HBM or SBUF (P, ceil(C/128), T, O), prepared; the dtype of src. With groups C and O are what ``groups_together``
        of them have; the blocks of each so many groups, and the columns of their biases, follow each other
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared
    channels: C
    size: (rows, columns) of the convolution's result, before pooling
    kernel, stride, dilation, pool, pool_stride, pool_dilation: (rows, columns); pool (1, 1) is none
    pads, pool_pads: (top, left); what is needed beyond the bottom and right edges is padding, too
    act: "none", "relu", "sigmoid", "tanh"
    pool_op: "max", or "average": padding is 0 there, and counts
    added: None, or a tensor of dst's shape (without groups and pooling), in HBM or SBUF as dst can be
    band_bytes: a partition, of the convolution's results that are worked on at once; 0 are POOL_BYTES
    way: "taps" one by one, "packed" on the partitions, "strips" of an image at once where that can be; "best" estimates
    limits: what one result needs fits BAND_BYTES over all channel blocks, and band_bytes of the convolution's (see
        conv_fits); no pooling window starts beyond the last row or column; ``groups`` divides C and O; where dst or
        src are in SBUF the groups computed together are all, or fill whole blocks of 128 channels and outputs; NaN and
        infinity reach all of them, and all strips of an image (strips.py)

    numpy: y[n, o, i, j] = act(bias[o] + sum(w[o, c, u, v] * padded[n, c, i*s + u*d, j*s + v*d]) + added[n, o, i, j]),
    then the windows' maxima or means; with groups, c runs over the channels of o's group
    """
    pooling = Pooling(pool_op, pool, pool_stride, pool_pads, pool_dilation)
    shape = ConvShape(channels, size, kernel, stride, pads, dilation)
    if groups > 1:
        assert added is None, "conv2d: with groups nothing can be added"
        _convolve_groups(dst, src, w, bias, shape, act, pooling, groups, band_bytes, way)
        return
    plan = (0, 0)
    if added is None and (way == "best" or way == "strips") and conv_fits(shape, pooling, band_bytes):
        plan = strips_of(dst, src, w, shape, pooling, way == "strips")
    if plan[0] > 0:
        convolve_strips(dst, src, w, bias, shape, act, pooling, plan)
    else:
        convolve(dst, src, w, bias, shape, act, pooling, False, WEIGHT_BYTES, added, band_bytes, way)


def _convolve_groups(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
    groups: int,
    band_bytes: int,
    way: str,
) -> None:
    """conv2d with groups: as many at a time as are computed together."""
    channels = shape.channels
    ins, outs = together(dst, w, bias, channels, groups)
    blocks, columns = ceil_div(ins, nl.tile_size.pmax), ceil_div(outs, nl.tile_size.pmax)
    for call in range(ceil_div(channels, ins)):
        c0 = call * ins
        c1 = min(channels, c0 + ins)
        made = (c1 - c0) * outs // ins
        weights = w[0 : min(c1 - c0, nl.tile_size.pmax), call * blocks : (call + 1) * blocks]
        if whole_pieces(w, src) and blocks * w.shape[2] * w.shape[3] * 4 <= WEIGHT_BYTES:
            # All outputs, of which the last groups have fewer: each partition's weights are one piece.
            weights = load(weights)
        to, seen = some_channels(dst, call * outs, call * outs + made), some_channels(src, c0, c1)
        weights, column = weights[:, :, :, 0:made], bias[:, call * columns : (call + 1) * columns]
        some = ConvShape(c1 - c0, shape.size, shape.kernel, shape.stride, shape.pads, shape.dilation)
        convolve(to, seen, weights, column, some, act, pooling, False, WEIGHT_BYTES, None, band_bytes, way)


def convolve(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
    natural: bool,
    weight_bytes: int,
    added: Any = None,
    band_bytes: int = 0,
    way: str = "best",
) -> None:
    """conv2d without groups; ``natural``: w is HBM (O, C, T) and bias (O,), else they are prepared. At most
    ``weight_bytes`` of weights a partition are at hand at once."""
    assert conv_fits(shape, pooling, band_bytes), f"conv2d: what one result of {shape} needs does not fit SBUF"
    assert added is None or pooling.is_none(), "conv2d: with pooling nothing can be added"
    channels, kernel = shape.channels, shape.kernel
    outputs = w.shape[0] if natural else w.shape[3]
    if not is_hbm_tensor(w):
        how = Method(False, False, (1, 1, 0), leading_tap(src, shape), weight_bytes, band_bytes)
        _all_bands(dst, src, w, w, bias, (0, outputs), shape, act, pooling, how, added)
        return
    pack = _chosen_packing(src, outputs, shape, pooling, dst.shape[-1], (weight_bytes, band_bytes), way)
    lead = leading_packed(src, shape, pack) if is_packed(pack) else (-1, -1)
    if pack[2] > 0 and lead[0] < 0 and padding_extent(src, shape) != (0, 0):
        rows = max(shape.extent()[0], src.shape[-2] + shape.pads[0])
        src = padded_images(src, (rows, pack[2]), shape.pads)
        shape = shape.unpadded()
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
        how = Method(natural, turn, pack, lead, weight_bytes, band_bytes)
        _all_bands(dst, src, w, w_sb, bias, (o0, o_end), shape, act, pooling, how, added)


def _chosen_packing(
    src: nl.NkiTensor, outputs: int, shape: ConvShape, pooling: Pooling, width: int, most_bytes: Pair, way: str
) -> Packing:
    """The packing of taps that takes least, as far as its weights stay in SBUF; whole rows only if they fit there.
    ``most_bytes``: of weights, and of results; ``way``: see conv2d."""
    channels, kernel = shape.channels, shape.kernel
    if way == "taps":
        return (1, 1, 0)
    whole = shape.pads[1] + src.shape[-1]
    if padding_extent(src, shape)[1] > 0:
        whole = max(whole, shape.extent()[1])
    held_bytes = band_budgets(most_bytes[1])
    best, least = (1, 1, 0), nanoseconds(src, outputs, shape, (1, 1, 0), held_bytes) - PACK_NS
    for columns in [src.shape[-1], whole, 0]:
        pack = packing(channels, kernel, columns)
        held = products_of(kernel, pack) * min(outputs, nl.tile_size.pmax) * 4 <= most_bytes[0]
        results = width if columns > 0 else 1
        own = leading_packed(src, shape, pack)[0] >= 0
        there = columns == 0 or own or (columns == whole and is_hbm_tensor(src))
        if is_packed(pack) and held and there and images_held(1, results, shape, pooling, pack, most_bytes[1]) > 0:
            takes = nanoseconds(src, outputs, shape, pack, held_bytes)
            if takes < least or (way == "packed" and not is_packed(best)):
                best, least = pack, takes
    return best


def _all_bands(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    bias: nl.NkiTensor,
    outputs: Pair,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
    how: Method,
    added: Any,
) -> None:
    """All results of some outputs, band by band."""
    pack, lead = how.pack, how.lead
    held = not is_hbm_tensor(w_sb)
    bands, largest = _bands(dst, shape, pooling, pack, how.band_bytes)
    most = _band_size(largest, src, shape, pooling, pack, lead)
    rows = []
    # All weights are asked for before the first product, where they find room.
    row_bytes = ceil_div(shape.channels, nl.tile_size.pmax) * shape.kernel[0] * shape.kernel[1] * nl.tile_size.pmax * 4
    ahead = max(1, how.weight_bytes // row_bytes) * nl.tile_size.pmax
    if how.turn:
        for b0 in range(outputs[0], min(outputs[1], outputs[0] + ahead), nl.tile_size.pmax):
            rows.append(load_weight_rows(w, b0, shape.channels))
    for number in range(len(bands)):
        at, count = bands[number]
        area = _area(at, count, shape, pooling)
        seen = seen_part(src, area, shape, pack, lead)
        x_sb = load_image_band(src, at[0], count[0], area, shape, pack, most, seen, number)
        if number == 0 and how.natural:
            warm_up(LABS_WARM_UP)
        for b0 in range(outputs[0], outputs[1], nl.tile_size.pmax):
            b1 = min(outputs[1], b0 + nl.tile_size.pmax)
            block = b0 // nl.tile_size.pmax
            w_block = w_sb[:, :, :, b0 - outputs[0] : b1 - outputs[0]] if held else w
            if how.turn and number == 0:
                if len(rows) * nl.tile_size.pmax <= b0 - outputs[0]:
                    rows.append(load_weight_rows(w, b0, shape.channels))
                turn_weights(w_block, rows[(b0 - outputs[0]) // nl.tile_size.pmax])
            if number == 0 and b0 == outputs[0]:
                bias_sb = load_bias(bias, how.natural)
            weights = Weights(w_block, (b0, b1), how, seen)
            column = bias_sb[0 : b1 - b0, block : block + 1]
            y_sb = _result_tile(dst, block, b1 - b0, at, count, largest)
            added_sb = _added_tile(added, block, b1 - b0, at, count, largest)
            _convolve_and_pool(y_sb, x_sb, weights, column, added_sb, at, largest, shape, act, pooling)
            if is_hbm_tensor(dst):
                store_rows(dst, y_sb, block, at)


def _bands(
    dst: nl.NkiTensor, shape: ConvShape, pooling: Pooling, pack: Packing, band_bytes: int
) -> tuple[list[Any], Steps]:
    """(first, count) of the images, rows and columns of the results of each band, and the largest count; the first
    band is small, but fills a PSUM bank, so that the first product starts early."""
    images = dst.shape[0] if is_hbm_tensor(dst) else dst.shape[2]
    height, width = dst.shape[-2], dst.shape[-1]
    n_step, r_step, c_step = band_steps(images, height, width, shape, pooling, pack, band_bytes)
    bank = nl.tile_size.psum_bank_fmax
    row = c_step * pooling.stride[0] * pooling.stride[1]  # of the convolution's results, about
    n_first = min(n_step, ceil_div(bank, r_step * row))
    r_first = min(r_step, max(ceil_div(r_step, 4), ceil_div(bank, row))) if n_first == 1 else r_step
    bands = []
    n0 = 0
    while n0 < images:
        n_size = min(n_first if n0 == 0 else n_step, images - n0)
        r0 = 0
        while r0 < height:
            r_size = min(r_first if n0 + r0 == 0 else r_step, height - r0)
            for c0 in range(0, width, c_step):
                bands.append(((n0, r0, c0), (n_size, r_size, min(c_step, width - c0))))
            r0 += r_size
        n0 += n_size
    return bands, (n_step, r_step, c_step)


def _band_size(
    results: Steps, src: nl.NkiTensor, shape: ConvShape, pooling: Pooling, pack: Packing, lead: Pair
) -> Steps:
    """(images, rows, columns) of the input of a band of results, without padding where a tap leads."""
    rows, cols = pooling.extent(results[1], results[2])
    extent = band_extent(min(rows, shape.size[0]), min(cols, shape.size[1]), shape, pack)
    if lead[0] < 0 or is_packed(pack):
        return (results[0], extent[0], extent[1])
    height, width = src.shape[-2], src.shape[-1]
    whole = width - extent[1] < shape.stride[1]
    return (results[0], min(extent[0], height), width if whole else extent[1])


def _area(at: Steps, count: Steps, shape: ConvShape, pooling: Pooling) -> Area:
    """The rows and columns of the convolution that a band of results needs."""
    return (
        _needed_range(at[1], count[1], shape.size[0], 0, pooling),
        _needed_range(at[2], count[2], shape.size[1], 1, pooling),
    )


def _needed_range(first: int, count: int, size: int, axis: int, pooling: Pooling) -> Pair:
    """(first, end) of the convolution's rows (axis 0) or columns that exist and that so many pooled ones need."""
    stride = pooling.stride[axis]
    start = first * stride - pooling.pads[axis]
    end = start + (count - 1) * stride + (pooling.window[axis] - 1) * pooling.dilation[axis] + 1
    return (max(0, start), min(size, end))


def _result_tile(dst: nl.NkiTensor, block: int, outputs: int, at: Steps, size: Steps, most: Steps) -> nl.NkiTensor:
    """Where the results at (image, row, column) are computed: in dst itself, or in a tile on its way to HBM."""
    (n0, r0, c0), (n_size, r_size, c_size) = at, size
    if is_hbm_tensor(dst):
        tile_sb = nl.ndarray((outputs, most[0], most[1], most[2]), dtype=dst.dtype, buffer=nl.sbuf)
        return tile_sb[:, 0:n_size, 0:r_size, 0:c_size]
    return dst[0:outputs, block, n0 : n0 + n_size, r0 : r0 + r_size, c0 : c0 + c_size]


def _added_tile(added: Any, block: int, outputs: int, at: Steps, size: Steps, most: Steps) -> Any:
    """What is added to the results at (image, row, column), in SBUF; None where nothing is."""
    if added is None:
        return None
    tile_sb = _result_tile(added, block, outputs, at, size, most)
    if is_hbm_tensor(added):
        (n0, r0, c0), (n_size, r_size, c_size) = at, size
        o0 = block * nl.tile_size.pmax
        part = added[n0 : n0 + n_size, o0 : o0 + outputs, r0 : r0 + r_size, c0 : c0 + c_size]
        nisa.dma_copy(dst=tile_sb, src=part.permute((1, 0, 2, 3)))
    return tile_sb


def _convolve_and_pool(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    added_sb: Any,
    at: Steps,
    most: Steps,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
) -> None:
    """y_sb (o, n, rows, columns) = the pooled convolution; what lies between stays in an SBUF tile."""
    op, stride, pads = pooling.op, pooling.stride, pooling.pads
    if pooling.is_none():
        _convolve(y_sb, x_sb, weights, bias_column, added_sb, shape, act, True)
        return
    outputs, images, rows, cols = y_sb.shape
    need_rows, need_cols = pooling.extent(rows, cols)
    (row0, row1), (col0, col1) = _area(at, (images, rows, cols), shape, pooling)
    top, left = row0 - (at[1] * stride[0] - pads[0]), col0 - (at[2] * stride[1] - pads[1])
    dtype = y_sb.dtype if op == "max" else nl.float32
    most_rows, most_cols = pooling.extent(most[1], most[2])
    tile_sb = nl.ndarray((outputs, most[0], most_rows, most_cols), dtype=dtype, buffer=nl.sbuf)
    conv_sb = tile_sb[:, 0:images, 0:need_rows, 0:need_cols]
    if row1 - row0 < need_rows or col1 - col0 < need_cols:
        nisa.memset(dst=conv_sb, value=pool_fill(op))
    inner_sb = conv_sb[:, :, top : top + row1 - row0, left : left + col1 - col0]
    _convolve(inner_sb, x_sb, weights, bias_column, None, shape, act, False)
    pool_windows(y_sb, conv_sb, pooling)


def _convolve(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    weights: Weights,
    bias_column: nl.NkiTensor,
    added_sb: Any,
    shape: ConvShape,
    act: str,
    vector_free: bool,
) -> None:
    """y_sb (o, n, rows, columns) = act(conv(x_sb) + bias + added_sb), one PSUM bank after the other."""
    w, outs, how, seen = weights.tensor, weights.outputs, weights.how, weights.seen
    outputs, images, rows, cols = y_sb.shape
    n_step, r_step, c_step = stretches(images, rows, cols)
    products = products_of(shape.kernel, how.pack) * ceil_div(shape.channels, nl.tile_size.pmax)
    alternate = vector_free and vector_helps(products, act)
    by_vector = False
    for n0 in range(0, images, n_step):
        n1 = min(images, n0 + n_step)
        for r0 in range(0, rows, r_step):
            r1 = min(rows, r0 + r_step)
            for c0 in range(0, cols, c_step):
                c1 = min(cols, c0 + c_step)
                sum_psum = nl.ndarray((outputs, n1 - n0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.psum)
                x_part = x_sb[:, :, n0:n1]
                if is_hbm_tensor(w):
                    accumulate_streamed(sum_psum, x_part, w, how.natural, outs, (r0, c0), shape, how.weight_bytes)
                else:
                    accumulate(sum_psum, x_part, w, (r0, c0), shape, how.pack, how.lead, seen)
                more = None if added_sb is None else added_sb[:, n0:n1, r0:r1, c0:c1]
                evacuate(y_sb[:, n0:n1, r0:r1, c0:c1], sum_psum, bias_column, act, by_vector, more)
                by_vector = alternate and not by_vector
