"""Two-dimensional max pooling, and the window reduction that fused convolutions share."""

from trnrt.kernels.common import LOWEST, Pair, block_rows, ceil_div, is_hbm_tensor
from trnrt.nki import nisa, nl

# Bytes a partition that one band of input rows may take.
BAND_BYTES = 32 * 1024


def max_windows(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    offset: int,
    image_stride: int,
    row_stride: int,
    kernel: Pair,
    stride: Pair,
    dilation: Pair,
) -> None:
    """dst (p, n, rows, cols) = the maxima of the windows of n images, channels on the partitions.

    src: a whole SBUF tile; the images' first window starts ``offset`` elements into a partition, images are
    ``image_stride`` elements apart, rows ``row_stride``. Overlapping windows are an access pattern, so one vector
    instruction reduces an image, or all of them where their rows are equally spaced throughout.
    """
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
            op=nl.maximum,
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
    pads: (top, left); what windows need beyond the bottom and right edges is padding, too
    limits: the input rows of one result row fit BAND_BYTES

    numpy: sliding_window_view of src padded with the lowest float, strided, .max of each window
    """
    blocks = ceil_div(channels, nl.tile_size.pmax)
    images = dst.shape[0] if is_hbm_tensor(dst) else dst.shape[2]
    height, width = dst.shape[-2], dst.shape[-1]
    band_cols = (width - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    row_bytes = band_cols * 4
    span = (kernel[0] - 1) * dilation[0] + 1
    assert max_pool_fits(width, kernel, stride, dilation), f"max_pool2d: {span} rows of {band_cols} exceed SBUF"
    rows_step = min(height, (BAND_BYTES // row_bytes - span) // stride[0] + 1)
    band_rows = (rows_step - 1) * stride[0] + span
    image_step = max(1, min(images, BAND_BYTES // (row_bytes * band_rows))) if rows_step == height else 1
    for block in range(blocks):
        parts = block_rows(channels, block)
        for n0 in range(0, images, image_step):
            n_size = min(image_step, images - n0)
            for r0 in range(0, height, rows_step):
                r_size = min(rows_step, height - r0)
                rows = (r_size - 1) * stride[0] + span
                band_sb = nl.ndarray((parts, n_size, rows, band_cols), dtype=src.dtype, buffer=nl.sbuf)
                load_band(band_sb, src, block, n0, r0 * stride[0] - pads[0], -pads[1], LOWEST)
                y_sb = output_tile(dst, block, parts, n0, n_size, r0, r_size)
                max_windows(y_sb, band_sb, 0, rows * band_cols, band_cols, kernel, stride, dilation)
                store_output(dst, y_sb, block, n0, r0)


def max_pool_fits(width: int, kernel: Pair, stride: Pair, dilation: Pair) -> bool:
    """Whether one result row of ``width`` can be computed at a time: the limit of max_pool2d, for whoever plans it."""
    columns = (width - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    return ((kernel[0] - 1) * dilation[0] + 1) * columns * 4 <= BAND_BYTES


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
    if is_hbm_tensor(src):
        c0 = block * nl.tile_size.pmax
        image = src[n0 : n0 + images, c0 : c0 + parts, row0 + top : row0 + bottom, col0 + left : col0 + right]
        nisa.dma_copy(dst=inner_sb, src=image.permute((1, 0, 2, 3)))
    else:
        image = src[0:parts, block, n0 : n0 + images, row0 + top : row0 + bottom, col0 + left : col0 + right]
        nisa.tensor_copy(dst=inner_sb, src=image)


def output_tile(dst: nl.NkiTensor, block: int, parts: int, n0: int, n_size: int, r0: int, r_size: int) -> nl.NkiTensor:
    """Where rows ``r0``... of images ``n0``... are computed: in dst itself, or in a tile on its way to HBM."""
    if is_hbm_tensor(dst):
        return nl.ndarray((parts, n_size, r_size, dst.shape[3]), dtype=dst.dtype, buffer=nl.sbuf)
    return dst[0:parts, block, n0 : n0 + n_size, r0 : r0 + r_size, :]


def store_output(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, n0: int, r0: int) -> None:
    """Bring a tile of ``output_tile`` to HBM; nothing where it was computed in place."""
    if is_hbm_tensor(dst):
        parts, n_size, r_size, _ = y_sb.shape
        c0 = block * nl.tile_size.pmax
        out_hbm = dst[n0 : n0 + n_size, c0 : c0 + parts, r0 : r0 + r_size, :]
        nisa.dma_copy(dst=out_hbm.permute((1, 0, 2, 3)), src=y_sb)
