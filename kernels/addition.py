"""Vector addition, in the stages in which it is taught: from one tile to a stream that keeps the DMA engines busy.

All vectors are HBM (N,), of one dtype, and all functions equal numpy's ``a + b``; they differ in how they tile them.
"""

from trnrt.kernels.common import ceil_div, item_bytes
from trnrt.nki import nisa, nl

# Elements of a partition in one tile of the stream.
STREAM_COLUMNS = 1000
# Elements of a partition in the tiles whose addresses the kernel chooses.
DIRECT_COLUMNS = 512
# A long enough vector is cut into at least this many pieces, so that stores of the first sums follow the last loads
# directly.
PIECES = 4
# The bytes per partition of a piece: below LEAST_BYTES a trigger takes longer than its data, above MOST_BYTES nothing
# is gained. Six random lengths in float32 take, predicted on average: with PIECES = 8 0.8 % less (3 % more to 6 %
# less), with half of LEAST_BYTES 1.6 % less, of MOST_BYTES 0.5 % less, with twice of MOST_BYTES 0.3 % more. Kept as in
# the lab's case.
LEAST_BYTES = 1536
MOST_BYTES = 8192


def add_naive(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """dst = a + b as one tile, an element per partition.

    dst, a, b: HBM (N,)
    limits: N <= 128

    numpy: a + b
    """
    size = a.shape[0]
    assert size <= nl.tile_size.pmax, f"add_naive: {size} elements; a tile has {nl.tile_size.pmax} partitions"
    _add_piece(dst, a, b, size, 1, 1)


def add_rows(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """dst = a + b in tiles of an element per partition: every packet of a transfer is a single element.

    dst, a, b: HBM (N,)

    numpy: a + b
    """
    for first in range(0, a.shape[0], nl.tile_size.pmax):
        last = min(a.shape[0], first + nl.tile_size.pmax)
        add_naive(dst[first:last], a[first:last], b[first:last])


def add_stream(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """dst = a + b in tiles with a free dimension of STREAM_COLUMNS elements.

    dst, a, b: HBM (N,)

    numpy: a + b
    """
    _add_pieces(dst, a, b, STREAM_COLUMNS)


def add(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """dst = a + b at the memory's speed: pieces are contiguous in HBM, and there are at least PIECES of them, so that
    DMA never waits for an addition.

    dst, a, b: HBM (N,)

    numpy: a + b
    """
    columns = ceil_div(a.shape[0], nl.tile_size.pmax)
    row_bytes = columns * item_bytes(a.dtype)
    pieces = max(ceil_div(row_bytes, MOST_BYTES), min(PIECES, row_bytes // LEAST_BYTES))
    _add_pieces(dst, a, b, ceil_div(columns, pieces))


def add_direct(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """dst = a + b in tiles at addresses chosen by the kernel: two of each operand, in turn.

    dst, a, b: HBM (N,)
    limits: N is a multiple of 128 * DIRECT_COLUMNS

    numpy: a + b
    """
    _add_at(dst, a, b, DIRECT_COLUMNS * item_bytes(a.dtype))


def add_colliding(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor) -> None:
    """add_direct with an instructive mistake: the tiles start half a tile apart, so each shares bytes with the next. It
    compiles, but its sums are wrong; the simulator refuses it.

    dst, a, b: HBM (N,)
    limits: as add_direct
    """
    _add_at(dst, a, b, DIRECT_COLUMNS * item_bytes(a.dtype) // 2)


def _add_at(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, distance: int) -> None:
    """a + b in tiles of DIRECT_COLUMNS; the six tiles of two rounds start ``distance`` bytes apart."""
    piece = nl.tile_size.pmax * DIRECT_COLUMNS
    assert a.shape[0] % piece == 0, f"direct addition: {a.shape[0]} elements; it takes multiples of {piece}"
    shape = (nl.tile_size.pmax, DIRECT_COLUMNS)
    for i in range(a.shape[0] // piece):
        start = i % 2 * 3 * distance
        first, last = i * piece, (i + 1) * piece
        a_sb = nl.ndarray(shape, dtype=a.dtype, buffer=nl.sbuf, address=(0, start))
        b_sb = nl.ndarray(shape, dtype=b.dtype, buffer=nl.sbuf, address=(0, start + distance))
        sum_sb = nl.ndarray(shape, dtype=dst.dtype, buffer=nl.sbuf, address=(0, start + 2 * distance))
        nisa.dma_copy(dst=a_sb, src=a[first:last].reshape(shape))
        nisa.dma_copy(dst=b_sb, src=b[first:last].reshape(shape))
        nisa.tensor_tensor(dst=sum_sb, data1=a_sb, data2=b_sb, op=nl.add)
        nisa.dma_copy(dst=dst[first:last].reshape(shape), src=sum_sb)


def _add_pieces(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, columns: int) -> None:
    """a + b in tiles of ``columns`` elements per partition. The rest goes in a tile with shorter rows, and a single
    row."""
    size = a.shape[0]
    first = 0
    while first < size:
        width = min(columns, (size - first) // nl.tile_size.pmax)
        rows = nl.tile_size.pmax
        if width == 0:
            rows, width = 1, size - first
        last = first + rows * width
        _add_piece(dst[first:last], a[first:last], b[first:last], rows, width, max(columns, nl.tile_size.pmax))
        first = last


def _add_piece(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, rows: int, columns: int, room: int) -> None:
    """a + b for rows * columns elements: row r on partition r. Tiles of one kernel have ``room`` for as many columns.

    The descriptors of its transfers exist before the program runs, which makes their triggers shortest.
    """
    shape = (rows, columns)
    tile_shape = (nl.tile_size.pmax, room)
    a_sb = nl.ndarray(tile_shape, dtype=a.dtype, buffer=nl.sbuf)[0:rows, 0:columns]
    b_sb = nl.ndarray(tile_shape, dtype=b.dtype, buffer=nl.sbuf)[0:rows, 0:columns]
    sum_sb = nl.ndarray(tile_shape, dtype=dst.dtype, buffer=nl.sbuf)[0:rows, 0:columns]
    nisa.dma_copy(dst=a_sb, src=a.reshape(shape), dge_mode=nisa.dge_mode.none)
    nisa.dma_copy(dst=b_sb, src=b.reshape(shape), dge_mode=nisa.dge_mode.none)
    nisa.tensor_tensor(dst=sum_sb, data1=a_sb, data2=b_sb, op=nl.add)
    nisa.dma_copy(dst=dst.reshape(shape), src=sum_sb, dge_mode=nisa.dge_mode.none)
