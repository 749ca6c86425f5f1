"""The matrix product that only the tensor engine's time bounds: blocks in SBUF, sums in PSUM, loads far ahead.

A block of dst has 2048 columns and 1024 rows: eight tiles of 128, each summing 512 columns in a PSUM bank. If a block's
whole contraction fits SBUF, the sums stay in PSUM until they are done, and the moving operand's part stays in SBUF for
all rows. Otherwise the contraction is cut, and float32 sums in SBUF accumulate the results of its parts. Tiles have the
size of a full block even if it is not filled, so that all of a kind reuse the same memory.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.beside import do_beside
from trnrt.kernels.common import activation_function, ceil_div, item_bytes
from trnrt.kernels.operands import (
    BANK,
    COLUMNS,
    GROUP,
    ROWS,
    Operand,
    copy,
    fill,
    fill_operand,
    move_tile,
    move_tiles,
    new_tile,
    next_tile,
    strips,
    turn_rows,
)
from trnrt.nki import nisa, nl

# Bytes per partition besides operands and sums: results on their way out, biases.
OTHER_BYTES = 40 * 1024
SUM_BYTES = ROWS // 128 * COLUMNS * 4
# Columns of the very last product: the fewer, the sooner the last store starts. Of 2048 x 2048 x 2048 in bfloat16 on
# trn2, predicted: 64 columns take 0.06 % less, 288 0.1 % more, a whole bank 0.2 %.
LAST_COLUMNS = 144
# Products of 64 columns that keep the tensor engine's clock up until the first operands are loaded. For the same
# product: none take 0.5 % more, 14 the same, 56 0.2 % more.
WARM_UP = 28


@dataclass
class Result(nl.NKIObject):
    """The destination of a block's sums: through bias and activation to dst in HBM, (M, N), or (N, M) if ``turned``.

    ``row_bias_sb`` is (P, N), ``column_bias_sb`` (P, M / 128), or None. ``sums_sb`` (P, M / 128, N) holds the sums of
    earlier parts of the contraction, None if it is not cut. ``ends``: this is the last block.
    """

    dst: nl.NkiTensor
    turned: bool
    row_bias_sb: Any
    column_bias_sb: Any
    act: str
    sums_sb: Any
    is_first: bool
    is_last: bool
    ends: bool

    def rows(self) -> int:
        return self.dst.shape[1 if self.turned else 0]

    def columns(self) -> int:
        return self.dst.shape[0 if self.turned else 1]


def product(
    dst: nl.NkiTensor,
    a: nl.NkiTensor,
    b: nl.NkiTensor,
    a_turned: bool = False,
    b_turned: bool = False,
    dst_turned: bool = False,
    row_bias: Any = None,
    column_bias: Any = None,
    act: str = "none",
    beside: Any = None,
) -> None:
    """dst = act(a.T @ b + bias); a is the stationary operand, b the moving one.

    dst: HBM (M, N), or (N, M) if dst_turned
    a: HBM (K, M), or (M, K) if a_turned
    b: HBM (K, N), or (N, K) if b_turned; the dtype of a
    row_bias: HBM (1, N) float32, added to each row, or None
    column_bias: HBM (1, M) float32, added to each column, or None
    act: one of ACTIVATIONS in common.py
    beside: None, or a list of Beside: done between the product's blocks

    numpy: act(a.T @ b + row_bias + column_bias.T)
    """
    first, second = Operand(a, a_turned), Operand(b, b_turned)
    depth, rows, columns = first.depth(), first.size(), second.size()
    expected = (columns, rows) if dst_turned else (rows, columns)
    assert second.depth() == depth, f"product: a contracts {depth}, b {second.depth()}"
    assert a.dtype == b.dtype, f"product: a is {a.dtype}, b {b.dtype}"
    assert dst.shape == expected, f"product: dst is {dst.shape}, the result {expected}"
    tall, wide = min(ROWS, rows), min(COLUMNS, columns)
    edges = _edges(depth, tall, wide, item_bytes(a.dtype))
    part = edges[1]
    is_cut = len(edges) > 2
    is_kept = not is_cut or _keeps_b(edges, tall, wide, item_bytes(a.dtype))
    done, others = 0, [] if beside is None else beside
    blocks = ceil_div(columns, COLUMNS) * ceil_div(rows, ROWS) * (len(edges) - 1)
    each = ceil_div(len(others), blocks)
    for n0 in range(0, columns, COLUMNS):
        n_size = min(COLUMNS, columns - n0)
        row_bias_sb = _load_row_bias(row_bias, n0, n_size)
        b_parts: list[nl.NkiTensor] = []
        for m0 in range(0, rows, ROWS):
            m_size = min(ROWS, rows - m0)
            column_bias_sb = _load_column_bias(column_bias, m0, m_size)
            sums_sb = _new_sums(tall, wide) if is_cut else None
            for i in range(len(edges) - 1):
                k0, k_size = edges[i], edges[i + 1] - edges[i]
                starts = n0 + m0 + k0 == 0
                is_last = k0 + k_size == depth
                ends = n0 + n_size == columns and m0 + m_size == rows and is_last
                a_sb = new_tile(part, tall, a.dtype)
                a_part = first.part(k0, k_size, m0, m_size)
                if m0 == 0 or not is_kept:
                    b_sb = new_tile(part, wide, a.dtype)
                    b_parts.append(b_sb)
                    fill(a_sb, a_part, b_sb, second.part(k0, k_size, n0, n_size), starts)
                else:
                    b_sb = b_parts[i]
                    fill_operand(a_sb, a_part)
                if starts:
                    _wake_tensor_engine()
                out = _part_of_dst(dst, dst_turned, m0, m_size, n0, n_size)
                result = Result(out, dst_turned, row_bias_sb, column_bias_sb, act, sums_sb, k0 == 0, is_last, ends)
                _multiply_block(result, a_sb, b_sb, (k_size, m_size, n_size), starts)
                for work in others[done : done + each]:
                    do_beside(work)
                done += each


def _edges(depth: int, rows: int, columns: int, item: int) -> list[int]:
    """The ends of the contraction's parts, starting with 0: one part if a block's operands fit SBUF with all of it.

    Otherwise parts that fit twice, so that one loads while another is used. All have about the same size, the first the
    largest, so that each gives enough time to load the next.
    """
    tiles = ceil_div(depth, nl.tile_size.pmax)
    space = nl.tile_size.sbuf_fmax_bytes - OTHER_BYTES
    parts = 1
    if tiles * item * (2 * rows + columns) > space:
        parts = ceil_div(tiles, (space - SUM_BYTES) // (2 * item * (rows + columns)))
    edges = []
    for i in range(parts):
        edges.append(ceil_div(i * tiles, parts) * nl.tile_size.pmax)
    edges.append(depth)
    return edges


def _keeps_b(edges: list[int], rows: int, columns: int, item: int) -> bool:
    """True if b's columns stay in SBUF for all rows although the contraction is cut: all its parts fit beside two of
    a's."""
    part, parts = ceil_div(edges[1], nl.tile_size.pmax), len(edges) - 1
    sum_bytes = ceil_div(rows, nl.tile_size.pmax) * columns * 4
    most = nl.tile_size.sbuf_fmax_bytes - OTHER_BYTES
    return part * item * (parts * columns + 2 * rows) + sum_bytes <= most


def _new_sums(rows: int, columns: int) -> nl.NkiTensor:
    """An SBUF tile (P, M / 128, N) for the sums of a block."""
    return nl.ndarray((nl.tile_size.pmax, ceil_div(rows, nl.tile_size.pmax), columns), nl.float32, buffer=nl.sbuf)


def _part_of_dst(dst: nl.NkiTensor, turned: bool, m0: int, m_size: int, n0: int, n_size: int) -> nl.NkiTensor:
    """Rows ``m0``... and columns ``n0``... of the result."""
    if turned:
        return dst[n0 : n0 + n_size, m0 : m0 + m_size]
    return dst[m0 : m0 + m_size, n0 : n0 + n_size]


def _load_row_bias(bias: Any, n0: int, n_size: int) -> Any:
    """(P, n_size): the bias of each column on every partition."""
    if bias is None:
        return None
    bias_sb = nl.ndarray((nl.tile_size.pmax, n_size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias_sb, src=bias[:, n0 : n0 + n_size].broadcast(0, nl.tile_size.pmax))
    return bias_sb


def _load_column_bias(bias: Any, m0: int, m_size: int) -> Any:
    """(P, m_size / 128): the bias of row m on partition m % 128 of column m // 128."""
    if bias is None:
        return None
    bias_sb = nl.ndarray((nl.tile_size.pmax, ROWS // nl.tile_size.pmax), dtype=nl.float32, buffer=nl.sbuf)
    for m in range(0, m_size, nl.tile_size.pmax):
        size = min(nl.tile_size.pmax, m_size - m)
        column = m // nl.tile_size.pmax
        part = bias[:, m0 + m : m0 + m + size].permute((1, 0))
        nisa.dma_copy(dst=bias_sb[0:size, column : column + 1], src=part)
    return bias_sb


def _wake_tensor_engine() -> None:
    """Multiply zeros if the tensor engine's clock follows its load; nothing reads the result.

    Call it after the first loads are issued: otherwise the tile of zeros takes their memory, and they wait.
    """
    if nisa.get_nc_version() < nisa.nc_version.gen3:
        return
    zero_sb = nl.ndarray((nl.tile_size.pmax, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    idle_psum = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=zero_sb, value=0.0)
    for _ in range(WARM_UP):
        nisa.nc_matmul(dst=idle_psum, stationary=zero_sb[:, 0:1], moving=zero_sb, accumulate=False)


def _multiply_block(
    result: Result, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, sizes: tuple[int, int, int], starts: bool
) -> None:
    """A block's products; ``sizes`` are the (K, M, N) used of the tiles."""
    if starts or strips(sizes[1]) > 2:
        _multiply_as_loaded(result, a_sb, b_sb, sizes)
    else:
        _multiply_by_rows(result, a_sb, b_sb, sizes)


def _multiply_as_loaded(result: Result, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, sizes: tuple[int, int, int]) -> None:
    """A block's products, as many column strips at once as fit PSUM: all banks use each loaded part at once."""
    depth, rows, columns = sizes
    width = BANK * strips(rows)
    tiles = ceil_div(depth, nl.tile_size.pmax)
    for n0 in range(0, columns, width):
        banks = []
        places = []
        for n in range(n0, min(columns, n0 + width), BANK):
            for m in range(0, rows, nl.tile_size.pmax):
                shape = (min(nl.tile_size.pmax, rows - m), min(BANK, columns - n))
                banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
                places.append((m // nl.tile_size.pmax, n))
        t0 = 0
        while t0 < tiles:
            t1 = next_tile(t0, tiles, rows + min(width, columns)) if n0 == 0 else tiles
            for i in range(len(banks)):
                block, n = places[i]
                for bounds in _pieces(result, block, n, banks[i].shape[1]):
                    p0, p1 = bounds
                    piece = banks[i][:, p0:p1]
                    _contract_tiles(piece, a_sb, b_sb, depth, (t0, t1), block * nl.tile_size.pmax, n + p0)
                    if t1 == tiles:
                        y_sb = None
                        if result.is_last:
                            y_sb = nl.ndarray((nl.tile_size.pmax, BANK), dtype=result.dst.dtype, buffer=nl.sbuf)
                            y_sb = y_sb[0 : piece.shape[0], 0 : p1 - p0]
                        _evacuate_tile(result, piece, block, n + p0, y_sb)
                        _store_tile(result, y_sb, block, n + p0)
            t0 = t1


def _multiply_by_rows(result: Result, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, sizes: tuple[int, int, int]) -> None:
    """A block's products, row block by row block, so that whole rows are stored at once."""
    depth, rows, columns = sizes
    tiles = ceil_div(depth, nl.tile_size.pmax)
    for m in range(0, rows, nl.tile_size.pmax):
        size, block = min(nl.tile_size.pmax, rows - m), m // nl.tile_size.pmax
        y_sb = None
        if result.is_last:
            y_sb = nl.ndarray((nl.tile_size.pmax, b_sb.shape[2]), dtype=result.dst.dtype, buffer=nl.sbuf)
        in_parts = result.ends and m + size == rows
        for n in range(0, columns, BANK):
            bank = nl.ndarray((size, min(BANK, columns - n)), dtype=nl.float32, buffer=nl.psum)
            for bounds in _pieces(result, block, n, bank.shape[1]):
                p0, p1 = bounds
                _contract_tiles(bank[:, p0:p1], a_sb, b_sb, depth, (0, tiles), m, n + p0)
                y_part = None
                if y_sb is not None:
                    y_part = y_sb[0:size, n + p0 : n + p1]
                _evacuate_tile(result, bank[:, p0:p1], block, n + p0, y_part)
                if in_parts:
                    _store_tile(result, y_part, block, n + p0)
        if y_sb is not None and not in_parts:
            _store_tile(result, y_sb[0:size, 0:columns], block, 0)


def _pieces(result: Result, block: int, n0: int, columns: int) -> Any:
    """A strip's columns, in two pieces if it is the last of all."""
    ends = result.ends and n0 + columns == result.columns() and (block + 1) * nl.tile_size.pmax >= result.rows()
    if ends and columns > LAST_COLUMNS:
        return ((0, columns - LAST_COLUMNS), (columns - LAST_COLUMNS, columns))
    return ((0, columns),)


def _contract_tiles(
    bank: nl.NkiTensor, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, depth: int, tiles: tuple[int, int], m0: int, n0: int
) -> None:
    """bank (M, N) += the product of tiles of the contraction, columns ``m0``... of a_sb and ``n0``... of b_sb."""
    rows, columns = bank.shape
    for t in range(tiles[0], tiles[1]):
        k = min(nl.tile_size.pmax, depth - t * nl.tile_size.pmax)
        nisa.nc_matmul(
            dst=bank,
            stationary=a_sb[0:k, t, m0 : m0 + rows],
            moving=b_sb[0:k, t, n0 : n0 + columns],
            accumulate=t > 0,
        )


def _evacuate_tile(result: Result, bank: nl.NkiTensor, block: int, n0: int, y_sb: Any) -> None:
    """Evacuate a tile of sums from PSUM, to those in SBUF or on to y_sb; row block ``block``, columns ``n0``..."""
    rows, columns = bank.shape
    number = block + n0 // BANK
    addend_sb = None
    if result.row_bias_sb is not None:
        addend_sb = result.row_bias_sb[0:rows, n0 : n0 + columns]
    sums_sb = None
    if result.sums_sb is not None:
        sums_sb = result.sums_sb[0:rows, block, n0 : n0 + columns]
    if not result.is_first:
        addend_sb = sums_sb
    if not result.is_last:
        _add(sums_sb, bank, addend_sb, number)
    elif result.act == "none" and result.column_bias_sb is None:
        _add(y_sb, bank, addend_sb, number)
    elif addend_sb is None:
        _activate(y_sb, bank, result, block)
    else:
        if sums_sb is None:
            sums_sb = nl.ndarray((nl.tile_size.pmax, BANK), dtype=nl.float32, buffer=nl.sbuf)[0:rows, 0:columns]
        _add(sums_sb, bank, addend_sb, number)
        _activate(y_sb, sums_sb, result, block)


def _store_tile(result: Result, y_sb: Any, block: int, n0: int) -> None:
    """Store a tile of the result, if there is one yet; row block ``block``, columns ``n0``..."""
    if y_sb is None:
        return
    rows, columns = y_sb.shape
    m0 = block * nl.tile_size.pmax
    if result.turned:
        _store_turned(result.dst[n0 : n0 + columns, m0 : m0 + rows], y_sb)
    else:
        ends = result.ends and m0 + rows == result.rows() and n0 + columns == result.columns()
        move_tile(y_sb, result.dst[m0 : m0 + rows, n0 : n0 + columns], ends, stores=True)


def _add(dst_sb: Any, bank: nl.NkiTensor, addend_sb: Any, number: int) -> None:
    """dst_sb = bank + addend_sb, or bank alone."""
    if addend_sb is None:
        copy(dst_sb, bank, number)
    else:
        nisa.tensor_tensor(dst=dst_sb, data1=bank, data2=addend_sb, op=nl.add, engine=nisa.engine.vector)


def _activate(y_sb: nl.NkiTensor, total: nl.NkiTensor, result: Result, block: int) -> None:
    """y_sb = act(total + the bias of each row)."""
    if result.column_bias_sb is None:
        nisa.activation(dst=y_sb, op=activation_function(result.act), data=total)
    else:
        bias_sb = result.column_bias_sb[0 : y_sb.shape[0], block : block + 1]
        nisa.activation(dst=y_sb, op=activation_function(result.act), data=total, bias=bias_sb)


def _store_turned(dst: nl.NkiTensor, y_sb: nl.NkiTensor) -> None:
    """dst (N, M) = y_sb (M, N).T"""
    rows, columns = y_sb.shape
    width = GROUP * nl.tile_size.pmax
    for n0 in range(0, columns, width):
        n1 = min(columns, n0 + width)
        turned_sb = nl.ndarray((nl.tile_size.pmax, GROUP, nl.tile_size.pmax), dtype=y_sb.dtype, buffer=nl.sbuf)
        tiles = ceil_div(n1 - n0, nl.tile_size.pmax)
        turn_rows(turned_sb[:, 0:tiles, 0:rows], y_sb[:, n0:n1], True)
        move_tiles(turned_sb[:, 0:tiles, 0:rows], dst[n0:n1, :], 0, tiles, stores=True)
