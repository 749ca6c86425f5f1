"""Resize images: pixels repeated, or summed along rows and columns by products with constant matrices.

The first product has the image as its stationary operand. Its result is transposed, with the image's columns on the
partitions, where the second product, along those columns, contracts: no other transpose is needed. Several narrow
images share the partitions: the columns' matrix is block-diagonal, with one block per image.
"""

from typing import Any

from trnrt.kernels.common import Pair, block_rows, ceil_div, load
from trnrt.kernels.operands import copy
from trnrt.nki import nisa, nl

# The largest image: rows and columns.
MAX_SIZE = 2048
# Bytes per partition for the image, for each matrix (or its part for a bank of results), for the result of the first
# product, and for the results.
IMAGE_BYTES = 16 * 1024
MATRIX_BYTES = 32 * 1024
BETWEEN_BYTES = 32 * 1024
RESULT_BYTES = 16 * 1024
# Bytes per partition of pixels that are repeated.
REPEATED_BYTES = 32 * 1024


def images_together(width: int, result: int) -> int:
    """The number of images of ``width`` columns that share the partitions, if their ``result`` columns share a PSUM
    bank."""
    return max(1, min(nl.tile_size.pmax // width, nl.tile_size.psum_bank_fmax // result))


def resize(dst: nl.NkiTensor, src: nl.NkiTensor, rows: nl.NkiTensor, columns: nl.NkiTensor) -> None:
    """dst = each image of src with its rows and columns resampled.

    dst: HBM (N, C, OH, OW)
    src: HBM (N, C, H, W)
    rows: HBM (H, OH): the weights of each result's row; the dtype of src
    columns: HBM (K*W, K*OW): the weights of each result's column, K times on the diagonal and zeros elsewhere;
        K is at most C and ``images_together(W, OW)``. The dtype of src
    limits: H, W <= MAX_SIZE. The intermediate is in the dtype of src. NaN and infinity reach all results of the image,
        and of the K - 1 images beside it

    numpy: rows.T @ src @ columns[0:W, 0:OW]
    """
    images, channels, height, width = src.shape
    assert height <= MAX_SIZE and width <= MAX_SIZE, f"resize: images of {height} x {width}; the limit is {MAX_SIZE}"
    together = columns.shape[0] // width
    assert rows.shape == (height, dst.shape[2]), f"resize: rows are {rows.shape}, images {src.shape} and {dst.shape}"
    assert columns.shape == (together * width, together * dst.shape[3]), f"resize: columns are {columns.shape}"
    rows_sb = _load_if_fits(rows, rows.shape[1])
    columns_sb = _load_if_fits(columns, columns.shape[1])
    step = _channels_at_once(src, dst, together)
    bank = nl.tile_size.psum_bank_fmax
    for n in range(images):
        for c0 in range(0, channels, step):
            c1 = min(channels, c0 + step)
            x_sb = _load_image_rows(src[n, c0:c1]) if _is_held(src) else None
            for r0 in range(0, dst.shape[2], bank):
                r1 = min(dst.shape[2], r0 + bank)
                part_sb = rows_sb[:, :, r0:r1] if rows_sb is not None else _load_matrix(rows[:, r0:r1])
                between_sb = _resize_rows(src[n, c0:c1], x_sb, part_sb, together)
                _resize_columns(dst[n, c0:c1, r0:r1], between_sb, columns, columns_sb, together)


def _load_if_fits(matrix: nl.NkiTensor, columns: int) -> Any:
    """The matrix in SBUF, or None if it doesn't fit."""
    if ceil_div(matrix.shape[0], nl.tile_size.pmax) * columns * 4 > MATRIX_BYTES:
        return None
    return _load_matrix(matrix)


def _is_held(src: nl.NkiTensor) -> bool:
    """True if a whole image fits SBUF."""
    return ceil_div(src.shape[2], nl.tile_size.pmax) * src.shape[3] * 4 <= IMAGE_BYTES


def _channels_at_once(src: nl.NkiTensor, dst: nl.NkiTensor, together: int) -> int:
    """The number of channels per transfer: a multiple of ``together``, 1 if not even one fits."""
    bank = nl.tile_size.psum_bank_fmax
    height_blocks, width_blocks = ceil_div(src.shape[2], nl.tile_size.pmax), ceil_div(src.shape[3], nl.tile_size.pmax)
    image = height_blocks * src.shape[3] * 4
    between = width_blocks * min(bank, dst.shape[2]) * 4
    result = min(bank, dst.shape[3]) * 4
    groups = min(min(IMAGE_BYTES // (image * together), BETWEEN_BYTES // between), RESULT_BYTES // (result * together))
    return max(1, groups) * together


def _load_matrix(matrix: nl.NkiTensor) -> nl.NkiTensor:
    """HBM (K, F) as SBUF (P, ceil(K/128), F): row b*128 + p on partition p."""
    depth, size = matrix.shape
    if depth <= nl.tile_size.pmax:
        return load(matrix).expand_dim(1)
    blocks = ceil_div(depth, nl.tile_size.pmax)
    tile_sb = nl.ndarray((nl.tile_size.pmax, blocks, size), dtype=matrix.dtype, buffer=nl.sbuf)
    full = depth // nl.tile_size.pmax
    view = matrix[0 : full * nl.tile_size.pmax, :].reshape_dim(0, (full, nl.tile_size.pmax))
    nisa.dma_copy(dst=tile_sb[:, 0:full], src=view.permute((1, 0, 2)))
    if full < blocks:
        rest = depth - full * nl.tile_size.pmax
        nisa.dma_copy(dst=tile_sb[0:rest, full], src=matrix[full * nl.tile_size.pmax : depth, :])
    return tile_sb


def _load_image_rows(src: nl.NkiTensor) -> nl.NkiTensor:
    """HBM (C, H, W) as SBUF (P, ceil(H/128), C, W): row b*128 + p on partition p."""
    channels, height, width = src.shape
    blocks = ceil_div(height, nl.tile_size.pmax)
    shape = (min(height, nl.tile_size.pmax), blocks, channels, width)
    tile_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
    for block in range(blocks):
        h0, h1 = block * nl.tile_size.pmax, min(height, (block + 1) * nl.tile_size.pmax)
        nisa.dma_copy(dst=tile_sb[0 : h1 - h0, block], src=src[:, h0:h1, :].permute((1, 0, 2)))
    return tile_sb


def _resize_rows(src: nl.NkiTensor, x_sb: Any, rows_sb: nl.NkiTensor, together: int) -> nl.NkiTensor:
    """SBUF (P, ceil(K*W/128), groups, OH): the resized rows of each K = ``together`` images of src (C, H, W), their
    columns on the partitions. x_sb: the images in SBUF, or None."""
    channels, height, width = src.shape
    size = rows_sb.shape[2]
    wide = together * width
    groups, blocks = ceil_div(channels, together), ceil_div(wide, nl.tile_size.pmax)
    between_sb = nl.ndarray((min(wide, nl.tile_size.pmax), blocks, groups, size), dtype=src.dtype, buffer=nl.sbuf)
    for group in range(groups):
        c0, c1 = group * together, min(channels, (group + 1) * together)
        for block in range(blocks):
            w0, w1 = block * nl.tile_size.pmax, min((c1 - c0) * width, (block + 1) * nl.tile_size.pmax)
            if x_sb is None:
                image_sb = _load_image_rows(src[c0:c1, :, w0:w1])
                image_sb = image_sb.flatten_dims(2, 3)
            else:
                image_sb = x_sb[:, :, c0:c1, :].flatten_dims(2, 3)[:, :, w0:w1]
            sum_psum = nl.ndarray((w1 - w0, size), dtype=nl.float32, buffer=nl.psum)
            for h in range(rows_sb.shape[1]):
                k = min(nl.tile_size.pmax, height - h * nl.tile_size.pmax)
                nisa.nc_matmul(
                    dst=sum_psum, stationary=image_sb[0:k, h, :], moving=rows_sb[0:k, h, :], accumulate=h > 0
                )
            copy(between_sb[0 : w1 - w0, block, group, :], sum_psum, group + block)
    return between_sb


def _resize_columns(
    dst: nl.NkiTensor, between_sb: nl.NkiTensor, columns: nl.NkiTensor, columns_sb: Any, together: int
) -> None:
    """dst (C, OH, OW) in HBM = the result of ``_resize_rows``, with its columns summed by ``columns``; columns_sb:
    these in SBUF, or None."""
    channels, height, width = dst.shape
    groups = between_sb.shape[2]
    step = min(width, nl.tile_size.psum_bank_fmax)
    for w0 in range(0, width, step):
        w1 = min(width, w0 + step)
        # Images that share the partitions also share a bank: all their columns are one piece.
        p0, p1 = w0 * together, w1 * together
        part_sb = _load_matrix(columns[:, p0:p1]) if columns_sb is None else columns_sb[:, :, p0:p1]
        for r0 in range(0, height, nl.tile_size.pmax):
            r1 = min(height, r0 + nl.tile_size.pmax)
            y_sb = nl.ndarray((r1 - r0, channels, w1 - w0), dtype=dst.dtype, buffer=nl.sbuf)
            for group in range(groups):
                c0, c1 = group * together, min(channels, (group + 1) * together)
                sum_psum = nl.ndarray((r1 - r0, c1 - c0, w1 - w0), dtype=nl.float32, buffer=nl.psum)
                depth = columns.shape[0] // together * (c1 - c0)
                for block in range(ceil_div(depth, nl.tile_size.pmax)):
                    k = min(nl.tile_size.pmax, depth - block * nl.tile_size.pmax)
                    nisa.nc_matmul(
                        dst=sum_psum.flatten_dims(1, 2),
                        stationary=between_sb[0:k, block, group, r0:r1],
                        moving=part_sb[0:k, block, 0 : (c1 - c0) * (w1 - w0)],
                        accumulate=block > 0,
                    )
                copy(y_sb[:, c0:c1, :], sum_psum, group)
            nisa.dma_copy(dst=dst[:, r0:r1, w0:w1].permute((1, 0, 2)), src=y_sb)


def repeat_pixels(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = rows of pixels, each row and each pixel of it several times, bit for bit.

    dst: HBM (R, A, W, B): each row A times, each pixel B times
    src: HBM (R, W), the dtype of dst

    numpy: np.broadcast_to(src[:, None, :, None], dst.shape)
    """
    rows, high, width, wide = dst.shape
    assert src.shape == (rows, width), f"repeat_pixels: dst is {dst.shape}, src {src.shape}"
    step = max(1, min(width, REPEATED_BYTES // (high * wide * 4)))
    held = 1
    if step == width:
        held = min(ceil_div(rows, nl.tile_size.pmax), REPEATED_BYTES // (high * width * wide * 4))
    number = 0
    r0 = 0
    while r0 < rows:
        # Rows that fill all partitions; the last rows go one per partition.
        count = min(nl.tile_size.pmax, (rows - r0) // held)
        if count == 0:
            held, count = 1, min(nl.tile_size.pmax, rows - r0)
        r1 = r0 + count * held
        for c0 in range(0, width, step):
            c1 = min(width, c0 + step)
            x_sb = nl.ndarray((count, held, c1 - c0), dtype=src.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=x_sb, src=src[r0:r1, c0:c1].reshape_dim(0, (count, held)))
            y_sb = nl.ndarray((count, held, high, c1 - c0, wide), dtype=dst.dtype, buffer=nl.sbuf)
            for a in range(high):
                pixels = x_sb.expand_dim(3).broadcast(3, wide)
                copy(y_sb[:, :, a], pixels, number)
                number += 1
            nisa.dma_copy(dst=dst[r0:r1, :, c0:c1, :].reshape_dim(0, (count, held)), src=y_sb)
        r0 = r1


def repeat_images(dst: nl.NkiTensor, src: nl.NkiTensor, channels: int, times: Pair) -> None:
    """dst = images with each row and each of its pixels several times, bit for bit.

    dst: SBUF ``channels`` (P, ceil(C/128), N, A*H, B*W), of the dtype of src
    src: SBUF ``channels`` (P, ceil(C/128), N, H, W)
    channels: C
    times: A, B

    numpy: src.repeat(A, axis=3).repeat(B, axis=4)
    """
    _, blocks, images, height, width = src.shape
    high, wide = times
    assert dst.shape[1:] == (blocks, images, high * height, wide * width), f"repeat_images: {src.shape} in {dst.shape}"
    number = 0
    for block in range(blocks):
        parts = block_rows(channels, block)
        # Rows of all images: (parts, rows, columns).
        x_sb, y_sb = src[0:parts, block].flatten_dims(1, 2), dst[0:parts, block].flatten_dims(1, 2)
        pixels = x_sb.expand_dim(3).broadcast(3, wide)
        for a in range(high):
            copy(y_sb[:, a : images * height * high : high].reshape_dim(2, (width, wide)), pixels, number)
            number += 1
