"""Convolutions with the university labs' signature: images, natural weights and bias in HBM, a result in HBM.

The tensor engine transposes the weights while the first images load; ``conv2d.py`` does the rest.
"""

from trnrt.kernels.common import item_bytes
from trnrt.kernels.conv.conv2d import convolve
from trnrt.kernels.conv.convolving import Layer, Pooling
from trnrt.kernels.conv.packing import ConvShape
from trnrt.nki import nki, nl

# Bytes per partition for the weights in use, and as many for the natural ones.
LABS_WEIGHT_BYTES = 56 * 1024
# Bytes per partition of a band of images, and of its results, as if elements had 4 bytes: nine images of 32 x 32.
LABS_SOURCE_BYTES, LABS_BAND_BYTES = 40 * 1024, 36 * 1024


@nki.jit
def conv2d_bias_pool(x: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor, pool: int = 1) -> nl.NkiTensor:
    """max_pool(conv(x, w) + bias), without padding, stride 1.

    x: HBM (N, C, H, W)
    w: HBM (O, C, KH, KW), the dtype of x
    bias: HBM (O,), float32, bfloat16 or float16
    pool: rows and columns of the pooling windows, and their stride; 1 means no pooling. Rows and columns that don't
        fill a window are dropped
    result: HBM (N, O, (H-KH+1) // pool, (W-KW+1) // pool)
    limits: those of conv2d

    numpy: y[n, o, i, j] = bias[o] + (w[o] * x[n, :, i:i+KH, j:j+KW]).sum(), then the maxima of pool x pool windows
    """
    images, channels, height, width = x.shape
    outputs, in_channels, rows, cols = w.shape
    assert in_channels == channels, f"conv2d_bias_pool: {channels} channels, but weights for {in_channels}"
    size = (height - rows + 1, width - cols + 1)
    assert size[0] >= pool and size[1] >= pool, f"conv2d_bias_pool: no window of {pool} in results of {size}"
    out = nl.ndarray((images, outputs, size[0] // pool, size[1] // pool), dtype=x.dtype, buffer=nl.shared_hbm)
    shape = ConvShape(channels, size, (rows, cols), (1, 1), (0, 0), (1, 1))
    pooling = Pooling("max", (pool, pool), (pool, pool), (0, 0), (1, 1))
    natural = w.reshape((outputs, channels, rows * cols))
    source_bytes = LABS_SOURCE_BYTES * 4 // item_bytes(x.dtype)
    layer = Layer(shape, "none", pooling, True, LABS_WEIGHT_BYTES, LABS_BAND_BYTES, "best", source_bytes)
    convolve(out, x, natural, bias, layer)
    return out
