"""Tensors between HBM and the layouts that activations have in SBUF (see common.py): for running a step alone."""

from trnrt.kernels.common import ceil_div
from trnrt.nki import nisa, nl


def load_rows(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b] = src[b*128 + p].

    dst: SBUF rows (P, B, F)
    src: HBM (N, F)

    numpy: src, in blocks of 128 rows
    """
    for block in range(_blocks(dst, src.shape[0])):
        first, last = _span(block, src.shape[0])
        nisa.dma_copy(dst=dst[0 : last - first, block], src=src[first:last])


def store_rows(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[b*128 + p] = src[p, b].

    dst: HBM (N, F)
    src: SBUF rows (P, B, F)

    numpy: the rows of src, in order
    """
    for block in range(_blocks(src, dst.shape[0])):
        first, last = _span(block, dst.shape[0])
        nisa.dma_copy(dst=dst[first:last], src=src[0 : last - first, block])


def load_features(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b, n] = src[n, b*128 + p].

    dst: SBUF features (P, B, N)
    src: HBM (N, F)

    numpy: src.T, in blocks of 128 features
    """
    for block in range(_blocks(dst, src.shape[1])):
        first, last = _span(block, src.shape[1])
        nisa.dma_copy(dst=dst[0 : last - first, block], src=src[:, first:last].permute((1, 0)))


def store_features(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[n, b*128 + p] = src[p, b, n].

    dst: HBM (N, F)
    src: SBUF features (P, B, N)

    numpy: the features of src in order, transposed
    """
    for block in range(_blocks(src, dst.shape[1])):
        first, last = _span(block, dst.shape[1])
        nisa.dma_copy(dst=dst[:, first:last].permute((1, 0)), src=src[0 : last - first, block])


def load_channels(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b, n] = src[n, b*128 + p].

    dst: SBUF channels (P, B, N, H, W)
    src: HBM images (N, C, H, W)

    numpy: src.transpose(1, 0, 2, 3), in blocks of 128 channels
    """
    for block in range(_blocks(dst, src.shape[1])):
        first, last = _span(block, src.shape[1])
        nisa.dma_copy(dst=dst[0 : last - first, block], src=src[:, first:last].permute((1, 0, 2, 3)))


def store_channels(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[n, b*128 + p] = src[p, b, n].

    dst: HBM images (N, C, H, W)
    src: SBUF channels (P, B, N, H, W)

    numpy: the channels of src in order, as images
    """
    for block in range(_blocks(src, dst.shape[1])):
        first, last = _span(block, dst.shape[1])
        nisa.dma_copy(dst=dst[:, first:last].permute((1, 0, 2, 3)), src=src[0 : last - first, block])


def _span(block: int, total: int) -> tuple[int, int]:
    """The first and last + 1 of ``total`` rows, features or channels that stand in a block."""
    first = block * nl.tile_size.pmax
    return first, min(total, first + nl.tile_size.pmax)


def _blocks(tile: nl.NkiTensor, total: int) -> int:
    """The blocks of a tile, which must hold ``total`` rows, features or channels."""
    blocks = ceil_div(total, nl.tile_size.pmax)
    assert tile.shape[1] == blocks, f"layouts: a tile of {tile.shape[1]} blocks for {total}; it needs {blocks}"
    return blocks
