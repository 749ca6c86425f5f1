"""Local response normalisation: each element over a power of the sum of squares in a window of channels."""

from dataclasses import dataclass

from trnrt.kernels.common import Pair, block_rows, ceil_div, image_count, is_hbm_tensor, keep_where
from trnrt.nki import nisa, nl

# Positions that are worked on at once; with many blocks of channels, fewer, so that all of them fit.
POSITIONS = 1024
BLOCK_POSITIONS = 8192


@dataclass
class Extent(nl.NKIObject):
    """Images and positions of a tensor in HBM or SBUF: (first, end) of each."""

    images: Pair
    positions: Pair


def lrn(dst: nl.NkiTensor, src: nl.NkiTensor, channels: int, size: int, alpha: float, beta: float, bias: float) -> None:
    """dst = src / (bias + alpha / size * the sum of squares in a window of ``size`` channels) ** beta.

    dst, src: HBM (N, C, H*W), or channels, SBUF (P, ceil(C/128), N, H, W)
    channels: C
    size: channels of a window, from floor((size - 1) / 2) before to ceil((size - 1) / 2) behind
    limits: size >= 1

    The arithmetic is float32. The windows are summed by a product with a matrix of 0 and 1, so that NaN
    or infinity in one channel makes NaN of others at its position, in its window or not.

    numpy: src / (bias + alpha / size * sum(src[:, c - (size - 1) // 2 : c + size // 2 + 1]**2, axis=1)) ** beta
    """
    assert size >= 1, f"lrn: size is {size}; it must be at least 1"
    dst, src = _flatten_pixels(dst), _flatten_pixels(src)
    images, positions = image_count(src), src.shape[-1]
    bands_sb = _band_matrices(channels, size)
    bias_sb = nl.ndarray((min(channels, nl.tile_size.pmax), 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias_sb, value=bias)
    step = max(1, min(POSITIONS, BLOCK_POSITIONS // ceil_div(channels, nl.tile_size.pmax)))
    more = max(1, step // positions)
    for n0 in range(0, images, more):
        for p0 in range(0, positions, step):
            part = Extent((n0, min(images, n0 + more)), (p0, min(positions, p0 + step)))
            x_sb, squares_sb = [], []
            for block in range(ceil_div(channels, nl.tile_size.pmax)):
                part_sb = _load_channels(src, block, block_rows(channels, block), part)
                square_sb = nl.ndarray(part_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
                nisa.activation(dst=square_sb, op=nl.square, data=part_sb)
                x_sb.append(part_sb)
                squares_sb.append(square_sb)
            for block in range(len(x_sb)):
                y_sb = _result(dst, block, x_sb[block].shape, part)
                window = _seen_blocks(channels, size, block)
                for q0 in range(0, y_sb.shape[1], nl.tile_size.psum_bank_fmax):
                    q1 = min(y_sb.shape[1], q0 + nl.tile_size.psum_bank_fmax)
                    sum_psum = _window_sums(squares_sb, bands_sb, window, block, q0, q1)
                    _divide_by_norm(y_sb[:, q0:q1], x_sb[block][:, q0:q1], sum_psum, alpha / size, beta, bias_sb)
                if is_hbm_tensor(dst):
                    _store_channels(dst, y_sb, block, part)


def _flatten_pixels(tensor: nl.NkiTensor) -> nl.NkiTensor:
    """Images with rows and columns merged into one dimension of positions."""
    if is_hbm_tensor(tensor):
        return tensor
    parts, blocks, images, height, width = tensor.shape
    return tensor.reshape((parts, blocks, images, height * width))


def _seen_blocks(channels: int, size: int, block: int) -> tuple[int, int]:
    """The first and the last block of channels that the windows of ``block`` see."""
    first = max(0, block * nl.tile_size.pmax - (size - 1) // 2)
    last = min(channels - 1, block * nl.tile_size.pmax + block_rows(channels, block) - 1 + size // 2)
    return first // nl.tile_size.pmax, last // nl.tile_size.pmax


def _reach(channels: int, size: int) -> tuple[int, int]:
    """The number of blocks of channels that windows reach into, before and behind their own."""
    most = ceil_div(channels, nl.tile_size.pmax) - 1
    return min(most, ceil_div((size - 1) // 2, nl.tile_size.pmax)), min(most, ceil_div(size // 2, nl.tile_size.pmax))


def _band_matrices(channels: int, size: int) -> tuple[int, list[nl.NkiTensor]]:
    """(the number of blocks that windows reach into before their own, the matrices (128, 128) of each block's
    contribution to the windows): 1 if channel k of it is in the window about channel m, else 0."""
    before, behind = _reach(channels, size)
    pmax = nl.tile_size.pmax
    ones_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    bands_sb = []
    for step in range(-before, behind + 1):
        band_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
        keep_where(band_sb, ones_sb, 1, -1, step * pmax + (size - 1) // 2, nl.greater_equal)
        keep_where(band_sb, band_sb, -1, 1, size // 2 - step * pmax, nl.greater_equal)
        bands_sb.append(band_sb)
    return before, bands_sb


def _window_sums(
    squares_sb: list[nl.NkiTensor],
    bands_sb: tuple[int, list[nl.NkiTensor]],
    window: tuple[int, int],
    block: int,
    q0: int,
    q1: int,
) -> nl.NkiTensor:
    """The sums of the windows about the channels of ``block``, columns ``q0`` to ``q1``: PSUM, one bank."""
    before, matrices_sb = bands_sb
    m = squares_sb[block].shape[0]
    sum_psum = nl.ndarray((m, q1 - q0), dtype=nl.float32, buffer=nl.psum)
    for other in range(window[0], window[1] + 1):
        k = squares_sb[other].shape[0]
        band_sb = matrices_sb[other - block + before]
        nisa.nc_matmul(dst=sum_psum, stationary=band_sb[0:k, 0:m], moving=squares_sb[other][:, q0:q1])
    return sum_psum


def _divide_by_norm(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    sum_psum: nl.NkiTensor,
    factor: float,
    beta: float,
    bias_sb: nl.NkiTensor,
) -> None:
    """y_sb = x_sb * (bias_sb + factor * sum_psum) ** -beta: the scalar engine, then the vector engine."""
    base_sb = nl.ndarray(sum_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=base_sb, op=nl.copy, data=sum_psum, scale=factor, bias=bias_sb[0 : base_sb.shape[0]])
    nisa.scalar_tensor_tensor(dst=y_sb, data=base_sb, op0=nl.power, operand0=-beta, op1=nl.multiply, operand1=x_sb)


def _result(dst: nl.NkiTensor, block: int, shape: tuple[int, ...], part: Extent) -> nl.NkiTensor:
    """The place to compute the channels of a block of a part: in dst itself, or in a tile on its way to HBM."""
    if is_hbm_tensor(dst):
        return nl.ndarray(shape, dtype=dst.dtype, buffer=nl.sbuf)
    (n0, n1), (p0, p1) = part.images, part.positions
    return dst[0 : shape[0], block, n0:n1, p0:p1].reshape(shape)


def _load_channels(src: nl.NkiTensor, block: int, rows: int, part: Extent) -> nl.NkiTensor:
    """The channels of a block of a part, in SBUF: (rows, images * positions)."""
    (n0, n1), (p0, p1) = part.images, part.positions
    if not is_hbm_tensor(src):
        return src[0:rows, block, n0:n1, p0:p1].reshape((rows, (n1 - n0) * (p1 - p0)))
    c0 = block * nl.tile_size.pmax
    x_sb = nl.ndarray((rows, n1 - n0, p1 - p0), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=src[n0:n1, c0 : c0 + rows, p0:p1].permute((1, 0, 2)))
    return x_sb.reshape((rows, (n1 - n0) * (p1 - p0)))


def _store_channels(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, part: Extent) -> None:
    """Store a normalised tile of ``_load_channels`` to its place in HBM."""
    (n0, n1), (p0, p1) = part.images, part.positions
    rows, c0 = y_sb.shape[0], block * nl.tile_size.pmax
    images = dst[n0:n1, c0 : c0 + rows, p0:p1].permute((1, 0, 2))
    nisa.dma_copy(dst=images, src=y_sb.reshape((rows, n1 - n0, p1 - p0)))
