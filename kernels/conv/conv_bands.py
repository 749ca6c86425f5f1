"""Bands of images on their way to SBUF, where convolutions read them: with padding, without, or with several taps."""

from trnrt.kernels.common import Pair, Rectangle, block_rows, ceil_div, image_part, is_hbm_tensor, transfer
from trnrt.kernels.conv.packing import ConvShape, Packing, band_extent, band_row_step, is_packed, spread
from trnrt.nki import nisa, nl

# (first, end) of the rows and of the columns that are worked on.
Area = tuple[Pair, Pair]

# Elements per partition of a tile of zeros.
ZEROS = 2048


def load_image_band(
    src: nl.NkiTensor,
    images: Pair,
    area: Area,
    shape: ConvShape,
    pack: Packing,
    most: tuple[int, int, int],
    seen: tuple[Pair, Pair],
    number: int,
) -> nl.NkiTensor:
    """The input of the convolution's results ``area`` of ``images`` (first, end), in SBUF (P, B, n, rows, columns).

    seen: the part of the padded input, from (row, column) to (row, column): see ``seen_part``
    most: (images, rows, columns) of the largest band. All tiles have this size, as only tiles of one shape reuse each
        other's places
    number: of the band. The first is loaded through the scalar engine's queue, beside the weights, if there are
        hardware descriptors.
    """
    channels, stride, pads = shape.channels, shape.stride, shape.pads
    (r0, r1), (c0, c1) = area
    first = (r0 * stride[0] - pads[0], c0 * stride[1] - pads[1])
    extent = band_extent(r1 - r0, c1 - c0, shape, pack)
    if is_packed(pack):
        return _packed_band(src, images, first, extent, shape, pack, most)
    start, end = (first[0] + seen[0][0], first[1] + seen[0][1]), (first[0] + seen[1][0], first[1] + seen[1][1])
    inside = start[0] >= 0 and start[1] >= 0 and end[0] <= src.shape[-2] and end[1] <= src.shape[-1]
    if inside and not is_hbm_tensor(src):
        return src[:, :, images[0] : images[1], start[0] : end[0], start[1] : end[1]]
    blocks = ceil_div(channels, nl.tile_size.pmax)
    parts = min(channels, nl.tile_size.pmax)
    tile_sb = nl.ndarray((parts, blocks, most[0], most[1], most[2]), dtype=src.dtype, buffer=nl.sbuf)
    x_sb = tile_sb[:, :, 0 : images[1] - images[0], 0 : end[0] - start[0], 0 : end[1] - start[1]]
    lows, highs = _inner_range((end[0] - start[0], end[1] - start[1]), start, (1, 1), src)
    for block in range(blocks):
        k = block_rows(channels, block)
        fill_border(x_sb[0:k, block], lows, highs)
        if lows[0] < highs[0] and lows[1] < highs[1]:
            inner_sb = x_sb[0:k, block, :, lows[0] : highs[0], lows[1] : highs[1]]
            rows = (start[0] + lows[0], start[0] + highs[0])
            image = image_part(src, block, k, Rectangle(images, rows, (start[1] + lows[1], start[1] + highs[1])))
            if not is_hbm_tensor(src):
                nisa.tensor_copy(dst=inner_sb, src=image)
            elif number == 0 and nisa.get_nc_version() >= nisa.nc_version.gen3:
                nisa.dma_copy(dst=inner_sb, src=image, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
            else:
                transfer(inner_sb, image)
    return x_sb


def _packed_band(
    src: nl.NkiTensor,
    images: Pair,
    first: Pair,
    extent: Pair,
    shape: ConvShape,
    pack: Packing,
    most: tuple[int, int, int],
) -> nl.NkiTensor:
    """The same with several taps on the partitions; ``first`` is the position that tap (0, 0) sees at (0, 0)."""
    channels, n_size = shape.channels, images[1] - images[0]
    parts = channels * pack[0] * pack[1] * spread(channels, pack)
    # Write in the transfers' shape: then the simulator sees that they write to different places.
    if pack[2] > 0:
        tile_sb = nl.ndarray((parts, most[0], most[1] * most[2]), dtype=src.dtype, buffer=nl.sbuf)
    else:
        tile_sb = nl.ndarray((parts, most[0], most[1], most[2]), dtype=src.dtype, buffer=nl.sbuf)
    if spread(channels, pack) > 1:
        nisa.memset(dst=tile_sb[:, 0:n_size], value=0.0, engine=nisa.engine.gpsimd)
    x_sb = tile_sb.reshape((parts, 1, most[0], most[1], most[2]))
    x_sb = x_sb[:, :, 0:n_size, 0 : extent[0], 0 : extent[1]]
    if pack[2] > 0:
        _load_packed_rows(tile_sb[:, 0:n_size], extent[0], src, images, first[0], shape, pack)
    else:
        _load_packed(x_sb, src, images, first, shape, pack)
    return x_sb


def seen_part(src: nl.NkiTensor, area: Area, shape: ConvShape, pack: Packing, lead: Pair) -> tuple[Pair, Pair]:
    """The part of its padded input that a band loads, from (row, column) to (row, column): all, or only the image if a
    tap leads. A few extra columns make rows whole, which are then one contiguous piece of HBM."""
    stride, pads = shape.stride, shape.pads
    (r0, r1), (c0, c1) = area
    extent = band_extent(r1 - r0, c1 - c0, shape, pack)
    if lead[0] < 0:
        return ((0, 0), extent)
    if is_packed(pack):
        left = c0 * stride[1] - pads[1]
        return ((0, -left), (extent[0], src.shape[-1] - left))
    first = (r0 * stride[0] - pads[0], c0 * stride[1] - pads[1])
    low, high = _inner_range(extent, first, (1, 1), src)
    left = src.shape[-1] - first[1] - high[1]
    return (low, (high[0], high[1] + left if left < stride[1] and first[1] + low[1] == 0 else high[1]))


def _inner_range(extent: Pair, first: Pair, step: Pair, src: nl.NkiTensor) -> tuple[Pair, Pair]:
    """(first row, first column) and (end row, end column) of the part of a band inside the image; an empty range is (e,
    e)."""
    lows = (
        min(extent[0], max(0, ceil_div(-first[0], step[0]))),
        min(extent[1], max(0, ceil_div(-first[1], step[1]))),
    )
    highs = (
        max(lows[0], min(extent[0], ceil_div(src.shape[-2] - first[0], step[0]))),
        max(lows[1], min(extent[1], ceil_div(src.shape[-1] - first[1], step[1]))),
    )
    return lows, highs


def fill_border(band_sb: nl.NkiTensor, lows: Pair, highs: Pair) -> None:
    """Fill a band (p, n, rows, columns) with zeros outside of rows and columns ``lows`` to ``highs``, on an idle
    engine: the others would have to finish the band before first."""
    _, _, rows, cols = band_sb.shape
    if lows[0] >= highs[0] or lows[1] >= highs[1]:
        nisa.memset(dst=band_sb, value=0.0, engine=nisa.engine.gpsimd)
        return
    if lows[0] > 0:
        nisa.memset(dst=band_sb[:, :, 0 : lows[0], :], value=0.0, engine=nisa.engine.gpsimd)
    if highs[0] < rows:
        nisa.memset(dst=band_sb[:, :, highs[0] : rows, :], value=0.0, engine=nisa.engine.gpsimd)
    if lows[1] > 0:
        nisa.memset(dst=band_sb[:, :, lows[0] : highs[0], 0 : lows[1]], value=0.0, engine=nisa.engine.gpsimd)
    if highs[1] < cols:
        nisa.memset(dst=band_sb[:, :, lows[0] : highs[0], highs[1] : cols], value=0.0, engine=nisa.engine.gpsimd)


def _load_packed(
    x_sb: nl.NkiTensor, src: nl.NkiTensor, images: Pair, first: Pair, shape: ConvShape, pack: Packing
) -> None:
    """x_sb (taps * channels, 1, n, rows, columns) = the image, shifted for each tap; ``first`` is the position that tap
    (0, 0) sees at (0, 0). All taps of a kernel column share a transfer if their rows all exist."""
    channels, dilation = shape.channels, shape.dilation
    _, _, _, rows, cols = x_sb.shape
    step = shape.stride[0] // band_row_step(shape, pack)
    # The first tap misses most of the lowest row, the last tap most of the highest.
    down, right = (pack[0] - 1) * dilation[0], (pack[1] - 1) * dilation[1]
    lows, _ = _inner_range((rows, cols), first, (step, 1), src)
    _, highs = _inner_range((rows, cols), (first[0] + down, first[1] + right), (step, 1), src)
    apart = spread(channels, pack)
    if apart == 1:
        fill_border(x_sb[:, 0], lows, highs)
    for j in range(pack[1]):
        merged = is_hbm_tensor(src) and lows[0] == 0 and highs[0] == rows
        for u in range(1 if merged else pack[0]):
            start = (first[0] + u * dilation[0], first[1] + j * dilation[1])
            low, high = _inner_range((rows, cols), start, (step, 1), src)
            if low[0] >= high[0] or low[1] >= high[1]:
                continue
            row0 = start[0] + low[0] * step
            seen = (row0, row0 + (high[0] - low[0] - 1) * step + 1)
            place = Rectangle(images, seen, (start[1] + low[1], start[1] + high[1]))
            image = image_part(src, 0, channels, place)[:, :, 0 : seen[1] - seen[0] : step]
            p0, taps = (j * pack[0] + u) * channels, 1
            if merged:
                taps = pack[0]
                row_stride = src.get_pattern()[2][0]
                image = image.ap(pattern=[[dilation[0] * row_stride, taps]] + image.get_pattern())
            places = x_sb[p0 * apart : (p0 + taps * channels) * apart : apart, 0]
            transfer(places[:, :, low[0] : high[0], low[1] : high[1]], image)


def _load_packed_rows(
    flat_sb: nl.NkiTensor, rows: int, src: nl.NkiTensor, images: Pair, row0: int, shape: ConvShape, pack: Packing
) -> None:
    """flat_sb (taps * channels, n, rows * columns) = the same without padding at the sides: the image's whole rows from
    ``row0`` on, one contiguous piece per partition, and zeros for missing rows that a product sees."""
    channels, dilation = shape.channels, shape.dilation
    cols = pack[2]
    apart, down = spread(channels, pack), (pack[0] - 1) * dilation[0]
    merged = is_hbm_tensor(src) and row0 >= 0 and row0 + down + rows <= src.shape[-2]
    if apart == 1:
        _zero_outer_rows(flat_sb, rows, row0, src.shape[-2], shape.kernel[0], dilation[0], pack)
    for j in range(pack[1]):
        for u in range(1 if merged else pack[0]):
            start = row0 + u * dilation[0]
            first, end = max(0, start), min(src.shape[-2], start + rows)
            if first >= end:
                continue
            left = j * dilation[1]
            image = image_part(src, 0, channels, Rectangle(images, (first, end), (0, cols))).flatten_dims(2, 3)
            image = image[:, :, left : (end - first) * cols]
            p0, taps = (j * pack[0] + u) * channels, 1
            if merged:
                taps = pack[0]
                image = image.ap(pattern=[[dilation[0] * src.get_pattern()[2][0], taps]] + image.get_pattern())
            places = flat_sb[p0 * apart : (p0 + taps * channels) * apart : apart]
            transfer(places[:, :, (first - start) * cols : (end - start) * cols - left], image)


def _zero_outer_rows(
    flat_sb: nl.NkiTensor, rows: int, row0: int, height: int, kernel_rows: int, dilation: int, pack: Packing
) -> None:
    """Zero the rows of flat_sb that lie above or below the image for some tap, on all partitions, as loads of other
    taps overwrite them; none if only taps outside the kernel see them."""
    cols = pack[2]
    last = (ceil_div(kernel_rows, pack[0]) - 1) * pack[0]
    top = min(rows, max(0, -row0))
    bottom = max(top, min(rows, height - row0 - (pack[0] - 1) * dilation))
    if top > 0:
        nisa.memset(dst=flat_sb[:, :, 0 : top * cols], value=0.0, engine=nisa.engine.gpsimd)
    if bottom < rows and row0 + rows + (kernel_rows - 1 - last) * dilation > height:
        nisa.memset(dst=flat_sb[:, :, bottom * cols : rows * cols], value=0.0, engine=nisa.engine.gpsimd)


def padded_images(src: nl.NkiTensor, shape: ConvShape) -> nl.NkiTensor:
    """Images (N, C, H, W) in HBM with zeros around them: (N, C, rows, columns), as many as the convolution sees."""
    images, channels, height, width = src.shape
    extent, pads = shape.extent(), shape.pads
    size = (max(extent[0], height + pads[0]), max(extent[1], width + pads[1]))
    padded = nl.ndarray((images, channels, size[0], size[1]), dtype=src.dtype, buffer=nl.private_hbm)
    total = images * channels * size[0] * size[1]
    flat = padded.reshape((total,))
    zeros_sb = nl.ndarray((nl.tile_size.pmax, min(ZEROS, ceil_div(total, nl.tile_size.pmax))), src.dtype, nl.sbuf)
    nisa.memset(dst=zeros_sb, value=0.0)
    row = zeros_sb.shape[1]
    first = 0
    while first < total:
        rows = min(nl.tile_size.pmax, (total - first) // row)
        if rows > 0:
            transfer(flat[first : first + rows * row].reshape((rows, row)), zeros_sb[0:rows])
            first += rows * row
        else:
            transfer(flat[first:total].reshape((1, total - first)), zeros_sb[0:1, 0 : total - first])
            first = total
    transfer(padded[:, :, pads[0] : pads[0] + height, pads[1] : pads[1] + width], src)
    return padded
