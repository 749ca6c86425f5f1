"""A network's first convolution: few channels, large images in HBM, at most 128 outputs.

If outputs leave partitions free, an image's results are computed in two or four strips of rows at once, each on its own
64 or 32 partitions of results: products, evacuation, pooling and stores then take a half or a quarter. All strips share
the products: the image's rows are on the partitions once for each strip and kernel row, shifted, and zero weights keep
the strips apart. Kernel columns are shifted views of these; if extra partitions cost less than extra products, columns
have partitions of their own. Whole rows are loaded, so that each partition is one contiguous piece of HBM.

If the stride is a multiple of the number of those columns, and the width is, too, a product's pixels are all in the
image or all outside: taps of zero weight ahead of the kernel line them up with the padding, and no image needs to be
padded. Then, and wherever it saves time, only the rows that the stride leaves are loaded.

Partition ((strip * kernel rows + u) * channels + c) * apart + j holds channel c shifted by u rows and j columns.
``apart`` is the largest distance that fits: a DMA engine serves eight adjacent partitions, and all engines should have
some. The partitions between are zero.
"""

from typing import Any

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes, transfer
from trnrt.kernels.conv.conv_bands import padded_images
from trnrt.kernels.conv.convolving import FEW_PRODUCTS, evacuate, pool_fill, pool_windows, vector_helps
from trnrt.kernels.conv.strip_plans import BANDS, PARTS, Rows, Strips, bands_of, windows_in
from trnrt.kernels.rates import is_recent
from trnrt.kernels.warm_up import warm_up, warm_up_zeros
from trnrt.nki import nisa, nl

# Transposes of zeros, while the weights and the first band load, unless there are few products: then the tensor engine
# waits for others, and its clock falls again. ResNet-18 and ResNet-50 at batch 1, predicted: 12 to 20 take the same,
# none 2 to 3 % longer; MobileNetV2, with two products, 4 % longer with 16 than with none.
STRIP_WARM_UP = 16


def convolve_strips(plan: Strips, w: nl.NkiTensor, bias: nl.NkiTensor, act: str) -> None:
    """dst = pool(act(conv(src, w) + bias)): conv2d without groups, as ``strips_of`` planned it.

    plan: with dst in HBM (N, O, PH, PW), or SBUF ``channels`` (P, 1, N, PH, PW), and src in HBM (N, C, H, W)
    w: HBM (C, 1, T, O), prepared; the dtype of src
    bias: HBM or SBUF (O, 1) float32, prepared; (O, 5) for act "whole"
    limits: those of ``strips_of``; NaN and infinity of an image reach the results of all strips, at the same distance
        from each strip's first row

    numpy: see conv2d
    """
    if plan.columns > 1 and plan.has_column_padding() and not plan.is_aligned():
        src, shape = padded_images(plan.src, plan.shape), plan.shape.drop_padding()
        plan = Strips(plan.dst, src, plan.outputs, shape, plan.pooling, plan.count, plan.columns)
    dst, images, pooling = plan.dst, plan.src.shape[0], plan.pooling
    bands = bands_of(plan)
    w_sb = nl.ndarray((plan.partitions(), plan.products(), plan.count * plan.each()), dtype=w.dtype, buffer=nl.sbuf)
    nisa.memset(dst=w_sb, value=0.0, engine=nisa.engine.vector)
    warms = plan.products() >= FEW_PRODUCTS and is_recent()
    zeros_sb = warm_up_zeros() if warms else None
    waiting = _pool_tiles(plan)
    tiles = _zero_tiles(plan, bands)
    shares = is_recent() and not is_hbm_tensor(dst)
    _load_weights(w_sb, w, plan, shares and warms)
    bias_sb = _load_bias(bias, plan)
    number = 0
    for n in range(images):
        pooled = 0
        computed: list[tuple[nl.NkiTensor, int]] = []
        for rows in bands:
            x_sb = tiles[number % len(tiles)]
            # Not the last of many, which the sync engine's later loads must not overtake; of a convolution of few
            # products, whose loads are few, only the first. (ShuffleNet, predicted: more than that take 10 % more.)
            both = shares and (number == 0 or (warms and number < len(bands) - 1))
            _load_band(x_sb, plan, n, rows, number < len(tiles) and plan.has_gaps(), both)
            if number == 0 and warms:
                # After the first band in the program's order: its tile must not wait for the place of the zeros.
                warm_up(STRIP_WARM_UP, zeros_sb)
            number += 1
            if pooling.is_none():
                y_sb = _strip_tile(plan, n, rows[0], rows[1] - rows[0])
                _convolve_strips(y_sb, x_sb, w_sb, bias_sb, plan, act)
                computed = _put_all(plan, computed, n)
                computed.append((y_sb, rows[0]))
                continue
            conv_sb = waiting[n % len(waiting)]
            left = pooling.pads[1]
            right = min(conv_sb.shape[3], left + plan.shape.size[1])
            _convolve_strips(conv_sb[:, :, rows[0] : rows[1], left:right], x_sb, w_sb, bias_sb, plan, act)
            _fill_pooled_rows(conv_sb, rows, plan)
            computed = _put_all(plan, computed, n)
            ready = min(plan.height(), windows_in(rows[2], pooling))
            whole = rows[2] == conv_sb.shape[2] or n == images - 1
            if ready - pooled >= (1 if whole else ceil_div(dst.shape[-2], plan.count * PARTS)):
                y_sb = _strip_tile(plan, n, pooled, ready - pooled)
                pool_windows(y_sb, conv_sb[:, :, pooled * pooling.stride[0] :], pooling)
                computed.append((y_sb, pooled))
                pooled = ready
        _put_all(plan, computed, n)


def _zero_tiles(plan: Strips, bands: list[Rows]) -> list[nl.NkiTensor]:
    """The tiles (p, rows * columns), or (p, rows, columns) if these are loaded row by row, that the bands use in turn,
    with zeros where no shifted channel goes. The part for the first bands is zeroed first."""
    lengths = []
    most = 0
    for band in bands:
        length = plan.band_rows(band[1] - band[0]) * _row_length(plan)
        lengths.append(length)
        most = max(most, length)
    # On trn1 the two engines would take turns.
    last = nisa.engine.gpsimd if nisa.get_nc_version() >= nisa.nc_version.gen3 else nisa.engine.vector
    tiles = []
    for _ in range(min(BANDS * plan.row_step(), len(bands) * plan.src.shape[0])):
        if plan.loads_by_rows():
            # In the transfers' shape: then the simulator sees that they write to different places.
            tiles.append(nl.ndarray((plan.partitions(), most, plan.src.shape[3]), plan.src.dtype, nl.sbuf))
        else:
            tiles.append(nl.ndarray((plan.partitions(), most), dtype=plan.src.dtype, buffer=nl.sbuf))
    if not plan.has_gaps():
        return tiles
    for number in range(len(tiles)):
        first = lengths[number % len(bands)]
        engine = nisa.engine.vector if number < 2 else last
        _zero_part(tiles[number], 0, first, engine)
    for number in range(len(tiles)):
        first = lengths[number % len(bands)]
        if first < most and number + len(tiles) < len(bands) * plan.src.shape[0]:
            _zero_part(tiles[number], first, most, last)
    return tiles


def _zero_part(tile_sb: nl.NkiTensor, first: int, end: int, engine: Any) -> None:
    """tile_sb (p, places) or (p, rows, columns) = 0 in places or rows ``first`` to ``end``. Elements of 16 bits are
    zeroed in pairs if they can be: then the GpSimd engine takes half the time."""
    pairs = item_bytes(tile_sb.dtype) == 2 and tile_sb.shape[-1] % 2 == 0
    if len(tile_sb.shape) == 2:
        if pairs and first % 2 + end % 2 == 0:
            tile_sb, first, end = tile_sb.view(nl.float32), first // 2, end // 2
    elif pairs:
        tile_sb = tile_sb.view(nl.float32)
    nisa.memset(dst=tile_sb[:, first:end], value=0.0, engine=engine)


def _row_length(plan: Strips) -> int:
    """The places of a row along the second dimension of a band's tile."""
    return 1 if plan.loads_by_rows() else plan.src.shape[3]


def _load_weights(w_sb: nl.NkiTensor, w: nl.NkiTensor, plan: Strips, both: bool) -> None:
    """w_sb (p, products, strips * each) = the weights, so that a strip's outputs see its own partitions. ``both``: see
    ``_load_band``."""
    channels, kernel, columns = plan.shape.channels, plan.shape.kernel, plan.columns
    lanes, apart, outputs = kernel[0] * channels, plan.apart(), plan.outputs
    pattern = w.get_pattern()
    channel, tap, output = pattern[0][0], pattern[2][0], pattern[3][0]
    for strip in range(plan.count):
        first = strip * lanes * apart
        for j in range(columns):
            v = (j - plan.zero_columns()) % columns
            number = (v + plan.zero_columns()) // columns
            count = ceil_div(kernel[1] - v, columns)
            taps = [[kernel[1] * tap, kernel[0]], [channel, channels], [columns * tap, count], [output, outputs]]
            places = w_sb[first + j : first + j + (lanes - 1) * apart + 1 : apart]
            own_sb = places[:, number : number + count, strip * plan.each() : strip * plan.each() + outputs]
            _trigger(own_sb, w.ap(pattern=taps, offset=v * tap), both and (strip * columns + j) % 2 == 0)


def _load_bias(bias: nl.NkiTensor, plan: Strips) -> nl.NkiTensor:
    """(strips * each, 1) float32: the bias once for each strip; or all columns of biases for whole numbers."""
    outputs, each = plan.outputs, plan.each()
    count = bias.shape[1]
    bias_sb = nl.ndarray((plan.count * each, count), dtype=nl.float32, buffer=nl.sbuf)
    if outputs == each and is_hbm_tensor(bias):
        column = bias.get_pattern()[0][0]
        transfer(bias_sb, bias.ap(pattern=[[0, plan.count], [column, outputs], [1, count]]))
        return bias_sb
    if outputs < each:
        nisa.memset(dst=bias_sb, value=0.0, engine=nisa.engine.gpsimd)
    for strip in range(plan.count):
        own_sb = bias_sb[strip * each : strip * each + outputs]
        if is_hbm_tensor(bias):
            transfer(own_sb, bias[0:outputs, :])
        else:
            # Not by DMA: the images' first transfers would wait behind it in their queue.
            nisa.tensor_copy(dst=own_sb, src=bias[0:outputs, :], engine=nisa.engine.vector)
    return bias_sb


def _pool_tiles(plan: Strips) -> list[nl.NkiTensor]:
    """The tiles (p, 1, rows, columns) in which a strip's results wait to be pooled, for alternate images; columns that
    no convolution writes are filled."""
    tiles: list[nl.NkiTensor] = []
    dst, pooling = plan.dst, plan.pooling
    if pooling.is_none():
        return tiles
    rows, cols = pooling.extent(plan.height(), dst.shape[-1])
    left = pooling.pads[1]
    right = min(cols, left + plan.shape.size[1])
    for _ in range(min(2, plan.src.shape[0])):
        tile_sb = nl.ndarray((plan.count * plan.each(), 1, rows, cols), dtype=dst.dtype, buffer=nl.sbuf)
        if left > 0:
            nisa.memset(dst=tile_sb[:, :, :, 0:left], value=pool_fill(pooling.op), engine=nisa.engine.gpsimd)
        if right < cols:
            nisa.memset(dst=tile_sb[:, :, :, right:cols], value=pool_fill(pooling.op), engine=nisa.engine.gpsimd)
        tiles.append(tile_sb)
    return tiles


def _fill_pooled_rows(conv_sb: nl.NkiTensor, rows: Rows, plan: Strips) -> None:
    """Fill the rows that pooling sees beyond the first and the last row of the convolution, among ``rows`` of each
    strip."""
    each, fill = plan.each(), pool_fill(plan.pooling.op)
    for strip in range(plan.count):
        first = plan.first_row(strip)
        own_sb = conv_sb[strip * each : (strip + 1) * each]
        above, below = min(rows[1], -first), max(rows[0], plan.shape.size[0] - first)
        if above > rows[0]:
            nisa.memset(dst=own_sb[:, :, rows[0] : above], value=fill, engine=nisa.engine.vector)
        if below < rows[1]:
            nisa.memset(dst=own_sb[:, :, below : rows[1]], value=fill, engine=nisa.engine.vector)


def _trigger(dst: nl.NkiTensor, src: nl.NkiTensor, by_scalar: bool) -> None:
    """dst = src by DMA, triggered by the scalar or the sync engine."""
    if by_scalar:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    else:
        transfer(dst, src)


def _load_band(x_sb: nl.NkiTensor, plan: Strips, n: int, rows: Rows, fresh: bool, both: bool) -> None:
    """x_sb (p, rows * columns) = the rows of image ``n`` that ``rows`` of each strip see. ``fresh``: it holds zeros;
    ``both``: the scalar and the sync engine trigger transfers in turn, which take longer to trigger than to move."""
    shape, strips, step = plan.shape, plan.count, plan.row_step()
    kernel, dilation = shape.kernel, shape.dilation
    height, each = plan.src.shape[2], _row_length(plan)
    count = plan.band_rows(rows[1] - rows[0])
    tops = []
    low, high = 0, count
    for strip in range(strips):
        top = (plan.first_row(strip) + rows[0]) * shape.stride[0] - shape.pads[0]
        tops.append(top)
        low = max(low, min(count, ceil_div(-top, step)))
        high = min(high, max(0, ceil_div(height - top - (kernel[0] - 1) * dilation[0], step)))
    if low > 0 and not fresh:
        nisa.memset(dst=x_sb[:, 0 : low * each], value=0.0, engine=nisa.engine.gpsimd)
    if max(low, high) < count and not fresh:
        nisa.memset(dst=x_sb[:, max(low, high) * each : count * each], value=0.0, engine=nisa.engine.gpsimd)
    if low == 0 and high == count:
        _load_rows(x_sb, plan, n, (0, strips), (0, kernel[0]), tops, (0, count), both)
        return
    for strip in range(strips):
        for run in _seen_rows(plan, tops[strip], count):
            _load_rows(x_sb, plan, n, (strip, strip + 1), run[0], tops, run[1], both)


def _seen_rows(plan: Strips, top: int, count: int) -> list[tuple[Pair, Pair]]:
    """Adjacent kernel rows for which the same ones of ``count`` rows of a band are in the image, with these; ``top`` is
    the image's row under the first of both."""
    runs: list[tuple[Pair, Pair]] = []
    height, step, dilation = plan.src.shape[2], plan.row_step(), plan.shape.dilation[0]
    for u in range(plan.shape.kernel[0]):
        start = top + u * dilation
        seen = (max(0, ceil_div(-start, step)), min(count, ceil_div(height - start, step)))
        if seen[0] >= seen[1]:
            continue
        if len(runs) > 0 and runs[-1][0][1] == u and runs[-1][1] == seen:
            runs[-1] = ((runs[-1][0][0], u + 1), seen)
        else:
            runs.append(((u, u + 1), seen))
    return runs


def _load_rows(
    x_sb: nl.NkiTensor, plan: Strips, n: int, strips: Pair, taps: Pair, tops: list[int], seen: Pair, both: bool
) -> None:
    """Load rows ``seen`` of a band for kernel rows ``taps`` of ``strips``: the image has all of them."""
    channels, kernel, dilation = plan.shape.channels, plan.shape.kernel, plan.shape.dilation
    apart, step, each = plan.apart(), plan.row_step(), _row_length(plan)
    pattern = plan.src.get_pattern()
    image, channel, row = pattern[0][0], pattern[1][0], pattern[2][0]
    lane = (strips[0] * kernel[0] + taps[0]) * channels
    lanes = (strips[1] - strips[0]) * (taps[1] - taps[0]) * channels
    below = (tops[1] - tops[0]) * row if len(tops) > 1 else row
    first = n * image + (tops[strips[0]] + seen[0] * step + taps[0] * dilation[0]) * row
    rows = [[dilation[0] * row, taps[1] - taps[0]], [channel, channels]]
    band_sb = x_sb[:, seen[0] * each : seen[1] * each]
    if plan.is_aligned() and strips[1] - strips[0] == 1 and apart == plan.columns:
        # All columns at once: with several strips the pattern would have six dimensions.
        places = band_sb[lane * apart : (lane + lanes) * apart]
        _load_lanes(places, plan, rows + [[1, plan.columns]], first, plan.columns - 1, both and taps[0] % 2 == 0)
        return
    for j in range(plan.columns):
        start, left = lane * apart + j, j * dilation[1]
        places = band_sb[start : start + (lanes - 1) * apart + 1 : apart]
        unseen = plan.columns - 1 if plan.is_aligned() else left
        by_scalar = both and (j + (0 if plan.columns > 1 else seen[0])) % 2 == 0
        _load_lanes(places, plan, [[below, strips[1] - strips[0]]] + rows, first + left, unseen, by_scalar)


def _load_lanes(
    places: nl.NkiTensor, plan: Strips, lanes: list[list[int]], first: int, unseen: int, by_scalar: bool
) -> None:
    """places = rows of the image from ``first`` on, without the last ``unseen`` pixels: of each one, if they are loaded
    row by row. The pattern ``lanes`` leads from lane to lane."""
    if plan.loads_by_rows():
        row, width = plan.src.get_pattern()[2][0], plan.src.shape[3] - unseen
        pixels = [[row * plan.row_step(), places.shape[1]], [1, width]]
        seen_sb, image = places[:, :, 0:width], plan.src.ap(pattern=lanes + pixels, offset=first)
    else:
        length = places.shape[1] - unseen
        seen_sb, image = places[:, 0:length], plan.src.ap(pattern=lanes + [[1, length]], offset=first)
    _trigger(seen_sb, image, by_scalar)


def _convolve_strips(
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, w_sb: nl.NkiTensor, bias_sb: nl.NkiTensor, plan: Strips, act: str
) -> None:
    """y_sb (o, 1, rows, columns) = act(conv(x_sb) + bias), a bank after the other."""
    width = plan.src.shape[3]
    _, _, rows, cols = y_sb.shape
    count, apart = plan.band_rows(rows), plan.shape.stride[0] // plan.row_step()
    band_sb = x_sb[:, 0 : count * _row_length(plan)]
    if not plan.loads_by_rows():
        band_sb = band_sb.reshape_dim(1, (count, width))
    step = nl.tile_size.psum_bank_fmax // plan.shape.size[1]
    alternate = vector_helps(plan.products(), act) and (plan.pooling.is_none() or plan.products() < FEW_PRODUCTS)
    by_vector = False
    for r0 in range(0, rows, step):
        r1 = min(rows, r0 + step)
        sum_psum = nl.ndarray((y_sb.shape[0], 1, r1 - r0, cols), dtype=nl.float32, buffer=nl.psum)
        seen_sb = band_sb[:, r0 * apart : (r1 - 1) * apart + 1 : apart]
        _sum_taps(sum_psum, seen_sb, w_sb, plan)
        evacuate(y_sb[:, :, r0:r1], sum_psum, bias_sb, act, by_vector)
        by_vector = alternate and not by_vector


def _sum_taps(sum_psum: nl.NkiTensor, seen_sb: nl.NkiTensor, w_sb: nl.NkiTensor, plan: Strips) -> None:
    """sum_psum (o, 1, rows, columns) = the sum over all products of rows of the band (p, rows, columns). Kernel columns
    add to the results for which they see the image; one that sees it for all comes first."""
    stride, columns, width = plan.shape.stride, plan.columns, plan.src.shape[3]
    products = plan.products()
    lead = plan.leading_product()
    for number in range(products):
        product = (number + lead) % products
        x = product * columns * plan.shape.dilation[1] - plan.shape.pads[1] - plan.zero_columns()
        c0 = max(0, ceil_div(-x, stride[1]))
        c1 = min(sum_psum.shape[3], ceil_div(width - x, stride[1]))
        if c0 < c1:
            x += c0 * stride[1]
            nisa.nc_matmul(
                dst=sum_psum[:, :, :, c0:c1],
                stationary=w_sb[:, product],
                moving=seen_sb[:, :, x : x + (c1 - c0 - 1) * stride[1] + 1 : stride[1]],
                accumulate=number > 0,
            )


def _strip_tile(plan: Strips, n: int, row: int, rows: int) -> nl.NkiTensor:
    """The place to compute rows ``row``... of all strips: in dst, or in a tile (o, 1, rows, columns) on its way
    there."""
    dst, each = plan.dst, plan.each()
    if is_hbm_tensor(dst) or plan.count > 1:
        return nl.ndarray((plan.count * each, 1, rows, dst.shape[-1]), dtype=dst.dtype, buffer=nl.sbuf)
    return dst[0:each, 0, n : n + 1, row : row + rows]


def _put_all(plan: Strips, computed: list[tuple[nl.NkiTensor, int]], n: int) -> list[tuple[nl.NkiTensor, int]]:
    """Move tiles of rows of image ``n`` to their place: after the next band's products, as the copying engine would
    otherwise evacuate these too late. Return the tiles that are left: none."""
    for item in computed:
        y_sb, row = item
        if is_hbm_tensor(plan.dst) or plan.count > 1:
            _put(plan, y_sb, n, row)
    return []


def _put(plan: Strips, y_sb: nl.NkiTensor, n: int, row: int) -> None:
    """Move rows ``row``... of all strips of image ``n``, in SBUF (strips * each, 1, rows, columns), to dst."""
    dst, outputs = plan.dst, plan.outputs
    for strip in range(plan.count):
        first = strip * plan.height() + row
        end = min(dst.shape[-2], first + y_sb.shape[2])
        if first >= end:
            continue
        start = strip * plan.each()
        own_sb = y_sb[start : start + outputs, 0, 0 : end - first]
        if is_hbm_tensor(dst):
            transfer(dst[n, :, first:end], own_sb)
        elif strip % 2 == 0:
            nisa.tensor_copy(dst=dst[0:outputs, 0, n, first:end], src=own_sb, engine=nisa.engine.vector)
        else:
            nisa.activation(dst=dst[0:outputs, 0, n, first:end], op=nl.copy, data=own_sb)
