"""Rows written to places that are known at run time, such as an unpooling's. DMA writes each, from a partition of its
own."""

from trnrt.kernels.gather import CHUNK, MAX_ROWS
from trnrt.nki import nisa, nl

# Elements of zeros per partition: 8 KiB in float32.
FILLED = 2048


def scatter_rows(dst: nl.NkiTensor, numbers: nl.NkiTensor, rows: nl.NkiTensor) -> None:
    """dst = zeros, with rows at the places of these numbers.

    dst: HBM (V, C) of the rows' dtype
    numbers: HBM (R, 1) int32, each from 0 to V - 1: the runtime stops at any other. No two are the same, unless the
        row is one that nobody reads: DMA writes rows in any order
    rows: HBM (R, C)
    limits: V <= MAX_ROWS

    numpy: y = zeros; y[numbers[:, 0]] = rows; dst = y
    """
    count, columns = rows.shape
    assert numbers.shape == (count, 1), f"scatter_rows: numbers are {numbers.shape}; {count} rows need {(count, 1)}"
    assert dst.shape[1] == columns, f"scatter_rows: rows of {columns} elements for results of {dst.shape[1]}"
    assert dst.shape[0] <= MAX_ROWS, f"scatter_rows: results of {dst.shape[0]} rows; the limit is {MAX_ROWS}"
    _fill_zeros(dst.reshape((dst.shape[0] * columns,)))
    for r0 in range(0, count, nl.tile_size.pmax):
        r1 = min(count, r0 + nl.tile_size.pmax)
        # The reference takes numbers as uint32; the bits are the same.
        number_sb = nl.ndarray((r1 - r0, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=number_sb, src=numbers[r0:r1].view(nl.uint32))
        for c0 in range(0, columns, CHUNK):
            c1 = min(columns, c0 + CHUNK)
            row_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=rows.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=row_sb, src=rows[r0:r1, c0:c1])
            places = dst.ap([[columns, r1 - r0], [1, c1 - c0]], offset=c0, vector_offset=number_sb, indirect_dim=0)
            nisa.dma_copy(dst=places, src=row_sb)


def _fill_zeros(dst: nl.NkiTensor) -> None:
    """dst (count,) = 0."""
    pmax, count = nl.tile_size.pmax, dst.shape[0]
    zeros_sb = nl.ndarray((pmax, min(FILLED, max(1, count // pmax))), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros_sb, value=0.0)
    step, columns = zeros_sb.shape[1], count // pmax
    for c0 in range(0, columns, step):
        c1 = min(columns, c0 + step)
        nisa.dma_copy(dst=dst[c0 * pmax : c1 * pmax].reshape((pmax, c1 - c0)), src=zeros_sb[0:pmax, 0 : c1 - c0])
    rest = count - columns * pmax
    if rest > 0:
        nisa.dma_copy(dst=dst[columns * pmax : count].reshape((rest, 1)), src=zeros_sb[0:rest, 0:1])
