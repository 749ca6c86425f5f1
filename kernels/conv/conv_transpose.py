"""Transposed convolution over images, with bias and activation: the gradient of a strided convolution.

Results whose row and column have equal remainders modulo the stride see the same taps of the kernel: they form one
ordinary convolution of stride 1, with few taps. Each such phase sums in PSUM banks. The engine that evacuates a bank
interleaves it with the other phases' results, so that a band leaves SBUF in whole rows. The image is read once for all
phases and outputs; there are no zeros between its pixels, and no products with them.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, Rectangle, block_rows, ceil_div, image_count, is_hbm_tensor, load
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
    """Outputs from number ``first`` on, of ``channels``: their weights in SBUF (P, B, T, O), their bias (O, 1), and
    their activation."""

    weights_sb: Any
    bias_sb: Any
    first: int
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

    dst: HBM (N, O, OH, OW), or SBUF ``channels`` (P, ceil(O/128), N, OH, OW), of any size: results that no tap reaches
        are act(bias)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, ceil(C/128), N, H, W)
    w: HBM or SBUF (P, ceil(C/128), T, O), prepared as for conv2d, tap t = row * kernel columns + column; the dtype of
        src. With groups, C and O count one of conv2d's ``groups_together``; its blocks come first, then those of the
        next one
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared. With groups: the columns of each ``groups_together`` in turn
    channels: C
    kernel, stride, dilation: (rows, columns)
    pads: (top, left): rows and columns to cut off before the first; negative ones are added
    act: one of ACTIVATIONS in common.py, or "relu6" (at most 6)
    limits: the input of one result fits BAND_BYTES, and one output's weights WEIGHT_BYTES (see transpose_fits);
        ``groups`` divides C and O; if groups are computed together, NaN and infinity reach all of them. Images in SBUF
        need all groups computed together, and a dst there ``outputs_at_once`` of its O or of 32

    numpy: y = 0; y[n, o, i*s + u*d, j*s + v*d] += src[n, c, i, j] * w[c, o, u, v] for all n, c, o, i, j, u, v;
    dst = act(y[:, :, top : top + OH, left : left + OW] + bias)
    """
    on_chip = not is_hbm_tensor(dst) or not is_hbm_tensor(src)
    outputs = dst.shape[1] if is_hbm_tensor(dst) else w.shape[3]
    assert channels % groups == 0 and outputs % groups == 0, f"conv_transpose2d: {groups} groups of {channels}"
    taps = Taps(kernel, stride, pads, dilation)
    together = groups_together(channels, outputs, groups)
    ins, outs = channels // groups, outputs // groups
    assert not on_chip or together == groups, f"conv_transpose2d: images in SBUF; only {together} of {groups} groups"
    assert transpose_fits(together * ins, taps), f"conv_transpose2d: a kernel of {kernel} over {channels} channels"
    if together == groups:
        _all_outputs(dst, src, w, bias, channels, taps, act)
        return
    blocks, columns = ceil_div(together * ins, nl.tile_size.pmax), ceil_div(together * outs, nl.tile_size.pmax)
    for g0 in range(0, groups, together):
        g1 = min(groups, g0 + together)
        block, column = g0 // together * blocks, g0 // together * columns
        _all_outputs(
            dst[:, g0 * outs : g1 * outs],
            src[:, g0 * ins : g1 * ins],
            w[:, block : block + blocks, :, 0 : (g1 - g0) * outs],
            bias[:, column : column + columns],
            (g1 - g0) * ins,
            taps,
            act,
        )


def transpose_fits(channels: int, taps: Taps) -> bool:
    """True if at least single results can be computed: the limits of conv_transpose2d, for planners."""
    kernel = taps.kernel
    weight_bytes = ceil_div(channels, nl.tile_size.pmax) * kernel[0] * kernel[1] * 4
    return weight_bytes <= WEIGHT_BYTES and _images_held(1, 1, channels, taps) > 0


def outputs_at_once(channels: int, kernel: Pair) -> int:
    """The most outputs, at most 128, whose weights fit WEIGHT_BYTES: a power of 2, so that they divide a block."""
    held = WEIGHT_BYTES // (ceil_div(channels, nl.tile_size.pmax) * kernel[0] * kernel[1] * 4)
    part = 1
    while part * 2 <= min(held, nl.tile_size.pmax):
        part = part * 2
    return part


def transpose_tile_bytes(
    channels: int, outputs: int, taps: Taps, weights_held: bool, source_held: bool, result_held: bool
) -> int:
    """The most bytes per partition that the tiles take, for planners; what is held is in SBUF already. A source with
    padding is copied there."""
    weights = 0
    if not weights_held:
        row = ceil_div(channels, nl.tile_size.pmax) * taps.kernel[0] * taps.kernel[1] * 4
        weights = 2 * min(WEIGHT_BYTES, row * outputs)
    reaches = taps.pads != (0, 0) or taps.kernel != taps.stride or taps.dilation != (1, 1)
    source = 0 if source_held and not reaches else BAND_BYTES
    return weights + source + (0 if result_held else 2 * POOL_BYTES)


def _all_outputs(
    dst: nl.NkiTensor, src: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, channels: int, taps: Taps, act: str
) -> None:
    """conv_transpose2d without groups: as many outputs at a time as have their weights in SBUF."""
    outputs = w.shape[3]
    part = outputs_at_once(channels, taps.kernel)
    held = WEIGHT_BYTES // (w.shape[1] * w.shape[2] * 4)
    step = max(part, held // nl.tile_size.pmax * nl.tile_size.pmax) if is_hbm_tensor(w) else outputs
    for o0 in range(0, outputs, step):
        o1 = min(outputs, o0 + step)
        w_sb = w
        if is_hbm_tensor(w):
            w_sb = nl.ndarray((w.shape[0], w.shape[1], w.shape[2], o1 - o0), dtype=w.dtype, buffer=nl.sbuf)
            for block in range(w.shape[1]):
                k = block_rows(channels, block)
                nisa.dma_copy(dst=w_sb[0:k, block], src=w[0:k, block, :, o0:o1])
        some = []
        for p0 in range(o0, o1, part):
            p1 = min(o1, p0 + part)
            first, column = p0 % nl.tile_size.pmax, p0 // nl.tile_size.pmax
            bias_sb = bias[first : first + p1 - p0, column : column + 1]
            bias_sb = load(bias_sb) if is_hbm_tensor(bias) else bias_sb
            some.append(Outputs(w_sb[:, :, :, p0 - o0 : p1 - o0], bias_sb, p0, channels, act))
        _convolve_transposed_bands(dst, src, some, taps)


def _convolve_transposed_bands(dst: nl.NkiTensor, src: nl.NkiTensor, some: list[Outputs], taps: Taps) -> None:
    """All results of some outputs, whose weights are in SBUF, band by band."""
    images, height, width = image_count(dst), dst.shape[-2], dst.shape[-1]
    most = _band_steps(images, height, width, some[0].channels, taps)
    if not is_hbm_tensor(dst) and _is_inside(src, (height, width), taps):
        most = (images, height, width)  # nothing but the sums of a PSUM bank is in between
    for n0 in range(0, images, most[0]):
        n1 = min(images, n0 + most[0])
        for r0 in range(0, height, most[1]):
            r1 = min(height, r0 + most[1])
            for c0 in range(0, width, most[2]):
                c1 = min(width, c0 + most[2])
                rows, cols = _seen_range(r0, r1 - r0, taps, 0), _seen_range(c0, c1 - c0, taps, 1)
                if _is_inside(src, (height, width), taps):
                    x_sb = src[:, :, n0:n1, rows[0] : rows[1], cols[0] : cols[1]]
                else:
                    x_sb = _load_padded_images(src, some[0].channels, n0, n1 - n0, rows, cols)
                for outputs in some:
                    out = _part_of_results(dst, outputs, Rectangle((n0, n1), (r0, r1), (c0, c1)))
                    y_sb = nl.ndarray(out.shape, dtype=dst.dtype, buffer=nl.sbuf) if is_hbm_tensor(dst) else out
                    _all_phases(y_sb, x_sb, outputs, (r0, c0), (rows[0], cols[0]), taps)
                    if is_hbm_tensor(dst):
                        nisa.dma_copy(dst=out, src=y_sb)


def _is_inside(src: nl.NkiTensor, size: Pair, taps: Taps) -> bool:
    """True if the source is in SBUF, and its images contain all that results of ``size`` see: it is read in place."""
    rows, cols = _seen_range(0, size[0], taps, 0), _seen_range(0, size[1], taps, 1)
    inside = rows[0] >= 0 and cols[0] >= 0 and rows[1] <= src.shape[-2] and cols[1] <= src.shape[-1]
    return inside and not is_hbm_tensor(src)


def _part_of_results(dst: nl.NkiTensor, outputs: Outputs, place: Rectangle) -> nl.NkiTensor:
    """The results of some outputs as a view (o, n, rows, columns) of dst, in HBM or in SBUF."""
    (n0, n1), (r0, r1), (c0, c1) = place.images, place.rows, place.columns
    first, count = outputs.first, outputs.weights_sb.shape[3]
    if is_hbm_tensor(dst):
        return dst[n0:n1, first : first + count, r0:r1, c0:c1].permute((1, 0, 2, 3))
    row = first % nl.tile_size.pmax
    return dst[row : row + count, first // nl.tile_size.pmax, n0:n1, r0:r1, c0:c1]


def _load_padded_images(src: nl.NkiTensor, channels: int, n0: int, count: int, rows: Pair, cols: Pair) -> nl.NkiTensor:
    """Images ``n0``... in SBUF (P, B, n, rows, columns), with zeros outside the images."""
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
