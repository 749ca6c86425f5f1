"""Rows of a table by numbers known at run time, such as embeddings. DMA fetches each row, for a partition of its
own."""

from trnrt.nki import nisa, nl

# Elements of a row per transfer: 32 KiB per partition in float32.
CHUNK = 8192
# The most rows of a table: the host prepares numbers up to this size.
MAX_ROWS = 2147483647


def gather_rows(dst: nl.NkiTensor, numbers: nl.NkiTensor, table: nl.NkiTensor) -> None:
    """dst = the rows of table with these numbers.

    dst: HBM (R, C) of table's dtype
    numbers: HBM (R, 1) int32, each from 0 to V - 1: the runtime stops at any other
    table: HBM (V, C)
    limits: V <= MAX_ROWS

    numpy: table[numbers[:, 0]]
    """
    rows, columns = dst.shape
    assert numbers.shape == (rows, 1), f"gather_rows: numbers are {numbers.shape}; {rows} rows need {(rows, 1)}"
    assert table.shape[1] == columns, f"gather_rows: rows of {table.shape[1]} elements for results of {columns}"
    assert table.shape[0] <= MAX_ROWS, f"gather_rows: a table of {table.shape[0]} rows; the limit is {MAX_ROWS}"
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        # The reference looks rows up by uint32; the bits are the same.
        number_sb = nl.ndarray((r1 - r0, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=number_sb, src=numbers[r0:r1].view(nl.uint32))
        for c0 in range(0, columns, CHUNK):
            c1 = min(columns, c0 + CHUNK)
            row_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=table.dtype, buffer=nl.sbuf)
            chosen = table.ap([[columns, r1 - r0], [1, c1 - c0]], offset=c0, vector_offset=number_sb, indirect_dim=0)
            nisa.dma_copy(dst=row_sb, src=chosen)
            nisa.dma_copy(dst=dst[r0:r1, c0:c1], src=row_sb)
