"""Two-dimensional max and average pooling, and the window reduction that fused convolutions share."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.channels import VECTOR_SHARE
from trnrt.kernels.common import (
    LOWEST,
    Pair,
    Rectangle,
    block_rows,
    ceil_div,
    image_count,
    image_part,
    is_hbm_tensor,
    transfer,
)
from trnrt.kernels.rates import is_recent
from trnrt.nki import nisa, nl

# The most bytes per partition of one band of input rows. Four such tiles fit the planner's WORKING_BYTES: a band, the
# next one, sums and results. Kept from the first pooling; measure the networks when it changes.
INPUT_BAND_BYTES = 32 * 1024
# A larger window is processed in parts, from bands of at least this many rows if one is narrow enough.
PART_ROWS = 8
# Pixels of whole images whose averages the vector and the scalar engine share, from the fewest that pay for another
# instruction an image to the most that fit a tile. EfficientNet-B0 on trn2, predicted: 374 -> 360 us.
SHARED_PIXELS = (512, 16384)


@dataclass
class Windows(nl.NKIObject):
    """Windows over images: (rows, columns) of each attribute."""

    kernel: Pair
    stride: Pair
    dilation: Pair


@dataclass
class Tile(nl.NKIObject):
    """The sizes of one piece of work: the result's part, and (rows, columns) of its windows."""

    images: int
    rows: int
    columns: int
    taps: Pair


def max_windows(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    offset: int,
    image_stride: int,
    row_stride: int,
    windows: Windows,
    op: Any = nl.maximum,
) -> None:
    """dst (p, n, rows, cols) = the maxima, or sums (nl.add), of the windows of n images, channels on the partitions.

    src: a whole SBUF tile; the images' first window starts ``offset`` elements into a partition, images are
    ``image_stride`` elements apart, rows ``row_stride``. Overlapping windows are an access pattern, so one vector
    instruction reduces an image, or all of them if their rows are equally spaced throughout.
    """
    kernel, stride, dilation = windows.kernel, windows.stride, windows.dilation
    parts, images, rows, cols = dst.shape
    partition = src.get_pattern()[0][0]
    window = [[dilation[0] * row_stride, kernel[0]], [dilation[1], kernel[1]]]
    if image_stride == rows * stride[0] * row_stride and dst.is_contiguous():
        images, rows = 1, images * rows
        dst = dst.reshape((parts, 1, rows, cols))
    for n in range(images):
        pattern = [[partition, parts], [stride[0] * row_stride, rows], [stride[1], cols]] + window
        nisa.tensor_reduce(
            dst=dst[:, n, :, :],
            op=op,
            data=src.ap(pattern=pattern, offset=offset + n * image_stride),
            axis=(3, 4),
        )


def max_pool2d(
    dst: nl.NkiTensor, src: nl.NkiTensor, channels: int, kernel: Pair, stride: Pair, pads: Pair, dilation: Pair
) -> None:
    """dst = the maxima of the kernel-sized windows of src.

    A NaN is the maximum of every window that sees it (onnxruntime's answer depends on its place in the window).

    dst: HBM (N, C, OH, OW), or SBUF ``channels`` (P, B, N, OH, OW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, B, N, H, W)
    channels: C
    kernel, stride, dilation: (rows, columns)
    pads: (top, left), negative where the first window starts within the image; what windows need beyond the bottom and
        right edges is padding, too

    numpy: sliding_window_view of src padded with the lowest float, strided, .max of each window
    """
    if _is_whole(dst, src, kernel, pads):
        _whole_images(dst, src, channels, nl.maximum)
        return
    windows = Windows(kernel, stride, dilation)
    tile = _tile_of(dst, windows)
    for block in range(ceil_div(channels, nl.tile_size.pmax)):
        parts = block_rows(channels, block)
        for place in _places(dst, tile):
            y_sb = _output_tile(dst, block, parts, place)
            corner = (place.rows[0] * stride[0] - pads[0], place.columns[0] * stride[1] - pads[1])
            _pool_tile(y_sb, src, block, place.images[0], corner, tile, windows, True)
            _store_output(dst, y_sb, block, place)


def avg_pool2d(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    channels: int,
    kernel: Pair,
    stride: Pair,
    pads: tuple[int, int, int, int],
    dilation: Pair,
    count_include_pad: bool,
) -> None:
    """dst = the averages of the kernel-sized windows of src.

    dst: HBM (N, C, OH, OW), or SBUF ``channels`` (P, B, N, OH, OW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, B, N, H, W)
    channels: C
    kernel, stride, dilation: (rows, columns)
    pads: (top, left, bottom, right), negative if the first or last windows leave pixels out
    count_include_pad: count the padding's zeros; elements beyond the padding (ceil_mode) never count

    A window in which nothing counts gives 0. Sums and averages are float32.

    numpy: sliding_window_view of src padded with zeros, strided, .sum of each window / how many of it count
    """
    if _is_whole(dst, src, kernel, pads):
        _whole_images(dst, src, channels, nl.add)
        return
    windows = Windows(kernel, stride, dilation)
    tile = _tile_of(dst, windows)
    rows = _counted_range(src.shape[-2], (pads[0], pads[2]), count_include_pad)
    columns = _counted_range(src.shape[-1], (pads[1], pads[3]), count_include_pad)
    for block in range(ceil_div(channels, nl.tile_size.pmax)):
        parts = block_rows(channels, block)
        for place in _places(dst, tile):
            (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
            sum_sb = nl.ndarray((parts, n1 - n0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.sbuf)
            y_sb = _output_tile(dst, block, parts, place)
            corner = (r0 * stride[0] - pads[0], c0 * stride[1] - pads[1])
            _pool_tile(sum_sb, src, block, n0, corner, tile, windows, False)
            row_runs = _runs(corner[0], r1 - r0, kernel[0], stride[0], dilation[0], rows)
            column_runs = _runs(corner[1], c1 - c0, kernel[1], stride[1], dilation[1], columns)
            _divide_by_counts(y_sb, sum_sb, row_runs, column_runs)
            _store_output(dst, y_sb, block, place)


def pool_tile_bytes(images: int, image: Pair, size: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> int:
    """The most bytes per partition that the tiles take, for planners, for a call from images (rows, columns) to results
    of ``size``: a band of the source, sums and results, each no larger than the images with their padding."""
    rows = max(image[0], (size[0] - 1) * stride[0] + _span(kernel[0], dilation[0]))
    columns = max(image[1], (size[1] - 1) * stride[1] + _span(kernel[1], dilation[1]))
    return 3 * min(INPUT_BAND_BYTES, images * rows * columns * 4)


def _is_whole(dst: nl.NkiTensor, src: nl.NkiTensor, kernel: Pair, pads: tuple[int, ...]) -> bool:
    """True if each window is a whole image, and images and results are in SBUF: then no data has to move."""
    padded = pads[0] != 0 or pads[1] != 0 or kernel != (src.shape[-2], src.shape[-1])
    return not padded and not is_hbm_tensor(src) and not is_hbm_tensor(dst) and dst.shape[-2] * dst.shape[-1] == 1


def _whole_images(dst: nl.NkiTensor, src: nl.NkiTensor, channels: int, op: Any) -> None:
    """dst (P, B, N, 1, 1) = the maxima, or averages (nl.add), of whole images (P, B, N, H, W): full blocks together,
    then the rest."""
    pixels = src.shape[3] * src.shape[4]
    full = channels // nl.tile_size.pmax
    for span in [(0, full, nl.tile_size.pmax), (full, src.shape[1], channels - full * nl.tile_size.pmax)]:
        first, end, parts = span
        if parts == 0 or first == end:
            continue
        y_sb = dst[0:parts, first:end, :, 0, 0]
        images = src[0:parts, first:end]
        if op == nl.maximum:
            nisa.tensor_reduce(dst=y_sb, op=op, data=images, axis=(3, 4))
            continue
        sums_sb = nl.ndarray((parts, end - first, src.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
        is_shared = SHARED_PIXELS[0] <= pixels and pixels <= SHARED_PIXELS[1] and src.shape[3] > 1
        if is_shared and is_recent():
            rows = max(1, src.shape[3] * VECTOR_SHARE // 100)
            nisa.tensor_reduce(dst=sums_sb, op=op, data=images[:, :, :, 0:rows], axis=(3, 4))
            rest_sb = _sum_by_scalar(images[:, :, :, rows:], 1.0 / pixels)
            nisa.scalar_tensor_tensor(
                dst=y_sb, data=sums_sb, op0=nl.multiply, operand0=1.0 / pixels, op1=nl.add, operand1=rest_sb
            )
        else:
            nisa.tensor_reduce(dst=sums_sb, op=op, data=images, axis=(3, 4))
            nisa.tensor_scalar(dst=y_sb, data=sums_sb, op0=nl.multiply, operand0=1.0 / pixels)


def _sum_by_scalar(images: nl.NkiTensor, factor: float) -> nl.NkiTensor:
    """(P, B, N) float32 = the sums of images (P, B, N, rows, columns) times ``factor``, by the scalar engine. It also
    writes what it sums, which nobody reads."""
    parts, blocks, count, rows, columns = images.shape
    sums_sb = nl.ndarray((parts, blocks, count), dtype=nl.float32, buffer=nl.sbuf)
    for block in range(blocks):
        for n in range(count):
            unread_sb = nl.ndarray((parts, rows, columns), dtype=images.dtype, buffer=nl.sbuf)
            nisa.activation_reduce(
                dst=unread_sb,
                op=nl.copy,
                data=images[:, block, n],
                reduce_op=nl.add,
                reduce_res=sums_sb[:, block, n : n + 1],
                scale=factor,
            )
    return sums_sb


def _tile_of(dst: nl.NkiTensor, windows: Windows) -> Tile:
    """Whole windows of whole rows if a band holds them; else fewer columns; else parts of windows."""
    kernel, stride, dilation = windows.kernel, windows.stride, windows.dilation
    images, height, width = image_count(dst), dst.shape[-2], dst.shape[-1]
    limit = INPUT_BAND_BYTES // 4
    span = (_span(kernel[0], dilation[0]), _span(kernel[1], dilation[1]))
    if span[0] * span[1] > limit:
        if span[1] > limit:
            return Tile(1, 1, 1, (1, (limit - 1) // dilation[1] + 1))
        columns = min(width, max(0, limit // PART_ROWS - span[1]) // stride[1] + 1)
        high = limit // (span[1] + (columns - 1) * stride[1])
        return Tile(1, 1, columns, (min(kernel[0], (high - 1) // dilation[0] + 1), kernel[1]))
    columns = min(width, (limit // span[0] - span[1]) // stride[1] + 1)
    band_cols = span[1] + (columns - 1) * stride[1]
    rows = min(height, (limit // band_cols - span[0]) // stride[0] + 1)
    if columns < width or rows < height:
        return Tile(1, rows, columns, kernel)
    band_rows = span[0] + (rows - 1) * stride[0]
    return Tile(max(1, min(images, limit // (band_rows * band_cols))), rows, columns, kernel)


def _span(taps: int, dilation: int) -> int:
    """The distance from the first to the last of ``taps``, inclusive."""
    return (taps - 1) * dilation + 1


def _places(dst: nl.NkiTensor, tile: Tile) -> list[Rectangle]:
    """The rectangles in which the result is computed."""
    images, height, width = image_count(dst), dst.shape[-2], dst.shape[-1]
    places = []
    for n0 in range(0, images, tile.images):
        for r0 in range(0, height, tile.rows):
            for c0 in range(0, width, tile.columns):
                n1, r1 = min(images, n0 + tile.images), min(height, r0 + tile.rows)
                places.append(Rectangle((n0, n1), (r0, r1), (c0, min(width, c0 + tile.columns))))
    return places


def _pool_tile(
    y_sb: nl.NkiTensor,
    src: nl.NkiTensor,
    block: int,
    n0: int,
    corner: Pair,
    tile: Tile,
    windows: Windows,
    largest: bool,
) -> None:
    """y_sb (p, n, rows, cols) = the maxima or sums of windows; the first one starts at ``corner`` of the image."""
    kernel, stride, dilation = windows.kernel, windows.stride, windows.dilation
    parts, images, rows, cols = y_sb.shape
    op = nl.maximum if largest else nl.add
    for i in range(0, kernel[0], tile.taps[0]):
        for j in range(0, kernel[1], tile.taps[1]):
            taps = (min(tile.taps[0], kernel[0] - i), min(tile.taps[1], kernel[1] - j))
            band_rows = (rows - 1) * stride[0] + _span(taps[0], dilation[0])
            band_cols = (cols - 1) * stride[1] + _span(taps[1], dilation[1])
            band_sb = nl.ndarray((parts, images, band_rows, band_cols), dtype=src.dtype, buffer=nl.sbuf)
            row0, col0 = corner[0] + i * dilation[0], corner[1] + j * dilation[1]
            load_band(band_sb, src, block, n0, row0, col0, LOWEST if largest else 0.0)
            part_sb = y_sb
            if i + j > 0:
                part_sb = nl.ndarray(y_sb.shape, dtype=y_sb.dtype, buffer=nl.sbuf)
            max_windows(part_sb, band_sb, 0, band_rows * band_cols, band_cols, Windows(taps, stride, dilation), op)
            if i + j > 0:
                nisa.tensor_tensor(dst=y_sb, data1=y_sb, data2=part_sb, op=op)


def _counted_range(size: int, pads: Pair, count_include_pad: bool) -> Pair:
    """(first, end) of the rows or columns that count in an average."""
    return (-pads[0], size + pads[1]) if count_include_pad else (0, size)


def _runs(start: int, count: int, taps: int, stride: int, dilation: int, counted: Pair) -> list[tuple[int, int, int]]:
    """(first, end, the counting taps of each) of the runs among ``count`` windows with equally many counting taps."""
    runs = []
    first, before = 0, -1
    for i in range(count):
        place = start + i * stride
        low = max(0, ceil_div(counted[0] - place, dilation))
        high = min(taps, ceil_div(counted[1] - place, dilation))
        here = max(0, high - low)
        if i > 0 and here != before:
            runs.append((first, i, before))
            first = i
        before = here
    runs.append((first, count, before))
    return runs


def _divide_by_counts(
    y_sb: nl.NkiTensor,
    sum_sb: nl.NkiTensor,
    row_runs: list[tuple[int, int, int]],
    column_runs: list[tuple[int, int, int]],
) -> None:
    """y_sb = sum_sb divided by the counting elements of each window: one number for most windows, others at the
    edges."""
    for row_run in row_runs:
        r0, r1, rows = row_run
        for column_run in column_runs:
            c0, c1, columns = column_run
            factor = 1.0 / (rows * columns) if rows * columns > 0 else 0.0
            nisa.tensor_scalar(
                dst=y_sb[:, :, r0:r1, c0:c1], data=sum_sb[:, :, r0:r1, c0:c1], op0=nl.multiply, operand0=factor
            )


def load_band(band_sb: nl.NkiTensor, src: nl.NkiTensor, block: int, n0: int, row0: int, col0: int, fill: float) -> None:
    """band_sb (p, n, rows, cols) = images ``n0``... of one channel block, from (row0, col0) on; ``fill`` outside.

    src: HBM (N, C, H, W), or SBUF ``channels``. row0 and col0 may be negative, the band may end outside.
    """
    parts, images, rows, cols = band_sb.shape
    height, width = src.shape[-2], src.shape[-1]
    top, left = max(0, -row0), max(0, -col0)
    bottom = min(rows, height - row0)
    right = min(cols, width - col0)
    if top > 0 or left > 0 or bottom < rows or right < cols:
        nisa.memset(dst=band_sb, value=fill)
    if bottom <= top or right <= left:
        return
    inner_sb = band_sb[:, :, top:bottom, left:right]
    place = Rectangle((n0, n0 + images), (row0 + top, row0 + bottom), (col0 + left, col0 + right))
    image = image_part(src, block, parts, place)
    if is_hbm_tensor(src):
        transfer(inner_sb, image)
    else:
        nisa.tensor_copy(dst=inner_sb, src=image)


def _output_tile(dst: nl.NkiTensor, block: int, parts: int, place: Rectangle) -> nl.NkiTensor:
    """The place to compute a part of the result: in dst itself, or in a tile on its way to HBM."""
    part = image_part(dst, block, parts, place)
    return nl.ndarray(part.shape, dtype=dst.dtype, buffer=nl.sbuf) if is_hbm_tensor(dst) else part


def _store_output(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, place: Rectangle) -> None:
    """Store a tile of ``_output_tile`` to HBM; nothing to do if it was computed in place."""
    if is_hbm_tensor(dst):
        transfer(image_part(dst, block, y_sb.shape[0], place), y_sb)
