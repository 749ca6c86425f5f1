"""Vector addition, in the stages in which it is taught: from one tile to a stream that keeps the DMA engines busy.

All vectors are HBM (N,), of one dtype, and all functions equal numpy's ``a + b``; they differ in how they tile them.
"""

from trnrt.kernels.common import ceil_div, item_bytes
from trnrt.nki import nisa, nl

# Elements of a partition in one tile of the stream.
STREAM_COLUMNS = 1000
# Elements of a partition in the tiles whose addresses the kernel chooses.
DIRECT_COLUMNS = 512
# Bytes per partition of the tiles of a long vector: more gain nothing. Six random lengths in float32 take, predicted on
# average, 0.5 % less with half of it, 0.3 % more with twice.
MOST_BYTES = 8192
# A vector's end, of at most so many bytes per partition, is cut into ENDING pieces. The sums of all but the last two
# leave in one store: it moves while the last loads complete and the last sums are made, when DMA would be idle.
# 256,000 elements in float32 on trn2, predicted by a profiler: 24.6 us; with a store for each piece, 26.0.
ENDING = 5
# The least bytes per partition of a piece: below them a trigger takes longer than its data.
LEAST_BYTES = 768


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
    """dst = a + b at the memory's speed: DMA never waits for an addition.

    dst, a, b: HBM (N,)

    numpy: a + b
    """
    size, pmax = a.shape[0], nl.tile_size.pmax
    columns = size // pmax
    rest = size - columns * pmax
    row_bytes = columns * item_bytes(a.dtype)
    # A rest below 128 elements is a single row. In a long vector it would hold up the end.
    first = rest if row_bytes >= ENDING * LEAST_BYTES else 0
    if first > 0:
        _add_piece(dst[0:first], a[0:first], b[0:first], 1, first, first)
    for part in _parts_of_vector(row_bytes, columns):
        width, step = part
        last = first + width * pmax
        _add_part(dst[first:last], a[first:last], b[first:last], step)
        first = last
    if first < size:
        _add_piece(dst[first:size], a[first:size], b[first:size], 1, rest, rest)


def _parts_of_vector(row_bytes: int, columns: int) -> list[tuple[int, int]]:
    """(columns, columns of a piece) of the parts of a vector that are stored one by one."""
    parts: list[tuple[int, int]] = []
    pieces = ceil_div(row_bytes, MOST_BYTES)
    step = max(1, ceil_div(columns, pieces)) if pieces > 0 else 1
    while columns > step:
        parts.append((step, step))
        columns -= step
    pieces = max(1, min(ENDING, row_bytes // LEAST_BYTES))
    step = ceil_div(columns, pieces)
    while columns > 0:
        width = max(step, columns - 2 * step)
        parts.append((min(columns, width), step))
        columns -= min(columns, width)
    return parts


def _add_part(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, step: int) -> None:
    """a + b for whole rows of 128, in pieces of ``step`` columns with one store. Each row is contiguous in HBM.

    The descriptors of its transfers exist before the program runs, which makes their triggers shortest.
    """
    columns = a.shape[0] // nl.tile_size.pmax
    shape = (nl.tile_size.pmax, columns)
    sum_sb = nl.ndarray(shape, dtype=dst.dtype, buffer=nl.sbuf)
    for c0 in range(0, columns, step):
        c1 = min(columns, c0 + step)
        a_sb = nl.ndarray((nl.tile_size.pmax, step), dtype=a.dtype, buffer=nl.sbuf)[:, 0 : c1 - c0]
        b_sb = nl.ndarray((nl.tile_size.pmax, step), dtype=b.dtype, buffer=nl.sbuf)[:, 0 : c1 - c0]
        nisa.dma_copy(dst=a_sb, src=a.reshape(shape)[:, c0:c1], dge_mode=nisa.dge_mode.none)
        nisa.dma_copy(dst=b_sb, src=b.reshape(shape)[:, c0:c1], dge_mode=nisa.dge_mode.none)
        nisa.tensor_tensor(dst=sum_sb[:, c0:c1], data1=a_sb, data2=b_sb, op=nl.add)
    nisa.dma_copy(dst=dst.reshape(shape), src=sum_sb, dge_mode=nisa.dge_mode.none)


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
