"""Two-dimensional convolution with bias, activation and max pooling in one pass over the image.

Channels are on the partitions, one matmul a kernel tap and channel block accumulates a stretch of output in a
PSUM bank, the scalar engine adds the bias and applies the activation on the way to SBUF, and the vector engine
pools there: what lies between never goes to HBM. Images larger than SBUF are cut into bands of rows.

Weights are prepared on the host as (P, B, T, O): input channel b*128 + p, tap t = row * kernel columns + column.
They stay in SBUF for the whole batch where 128 outputs' worth fits; else they are brought in as they are used.
"""

from trnrt.kernels.common import LOWEST, Pair, activation_function, block_rows, ceil_div, is_hbm_tensor, load
from trnrt.kernels.pool2d import load_band, max_windows, output_tile, store_output
from trnrt.nki import nisa, nl

# (channels, size, kernel, stride, pads, dilation) and (pool, pool_stride, pool_pads, pool_dilation) of conv2d.
ConvShape = tuple[int, Pair, Pair, Pair, Pair, Pair]
Pooling = tuple[Pair, Pair, Pair, Pair]

# Bytes a partition for the weights at hand, for a band of input (all its channel blocks), and for a band of
# convolution results, pooled or not.
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
        pooled row fit POOL_BYTES (see conv_fits); no pooling window starts beyond the convolution's last row or column

    numpy: y[n, o, i, j] = act(bias[o] + sum(w[o, c, u, v] * padded[n, c, i*s + u*d, j*s + v*d])), then the
    maxima of the pooling windows of y
    """
    images = dst.shape[0] if is_hbm_tensor(dst) else dst.shape[2]
    height, width = dst.shape[-2], dst.shape[-1]
    shape = (channels, size, kernel, stride, pads, dilation)
    pooling = (pool, pool_stride, pool_pads, pool_dilation)
    assert conv_fits(width, shape, pooling), f"conv2d: the rows that one result row of {shape} needs do not fit SBUF"
    bias_sb = load(bias)
    n_step, r_step = _band_steps(images, height, width, shape, pooling)
    o_step = _output_step(w)
    for o0 in range(0, w.shape[3], o_step):
        o_end = min(w.shape[3], o0 + o_step)
        weights = _held_weights(w[:, :, :, o0:o_end])
        for n0 in range(0, images, n_step):
            n_size = min(n_step, images - n0)
            for r0 in range(0, height, r_step):
                r_size = min(r_step, height - r0)
                rows = _conv_rows(r0, r_size, size, pooling)
                x_sb = _input_band(src, n0, n_size, rows, shape)
                for b0 in range(o0, o_end, nl.tile_size.pmax):
                    outputs = min(nl.tile_size.pmax, o_end - b0)
                    block = b0 // nl.tile_size.pmax
                    y_sb = output_tile(dst, block, outputs, n0, n_size, r0, r_size)
                    bias_column = bias_sb[0:outputs, block : block + 1]
                    w_block = weights[:, :, :, b0 - o0 : b0 - o0 + outputs]
                    if pool == (1, 1) and pool_stride == (1, 1):
                        _convolve(y_sb, x_sb, w_block, bias_column, shape, act)
                    else:
                        _convolve_and_pool(y_sb, x_sb, w_block, bias_column, r0, rows, shape, act, pooling)
                    store_output(dst, y_sb, block, n0, r0)


def conv_fits(width: int, shape: ConvShape, pooling: Pooling) -> bool:
    """Whether one row of the result can be computed at a time: the limits of conv2d, for whoever plans a call.

    width: columns of the result, after pooling
    shape, pooling: see ConvShape and Pooling
    """
    return _images_held(1, width, shape, pooling) > 0


def _output_step(w: nl.NkiTensor) -> int:
    """How many output channels are computed from one band: as many blocks of 128 as WEIGHT_BYTES holds, at least
    one."""
    column = w.shape[1] * w.shape[2] * 4
    return max(1, WEIGHT_BYTES // column // nl.tile_size.pmax) * nl.tile_size.pmax


def _held_weights(w: nl.NkiTensor) -> nl.NkiTensor:
    """The weights of an output step in SBUF; where they are too large for that, in HBM as they are."""
    if w.shape[1] * w.shape[2] * w.shape[3] * 4 > WEIGHT_BYTES:
        return w
    return load(w)


def _conv_rows(r0: int, r_size: int, size: Pair, pooling: Pooling) -> Pair:
    """(first, end) of the convolution rows that exist and that rows ``r0``... of the result need."""
    pool, pool_stride, pool_pads, pool_dilation = pooling
    first = r0 * pool_stride[0] - pool_pads[0]
    end = first + (r_size - 1) * pool_stride[0] + (pool[0] - 1) * pool_dilation[0] + 1
    return (max(0, first), min(size[0], end))


def _input_extent(rows: int, cols: int, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    """(rows, columns) of the padded image that so many rows and columns of results need."""
    return (
        (rows - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1,
        (cols - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1,
    )


def _band_steps(images: int, height: int, width: int, shape: ConvShape, pooling: Pooling) -> Pair:
    """(images, result rows) that are worked on at once: whole images where they fit, else bands of rows of one."""
    rows = height
    while rows > 1 and _images_held(rows, width, shape, pooling) == 0:
        rows = ceil_div(rows, 2)
    if rows < height:
        return (1, rows)
    return (min(images, _images_held(rows, width, shape, pooling)), rows)


def _images_held(rows: int, width: int, shape: ConvShape, pooling: Pooling) -> int:
    """Of how many images a band of ``rows`` x ``width`` results can be worked on at once."""
    channels, size, kernel, stride, _, dilation = shape
    pool, pool_stride, _, pool_dilation = pooling
    conv_rows, conv_cols = _input_extent(rows, width, pool, pool_stride, pool_dilation)
    band_rows, band_cols = _input_extent(min(conv_rows, size[0]), size[1], kernel, stride, dilation)
    input_bytes = ceil_div(channels, nl.tile_size.pmax) * band_rows * band_cols * 4
    return min(BAND_BYTES // input_bytes, POOL_BYTES // (conv_rows * conv_cols * 4))


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
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, w: nl.NkiTensor, bias_column: nl.NkiTensor, shape: ConvShape, act: str
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
                _accumulate_taps(sum_psum, x_sb[:, :, n0:n1], w, r0, c0, shape)
                nisa.activation(
                    dst=y_sb[:, n0:n1, r0:r1, c0:c1],
                    op=activation_function(act),
                    data=sum_psum,
                    bias=bias_column,
                )


def _accumulate_taps(
    sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, w: nl.NkiTensor, r0: int, c0: int, shape: ConvShape
) -> None:
    """Sum over taps and channel blocks: one matmul each, the shifted and strided image as its moving operand."""
    channels, _, kernel, stride, _, dilation = shape
    _, _, rows, cols = sum_psum.shape
    taps = w.shape[2]
    at_hand = min(taps, WEIGHT_BYTES // (w.shape[3] * 4)) if is_hbm_tensor(w) else taps
    for block in range(w.shape[1]):
        k = block_rows(channels, block)
        for t0 in range(0, taps, at_hand):
            w_sb = w[0:k, block, t0 : min(taps, t0 + at_hand), :]
            if is_hbm_tensor(w):
                w_sb = load(w_sb)
            for tap in range(t0, min(taps, t0 + at_hand)):
                y = r0 * stride[0] + (tap // kernel[1]) * dilation[0]
                x = c0 * stride[1] + (tap % kernel[1]) * dilation[1]
                y_end = y + (rows - 1) * stride[0] + 1
                x_end = x + (cols - 1) * stride[1] + 1
                nisa.nc_matmul(
                    dst=sum_psum,
                    stationary=w_sb[:, tap - t0, :],
                    moving=x_sb[0:k, block, :, y : y_end : stride[0], x : x_end : stride[1]],
                    accumulate=block + tap > 0,
                )


def _convolve_and_pool(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    w: nl.NkiTensor,
    bias_column: nl.NkiTensor,
    r0: int,
    rows: Pair,
    shape: ConvShape,
    act: str,
    pooling: Pooling,
) -> None:
    """y_sb (o, n, rows, columns) = the pooled convolution; what lies between stays in an SBUF tile."""
    pool, pool_stride, pool_pads, pool_dilation = pooling
    outputs, images, r_size, cols = y_sb.shape
    need_rows, need_cols = _input_extent(r_size, cols, pool, pool_stride, pool_dilation)
    have_cols = min(shape[1][1], need_cols - pool_pads[1])
    top = rows[0] - (r0 * pool_stride[0] - pool_pads[0])
    have_rows = rows[1] - rows[0]
    conv_sb = nl.ndarray((outputs, images, need_rows, need_cols), dtype=y_sb.dtype, buffer=nl.sbuf)
    if have_rows < need_rows or have_cols < need_cols:
        nisa.memset(dst=conv_sb, value=LOWEST)
    inner_sb = conv_sb[:, :, top : top + have_rows, pool_pads[1] : pool_pads[1] + have_cols]
    _convolve(inner_sb, x_sb, w, bias_column, shape, act)
    max_windows(y_sb, conv_sb, 0, need_rows * need_cols, need_cols, pool, pool_stride, pool_dilation)
