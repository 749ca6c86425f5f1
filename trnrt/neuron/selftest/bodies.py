"""Kernels that return a result, around those of ``trnrt.kernels`` that write into one: in the language of NKI 0.6."""

from trnrt.kernels.addition import add, add_direct, add_naive, add_rows, add_stream
from trnrt.kernels.layouts import load_channels, load_features, load_rows, store_channels, store_features, store_rows
from trnrt.kernels.narrow import narrow
from trnrt.kernels.topk import topk_pairs
from trnrt.kernels.transpose import transpose_by_dma, transpose_by_tensor
from trnrt.nki import nki, nl


@nki.jit
def add_vectors(a: nl.NkiTensor, b: nl.NkiTensor, way: str = "best") -> nl.NkiTensor:
    """a + b; ``way``: "naive", "rows", "stream", "direct", or "best" for the kernel's own choice."""
    dst = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    if way == "naive":
        add_naive(dst, a, b)
    elif way == "rows":
        add_rows(dst, a, b)
    elif way == "stream":
        add_stream(dst, a, b)
    elif way == "direct":
        add_direct(dst, a, b)
    else:
        add(dst, a, b)
    return dst


@nki.jit
def transpose_matrix(src: nl.NkiTensor, by_dma: bool = False) -> nl.NkiTensor:
    """src.T by the tensor engine, or by the DMA engines."""
    dst = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    if by_dma:
        transpose_by_dma(dst, src)
    else:
        transpose_by_tensor(dst, src)
    return dst


@nki.jit
def copy_rows(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``rows`` layout; at least 128 rows."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    blocks = (src.shape[0] + 127) // 128
    tile_sb = nl.ndarray((128, blocks, src.shape[1]), dtype=src.dtype, buffer=nl.sbuf)
    load_rows(tile_sb, src)
    store_rows(dst, tile_sb)
    return dst


@nki.jit
def copy_features(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``features`` layout; at least 128 columns."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    blocks = (src.shape[1] + 127) // 128
    tile_sb = nl.ndarray((128, blocks, src.shape[0]), dtype=src.dtype, buffer=nl.sbuf)
    load_features(tile_sb, src)
    store_features(dst, tile_sb)
    return dst


@nki.jit
def copy_channels(src: nl.NkiTensor) -> nl.NkiTensor:
    """A copy through the ``channels`` layout; at least 128 channels."""
    dst = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    images, channels, height, width = src.shape
    tile_sb = nl.ndarray((128, (channels + 127) // 128, images, height, width), dtype=src.dtype, buffer=nl.sbuf)
    load_channels(tile_sb, src)
    store_channels(dst, tile_sb)
    return dst


@nki.jit
def narrow_channels(src: nl.NkiTensor, factor: float, most: float) -> nl.NkiTensor:
    """src * factor in float8_e4m3, limited to ``most``, in the ``channels`` layout; at least 128 channels."""
    images, channels, height, width = src.shape
    dst = nl.ndarray(src.shape, dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    shape = (128, (channels + 127) // 128, images, height, width)
    tile_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
    narrow_sb = nl.ndarray(shape, dtype=dst.dtype, buffer=nl.sbuf)
    load_channels(tile_sb, src)
    narrow(narrow_sb, tile_sb, factor, most, True)
    store_channels(dst, narrow_sb)
    return dst


@nki.jit
def best_of_rows(src: nl.NkiTensor, k: int) -> nl.NkiTensor:
    """The k largest of each row in their order, then their places; float32."""
    dst = nl.ndarray((src.shape[0], 2 * k), dtype=src.dtype, buffer=nl.shared_hbm)
    topk_pairs(dst, src, k, True)
    return dst
