"""Load the factors of a product into SBUF: the contraction on the partitions, in tiles (P, K / 128, F).

Four blocks of 128 are interleaved: element k of 512 is on partition k // 4 of tile k % 4, so that a partition's four
rows of a narrow factor are contiguous in HBM and load as one packet. (Fewer at the end of the contraction; a rest below
128 is a tile of its own.) A product may sum in any order, as long as both factors use the same.

The operands of a kernel's first products load first, in small pieces; all others in large ones.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div, item_bytes, keep_where, transpose_is_exact
from trnrt.nki import nisa, nl

# Rows and columns of a product's block; columns of a PSUM bank, and how many banks there are.
ROWS = 1024
COLUMNS = 2048
BANK = 512
BANKS = 8
# Bytes per partition of a bank.
BANK_BYTES = 2048
# Tiles of the contraction per transfer, and per bank for transposes, which holds four of 128.
GROUP = 4
# The columns of both factors together below which a transfer takes no longer than its start. 2048 x 2048 x 2048 in
# bfloat16 on trn2, predicted: 384 change nothing, 1536 take 3 % more.
NARROW = 768
# Tiles of the contraction whose rows are loaded together to be transposed.
TURNED = 8


@dataclass
class Operand(nl.NKIObject):
    """A factor in HBM, (K, F), or (F, K) if ``turned``."""

    tensor: nl.NkiTensor
    turned: bool

    def depth(self) -> int:
        return self.tensor.shape[1 if self.turned else 0]

    def size(self) -> int:
        return self.tensor.shape[0 if self.turned else 1]

    def part(self, k0: int, k_size: int, f0: int, f_size: int) -> Any:
        """Rows ``k0``... and columns ``f0``... of the operand, as an operand."""
        if self.turned:
            return Operand(self.tensor[f0 : f0 + f_size, k0 : k0 + k_size], True)
        return Operand(self.tensor[k0 : k0 + k_size, f0 : f0 + f_size], False)


def turn(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = src.T, as ``turn_rows`` does it.

    dst: HBM (C, R)
    src: HBM (R, C), the dtype of dst

    numpy: src.T
    """
    rows, columns = src.shape
    part = nl.tile_size.pmax * TURNED
    for r0 in range(0, rows, ROWS):
        r_size = min(ROWS, rows - r0)
        for c0 in range(0, columns, part):
            c_size = min(part, columns - c0)
            turned_sb = new_tile(min(part, columns), min(ROWS, rows), src.dtype)
            _turn_tiles(turned_sb, src[r0 : r0 + r_size, c0 : c0 + c_size])
            tiles = ceil_div(c_size, nl.tile_size.pmax)
            move_tiles(turned_sb[:, :, 0:r_size], dst[c0 : c0 + c_size, r0 : r0 + r_size], 0, tiles, stores=True)


def is_turned_once(times: int, dtype: Any) -> bool:
    """True if a factor that a product loads this many times is better transposed once, in HBM, than each time.

    By the timing model, from three loads on; from two for elements of 4 bytes, whose transpose takes twice as long.
    """
    return times > (2 if item_bytes(dtype) == 2 else 1)


def strips(rows: int) -> int:
    """The number of column strips of ``rows`` rows that fit PSUM at once."""
    return max(1, BANKS // ceil_div(rows, nl.tile_size.pmax))


def next_tile(t0: int, tiles: int, width: int) -> int:
    """The tile up to which the contraction is loaded, or used, after ``t0``.

    As far as the products so far give time for, then in whole groups. ``width``: the columns of both factors; two
    groups if both load in about the time that starting a transfer takes.
    """
    if width <= NARROW:
        return min(tiles, t0 + 2 * GROUP)
    return min(tiles, min(t0 + max(1, t0 // 2), t0 // GROUP * GROUP + GROUP))


def new_tile(depth: int, size: int, dtype: Any) -> nl.NkiTensor:
    """An SBUF tile (P, K / 128, F) for a part of a factor."""
    return nl.ndarray((nl.tile_size.pmax, ceil_div(depth, nl.tile_size.pmax), size), dtype=dtype, buffer=nl.sbuf)


def fill(a_sb: nl.NkiTensor, a: Operand, b_sb: nl.NkiTensor, b: Operand, starts: bool) -> None:
    """Load a part of both factors. If it ``starts`` the kernel, the first products' operands come first, in small
    pieces."""
    if not starts and strips(a.size()) <= 2:
        # Rows to be transposed wait for the tensor engine, and later loads wait behind them.
        if not a.turned:
            fill_operand(a_sb, a)
        fill_operand(b_sb, b)
        if a.turned:
            fill_operand(a_sb, a)
        return
    depth, columns = b.depth(), b.size()
    near = min(BANK * strips(a.size()), columns)
    if a.turned or b.turned:
        fill_operand(a_sb, a)
        fill_operand(b_sb[:, :, 0:near], b.part(0, depth, 0, near))
    else:
        _fill_piece_by_piece(a_sb, a.tensor, b_sb, b.tensor[:, 0:near], starts)
    far = BANK if nisa.get_nc_version() >= nisa.nc_version.gen3 else COLUMNS
    for n0 in range(near, columns, far):
        n_size = min(far, columns - n0)
        fill_operand(b_sb[:, :, n0 : n0 + n_size], b.part(0, depth, n0, n_size))


def _fill_piece_by_piece(
    a_sb: nl.NkiTensor, a: nl.NkiTensor, b_sb: nl.NkiTensor, b: nl.NkiTensor, starts: bool
) -> None:
    """Load both factors, one part of the contraction after the other."""
    rows, columns = a.shape[1], b.shape[1]
    tiles = ceil_div(b.shape[0], nl.tile_size.pmax)
    t0 = 0
    while t0 < tiles:
        t1 = next_tile(t0, tiles, rows + columns)
        if starts and t0 == 0:
            move_tiles(b_sb[:, :, 0:columns], b, t0, t1, True)
            # A product starts once its own columns are loaded.
            for piece in ((0, 128), (128, 384), (384, ROWS)):
                m0, m1 = piece[0], min(piece[1], rows)
                if m0 < m1:
                    move_tiles(a_sb[:, :, m0:m1], a[:, m0:m1], t0, t1, m0 == 0)
        else:
            move_tiles(b_sb[:, :, 0:columns], b, t0, t1)
            move_tiles(a_sb[:, :, 0:rows], a, t0, t1)
        t0 = t1


def fill_operand(dst_sb: nl.NkiTensor, factor: Operand) -> None:
    """Load a part of a factor, with the contraction on the partitions."""
    if factor.turned:
        _turn_tiles(dst_sb, factor.tensor)
    else:
        tiles = ceil_div(factor.depth(), nl.tile_size.pmax)
        move_tiles(dst_sb[:, :, 0 : factor.size()], factor.tensor, 0, tiles)


def move_tiles(
    tiles_sb: nl.NkiTensor, matrix: nl.NkiTensor, t0: int, t1: int, soon: bool = False, stores: bool = False
) -> None:
    """Load tiles ``t0`` to ``t1`` of a matrix in HBM (K, F) into those of tiles_sb (P, K / 128, F), or store them."""
    depth = matrix.shape[0]
    full = depth // nl.tile_size.pmax
    for first in range(0, full, GROUP):
        count = min(GROUP, full - first)
        start, end = max(t0, first), min(t1, first + count)
        if start < end:
            rows = matrix[first * nl.tile_size.pmax : (first + count) * nl.tile_size.pmax, :]
            interleaved = rows.reshape_dim(0, (nl.tile_size.pmax, count))
            move_tile(tiles_sb[:, start:end, :], interleaved[:, start - first : end - first, :], soon, stores)
    rest = depth - full * nl.tile_size.pmax
    if rest > 0 and t1 > full:
        move_tile(tiles_sb[0:rest, full, :], matrix[full * nl.tile_size.pmax : depth, :], soon, stores)


def move_tile(tile_sb: nl.NkiTensor, view: nl.NkiTensor, soon: bool = False, stores: bool = False) -> None:
    """A transfer between SBUF and HBM. ``soon``: for the first loads and the last store of a kernel, whose descriptors
    are made before it starts: data flows 0.9 us after the trigger, instead of 1.3 with hardware descriptors."""
    mode = nisa.dge_mode.unknown
    if soon and nisa.get_nc_version() >= nisa.nc_version.gen3:
        mode = nisa.dge_mode.none
    if stores:
        nisa.dma_copy(dst=view, src=tile_sb, dge_mode=mode)
    else:
        nisa.dma_copy(dst=tile_sb, src=view, dge_mode=mode)


def _turn_tiles(dst_sb: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst_sb (P, K / 128, F) = src.T, of src in HBM (F, K)."""
    rows, depth = src.shape
    width = min(TURNED * nl.tile_size.pmax, depth)
    for m0 in range(0, rows, nl.tile_size.pmax):
        m1 = min(rows, m0 + nl.tile_size.pmax)
        for k0 in range(0, depth, width):
            size = min(width, depth - k0)
            rows_sb = nl.ndarray((nl.tile_size.pmax, width), dtype=src.dtype, buffer=nl.sbuf)
            move_tile(rows_sb[0 : m1 - m0, 0:size], src[m0:m1, k0 : k0 + size])
            t0 = k0 // nl.tile_size.pmax
            turned_sb = dst_sb[:, t0 : t0 + ceil_div(size, nl.tile_size.pmax), m0:m1]
            turn_rows(turned_sb, rows_sb[0 : m1 - m0, 0:size], True)


def turn_rows(dst_sb: nl.NkiTensor, rows_sb: nl.NkiTensor, interleaved: bool = False) -> None:
    """dst_sb = rows_sb.T by the tensor engine, bit for bit.

    dst_sb: SBUF (P, ceil(K/128), F): column k of rows_sb on partition k % 128 of block k // 128
    rows_sb: SBUF (F, K), the dtype of dst_sb
    interleaved: in the order described at the top of this file instead
    limits: F <= 128; on trn1 elements of 2 or 4 bytes

    trn1 transposes by a product with an identity, which spreads NaN and infinity. So there the bits are transposed, 16
    at a time, as whole numbers.

    numpy: rows_sb.T
    """
    planes = _row_planes(rows_sb)
    count = len(planes)
    width = GROUP * nl.tile_size.pmax
    for k0 in range(0, rows_sb.shape[1], width):
        k1 = min(rows_sb.shape[1], k0 + width)
        t0 = k0 // nl.tile_size.pmax
        part_sb = dst_sb[:, t0 : t0 + ceil_div(k1 - k0, nl.tile_size.pmax), :]
        for i in range(count):
            if transpose_is_exact():
                _turn_group(part_sb, planes[i][:, k0:k1], interleaved, t0 // GROUP)
            else:
                bits_sb = part_sb.view(nl.uint16)
                plane_sb = bits_sb[:, :, i : bits_sb.shape[2] : count]
                _turn_group(plane_sb, planes[i][:, k0:k1], interleaved, t0 // GROUP)


def _row_planes(rows_sb: nl.NkiTensor) -> list[nl.NkiTensor]:
    """The matrices that the tensor engine transposes exactly: the rows, or 16 bits of each element as a float32
    number."""
    if transpose_is_exact():
        return [rows_sb]
    bits_sb = rows_sb.view(nl.uint16)
    rows, columns = rows_sb.shape
    count = bits_sb.shape[1] // columns
    planes = []
    for i in range(count):
        plane_sb = nl.ndarray((nl.tile_size.pmax, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=plane_sb[0:rows, :], op=nl.copy, data=bits_sb[:, i : bits_sb.shape[1] : count])
        planes.append(plane_sb[0:rows, :])
    return planes


def _turn_group(dst_sb: nl.NkiTensor, rows_sb: nl.NkiTensor, interleaved: bool, number: int) -> None:
    """Transpose rows of at most GROUP tiles through one PSUM bank."""
    rows, depth = rows_sb.shape
    full = depth // nl.tile_size.pmax
    rest = depth - full * nl.tile_size.pmax
    turned_psum = nl.ndarray((nl.tile_size.pmax, GROUP, nl.tile_size.pmax), dtype=rows_sb.dtype, buffer=nl.psum)
    for t in range(full):
        part_sb = rows_sb[:, t * nl.tile_size.pmax : (t + 1) * nl.tile_size.pmax]
        if interleaved:
            part_sb = rows_sb[:, t : full * nl.tile_size.pmax : full]
        nisa.nc_transpose(dst=turned_psum[:, t, 0:rows], data=part_sb, engine=nisa.engine.tensor)
    if rest > 0:
        part_sb = rows_sb[:, full * nl.tile_size.pmax : depth]
        nisa.nc_transpose(dst=turned_psum[0:rest, full, 0:rows], data=part_sb, engine=nisa.engine.tensor)
    if full > 0:
        copy(dst_sb[:, 0:full, :], turned_psum[:, 0:full, 0:rows], number)
    if rest > 0:
        copy(dst_sb[0:rest, full, :], turned_psum[0:rest, full, 0:rows], number)


def turn_blocks(dst_sb: nl.NkiTensor, rows_sb: nl.NkiTensor, group: int) -> None:
    """dst_sb (group, B, R) = the transpose of each ``group`` columns of rows_sb (R, at most B * group), R <= 128.

    Unlike ``turn_rows``, on trn1 it is a product with the identity, which spreads NaN over a tile."""
    rows, columns = rows_sb.shape
    slots = max(1, BANK_BYTES // (nl.tile_size.pmax * item_bytes(rows_sb.dtype)))
    full = columns // group
    for b0 in range(0, full, slots):
        b1 = min(full, b0 + slots)
        turned_psum = nl.ndarray((group, b1 - b0, rows), dtype=rows_sb.dtype, buffer=nl.psum)
        for b in range(b0, b1):
            part_sb = rows_sb[:, b * group : (b + 1) * group]
            nisa.nc_transpose(dst=turned_psum[:, b - b0, :], data=part_sb, engine=nisa.engine.tensor)
        copy(dst_sb[:, b0:b1, :], turned_psum, b0 // slots)
    rest = columns - full * group
    if rest > 0:
        turned_psum = nl.ndarray((rest, rows), dtype=rows_sb.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned_psum, data=rows_sb[:, full * group : columns], engine=nisa.engine.tensor)
        copy(dst_sb[0:rest, full, :], turned_psum, 1)


def unit_matrix(dtype: Any) -> nl.NkiTensor:
    """The identity (128, 128) in SBUF."""
    ones_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=dtype, buffer=nl.sbuf)
    unit_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    keep_where(unit_sb, ones_sb, 1, -1, 0, nl.equal)
    return unit_sb


def copy(dst: nl.NkiTensor, src: nl.NkiTensor, number: int) -> None:
    """Copy tile ``number``, usually out of PSUM, with the vector and the scalar engine in turn if they can work at the
    same time."""
    by_scalar = number % 2 == 1 and nisa.get_nc_version() >= nisa.nc_version.gen3
    nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.scalar if by_scalar else nisa.engine.vector)
