"""Rotary positions: pairs of elements of a head turned by an angle of their token, on the features of linear layers.

    features (heads side by side on the partitions) --vector: times sines, and times cosines--> SBUF
    tensor: a permutation times (x * sines) -> PSUM: each element beside its partner -> vector: + x * cosines -> SBUF

An element's partner lies on another partition, where only the tensor engine brings it. The product is exact: each sum
has one term that isn't 0. While queries are rotated the tensor engine multiplies for the keys, and the vector engine,
which rotates, has nothing else to do.
"""

from typing import Any

from trnrt.kernels.attention_operands import take_columns_from
from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes, load
from trnrt.kernels.operands import turn_rows
from trnrt.nki import nisa, nl

# The most bytes per partition of a tile of features that share instructions. DINOv3 of one layer at batch 8 in
# bfloat16 on trn2, predicted: 1,600 bytes, 2 blocks of 128 columns, take 3 % more. Cosines on GpSimd change nothing.
_SPAN_BYTES = 8 * 1024


def rotate_tile_bytes(columns: int, tokens: int, item: int, brought: int) -> int:
    """The most bytes per partition that the tiles take: the tables, and two spans under way, with both products.

    brought: how many of source and result are in HBM: each has its rows, its features, and on trn1 the bits of both.
    """
    wide = ceil_div(columns, nl.tile_size.pmax) * _span_rows(tokens) * item
    return 2 * (2 + 4 * brought) * min(_SPAN_BYTES, wide) + (2 * tokens + nl.tile_size.pmax) * item


def _span_rows(tokens: int) -> int:
    """The rows of a tile: whole items, or a part of one, that fit a PSUM bank; at least the 128 of a transfer."""
    most = nl.tile_size.psum_bank_fmax
    return max(nl.tile_size.pmax, most // tokens * tokens if tokens < most else most)


def rotate_features(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    swap: nl.NkiTensor,
    cosines: nl.NkiTensor,
    sines: nl.NkiTensor,
    columns: int,
    first: int = 0,
) -> None:
    """dst = src * cosines + (src * sines) @ swap, of each 128 columns, with the numbers of each row's token.

    dst: HBM (N*S, C), or SBUF ``features`` (P, B, N*S)
    src: HBM (N*S, C or more), or SBUF ``features`` (P, B or more, N*S); all of one dtype
    swap: HBM or SBUF (P, P): 1 at [q, p] if element p gets element q's product with its sine, else 0
    cosines, sines: HBM or SBUF (P, S): those of partition p and token s, the same for each item and 128 columns
    columns: C
    first: the column of src that is dst's first; in SBUF a multiple of 128
    limits: P = min(C, 128); rows of dst divide into items of S

    Both products are rounded to the dtype, the sum is float32. A NaN, or an infinity, spreads to 128 columns of its
    row.

    numpy: c, s = cosines.T, sines.T, repeated for each item and 128 columns; x = src[:, first : first + C]
           x * c + (x * s) @ block_diagonal(swap, ...)
    """
    rows = src.shape[0] if is_hbm_tensor(src) else src.shape[2]
    tokens = cosines.shape[1]
    assert rows % tokens == 0, f"rotate_features: {rows} rows aren't items of {tokens} tokens"
    tables = []
    for table in (swap, cosines, sines):
        tables.append(load(table) if is_hbm_tensor(table) else table)
    src = take_columns_from(src, first)
    item = item_bytes(src.dtype)
    together = max(1, nl.tile_size.psum_bank_fmax // tokens)
    full = columns // nl.tile_size.pmax
    for i0 in range(0, rows // tokens, together):
        items = min(together, rows // tokens - i0)
        for t0 in range(0, tokens, nl.tile_size.psum_bank_fmax):
            count = min(nl.tile_size.psum_bank_fmax, tokens - t0)
            span = (i0 * tokens + t0, items, t0, count)
            wide = max(1, _SPAN_BYTES // (max(nl.tile_size.pmax, items * count) * item))
            for b0 in range(0, full, wide):
                _rotate_span(dst, src, tables, span, (b0, min(full, b0 + wide)), nl.tile_size.pmax)
            if full * nl.tile_size.pmax < columns:
                _rotate_span(dst, src, tables, span, (full, full + 1), columns - full * nl.tile_size.pmax)


def _rotate_span(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    tables: list[nl.NkiTensor],
    span: tuple[int, int, int, int],
    blocks: Pair,
    parts: int,
) -> None:
    """Rotate (first row, items, first token, tokens) of some blocks of ``parts`` columns."""
    r0, items, t0, count = span
    b0, b1 = blocks
    rows = items * count
    x_sb = _span_features(src, r0, rows, blocks, parts)
    shape = (parts, b1 - b0, items, count)
    swap_sb = tables[0][0:parts, 0:parts]
    products = []
    for table in (tables[1], tables[2]):
        wide = table[0:parts, t0 : t0 + count].expand_dim(1).broadcast(1, items).expand_dim(1).broadcast(1, b1 - b0)
        product_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product_sb, data1=x_sb.reshape_dim(2, (items, count)), data2=wide, op=nl.multiply)
        products.append(product_sb.flatten_dims(2, 3))
    y_sb: Any = None
    if is_hbm_tensor(dst):
        y_sb = nl.ndarray((parts, b1 - b0, rows), dtype=dst.dtype, buffer=nl.sbuf)
    else:
        y_sb = dst[0:parts, b0:b1, r0 : r0 + rows]
    for b in range(b1 - b0):
        partner_psum = nl.ndarray((parts, rows), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=partner_psum, stationary=swap_sb, moving=products[1][:, b, :], accumulate=False)
        nisa.tensor_tensor(dst=y_sb[:, b, :], data1=partner_psum, data2=products[0][:, b, :], op=nl.add)
    if is_hbm_tensor(dst):
        _store_features(dst, y_sb, r0, b0 * nl.tile_size.pmax)


def _span_features(src: nl.NkiTensor, r0: int, rows: int, blocks: Pair, parts: int) -> nl.NkiTensor:
    """Rows ``r0``... of some blocks (parts, blocks, rows), turned if they come from HBM."""
    b0, b1 = blocks
    if not is_hbm_tensor(src):
        return src[0:parts, b0:b1, r0 : r0 + rows]
    x_sb = nl.ndarray((parts, b1 - b0, rows), dtype=src.dtype, buffer=nl.sbuf)
    c0 = b0 * nl.tile_size.pmax
    for m0 in range(0, rows, nl.tile_size.pmax):
        m1 = min(rows, m0 + nl.tile_size.pmax)
        turn_rows(x_sb[:, :, m0:m1], load(src[r0 + m0 : r0 + m1, c0 : c0 + (b1 - b0) * parts]))
    return x_sb


def _store_features(dst: nl.NkiTensor, y_sb: nl.NkiTensor, r0: int, c0: int) -> None:
    """Rows ``r0``... of dst, HBM, from column ``c0`` on = y_sb (parts, blocks, rows), turned."""
    parts, blocks, rows = y_sb.shape
    tiles = ceil_div(rows, nl.tile_size.pmax)
    rows_sb = nl.ndarray((min(rows, nl.tile_size.pmax), tiles, blocks, parts), dtype=dst.dtype, buffer=nl.sbuf)
    for b in range(blocks):
        turn_rows(rows_sb[:, :, b, :], y_sb[:, b, :])
    for t in range(tiles):
        m0 = t * nl.tile_size.pmax
        m1 = min(rows, m0 + nl.tile_size.pmax)
        part_sb = rows_sb[0 : m1 - m0, t].flatten_dims(1, 2)
        nisa.dma_copy(dst=dst[r0 + m0 : r0 + m1, c0 : c0 + blocks * parts], src=part_sb)
