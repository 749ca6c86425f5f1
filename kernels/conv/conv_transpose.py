"""Transposed convolution over images, with bias and activation: the gradient of a strided convolution.

Results whose row and column have equal remainders modulo the stride see the same taps of the kernel: they form one
ordinary convolution of stride 1, with few taps. Each such phase sums in PSUM banks. The engine that evacuates a bank
interleaves it with the other phases' results, so that a band leaves SBUF in whole rows. The image is read once for all
phases and outputs; there are no zeros between its pixels, and no products with them.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, block_rows, ceil_div, is_hbm_tensor, load
from trnrt.kernels.conv.conv_room import BAND_BYTES, POOL_BYTES, WEIGHT_BYTES, Steps
from trnrt.kernels.conv.convolving import evacuate, vector_helps
from trnrt.kernels.conv.grouping import groups_together
from trnrt.kernels.conv.stretches import stretches
from trnrt.kernels.pool2d import load_band
from trnrt.kernels.rates import is_recent
from trnrt.nki import nisa, nl


@dataclass
class Taps(nl.NKIObject):
    """The results that an image's pixels reach; each attribute is the argument of conv_transpose2d."""

    kernel: Pair
    stride: Pair
    pads: Pair
    dilation: Pair


@dataclass
class Outputs(nl.NKIObject):
    """Some outputs, of ``channels``: their weights in SBUF (P, B, T, O), their bias (O, 1) and their activation."""

    weights_sb: Any
    bias_sb: Any
    channels: int
    act: str


def conv_transpose2d(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    channels: int,
    kernel: Pair,
    stride: Pair = (1, 1),
    pads: Pair = (0, 0),
    dilation: Pair = (1, 1),
    act: str = "none",
    groups: int = 1,
) -> None:
    """dst = act(the transposed convolution of src with w + bias).

    dst: HBM (N, O, OH, OW), of any size: results that no tap reaches are act(bias)
    src: HBM (N, C, H, W)
    w: HBM (P, ceil(C/128), T, O), prepared as for conv2d, tap t = row * kernel columns + column; the dtype of src. With
        groups, C and O count one of conv2d's ``groups_together``; its blocks come first, then those of the next one
    bias: HBM (P, ceil(O/128)) float32, prepared. With groups: the columns of each ``groups_together`` in turn
    channels: C
    kernel, stride, dilation: (rows, columns)
    pads: (top, left): rows and columns to cut off before the first; negative ones are added
    act: one of ACTIVATIONS in common.py, or "relu6" (at most 6)
    limits: the input of one result fits BAND_BYTES, and one output's weights WEIGHT_BYTES (see transpose_fits);
        ``groups`` divides C and O; if groups are computed together, NaN and infinity reach all of them

    numpy: y = 0; y[n, o, i*s + u*d, j*s + v*d] += src[n, c, i, j] * w[c, o, u, v] for all n, c, o, i, j, u, v;
    dst = act(y[:, :, top : top + OH, left : left + OW] + bias)
    """
    assert is_hbm_tensor(dst) and is_hbm_tensor(src), "conv_transpose2d: images must be in HBM"
    outputs = dst.shape[1]
    assert channels % groups == 0 and outputs % groups == 0, f"conv_transpose2d: {groups} groups of {channels}"
    taps = Taps(kernel, stride, pads, dilation)
    together = groups_together(channels, outputs, groups)
    ins, outs = channels // groups, outputs // groups
    assert transpose_fits(together * ins, taps), f"conv_transpose2d: a kernel of {kernel} over {channels} channels"
    blocks, columns = ceil_div(together * ins, nl.tile_size.pmax), ceil_div(together * outs, nl.tile_size.pmax)
    for g0 in range(0, groups, together):
        g1 = min(groups, g0 + together)
        block, column = g0 // together * blocks, g0 // together * columns
        _all_outputs(
            dst[:, g0 * outs : g1 * outs],
            src[:, g0 * ins : g1 * ins],
            w[:, block : block + blocks, :, 0 : (g1 - g0) * outs],
            bias[:, column : column + columns],
            taps,
            act,
        )


def transpose_fits(channels: int, taps: Taps) -> bool:
    """True if at least single results can be computed: the limits of conv_transpose2d, for planners."""
    kernel = taps.kernel
    weight_bytes = ceil_div(channels, nl.tile_size.pmax) * kernel[0] * kernel[1] * 4
    return weight_bytes <= WEIGHT_BYTES and _images_held(1, 1, channels, taps) > 0


def _all_outputs(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, taps: Taps, act: str
) -> None:
    """conv_transpose2d without groups: as many outputs at a time as have their weights in SBUF."""
    channels, outputs = src.shape[1], dst.shape[1]
    held = WEIGHT_BYTES // (w.shape[1] * w.shape[2] * 4)
    part = 1
    while part * 2 <= min(held, nl.tile_size.pmax):
        part = part * 2
    step = max(part, held // nl.tile_size.pmax * nl.tile_size.pmax)
    for o0 in range(0, outputs, step):
        o1 = min(outputs, o0 + step)
        w_sb = nl.ndarray((w.shape[0], w.shape[1], w.shape[2], o1 - o0), dtype=w.dtype, buffer=nl.sbuf)
        for block in range(w.shape[1]):
            k = block_rows(channels, block)
            nisa.dma_copy(dst=w_sb[0:k, block], src=w[0:k, block, :, o0:o1])
        columns = []
        for p0 in range(o0, o1, part):
            first = p0 % nl.tile_size.pmax
            column = p0 // nl.tile_size.pmax
            columns.append(load(bias[first : first + min(part, o1 - p0), column : column + 1]))
        _convolve_transposed_bands(dst[:, o0:o1], src, w_sb, columns, part, taps, act)


def _convolve_transposed_bands(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    columns: list[nl.NkiTensor],
    part: int,
    taps: Taps,
    act: str,
) -> None:
    """All results of the outputs whose weights are in SBUF, band by band, ``part`` outputs at a time."""
    images, outputs, height, width = dst.shape
    most = _band_steps(images, height, width, src.shape[1], taps)
    for n0 in range(0, images, most[0]):
        for r0 in range(0, height, most[1]):
            for c0 in range(0, width, most[2]):
                size = (min(most[0], images - n0), min(most[1], height - r0), min(most[2], width - c0))
                rows, cols = _seen_range(r0, size[1], taps, 0), _seen_range(c0, size[2], taps, 1)
                x_sb = _load_padded_images(src, n0, size[0], rows, cols)
                for o0 in range(0, outputs, part):
                    o1 = min(outputs, o0 + part)
                    y_sb = nl.ndarray((o1 - o0, size[0], size[1], size[2]), dtype=dst.dtype, buffer=nl.sbuf)
                    some = Outputs(w_sb[:, :, :, o0:o1], columns[o0 // part], src.shape[1], act)
                    _all_phases(y_sb, x_sb, some, (r0, c0), (rows[0], cols[0]), taps)
                    out = dst[n0 : n0 + size[0], o0:o1, r0 : r0 + size[1], c0 : c0 + size[2]]
                    nisa.dma_copy(dst=out.permute((1, 0, 2, 3)), src=y_sb)


def _load_padded_images(src: nl.NkiTensor, n0: int, count: int, rows: Pair, cols: Pair) -> nl.NkiTensor:
    """Images ``n0``... in SBUF (P, B, n, rows, columns), with zeros outside the images."""
    channels = src.shape[1]
    blocks = ceil_div(channels, nl.tile_size.pmax)
    shape = (min(channels, nl.tile_size.pmax), blocks, count, rows[1] - rows[0], cols[1] - cols[0])
    x_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
    for block in range(blocks):
        load_band(x_sb[0 : block_rows(channels, block), block], src, block, n0, rows[0], cols[0], 0.0)
    return x_sb


def _seen_range(first: int, count: int, taps: Taps, axis: int) -> Pair:
    """(first, end) of the input's rows (axis 0) or columns that ``count`` results from ``first`` on see."""
    stride, start = taps.stride[axis], first + taps.pads[axis]
    low = ceil_div(start - (taps.kernel[axis] - 1) * taps.dilation[axis], stride)
    return (low, max(low, (start + count - 1) // stride) + 1)


def _phase_taps(phase: int, taps: Taps, axis: int) -> list[Pair]:
    """(number, shift) of the kernel's rows (axis 0) or columns that results phase + j * stride see: at input
    j + shift."""
    stride = taps.stride[axis]
    found = []
    for tap in range(taps.kernel[axis]):
        distance = phase - tap * taps.dilation[axis]
        if distance % stride == 0:
            found.append((tap, distance // stride))
    return found


def _all_phases(y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, outputs: Outputs, at: Pair, corner: Pair, taps: Taps) -> None:
    """y_sb (o, n, rows, columns) = the results from ``at`` on, of input from ``corner`` on."""
    kernel, stride, pads = taps.kernel, taps.stride, taps.pads
    rows, cols = y_sb.shape[2], y_sb.shape[3]
    for i in range(min(stride[0], rows)):
        row = at[0] + pads[0] + i
        row_taps = _phase_taps(row % stride[0], taps, 0)
        for j in range(min(stride[1], cols)):
            col = at[1] + pads[1] + j
            part_sb = y_sb[:, :, i : rows : stride[0], j : cols : stride[1]]
            pairs = []
            for row_tap in row_taps:
                for col_tap in _phase_taps(col % stride[1], taps, 1):
                    place = (row // stride[0] + row_tap[1] - corner[0], col // stride[1] + col_tap[1] - corner[1])
                    pairs.append((row_tap[0] * kernel[1] + col_tap[0], place[0], place[1]))
            if len(pairs) == 0:
                nisa.memset(dst=part_sb, value=0.0)
                evacuate(part_sb, part_sb, outputs.bias_sb, outputs.act, False)
            else:
                _phase(part_sb, x_sb, outputs, pairs)


def _phase(y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, outputs: Outputs, pairs: list[tuple[int, int, int]]) -> None:
    """y_sb (o, n, rows, columns) = act(bias + the sum over ``pairs``: (tap, row, column of the input under the first
    result)), a PSUM bank after the other."""
    parts, images, rows, cols = y_sb.shape
    w_sb, act = outputs.weights_sb, outputs.act
    alternate = vector_helps(len(pairs) * w_sb.shape[1], act)
    by_vector = False
    for place in stretches(images, rows, cols, not is_recent()):
        (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
        sum_psum = nl.ndarray((parts, n1 - n0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.psum)
        for block in range(w_sb.shape[1]):
            k = block_rows(outputs.channels, block)
            for number in range(len(pairs)):
                tap, row, col = pairs[number]
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=w_sb[0:k, block, tap, :],
                    moving=x_sb[0:k, block, n0:n1, row + r0 : row + r1, col + c0 : col + c1],
                    accumulate=block + number > 0,
                )
        evacuate(y_sb[:, n0:n1, r0:r1, c0:c1], sum_psum, outputs.bias_sb, act, by_vector)
        by_vector = alternate and not by_vector


def _band_steps(images: int, height: int, width: int, channels: int, taps: Taps) -> Steps:
    """(images, rows, columns) of results to work on at once: whole images if they fit, else bands of rows of one image,
    else parts of these. Cut rows and columns are multiples of the stride, if one fits."""
    stride = taps.stride
    cols, rows = width, height
    tall = min(height, stride[0])
    while cols > nl.tile_size.psum_bank_fmax and _images_held(tall, cols, channels, taps) == 0:
        cols = ceil_div(cols, 2)
    while cols > 1 and _images_held(1, cols, channels, taps) == 0:
        cols = ceil_div(cols, 2)
    while rows > 1 and _images_held(rows, cols, channels, taps) == 0:
        rows = ceil_div(rows, 2)
    if rows < height or cols < width:
        rows = rows if rows < stride[0] or rows == height else rows // stride[0] * stride[0]
        cols = cols if cols < stride[1] or cols == width else cols // stride[1] * stride[1]
        return (1, rows, cols)
    return (min(images, _images_held(rows, cols, channels, taps)), rows, cols)


def _images_held(rows: int, cols: int, channels: int, taps: Taps) -> int:
    """The number of images whose bands of ``rows`` x ``cols`` results fit at once."""
    kernel, stride, dilation = taps.kernel, taps.stride, taps.dilation
    # The rows and columns of input that the results may need, wherever they start.
    high = (rows - 1 + (kernel[0] - 1) * dilation[0]) // stride[0] + 1
    wide = (cols - 1 + (kernel[1] - 1) * dilation[1]) // stride[1] + 1
    input_bytes = ceil_div(channels, nl.tile_size.pmax) * high * wide * 4
    return min(BAND_BYTES // input_bytes, POOL_BYTES // (rows * cols * 4))
