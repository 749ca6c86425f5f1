"""Normalisation of the channels at each position of images, with channels on the partitions."""

import math
from typing import Optional

from trnrt.kernels.common import Pair, block_rows, ceil_div, image_count, is_hbm_tensor, load
from trnrt.nki import nisa, nl

# Elements per partition that are worked on at once, over all blocks of channels: 8 KiB of float32, and no more
# positions than a PSUM bank holds.
ELEMENTS = 2048
# Channels of one position that can be worked on at once.
MAX_CHANNELS = 128 * ELEMENTS
# float32 tiles of ELEMENTS at once: source, differences, squares, the scaled and the stored result; of two pieces.
TILES = 10


def normalize_channels_bytes(channels: int) -> int:
    """The most bytes per partition that the tiles take, for planners."""
    return 4 * (TILES * ELEMENTS + 4 * _columns(channels) + 2 * min(channels, nl.tile_size.pmax))


def normalize_channels(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    scale: Optional[nl.NkiTensor],
    bias: Optional[nl.NkiTensor],
    channels: int,
    eps: float,
) -> None:
    """dst = (src - mean) / sqrt(variance + eps) * scale + bias; mean and variance are those of a position's channels.

    dst, src: HBM (N, C, H*W), or channels, SBUF (P, ceil(C/128), N, H, W)
    scale, bias: None, or HBM or SBUF (P, ceil(C/128)) float32, one number per channel
    channels: C
    limits: C <= MAX_CHANNELS

    The tensor engine sums over the partitions, and puts the sum on each: a product with ones. The arithmetic is
    float32, but squares of bfloat16 images are rounded to bfloat16 before they are summed. A mean is off by the
    rounding of a float32 sum. NaN or infinity in one channel makes its whole position NaN.

    numpy: m, v = src.mean(axis=1, keepdims=True), src.var(axis=1, keepdims=True);
           (src - m) / sqrt(v + eps) * scale[:, None] + bias[:, None]
    """
    assert channels <= MAX_CHANNELS, f"normalize_channels: {channels} channels; the limit is {MAX_CHANNELS}"
    rows = min(channels, nl.tile_size.pmax)
    square_dtype = nl.bfloat16 if src.dtype == nl.bfloat16 else nl.float32
    ones_sb = nl.ndarray((rows, rows), dtype=src.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    square_ones_sb = ones_sb
    if square_dtype != src.dtype:
        square_ones_sb = nl.ndarray((rows, rows), dtype=square_dtype, buffer=nl.sbuf)
        nisa.memset(dst=square_ones_sb, value=1.0)
    scale_sb = load(scale) if scale is not None and is_hbm_tensor(scale) else scale
    bias_sb = load(bias) if bias is not None and is_hbm_tensor(bias) else bias
    for place in _channel_pieces(image_count(src), _positions(src), _columns(channels)):
        x_sb = _load_piece(src, channels, place)
        y_sb = _result_piece(dst, x_sb, place)
        d_sb = _centre(x_sb, ones_sb, channels)
        rate_sb = _inverse_deviations(d_sb, square_ones_sb, channels, eps)
        scaled_sb = y_sb if scale is None else d_sb
        for part in _parts(channels):
            k, b0, b1 = part
            each = rate_sb[0:k].expand_dim(1).broadcast(1, b1 - b0)
            nisa.tensor_tensor(dst=scaled_sb[0:k, b0:b1], data1=d_sb[0:k, b0:b1], data2=each, op=nl.multiply)
        if scale_sb is not None and bias_sb is not None:
            for b in range(y_sb.shape[1]):
                k = block_rows(channels, b)
                factor, shift = scale_sb[0:k, b : b + 1], bias_sb[0:k, b : b + 1]
                nisa.activation(dst=y_sb[0:k, b], op=nl.copy, data=d_sb[0:k, b], scale=factor, bias=shift)
        if is_hbm_tensor(dst):
            _store_piece(dst, y_sb, channels, place)


def _positions(images: nl.NkiTensor) -> int:
    """The pixels of an image."""
    return images.shape[2] if is_hbm_tensor(images) else images.shape[3] * images.shape[4]


def _columns(channels: int) -> int:
    """Positions that are worked on at once."""
    return min(nl.tile_size.psum_bank_fmax, ELEMENTS // ceil_div(channels, nl.tile_size.pmax))


def _channel_pieces(images: int, positions: int, columns: int) -> list[tuple[Pair, Pair]]:
    """The (first, end) images and positions of each piece: whole images, or a part of one."""
    n_step = max(1, columns // positions)
    p_step = ceil_div(positions, ceil_div(positions, columns))
    found: list[tuple[Pair, Pair]] = []
    for n0 in range(0, images, n_step):
        for p0 in range(0, positions, p_step):
            found.append(((n0, min(images, n0 + n_step)), (p0, min(positions, p0 + p_step))))
    return found


def _parts(channels: int) -> list[tuple[int, int, int]]:
    """(channels on the partitions, first block, end): the full blocks together, and the last one if it is smaller."""
    full, rest = channels // nl.tile_size.pmax, channels % nl.tile_size.pmax
    parts: list[tuple[int, int, int]] = []
    if full > 0:
        parts.append((nl.tile_size.pmax, 0, full))
    if rest > 0:
        parts.append((rest, full, full + 1))
    return parts


def _piece_view(images: nl.NkiTensor, place: tuple[Pair, Pair]) -> nl.NkiTensor:
    """A piece of images in SBUF (P, B, columns)."""
    (n0, n1), (p0, p1) = place
    parts, blocks, count, height, width = images.shape
    first = n0 * height * width + p0
    return images.reshape((parts, blocks, count * height * width))[:, :, first : first + (n1 - n0) * (p1 - p0)]


def _load_piece(src: nl.NkiTensor, channels: int, place: tuple[Pair, Pair]) -> nl.NkiTensor:
    """A piece of images (P, B, columns), in SBUF."""
    if not is_hbm_tensor(src):
        return _piece_view(src, place)
    (n0, n1), (p0, p1) = place
    blocks = ceil_div(channels, nl.tile_size.pmax)
    shape = (min(channels, nl.tile_size.pmax), blocks, n1 - n0, p1 - p0)
    x_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
    for b in range(blocks):
        k, c0 = block_rows(channels, b), b * nl.tile_size.pmax
        nisa.dma_copy(dst=x_sb[0:k, b], src=src[n0:n1, c0 : c0 + k, p0:p1].permute((1, 0, 2)))
    return x_sb.flatten_dims(2, 3)


def _result_piece(dst: nl.NkiTensor, x_sb: nl.NkiTensor, place: tuple[Pair, Pair]) -> nl.NkiTensor:
    """The tile to compute a piece of the result in: in dst itself, or on its way to HBM."""
    if is_hbm_tensor(dst):
        return nl.ndarray(x_sb.shape, dtype=dst.dtype, buffer=nl.sbuf)
    return _piece_view(dst, place)


def _store_piece(dst: nl.NkiTensor, y_sb: nl.NkiTensor, channels: int, place: tuple[Pair, Pair]) -> None:
    """Store a piece (P, B, columns) to its place in HBM."""
    (n0, n1), (p0, p1) = place
    for b in range(y_sb.shape[1]):
        k, c0 = block_rows(channels, b), b * nl.tile_size.pmax
        images = dst[n0:n1, c0 : c0 + k, p0:p1].permute((1, 0, 2))
        nisa.dma_copy(dst=images, src=y_sb[0:k, b].reshape_dim(1, (n1 - n0, p1 - p0)))


def _sum_channels(x_sb: nl.NkiTensor, ones_sb: nl.NkiTensor, channels: int) -> nl.NkiTensor:
    """The sums over the channels of x_sb (P, B, columns), the same on each partition: PSUM, one bank."""
    sum_psum = nl.ndarray((ones_sb.shape[0], x_sb.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for b in range(x_sb.shape[1]):
        k = block_rows(channels, b)
        nisa.nc_matmul(dst=sum_psum, stationary=ones_sb[0:k], moving=x_sb[0:k, b], accumulate=b > 0)
    return sum_psum


def _centre(x_sb: nl.NkiTensor, ones_sb: nl.NkiTensor, channels: int) -> nl.NkiTensor:
    """x_sb (P, B, columns) less the mean of each position, in float32."""
    sum_psum = _sum_channels(x_sb, ones_sb, channels)
    mean_sb = nl.ndarray(sum_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=mean_sb, op=nl.copy, data=sum_psum, scale=-1.0 / channels)
    d_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    for part in _parts(channels):
        k, b0, b1 = part
        each = mean_sb[0:k].expand_dim(1).broadcast(1, b1 - b0)
        nisa.tensor_tensor(dst=d_sb[0:k, b0:b1], data1=x_sb[0:k, b0:b1], data2=each, op=nl.add)
    return d_sb


def _inverse_deviations(d_sb: nl.NkiTensor, ones_sb: nl.NkiTensor, channels: int, eps: float) -> nl.NkiTensor:
    """1 / sqrt(the mean square of each position + eps), the same on each partition, of differences d_sb."""
    square_sb = nl.ndarray(d_sb.shape, dtype=ones_sb.dtype, buffer=nl.sbuf)
    for part in _parts(channels):
        k, b0, b1 = part
        root = math.pow(channels, -0.5)
        nisa.activation(dst=square_sb[0:k, b0:b1], op=nl.square, data=d_sb[0:k, b0:b1], scale=root)
    sum_psum = _sum_channels(square_sb, ones_sb, channels)
    rate_sb = nl.ndarray(sum_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rate_sb, data=sum_psum, op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    return rate_sb
