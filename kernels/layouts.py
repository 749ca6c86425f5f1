"""Tensors between HBM and the layouts that activations have in SBUF (see common.py): for running a step alone."""

from trnrt.kernels.common import block_rows, ceil_div
from trnrt.nki import nisa, nl


def load_rows(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b] = src[b*128 + p].

    dst: SBUF rows (P, B, F)
    src: HBM (N, F)

    numpy: src, in blocks of 128 rows
    """
    _load_partitions(dst, src)


def store_rows(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[b*128 + p] = src[p, b].

    dst: HBM (N, F)
    src: SBUF rows (P, B, F)

    numpy: the rows of src, in order
    """
    _store_partitions(dst, src)


def load_features(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b, n] = src[n, b*128 + p].

    dst: SBUF features (P, B, N)
    src: HBM (N, F)

    numpy: src.T, in blocks of 128 features
    """
    _load_partitions(dst, src.permute((1, 0)))


def store_features(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[n, b*128 + p] = src[p, b, n].

    dst: HBM (N, F)
    src: SBUF features (P, B, N)

    numpy: the features of src in order, transposed
    """
    _store_partitions(dst.permute((1, 0)), src)


def load_channels(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[p, b, n] = src[n, b*128 + p].

    dst: SBUF channels (P, B, N, H, W)
    src: HBM images (N, C, H, W)

    numpy: src.transpose(1, 0, 2, 3), in blocks of 128 channels
    """
    _load_partitions(dst, src.permute((1, 0, 2, 3)))


def store_channels(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[n, b*128 + p] = src[p, b, n].

    dst: HBM images (N, C, H, W)
    src: SBUF channels (P, B, N, H, W)

    numpy: the channels of src in order, as images
    """
    _store_partitions(dst.permute((1, 0, 2, 3)), src)


def _load_partitions(tile_sb: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """tile_sb (P, B, ...) = src, HBM: its first dimension goes to the partitions, in blocks of 128."""
    for block in range(_blocks(tile_sb, src.shape[0])):
        first, count = block * nl.tile_size.pmax, block_rows(src.shape[0], block)
        nisa.dma_copy(dst=tile_sb[0:count, block], src=src[first : first + count])


def _store_partitions(dst: nl.NkiTensor, tile_sb: nl.NkiTensor) -> None:
    """The inverse of ``_load_partitions``."""
    for block in range(_blocks(tile_sb, dst.shape[0])):
        first, count = block * nl.tile_size.pmax, block_rows(dst.shape[0], block)
        nisa.dma_copy(dst=dst[first : first + count], src=tile_sb[0:count, block])


def _blocks(tile: nl.NkiTensor, total: int) -> int:
    """The blocks of a tile, which must hold ``total`` rows, features or channels."""
    blocks = ceil_div(total, nl.tile_size.pmax)
    assert tile.shape[1] == blocks, f"layouts: a tile of {tile.shape[1]} blocks for {total}; it needs {blocks}"
    return blocks
