"""Data movement that changes the order of dimensions."""

from trnrt.kernels.common import load, transpose_is_exact, transpose_tile
from trnrt.nki import nisa, nl

# Columns that are brought in at once for a transpose.
COLUMNS = 2048


def transpose_matrices(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[a] = src[a].T for each matrix a.

    dst: HBM (A, C, R)
    src: HBM (A, R, C)

    The tensor engine transposes 128 x 128 tiles; on trn1, where it would spread NaN and infinity, the DMA engines
    do it element by element.

    numpy: src.transpose(0, 2, 1)
    """
    outer, rows, columns = src.shape
    if not transpose_is_exact():
        permute_dims(dst, src, (0, 2, 1))
    else:
        for a in range(outer):
            for r0 in range(0, rows, nl.tile_size.pmax):
                r1 = min(rows, r0 + nl.tile_size.pmax)
                for c0 in range(0, columns, COLUMNS):
                    _transpose_rows(dst[a], src[a, r0:r1, c0 : min(columns, c0 + COLUMNS)], r0, c0)


def _transpose_rows(dst: nl.NkiTensor, src: nl.NkiTensor, r0: int, c0: int) -> None:
    """dst[c0..., r0...] = src.T for at most 128 rows."""
    rows, columns = src.shape
    rows_sb = load(src)
    for k0 in range(0, columns, nl.tile_size.pmax):
        k1 = min(columns, k0 + nl.tile_size.pmax)
        columns_sb = nl.ndarray((k1 - k0, rows), dtype=dst.dtype, buffer=nl.sbuf)
        transpose_tile(columns_sb, rows_sb[:, k0:k1])
        nisa.dma_copy(dst=dst[c0 + k0 : c0 + k1, r0 : r0 + rows], src=columns_sb)


def permute_dims(dst: nl.NkiTensor, src: nl.NkiTensor, order: tuple[int, ...]) -> None:
    """dst = src with its dimensions in another order, by DMA.

    dst, src: HBM, at most 5 dimensions
    order: as numpy's axes; it pays where the last dimension stays last, so that runs of elements move together

    numpy: src.transpose(order)
    """
    nisa.dma_copy(dst=dst, src=src.permute(order))
