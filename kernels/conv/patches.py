"""Embeddings of patches: a convolution whose kernel is as large as its step, so that no patch overlaps another.

    HBM image (C, H, W) --rows of patches--> SBUF (taps and channels, patch rows, W), stationary
    --tensor: a product for each column of the kernel, or few of them--> PSUM (patches, outputs) -> + bias -> HBM rows

A partition has one row of the kernel and one channel, of all patches: whole rows of the image, so that DMA brings few
long pieces. If there is room, it is loaded again, shifted, for more columns of the kernel. The results are rows, as
encoders read them.
"""

from typing import Any

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes, load
from trnrt.nki import nisa, nl

# Bytes per partition of the images that are in SBUF at once, beside those that are being loaded.
IMAGE_BYTES = 16 * 1024
# The most bytes of a partition in a transfer, with the start of each row counted as ROW_START_BYTES. A transfer of one
# channel keeps two of the 16 DMA engines busy, so transfers should be short: the queue starts the next one soon.
# ViT-B/16 of two layers at batch 8, predicted on trn1 and trn2: 8192 takes 5 and 3 % more; 2048 takes the same on trn1
# and 8 % more on trn2, where each start takes 0.6 us.
PATCH_LOAD_BYTES, ROW_START_BYTES = 4096, 136


def patch_columns(channels: int, kernel: Pair) -> int:
    """Columns of the kernel that share the partitions; 0 if not even one fits."""
    return min(nl.tile_size.pmax // (channels * kernel[0]), kernel[1])


def patch_tile_bytes(size: Pair, kernel: Pair, outputs: int, item: int) -> int:
    """The most bytes per partition that the tiles take: images, results and the bias on all rows."""
    image = size[0] // kernel[0] * size[1] * item
    return 2 * max(image, IMAGE_BYTES) + outputs * 4 + 3 * outputs * item


def embed_patches(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    kernel: Pair,
) -> None:
    """dst = each patch of ``kernel`` pixels times w + bias, patch after patch.

    dst: HBM (N * PH * PW, O)
    src: HBM (N, C, H, W); rows and columns of pixels behind the last patch are left out
    w: HBM or SBUF (J * C * kernel rows, ceil(kernel columns / J), O), prepared, the dtype of src: J is
        ``patch_columns``; partition (j * C + c) * kernel rows + y has tap (y, s * J + j) of channel c at step s
    bias: HBM (1, O) float32
    limits: C * kernel rows <= 128; PW <= 128

    numpy: rows of src.reshape(N, C, PH, kernel rows, PW, kernel columns) times the weights, + bias
    """
    images, channels, height, width = src.shape
    down, across = height // kernel[0], width // kernel[1]
    beside = patch_columns(channels, kernel)
    assert beside > 0, f"embed_patches: {channels} channels of {kernel[0]} rows; the limit is 128 together"
    assert across <= nl.tile_size.pmax, f"embed_patches: {across} patches in a row; the limit is 128"
    outputs = bias.shape[1]
    w_sb = load(w) if is_hbm_tensor(w) else w
    bias_sb = load(bias.broadcast(0, nl.tile_size.pmax))
    each = down * width * item_bytes(src.dtype)
    together = max(1, min(images, IMAGE_BYTES // each))
    for n0 in range(0, images, together):
        n1 = min(images, n0 + together)
        x_sb = _load_patch_rows(src[n0:n1], kernel, beside)
        for n in range(n0, n1):
            step = nl.tile_size.pmax // across
            for r0 in range(0, down, step):
                r1 = min(down, r0 + step)
                row = (n * down + r0) * across
                y_sb = _multiply_patches(x_sb[:, n - n0, r0:r1, :], w_sb, bias_sb, kernel, channels, across)
                nisa.dma_copy(dst=dst[row : row + (r1 - r0) * across, 0:outputs], src=y_sb)


def _load_patch_rows(src: nl.NkiTensor, kernel: Pair, beside: int) -> nl.NkiTensor:
    """(J * C * kernel rows, N, PH, W): rows of all patches, shifted by j pixels in copy j."""
    images, channels, height, width = src.shape
    down = height // kernel[0]
    each = channels * kernel[0]
    x_sb = nl.ndarray((beside * each, images, down, width), dtype=src.dtype, buffer=nl.sbuf)
    step = max(1, PATCH_LOAD_BYTES // (width * item_bytes(src.dtype) + ROW_START_BYTES))
    for n in range(images):
        for r0 in range(0, down, step):
            r1 = min(down, r0 + step)
            for j in range(beside):
                for c in range(channels):
                    first = (j * channels + c) * kernel[0]
                    rows = src[n, c, r0 * kernel[0] : r1 * kernel[0], j:width].reshape_dim(0, (r1 - r0, kernel[0]))
                    part_sb = x_sb[first : first + kernel[0], n, r0:r1, 0 : width - j]
                    nisa.dma_copy(dst=part_sb, src=rows.permute((1, 0, 2)))
    return x_sb


def _multiply_patches(
    x_sb: nl.NkiTensor, w_sb: nl.NkiTensor, bias_sb: nl.NkiTensor, kernel: Pair, channels: int, across: int
) -> nl.NkiTensor:
    """The embeddings (patches, O) of some rows of patches."""
    count, outputs = x_sb.shape[1] * across, w_sb.shape[2]
    each = channels * kernel[0]
    beside = x_sb.shape[0] // each
    y_sb = nl.ndarray((count, outputs), dtype=x_sb.dtype, buffer=nl.sbuf)
    bank = nl.tile_size.psum_bank_fmax
    parts = ceil_div(outputs, bank)
    size = ceil_div(outputs, parts)
    for o0 in range(0, outputs, size):
        o1 = min(outputs, o0 + size)
        sum_psum = nl.ndarray((count, o1 - o0), dtype=nl.float32, buffer=nl.psum)
        for s in range(w_sb.shape[1]):
            first = s * beside
            used = min(beside, kernel[1] - first) * each
            pixels = x_sb[0:used, :, first : first + (across - 1) * kernel[1] + 1 : kernel[1]]
            weights: Any = w_sb[0:used, s, o0:o1]
            nisa.nc_matmul(dst=sum_psum, stationary=pixels, moving=weights, accumulate=s > 0)
        nisa.tensor_tensor(dst=y_sb[:, o0:o1], data1=sum_psum, data2=bias_sb[0:count, o0:o1], op=nl.add)
    return y_sb
