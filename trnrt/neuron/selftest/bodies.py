"""Kernels that stand alone, around those of ``trnrt.kernels`` that write into a result: in the language of NKI 0.6."""

from trnrt.kernels.addition import add, add_direct, add_naive, add_rows, add_stream
from trnrt.kernels.conv.labs_conv import conv2d_bias_pool
from trnrt.kernels.feed_forward import forward, predict
from trnrt.kernels.layouts import load_channels, load_features, load_rows, store_channels, store_features, store_rows
from trnrt.kernels.matmul import matmul
from trnrt.kernels.transpose import transpose_by_dma, transpose_by_tensor
from trnrt.nki import nki, nl


@nki.jit
def added(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b by the best way."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add(dst, a, b)
    return dst


@nki.jit
def added_naive(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b in one tile."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_naive(dst, a, b)
    return dst


@nki.jit
def added_rows(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b, 128 at a time."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_rows(dst, a, b)
    return dst


@nki.jit
def added_stream(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b in wide tiles."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_stream(dst, a, b)
    return dst


@nki.jit
def added_direct(a: nl.NkiTensor, b: nl.NkiTensor) -> nl.NkiTensor:
    """a + b in direct allocations."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_direct(dst, a, b)
    return dst


@nki.jit
def turned(src: nl.NkiTensor) -> nl.NkiTensor:
    """src.T by the tensor engine."""
    dst = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    transpose_by_tensor(dst, src)
    return dst


@nki.jit
def turned_by_dma(src: nl.NkiTensor) -> nl.NkiTensor:
    """src.T by the DMA engines."""
    dst = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    transpose_by_dma(dst, src)
    return dst


@nki.jit
def pooled(x: nl.NkiTensor, w: nl.NkiTensor, bias: nl.NkiTensor) -> nl.NkiTensor:
    """A convolution with bias, and the maxima of 2 x 2 of its results."""
    dst: nl.NkiTensor = conv2d_bias_pool(x, w, bias, 2)
    return dst


@nki.jit
def turned_product(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs."""
    dst: nl.NkiTensor = matmul(lhs, rhs, True)
    return dst


@nki.jit
def classified(x: nl.NkiTensor, w1: nl.NkiTensor, b1: nl.NkiTensor, w2: nl.NkiTensor, b2: nl.NkiTensor) -> nl.NkiTensor:
    """The classes of a net of two layers."""
    dst: nl.NkiTensor = predict(x, w1, b1, w2, b2)
    return dst


@nki.jit
def probable(x: nl.NkiTensor, w1: nl.NkiTensor, b1: nl.NkiTensor, w2: nl.NkiTensor, b2: nl.NkiTensor) -> nl.NkiTensor:
    """The probabilities of a net of two layers."""
    dst: nl.NkiTensor = forward(x, w1, b1, w2, b2)
    return dst


@nki.jit
def through_rows(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``rows`` layout; at least 128 rows."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    blocks = (src.shape[0] + 127) // 128
    tile_sb = nl.ndarray((128, blocks, src.shape[1]), dtype=src.dtype, buffer=nl.sbuf)
    load_rows(tile_sb, src)
    store_rows(dst, tile_sb)
    return dst


@nki.jit
def through_features(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``features`` layout; at least 128 columns."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    blocks = (src.shape[1] + 127) // 128
    tile_sb = nl.ndarray((128, blocks, src.shape[0]), dtype=src.dtype, buffer=nl.sbuf)
    load_features(tile_sb, src)
    store_features(dst, tile_sb)
    return dst


@nki.jit
def through_channels(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``channels`` layout; at least 128 channels."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    images, channels, height, width = src.shape
    tile_sb = nl.ndarray((128, (channels + 127) // 128, images, height, width), dtype=src.dtype, buffer=nl.sbuf)
    load_channels(tile_sb, src)
    store_channels(dst, tile_sb)
    return dst
