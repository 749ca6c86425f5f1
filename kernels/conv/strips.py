"""The first convolution of a network of images: few channels, large images in HBM, at most 128 outputs.

Where outputs leave partitions free, an image's results are computed in two or four strips of rows at once, each on its
own 64 or 32 partitions of results: products, evacuation, pooling and stores then take a half or a quarter. All strips
share the products: the image's rows stand on the partitions once for each strip and kernel row, shifted, and weights of
zero keep the strips apart. Kernel columns are shifted views of these, or, where more partitions cost less than more
products, stand on partitions of their own. Whole rows are brought in, so that each partition is one piece of HBM.

Partition ((strip * kernel rows + u) * channels + c) * apart + j holds channel c shifted by u rows and j columns, where
``apart`` is as many as find room: a DMA engine serves eight partitions in a row, and all should have some. What lies
between is zero.
"""

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor
from trnrt.kernels.conv.conv_bands import padded_images
from trnrt.kernels.conv.convolving import Pooling, evacuate, pool_fill, pool_windows, vector_helps
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.strip_plans import (
    BANDS,
    PARTS,
    Rows,
    Strips,
    bands_of,
    column_padding,
    first_row,
    has_gaps,
    leading_column,
    places_apart,
    summed_partitions,
    windows_in,
)
from trnrt.nki import nisa, nl


def convolve_strips(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
    plan: Strips,
) -> None:
    """dst = pool(act(conv(src, w) + bias)): conv2d without groups, as ``strips_of`` planned it.

    dst: HBM (N, O, PH, PW), or SBUF ``channels`` (P, 1, N, PH, PW)
    src: HBM (N, C, H, W)
    w: HBM (C, 1, T, O), prepared; the dtype of src
    bias: HBM or SBUF (O, 1) float32, prepared
    limits: those of ``strips_of``; NaN and infinity of an image reach the results of all strips, as far from each
        strip's first row

    numpy: see conv2d
    """
    size = shape.size
    if plan[1] > 1 and column_padding(src, shape):
        extent, pads = shape.extent(), shape.pads
        padded = (max(extent[0], src.shape[2] + pads[0]), max(extent[1], src.shape[3] + pads[1]))
        src = padded_images(src, padded, pads)
        shape = shape.unpadded()
    outputs = w.shape[3]
    each = outputs if plan[0] == 1 else nl.tile_size.pmax // plan[0]
    bands = bands_of(dst, src, shape, pooling, plan)
    w_sb = _zero_weights(outputs, each, w, shape, plan)
    tiles = _zero_tiles(bands, src, shape, plan)
    _load_weights(w_sb, w, each, shape, plan)
    bias_sb = _load_bias(bias, outputs, each, plan[0])
    waiting = _pool_tiles(dst, src.shape[0], plan[0] * each, shape, pooling, plan[0])
    number = 0
    for n in range(src.shape[0]):
        pooled = 0
        computed: list[tuple[nl.NkiTensor, int]] = []
        for rows in bands:
            x_sb = tiles[number % len(tiles)]
            _load_band(x_sb, src, n, rows, dst, shape, pooling, plan, number < len(tiles) and has_gaps(shape, plan))
            number += 1
            if pooling.is_none():
                y_sb = _result_tile(dst, n, rows[0], rows[1] - rows[0], each, plan[0])
                _convolve(y_sb, x_sb, w_sb, bias_sb, src, shape, act, plan)
                computed = _put_all(dst, computed, n, outputs, each, plan[0])
                computed.append((y_sb, rows[0]))
                continue
            conv_sb = waiting[n % len(waiting)]
            left = pooling.pads[1]
            right = min(conv_sb.shape[3], left + size[1])
            _convolve(conv_sb[:, :, rows[0] : rows[1], left:right], x_sb, w_sb, bias_sb, src, shape, act, plan)
            _fill_rows(conv_sb, rows, dst, size, pooling, plan[0])
            computed = _put_all(dst, computed, n, outputs, each, plan[0])
            ready = min(ceil_div(dst.shape[-2], plan[0]), windows_in(rows[2], pooling))
            whole = rows[2] == conv_sb.shape[2] or n == src.shape[0] - 1
            if ready - pooled >= (1 if whole else ceil_div(dst.shape[-2], plan[0] * PARTS)):
                y_sb = _result_tile(dst, n, pooled, ready - pooled, each, plan[0])
                pool_windows(y_sb, conv_sb[:, :, pooled * pooling.stride[0] :], pooling)
                computed.append((y_sb, pooled))
                pooled = ready
        _put_all(dst, computed, n, outputs, each, plan[0])


def _zero_tiles(bands: list[Rows], src: nl.NkiTensor, shape: ConvShape, plan: Strips) -> list[nl.NkiTensor]:
    """The tiles (p, rows * columns) that take the bands in turn: zeros where no shifted channel stands. What the first
    bands take is filled first."""
    lengths = []
    most = 0
    for band in bands:
        length = ((band[1] - band[0] - 1) * shape.stride[0] + 1) * src.shape[3]
        lengths.append(length)
        most = max(most, length)
    # On trn1 the two engines would take turns.
    last = nisa.engine.gpsimd if nisa.get_nc_version() >= nisa.nc_version.gen3 else nisa.engine.vector
    tiles = []
    for number in range(min(BANDS, len(bands) * src.shape[0])):
        tile_sb = nl.ndarray((summed_partitions(shape, plan), most), dtype=src.dtype, buffer=nl.sbuf)
        tiles.append(tile_sb)
    if not has_gaps(shape, plan):
        return tiles
    for number in range(len(tiles)):
        first = lengths[number % len(bands)]
        engine = nisa.engine.vector if number < 2 else last
        nisa.memset(dst=tiles[number][:, 0:first], value=0.0, engine=engine)
    for number in range(len(tiles)):
        first = lengths[number % len(bands)]
        if first < most:
            nisa.memset(dst=tiles[number][:, first:most], value=0.0, engine=last)
    return tiles


def _zero_weights(outputs: int, each: int, w: nl.NkiTensor, shape: ConvShape, plan: Strips) -> nl.NkiTensor:
    """(p, products, strips * each) of zeros."""
    products = ceil_div(shape.kernel[1], plan[1])
    w_sb = nl.ndarray((summed_partitions(shape, plan), products, plan[0] * each), dtype=w.dtype, buffer=nl.sbuf)
    nisa.memset(dst=w_sb, value=0.0, engine=nisa.engine.vector)
    return w_sb


def _load_weights(w_sb: nl.NkiTensor, w: nl.NkiTensor, each: int, shape: ConvShape, plan: Strips) -> None:
    """w_sb (p, products, strips * each) = the weights, so that a strip's outputs see its own partitions."""
    channels, kernel = shape.channels, shape.kernel
    strips, columns = plan
    lanes, apart = kernel[0] * channels, places_apart(strips, channels, kernel)
    outputs = w.shape[3]
    pattern = w.get_pattern()
    channel, tap, output = pattern[0][0], pattern[2][0], pattern[3][0]
    for strip in range(strips):
        first = strip * lanes * apart
        for j in range(columns):
            count = ceil_div(kernel[1] - j, columns)
            taps = [[kernel[1] * tap, kernel[0]], [channel, channels], [columns * tap, count], [output, outputs]]
            places = w_sb[first + j : first + j + (lanes - 1) * apart + 1 : apart]
            own_sb = places[:, 0:count, strip * each : strip * each + outputs]
            nisa.dma_copy(dst=own_sb, src=w.ap(pattern=taps, offset=j * tap))


def _load_bias(bias: nl.NkiTensor, outputs: int, each: int, strips: int) -> nl.NkiTensor:
    """(strips * each, 1) float32: the bias once for each strip."""
    bias_sb = nl.ndarray((strips * each, 1), dtype=nl.float32, buffer=nl.sbuf)
    if outputs == each and is_hbm_tensor(bias):
        column = bias.get_pattern()[0][0]
        nisa.dma_copy(dst=bias_sb, src=bias.ap(pattern=[[0, strips], [column, outputs], [1, 1]]))
        return bias_sb
    if outputs < each:
        nisa.memset(dst=bias_sb, value=0.0, engine=nisa.engine.gpsimd)
    for strip in range(strips):
        nisa.dma_copy(dst=bias_sb[strip * each : strip * each + outputs], src=bias[0:outputs, 0:1])
    return bias_sb


def _pool_tiles(
    dst: nl.NkiTensor, images: int, parts: int, shape: ConvShape, pooling: Pooling, strips: int
) -> list[nl.NkiTensor]:
    """The tiles (p, 1, rows, columns) in which the results of a strip wait to be pooled, for every other image; columns
    that no convolution writes are filled."""
    tiles: list[nl.NkiTensor] = []
    if pooling.is_none():
        return tiles
    rows, cols = pooling.extent(ceil_div(dst.shape[-2], strips), dst.shape[-1])
    left = pooling.pads[1]
    right = min(cols, left + shape.size[1])
    for _ in range(min(2, images)):
        tile_sb = nl.ndarray((parts, 1, rows, cols), dtype=dst.dtype, buffer=nl.sbuf)
        if left > 0:
            nisa.memset(dst=tile_sb[:, :, :, 0:left], value=pool_fill(pooling.op), engine=nisa.engine.gpsimd)
        if right < cols:
            nisa.memset(dst=tile_sb[:, :, :, right:cols], value=pool_fill(pooling.op), engine=nisa.engine.gpsimd)
        tiles.append(tile_sb)
    return tiles


def _fill_rows(conv_sb: nl.NkiTensor, rows: Rows, dst: nl.NkiTensor, size: Pair, pooling: Pooling, strips: int) -> None:
    """What pooling sees beyond the first and the last row of the convolution, among ``rows`` of each strip."""
    each = conv_sb.shape[0] // strips
    for strip in range(strips):
        first = first_row(strip, dst, pooling, strips)
        own_sb = conv_sb[strip * each : (strip + 1) * each]
        above, below = min(rows[1], -first), max(rows[0], size[0] - first)
        if above > rows[0]:
            nisa.memset(dst=own_sb[:, :, rows[0] : above], value=pool_fill(pooling.op), engine=nisa.engine.vector)
        if below < rows[1]:
            nisa.memset(dst=own_sb[:, :, below : rows[1]], value=pool_fill(pooling.op), engine=nisa.engine.vector)


def _load_band(
    x_sb: nl.NkiTensor,
    src: nl.NkiTensor,
    n: int,
    rows: Rows,
    dst: nl.NkiTensor,
    shape: ConvShape,
    pooling: Pooling,
    plan: Strips,
    fresh: bool,
) -> None:
    """x_sb (p, rows * columns) = what ``rows`` of each strip see. ``fresh``: it holds zeros."""
    kernel, stride, pads, dilation = shape.kernel, shape.stride, shape.pads, shape.dilation
    height, width = src.shape[2], src.shape[3]
    count = (rows[1] - rows[0] - 1) * stride[0] + 1
    tops = []
    low, high = 0, count
    for strip in range(plan[0]):
        top = (first_row(strip, dst, pooling, plan[0]) + rows[0]) * stride[0] - pads[0]
        tops.append(top)
        low = max(low, min(count, -top))
        high = min(high, max(0, height - top - (kernel[0] - 1) * dilation[0]))
    if low > 0 and not fresh:
        nisa.memset(dst=x_sb[:, 0 : low * width], value=0.0, engine=nisa.engine.gpsimd)
    if max(low, high) < count and not fresh:
        nisa.memset(dst=x_sb[:, max(low, high) * width : count * width], value=0.0, engine=nisa.engine.gpsimd)
    if low == 0 and high == count:
        _load_rows(x_sb, src, n, (0, plan[0]), (0, kernel[0]), tops, (0, count), shape, plan)
        return
    for strip in range(plan[0]):
        top = tops[strip]
        u0 = min(kernel[0], max(0, ceil_div(-top, dilation[0])))
        u1 = max(u0, min(kernel[0], (height - count - top) // dilation[0] + 1))
        if u1 > u0:
            _load_rows(x_sb, src, n, (strip, strip + 1), (u0, u1), tops, (0, count), shape, plan)
        for u in range(kernel[0]):
            first, end = max(0, -top - u * dilation[0]), min(count, height - top - u * dilation[0])
            if (u < u0 or u >= u1) and first < end:
                _load_rows(x_sb, src, n, (strip, strip + 1), (u, u + 1), tops, (first, end), shape, plan)


def _load_rows(
    x_sb: nl.NkiTensor,
    src: nl.NkiTensor,
    n: int,
    strips: Pair,
    taps: Pair,
    tops: list[int],
    seen: Pair,
    shape: ConvShape,
    plan: Strips,
) -> None:
    """Rows ``seen`` of a band for kernel rows ``taps`` of ``strips``, all of which exist."""
    channels, kernel, dilation = shape.channels, shape.kernel, shape.dilation
    width, apart = src.shape[3], places_apart(plan[0], channels, kernel)
    pattern = src.get_pattern()
    image, channel, row = pattern[0][0], pattern[1][0], pattern[2][0]
    lane = (strips[0] * kernel[0] + taps[0]) * channels
    lanes = (strips[1] - strips[0]) * (taps[1] - taps[0]) * channels
    length = (seen[1] - seen[0]) * width
    step = (tops[1] - tops[0]) * row if len(tops) > 1 else row
    first = n * image + (tops[strips[0]] + seen[0] + taps[0] * dilation[0]) * row
    for j in range(plan[1]):
        left = j * dilation[1]
        start = lane * apart + j
        places = x_sb[start : start + (lanes - 1) * apart + 1 : apart]
        rows = [[dilation[0] * row, taps[1] - taps[0]], [channel, channels], [1, length - left]]
        image_rows = src.ap(pattern=[[step, strips[1] - strips[0]]] + rows, offset=first + left)
        nisa.dma_copy(dst=places[:, seen[0] * width : seen[1] * width - left], src=image_rows)


def _convolve(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    bias_sb: nl.NkiTensor,
    src: nl.NkiTensor,
    shape: ConvShape,
    act: str,
    plan: Strips,
) -> None:
    """y_sb (o, 1, rows, columns) = act(conv(x_sb) + bias), a bank after the other."""
    stride, width = shape.stride, src.shape[3]
    _, _, rows, cols = y_sb.shape
    count = (rows - 1) * stride[0] + 1
    band_sb = x_sb[:, 0 : count * width].reshape_dim(1, (count, width))
    step = nl.tile_size.psum_bank_fmax // shape.size[1]
    alternate = vector_helps(w_sb.shape[1], act)
    by_vector = False
    for r0 in range(0, rows, step):
        r1 = min(rows, r0 + step)
        sum_psum = nl.ndarray((y_sb.shape[0], 1, r1 - r0, cols), dtype=nl.float32, buffer=nl.psum)
        seen_sb = band_sb[:, r0 * stride[0] : (r1 - 1) * stride[0] + 1 : stride[0]]
        _accumulate(sum_psum, seen_sb, w_sb, src, shape, plan)
        evacuate(y_sb[:, :, r0:r1], sum_psum, bias_sb, act, by_vector)
        by_vector = alternate and not by_vector


def _accumulate(
    sum_psum: nl.NkiTensor, seen_sb: nl.NkiTensor, w_sb: nl.NkiTensor, src: nl.NkiTensor, shape: ConvShape, plan: Strips
) -> None:
    """sum_psum (o, 1, rows, columns) = the sum over all products of rows of the band (p, rows, columns). Kernel columns
    add to the results under which they see the image; one that sees it under all comes first."""
    kernel, stride, pads, dilation = shape.kernel, shape.stride, shape.pads, shape.dilation
    cols, width = sum_psum.shape[3], src.shape[3]
    products = ceil_div(kernel[1], plan[1])
    lead = leading_column(src, shape) if plan[1] == 1 else 0
    for number in range(products):
        product = (number + lead) % products
        x = product * plan[1] * dilation[1] - pads[1]
        c0 = max(0, ceil_div(-x, stride[1]))
        c1 = min(cols, ceil_div(width - x, stride[1]))
        if c0 < c1:
            x += c0 * stride[1]
            nisa.nc_matmul(
                dst=sum_psum[:, :, :, c0:c1],
                stationary=w_sb[:, product],
                moving=seen_sb[:, :, x : x + (c1 - c0 - 1) * stride[1] + 1 : stride[1]],
                accumulate=number > 0,
            )


def _result_tile(dst: nl.NkiTensor, n: int, row: int, rows: int, each: int, strips: int) -> nl.NkiTensor:
    """Where rows ``row``... of all strips are computed: in dst, or in a tile (o, 1, rows, columns) on its way."""
    if is_hbm_tensor(dst) or strips > 1:
        return nl.ndarray((strips * each, 1, rows, dst.shape[-1]), dtype=dst.dtype, buffer=nl.sbuf)
    return dst[0:each, 0, n : n + 1, row : row + rows]


def _put_all(
    dst: nl.NkiTensor, computed: list[tuple[nl.NkiTensor, int]], n: int, outputs: int, each: int, strips: int
) -> list[tuple[nl.NkiTensor, int]]:
    """Tiles of rows of image ``n`` to where they belong: after the next band's products, as the engine that copies
    them would evacuate these too late. Those that are left: none."""
    for item in computed:
        y_sb, row = item
        if is_hbm_tensor(dst) or strips > 1:
            _put(dst, y_sb, n, row, outputs, each, strips)
    return []


def _put(dst: nl.NkiTensor, y_sb: nl.NkiTensor, n: int, row: int, outputs: int, each: int, strips: int) -> None:
    """Rows ``row``... of all strips of image ``n``, in SBUF (strips * each, 1, rows, columns), to where they belong."""
    height = dst.shape[-2]
    for strip in range(strips):
        first = strip * ceil_div(height, strips) + row
        end = min(height, first + y_sb.shape[2])
        if first >= end:
            continue
        own_sb = y_sb[strip * each : strip * each + outputs, 0, 0 : end - first]
        if is_hbm_tensor(dst):
            nisa.dma_copy(dst=dst[n, :, first:end], src=own_sb)
        elif strip % 2 == 0:
            nisa.tensor_copy(dst=dst[0:outputs, 0, n, first:end], src=own_sb, engine=nisa.engine.vector)
        else:
            nisa.activation(dst=dst[0:outputs, 0, n, first:end], op=nl.copy, data=own_sb)
