"""Data movement that changes the order of dimensions."""

from typing import Any

from trnrt.kernels.common import block_rows, ceil_div, item_bytes, transpose_is_exact
from trnrt.nki import nisa, nl

# Columns of the source per load, and transposed columns per store.
TURNED_COLUMNS = 1024
# Bytes of a transposed column per packet of a store: whole blocks of 128 rows, as many as fit. Four random shapes take,
# predicted on average, 1.6 % less with half of it (12 % less to 6 % more), and 0.2 % less with twice.
PACKET_BYTES = 1024
# Rows of the source up to this long are short: their transfers are fewer and longer.
SHORT_BYTES = 1024
# Rows that the DMA engines transpose at once.
DMA_ROWS = 2048


def transpose_matrices(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[a] = src[a].T for each matrix a, by the tensor engine.

    dst: HBM (A, C, R)
    src: HBM (A, R, C)

    numpy: src.transpose(0, 2, 1)
    """
    for a in range(src.shape[0]):
        transpose_by_tensor(dst[a], src[a])


def transpose_by_tensor(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = src.T by the tensor engine, bit for bit.

    dst: HBM (C, R)
    src: HBM (R, C)

    trn1 transposes by a product with an identity, which would spread NaN and infinity. So there the bits are
    transposed, 16 at a time, as whole numbers.

    numpy: src.T
    """
    rows, columns = src.shape
    step = _rows_at_once(src)
    for r0 in range(0, rows, step):
        r1 = min(rows, r0 + step)
        for c0 in range(0, columns, TURNED_COLUMNS):
            c1 = min(columns, c0 + TURNED_COLUMNS)
            _transpose_strip(dst[c0:c1, r0:r1], src[r0:r1, c0:c1])


def transpose_by_dma(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = src.T by the DMA engines on the way into SBUF; uses no other engine.

    dst: HBM (C, R)
    src: HBM (R, C)
    limits: trn2 and later; elements of 2 bytes

    numpy: src.T
    """
    assert nisa.get_nc_version() >= nisa.nc_version.gen3, "transpose_by_dma: trn1 has no DMA transpose"
    assert item_bytes(src.dtype) == 2, f"transpose_by_dma: elements of {src.dtype}; it takes those of 2 bytes"
    rows, columns = src.shape
    for c0 in range(0, columns, nl.tile_size.pmax):
        c1 = min(columns, c0 + nl.tile_size.pmax)
        for r0 in range(0, rows, DMA_ROWS):
            r1 = min(rows, r0 + DMA_ROWS)
            turned_sb = nl.ndarray((c1 - c0, r1 - r0), dtype=src.dtype, buffer=nl.sbuf)
            nisa.dma_transpose(dst=turned_sb, src=src[r0:r1, c0:c1])
            nisa.dma_copy(dst=dst[c0:c1, r0:r1], src=turned_sb, dge_mode=nisa.dge_mode.none)


def _rows_at_once(src: nl.NkiTensor) -> int:
    """The number of rows per packet of a store: whole blocks of 128, no more than a PSUM bank holds as float32."""
    row_bytes = src.shape[1] * item_bytes(src.dtype)
    packet = 2 * PACKET_BYTES if row_bytes <= SHORT_BYTES else PACKET_BYTES
    rows = min(packet // item_bytes(src.dtype), nl.tile_size.psum_bank_fmax)
    return max(1, rows // nl.tile_size.pmax) * nl.tile_size.pmax


def _transpose_strip(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst (C, R) = src.T, in HBM. R is at most ``_rows_at_once``, C at most TURNED_COLUMNS.

    A PSUM bank takes as many 128 x 128 tiles as it holds; vector and scalar engine evacuate them in turn.
    """
    rows, columns = src.shape
    pmax = nl.tile_size.pmax
    blocks_sb = _load_blocks(src)
    whole = columns // pmax
    bank = nl.tile_size.psum_bank_fmax_bytes // item_bytes(blocks_sb[0][0].dtype) // rows
    k0 = 0
    while k0 * pmax < columns:
        tiles = max(1, min(bank, whole - k0))
        _transpose_bank(dst, blocks_sb, k0, tiles, k0 // bank % 2 == 1)
        k0 = k0 + tiles


def _load_blocks(src: nl.NkiTensor) -> list[list[nl.NkiTensor]]:
    """The ``_block_planes`` of each block of 128 rows of src, in HBM (R, C). All whole blocks share a transfer if
    their rows are short; otherwise each has its own."""
    rows, columns = src.shape
    pmax = nl.tile_size.pmax
    total = ceil_div(rows, pmax)
    together = total if columns * item_bytes(src.dtype) <= SHORT_BYTES else 1
    blocks_sb = []
    for first in range(0, total, together):
        part_sb = nl.ndarray((pmax, together, columns), dtype=src.dtype, buffer=nl.sbuf)
        whole = min(together, rows // pmax - first)
        if whole > 0:
            part = src[first * pmax : (first + whole) * pmax, :].reshape_dim(0, (whole, pmax))
            nisa.dma_copy(dst=part_sb[:, 0:whole, :], src=part.permute((1, 0, 2)), dge_mode=nisa.dge_mode.none)
        for k in range(together):
            n = block_rows(rows, first + k)
            if k == whole:
                rest = src[(first + k) * pmax : rows, :]
                nisa.dma_copy(dst=part_sb[0:n, k, :], src=rest, dge_mode=nisa.dge_mode.none)
            blocks_sb.append(_block_planes(part_sb[0:n, k, :]))
    return blocks_sb


def _block_planes(block_sb: nl.NkiTensor) -> list[nl.NkiTensor]:
    """The matrices that the tensor engine transposes exactly: the block itself, or its bits as float32 numbers, 16 of
    them in each."""
    if transpose_is_exact():
        return [block_sb]
    bits_sb = block_sb.view(_bits_of(block_sb.dtype))
    count = bits_sb.shape[1] // block_sb.shape[1]
    planes = []
    for k in range(count):
        plane_sb = nl.ndarray(block_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=plane_sb, op=nl.copy, data=bits_sb[:, k : bits_sb.shape[1] : count])
        planes.append(plane_sb)
    return planes


def _bits_of(dtype: Any) -> Any:
    """The whole numbers that elements are split into."""
    return nl.uint8 if item_bytes(dtype) == 1 else nl.uint16


def _transpose_bank(
    dst: nl.NkiTensor, blocks_sb: list[list[nl.NkiTensor]], block: int, count: int, by_scalar: bool
) -> None:
    """Columns from number ``block`` of 128 on, ``count`` times as many, of all rows; the last may be fewer."""
    pmax = nl.tile_size.pmax
    rows = dst.shape[1]
    width = block_rows(dst.shape[0], block)
    turned_sb = _bank_tile(nl.sbuf, dst.dtype, width, count, rows)
    for plane in range(len(blocks_sb[0])):
        turned_psum = _bank_tile(nl.psum, blocks_sb[0][plane].dtype, width, count, rows)
        for k in range(count):
            c0 = (block + k) * pmax
            for i in range(len(blocks_sb)):
                r0 = i * pmax
                nisa.nc_transpose(
                    dst=turned_psum[:, k, r0 : r0 + block_rows(rows, i)],
                    data=blocks_sb[i][plane][:, c0 : c0 + width],
                    engine=nisa.engine.tensor,
                )
        if not transpose_is_exact():
            bits_sb = turned_sb.view(_bits_of(dst.dtype))
            part_sb = bits_sb[:, :, plane : bits_sb.shape[2] : len(blocks_sb[0])]
            nisa.tensor_copy(dst=part_sb, src=turned_psum, engine=nisa.engine.vector)
        else:
            engine = nisa.engine.scalar if by_scalar else nisa.engine.vector
            nisa.tensor_copy(dst=turned_sb, src=turned_psum, engine=engine)
    _store_bank(dst, turned_sb, block)


def _bank_tile(buffer: Any, dtype: Any, width: int, count: int, rows: int) -> nl.NkiTensor:
    """A tile (width, count, rows) inside one as large as a bank, so that all of them reuse the same addresses."""
    size = nl.tile_size.psum_bank_fmax_bytes // item_bytes(dtype)
    bank = nl.ndarray((nl.tile_size.pmax, size), dtype=dtype, buffer=buffer)
    return bank[0:width, 0 : count * rows].reshape_dim(1, (count, rows))


def _store_bank(dst: nl.NkiTensor, turned_sb: nl.NkiTensor, block: int) -> None:
    """Columns from number ``block`` of 128 on to HBM. Short packets leave in one transfer."""
    pmax = nl.tile_size.pmax
    width, count, rows = turned_sb.shape
    if rows < pmax:
        columns = dst[block * pmax : block * pmax + count * width, :].reshape_dim(0, (count, width))
        nisa.dma_copy(dst=columns.permute((1, 0, 2)), src=turned_sb, dge_mode=nisa.dge_mode.none)
    else:
        for k in range(count):
            c0 = (block + k) * pmax
            nisa.dma_copy(dst=dst[c0 : c0 + width, :], src=turned_sb[:, k, :], dge_mode=nisa.dge_mode.none)


def permute_dims(dst: nl.NkiTensor, src: nl.NkiTensor, order: tuple[int, ...]) -> None:
    """dst = src with its dimensions in another order, by DMA.

    dst, src: HBM, at most 5 dimensions
    order: as numpy's axes; it pays off if the last dimension stays last, so that runs of elements move together

    numpy: src.transpose(order)
    """
    nisa.dma_copy(dst=dst, src=src.permute(order))
