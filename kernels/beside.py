"""Work that a product does beside its own, on engines that it leaves idle."""

from dataclasses import dataclass

from trnrt.kernels.argmax import argmax
from trnrt.kernels.operands import TURNED
from trnrt.nki import nisa, nl

# Rows and columns of the largest matrix that the vector engine transposes.
SQUARE = 32


@dataclass
class Beside(nl.NKIObject):
    """One piece of such work, dst = src.T if it ``turns``, otherwise the classes dst, HBM (N, 1) uint32, of the rows
    src, HBM (N, F)."""

    dst: nl.NkiTensor
    src: nl.NkiTensor
    turns: bool


def do_beside(work: Beside) -> None:
    """Do a piece of work."""
    if work.turns:
        turn_by_vector(work.dst, work.src)
    else:
        argmax(work.dst, work.src, work.src.shape[0])


def pieces_of_turn(dst: nl.NkiTensor, src: nl.NkiTensor) -> list[Beside]:
    """dst = src.T in pieces, by the vector engine.

    dst: HBM (C, R)
    src: HBM (R, C), the dtype of dst
    """
    rows, columns = src.shape
    width = TURNED * nl.tile_size.pmax
    pieces = []
    for c0 in range(0, columns, width):
        c1 = min(columns, c0 + width)
        for r0 in range(0, rows, nl.tile_size.pmax):
            r1 = min(rows, r0 + nl.tile_size.pmax)
            pieces.append(Beside(dst[c0:c1, r0:r1], src[r0:r1, c0:c1], True))
    return pieces


def pieces_of_argmax(dst: nl.NkiTensor, src: nl.NkiTensor) -> list[Beside]:
    """The classes dst, HBM (N, 1) uint32, of the rows src, HBM (N, F), in pieces."""
    pieces = []
    for r0 in range(0, src.shape[0], nl.tile_size.pmax):
        r1 = min(src.shape[0], r0 + nl.tile_size.pmax)
        pieces.append(Beside(dst[r0:r1], src[r0:r1], False))
    return pieces


def turn_by_vector(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst, HBM (C, R), = src.T of src, HBM (R, C), of one dtype: by the vector engine, bit for bit, in squares of 32 x
    32. R is at most 128."""
    rows, columns = src.shape
    pmax = nl.tile_size.pmax
    for first in range(0, columns, TURNED * pmax):
        end = min(columns, first + TURNED * pmax)
        rows_sb = nl.ndarray((pmax, TURNED * pmax), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows_sb[0:rows, 0 : end - first], src=src[:, first:end])
        turned_sb = nl.ndarray((pmax, TURNED, pmax), dtype=src.dtype, buffer=nl.sbuf)
        for c0 in range(0, end - first, SQUARE):
            c1, tile, p0 = min(end - first, c0 + SQUARE), c0 // pmax, c0 % pmax
            for r0 in range(0, rows, SQUARE):
                r1 = min(rows, r0 + SQUARE)
                square_sb = turned_sb[p0 : p0 + c1 - c0, tile, r0:r1]
                nisa.nc_transpose(dst=square_sb, data=rows_sb[r0:r1, c0:c1], engine=nisa.engine.vector)
        whole = (end - first) // pmax
        if whole > 0:
            tiles = dst[first : first + whole * pmax, :].reshape_dim(0, (whole, pmax))
            nisa.dma_copy(dst=tiles.permute((1, 0, 2)), src=turned_sb[:, 0:whole, 0:rows])
        if whole * pmax < end - first:
            rest = dst[first + whole * pmax : end, :]
            nisa.dma_copy(dst=rest, src=turned_sb[0 : end - first - whole * pmax, whole, 0:rows])
