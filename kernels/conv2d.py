"""Two-dimensional convolution with bias, activation and max pooling in one pass over the image.

Channels are on the partitions, one matmul a kernel tap and channel block accumulates a stretch of output in a
PSUM bank, the scalar engine adds the bias and applies the activation on the way to SBUF, and the vector engine
pools there: what lies between never goes to HBM. Images larger than SBUF are cut into bands of rows.

Weights are prepared on the host as (P, B, T, O): input channel b*128 + p, tap t = row * kernel columns + column.
"""

from trnrt.kernels.common import (
    LOWEST,
    Pair,
    activation_function,
    block_rows,
    ceil_div,
    is_hbm_tensor,
    load_columns,
)
from trnrt.kernels.pool2d import load_band, max_windows, output_tile, store_output
from trnrt.nki import nisa, nl

# (channels, size, kernel, stride, pads, dilation) and (pool, pool_stride, pool_pads, pool_dilation) of conv2d.
ConvShape = tuple[int, Pair, Pair, Pair, Pair, Pair]
Pooling = tuple[Pair, Pair, Pair, Pair]

# Bytes a partition for the weights at hand, for a band of input (all its channel blocks), and for a band of
# convolution results that waits to be pooled.
WEIGHT_BYTES = 48 * 1024
BAND_BYTES = 40 * 1024
POOL_BYTES = 16 * 1024


def conv2d(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    pads: Pair = (0, 0),
    dilation: Pair = (1, 1),
    act: str = "none",
    pool: Pair = (1, 1),
    pool_stride: Pair = (1, 1),
    pool_pads: Pair = (0, 0),
    pool_dilation: Pair = (1, 1),
) -> None:
    """dst = max_pool(act(conv(src, w) + bias)).

    dst: HBM (N, O, PH, PW), or SBUF ``channels`` (P, ceil(O/128), N, PH, PW)
    src: HBM (N, C, H, W), or SBUF ``channels`` (P, ceil(C/128), N, H, W)
    w: HBM (P, ceil(C/128), T, O), prepared; the dtype of src
    bias: HBM (P, ceil(O/128)) float32, prepared
    channels: C
    size: (rows, columns) of the convolution's result, before pooling
    kernel, stride, dilation, pool, pool_stride, pool_dilation: (rows, columns); pool (1, 1) is none
    pads, pool_pads: (top, left); what is needed beyond the bottom and right edges is padding, too
    act: "none", "relu", "sigmoid", "tanh"
    limits: the input rows of one output row fit BAND_BYTES over all channel blocks; the convolution rows of one
        pooled row fit POOL_BYTES

    numpy: y[n, o, i, j] = act(bias[o] + sum(w[o, c, u, v] * padded[n, c, i*s + u*d, j*s + v*d])), then the
    maxima of the pooling windows of y
    """
    images = dst.shape[0] if is_hbm_tensor(dst) else dst.shape[2]
    shape = (channels, size, kernel, stride, pads, dilation)
    pooling = (pool, pool_stride, pool_pads, pool_dilation)
    bias_sb = load_columns(bias)
    n_step, r_step = _band_steps(dst, images, shape, pooling)
    o_step = _output_step(w)
    for o0 in range(0, w.shape[3], o_step):
        o_size = min(o_step, w.shape[3] - o0)
        w_sb = nl.ndarray((w.shape[0], w.shape[1], w.shape[2], o_size), dtype=w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=w_sb, src=w[:, :, :, o0 : o0 + o_size])
        for n0 in range(0, images, n_step):
            n_size = min(n_step, images - n0)
            for r0 in range(0, dst.shape[-2], r_step):
                r_size = min(r_step, dst.shape[-2] - r0)
                rows = _conv_rows(r0, r_size, size, pooling)
                x_sb = _input_band(src, n0, n_size, rows, shape)
                for b0 in range(0, o_size, nl.tile_size.pmax):
                    outputs = min(nl.tile_size.pmax, o_size - b0)
                    block = (o0 + b0) // nl.tile_size.pmax
                    y_sb = output_tile(dst, block, outputs, n0, n_size, r0, r_size)
                    bias_column = bias_sb[0:outputs, block : block + 1]
                    weights = w_sb[:, :, :, b0 : b0 + outputs]
                    if pool == (1, 1) and pool_stride == (1, 1):
                        _convolve(y_sb, x_sb, weights, bias_column, shape, act)
                    else:
                        _convolve_and_pool(y_sb, x_sb, weights, bias_column, r0, rows, shape, act, pooling)
                    store_output(dst, y_sb, block, n0, r0)


def conv_fits(shape: ConvShape, pooling: Pooling) -> bool:
    """Whether one row of the result can be computed at a time: the limits of conv2d, for whoever plans a call.

    shape, pooling: see ConvShape and Pooling
    """
    return _band_bytes(1, shape, pooling) <= 1


def _output_step(w: nl.NkiTensor) -> int:
    """How many output channels' weights are held at once: as many blocks of 128 as fit, at least one."""
    column = w.shape[1] * w.shape[2] * 4
    return max(1, WEIGHT_BYTES // column // nl.tile_size.pmax) * nl.tile_size.pmax


def _conv_rows(r0: int, r_size: int, size: Pair, pooling: Pooling) -> Pair:
    """(first, end) of the convolution rows that exist and that rows ``r0``... of the result need."""
    pool, pool_stride, pool_pads, pool_dilation = pooling
    first = r0 * pool_stride[0] - pool_pads[0]
    end = first + (r_size - 1) * pool_stride[0] + (pool[0] - 1) * pool_dilation[0] + 1
    return (max(0, first), min(size[0], end))


def _input_extent(rows: int, cols: int, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """(rows, columns) of the padded image that so many rows and columns of convolution need."""
    return (
        (rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1,
        (cols - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1,
    )


def _band_steps(dst: nl.NkiTensor, images: int, shape: ConvShape, pooling: Pooling) -> Pair:
    """(images, result rows) that are worked on at once: whole images where they fit, else bands of rows of one."""
    rows = dst.shape[-2]
    fits = rows
    while fits > 1 and _band_bytes(fits, shape, pooling) > 1:
        fits = ceil_div(fits, 2)
    assert conv_fits(shape, pooling), f"conv2d: the rows that one result row of {shape} needs do not fit SBUF"
    if fits < rows:
        return (1, fits)
    return (min(images, int(1 / _band_bytes(rows, shape, pooling))), rows)


def _band_bytes(result_rows: int, shape: ConvShape, pooling: Pooling) -> float:
    """The share of its budget that one image's band for so many result rows takes (more than 1: too much)."""
    channels, size, kernel, stride, _, dilation = shape
    pool, pool_stride, _, pool_dilation = pooling
    conv_rows = (result_rows - 1) * pool_stride[0] + (pool[0] - 1) * pool_dilation[0] + 1
    band = _input_extent(min(conv_rows, size[0]), size[1], kernel, stride, dilation)
    input_bytes = ceil_div(channels, nl.tile_size.pmax) * band[0] * band[1] * 4
    result_bytes = conv_rows * (size[1] + (pool[1] - 1) * pool_dilation[1]) * 4
    return max(input_bytes / BAND_BYTES, result_bytes / POOL_BYTES)


def _input_band(src: nl.NkiTensor, n0: int, n_size: int, rows: Pair, shape: ConvShape) -> nl.NkiTensor:
    """The padded input of convolution rows ``rows`` of images ``n0``..., in SBUF (P, B, n, rows, columns)."""
    channels, size, kernel, stride, pads, dilation = shape
    extent = _input_extent(rows[1] - rows[0], size[1], kernel, stride, dilation)
    first = rows[0] * stride[0] - pads[0]
    inside = pads[1] == 0 and extent[1] <= src.shape[-1] and first >= 0 and first + extent[0] <= src.shape[-2]
    if inside and not is_hbm_tensor(src):
        return src[:, :, n0 : n0 + n_size, first : first + extent[0], 0 : extent[1]]
    blocks = ceil_div(channels, nl.tile_size.pmax)
    parts = min(channels, nl.tile_size.pmax)
    x_sb = nl.ndarray((parts, blocks, n_size, extent[0], extent[1]), dtype=src.dtype, buffer=nl.sbuf)
    for block in range(blocks):
        load_band(x_sb[0 : block_rows(channels, block), block], src, block, n0, first, -pads[1], 0.0)
    return x_sb


def _convolve(
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, w_sb: nl.NkiTensor, bias_column: nl.NkiTensor, shape: ConvShape, act: str
) -> None:
    """y_sb (o, n, rows, columns) = act(conv(x_sb) + bias), one PSUM bank after the other."""
    outputs, images, rows, cols = y_sb.shape
    bank = nl.tile_size.psum_bank_fmax
    c_step = min(cols, bank)
    r_step = min(rows, bank // c_step)
    n_step = min(images, bank // (c_step * r_step)) if r_step == rows else 1
    for n0 in range(0, images, n_step):
        n1 = min(images, n0 + n_step)
        for r0 in range(0, rows, r_step):
            r1 = min(rows, r0 + r_step)
            for c0 in range(0, cols, c_step):
                c1 = min(cols, c0 + c_step)
                sum_psum = nl.ndarray((outputs, n1 - n0, r1 - r0, c1 - c0), dtype=nl.float32, buffer=nl.psum)
                _accumulate_taps(sum_psum, x_sb[:, :, n0:n1], w_sb, r0, c0, shape)
                nisa.activation(
                    dst=y_sb[:, n0:n1, r0:r1, c0:c1],
                    op=activation_function(act),
                    data=sum_psum,
                    bias=bias_column,
                )


def _accumulate_taps(
    sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, w_sb: nl.NkiTensor, r0: int, c0: int, shape: ConvShape
) -> None:
    """Sum over taps and channel blocks: one matmul each, the shifted and strided image as its moving operand."""
    channels, _, kernel, stride, _, dilation = shape
    _, _, rows, cols = sum_psum.shape
    for block in range(w_sb.shape[1]):
        k = block_rows(channels, block)
        for tap in range(kernel[0] * kernel[1]):
            y = r0 * stride[0] + (tap // kernel[1]) * dilation[0]
            x = c0 * stride[1] + (tap % kernel[1]) * dilation[1]
            y_end = y + (rows - 1) * stride[0] + 1
            x_end = x + (cols - 1) * stride[1] + 1
            nisa.nc_matmul(
                dst=sum_psum,
                stationary=w_sb[0:k, block, tap, :],
                moving=x_sb[0:k, block, :, y : y_end : stride[0], x : x_end : stride[1]],
                accumulate=block + tap > 0,
            )


def _convolve_and_pool(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    w_sb: nl.NkiTensor,
    bias_column: nl.NkiTensor,
    r0: int,
    rows: Pair,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
) -> None:
    """y_sb (o, n, rows, columns) = the pooled convolution; what lies between stays in an SBUF tile."""
    pool, pool_stride, pool_pads, pool_dilation = pooling
    size = shape[1]
    outputs, images, r_size, cols = y_sb.shape
    need_rows = (r_size - 1) * pool_stride[0] + (pool[0] - 1) * pool_dilation[0] + 1
    need_cols = (cols - 1) * pool_stride[1] + (pool[1] - 1) * pool_dilation[1] + 1
    have_cols = min(size[1], need_cols - pool_pads[1])
    top = rows[0] - (r0 * pool_stride[0] - pool_pads[0])
    have_rows = rows[1] - rows[0]
    conv_sb = nl.ndarray((outputs, images, need_rows, need_cols), dtype=y_sb.dtype, buffer=nl.sbuf)
    if have_rows < need_rows or have_cols < need_cols:
        nisa.memset(dst=conv_sb, value=LOWEST)
    inner_sb = conv_sb[:, :, top : top + have_rows, pool_pads[1] : pool_pads[1] + have_cols]
    _convolve(inner_sb, x_sb, w_sb, bias_column, shape, act)
    max_windows(y_sb, conv_sb, 0, need_rows * need_cols, need_cols, pool, pool_stride, pool_dilation)
