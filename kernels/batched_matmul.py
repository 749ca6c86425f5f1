"""Products of many matrices whose factors are both computed, such as attention's scores.

Factors are access patterns on tensors in HBM, so that heads side by side, transposed matrices and repeated ones need no
copies. The contraction goes to the partitions: if rows in HBM run along it, they are loaded unchanged and the tensor
engine transposes them; others load directly. Small matrices share transfers.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import activation_function, ceil_div, count_elements
from trnrt.kernels.operands import copy, turn_rows
from trnrt.nki import nisa, nl

# Rows and columns of a result whose sums are in PSUM at once, and the length of contraction between loads.
SUM_ROWS = 256
SUM_COLUMNS = 1024
DEPTH = 1024
# Bytes per partition for the left factor's part, the right one's, rows to be transposed, and results.
LEFT_BYTES = 24 * 1024
RIGHT_BYTES = 32 * 1024
RAW_BYTES = 16 * 1024
RESULT_BYTES = 16 * 1024


@dataclass
class Place(nl.NKIObject):
    """A factor's matrices in its tensor: element (i, j) of the matrix at batch index b is offset + sum(b * strides) + i
    * row + j * column."""

    offset: int
    strides: tuple[int, ...]
    row: int
    column: int


@dataclass
class Factor(nl.NKIObject):
    """A factor of matrices ``batch`` elements apart, with strides along the contraction and along its rows or
    columns."""

    offset: int
    batch: int
    along: int
    across: int


def batched_matmul(
    dst: nl.NkiTensor,
    left: nl.NkiTensor,
    right: nl.NkiTensor,
    act: str = "none",
    depth: int = 0,
    batches: tuple[int, ...] = (),
    left_at: tuple[Any, ...] = (),
    right_at: tuple[Any, ...] = (),
) -> None:
    """dst[g] = act(left[g] @ right[g]).

    dst: HBM (G, M, N)
    left: HBM (G or 1, M, K); of any shape with left_at
    right: HBM (G or 1, K, N), the dtype of left; of any shape with right_at
    act: one of ACTIVATIONS in common.py
    depth: K; if given, ``batches`` are the dimensions of G, and both places are given
    left_at, right_at: of a contiguous tensor, the attributes of a Place in their order: a plan writes them as numbers

    Sums are float32. Best where one of the last two strides of each factor is 1.

    numpy: act(left @ right)
    """
    assert left.dtype == right.dtype, f"batched_matmul: left is {left.dtype}, right {right.dtype}"
    count, rows, columns = dst.shape
    if depth == 0:
        depth, batches = left.shape[2], (count,)
        a_place = Place(0, (rows * depth if left.shape[0] > 1 else 0,), depth, 1)
        b_place = Place(0, (depth * columns if right.shape[0] > 1 else 0,), columns, 1)
        assert left.shape[1] == rows, f"batched_matmul: left is {left.shape}, dst {dst.shape}"
        assert right.shape[1:] == (depth, columns), f"batched_matmul: left is {left.shape}, right {right.shape}"
    else:
        a_place = Place(left_at[0], left_at[1], left_at[2], left_at[3])
        b_place = Place(right_at[0], right_at[1], right_at[2], right_at[3])
    assert count_elements(batches) == count, f"batched_matmul: {batches} are not the {count} matrices of dst"
    inner = batches[len(batches) - 1] if len(batches) > 0 else 1
    together = min(inner, _matrices_at_once(rows, depth, columns))
    for outer in range(0, count, inner):
        for g0 in range(0, inner, together):
            g1 = min(inner, g0 + together)
            a = _factor(a_place, batches, outer + g0, True)
            b = _factor(b_place, batches, outer + g0, False)
            out = dst[outer + g0 : outer + g1]
            if depth <= DEPTH:
                _multiply_matrices(out, left, a, right, b, depth, act)
            else:
                _multiply_by_parts(out[0], left, a, right, b, depth, act)


def _matrices_at_once(rows: int, depth: int, columns: int) -> int:
    """The number of matrices per transfer; 1 if not even one fits as a whole."""
    if rows > SUM_ROWS or columns > SUM_COLUMNS or depth > DEPTH:
        return 1
    tiles = ceil_div(depth, nl.tile_size.pmax)
    held = min(LEFT_BYTES // (tiles * rows * 4), RIGHT_BYTES // (tiles * columns * 4))
    return max(1, min(min(held, RAW_BYTES // (depth * 4)), RESULT_BYTES // (columns * 4)))


def _factor(at: Place, batches: tuple[int, ...], number: int, is_left: bool) -> Factor:
    """The factor of the matrices from ``number`` on."""
    offset, strides = at.offset, at.strides
    for i in range(len(batches)):
        d = len(batches) - 1 - i
        offset += number % batches[d] * strides[d]
        number = number // batches[d]
    inner = strides[len(strides) - 1] if len(strides) > 0 else 0
    return Factor(offset, inner, at.column, at.row) if is_left else Factor(offset, inner, at.row, at.column)


def _multiply_matrices(
    dst: nl.NkiTensor, left: nl.NkiTensor, a: Factor, right: nl.NkiTensor, b: Factor, depth: int, act: str
) -> None:
    """dst (G, M, N) in HBM, with the whole contraction loaded at once."""
    count, rows, columns = dst.shape
    for n0 in range(0, columns, SUM_COLUMNS):
        n1 = min(columns, n0 + SUM_COLUMNS)
        b_sb = _load_matrices(right, b, count, (0, depth), (n0, n1))
        for m0 in range(0, rows, SUM_ROWS):
            m1 = min(rows, m0 + SUM_ROWS)
            a_sb = _load_matrices(left, a, count, (0, depth), (m0, m1))
            for r0 in range(m0, m1, nl.tile_size.pmax):
                r1 = min(m1, r0 + nl.tile_size.pmax)
                y_sb = nl.ndarray((r1 - r0, count, n1 - n0), dtype=dst.dtype, buffer=nl.sbuf)
                _multiply_rows(y_sb, a_sb[:, :, :, r0 - m0 : r1 - m0], b_sb, depth, act)
                nisa.dma_copy(dst=dst[:, r0:r1, n0:n1].permute((1, 0, 2)), src=y_sb)


def _multiply_rows(y_sb: nl.NkiTensor, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, depth: int, act: str) -> None:
    """y_sb (M, G, N) = act(the product of each a_sb (P, K/128, G, M) and b_sb (P, K/128, G, N)); a factor that all
    share has G = 1."""
    rows, count, columns = y_sb.shape
    bank = nl.tile_size.psum_bank_fmax
    step = max(1, bank // columns)
    number = 0
    for n0 in range(0, columns, bank):
        n1 = min(columns, n0 + bank)
        for g0 in range(0, count, step):
            g1 = min(count, g0 + step)
            sum_psum = nl.ndarray((rows, g1 - g0, n1 - n0), dtype=nl.float32, buffer=nl.psum)
            for g in range(g0, g1):
                a_part = a_sb[:, :, min(g, a_sb.shape[2] - 1), :]
                b_part = b_sb[:, :, min(g, b_sb.shape[2] - 1), n0:n1]
                _contract_matrices(sum_psum[:, g - g0, :], a_part, b_part, depth, True)
            _activate_sum(y_sb[:, g0:g1, n0:n1], sum_psum, act, number)
            number += 1


def _multiply_by_parts(
    dst: nl.NkiTensor, left: nl.NkiTensor, a: Factor, right: nl.NkiTensor, b: Factor, depth: int, act: str
) -> None:
    """dst (M, N) in HBM; the contraction is loaded in parts while the sums stay in PSUM."""
    rows, columns = dst.shape
    bank = nl.tile_size.psum_bank_fmax
    for n0 in range(0, columns, SUM_COLUMNS):
        n1 = min(columns, n0 + SUM_COLUMNS)
        for m0 in range(0, rows, SUM_ROWS):
            m1 = min(rows, m0 + SUM_ROWS)
            banks, corners = [], []
            for r0 in range(m0, m1, nl.tile_size.pmax):
                for c0 in range(n0, n1, bank):
                    shape = (min(nl.tile_size.pmax, m1 - r0), min(bank, n1 - c0))
                    banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
                    corners.append((r0 - m0, c0 - n0))
            for k0 in range(0, depth, DEPTH):
                k1 = min(depth, k0 + DEPTH)
                b_sb = _load_matrices(right, b, 1, (k0, k1), (n0, n1))
                a_sb = _load_matrices(left, a, 1, (k0, k1), (m0, m1))
                for i in range(len(banks)):
                    r0, c0 = corners[i]
                    a_part = a_sb[:, :, 0, r0 : r0 + banks[i].shape[0]]
                    b_part = b_sb[:, :, 0, c0 : c0 + banks[i].shape[1]]
                    _contract_matrices(banks[i], a_part, b_part, k1 - k0, k0 == 0)
            for i in range(len(banks)):
                r0, c0 = m0 + corners[i][0], n0 + corners[i][1]
                y_sb = nl.ndarray(banks[i].shape, dtype=dst.dtype, buffer=nl.sbuf)
                _activate_sum(y_sb, banks[i], act, i)
                nisa.dma_copy(dst=dst[r0 : r0 + y_sb.shape[0], c0 : c0 + y_sb.shape[1]], src=y_sb)


def _contract_matrices(bank: nl.NkiTensor, a_sb: nl.NkiTensor, b_sb: nl.NkiTensor, depth: int, starts: bool) -> None:
    """bank (M, N) = or += the product of a_sb (P, K/128, M) and b_sb (P, K/128, N)."""
    for t in range(ceil_div(depth, nl.tile_size.pmax)):
        k = min(nl.tile_size.pmax, depth - t * nl.tile_size.pmax)
        first = starts and t == 0
        nisa.nc_matmul(dst=bank, stationary=a_sb[0:k, t, :], moving=b_sb[0:k, t, :], accumulate=not first)


def _activate_sum(y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, act: str, number: int) -> None:
    """y_sb = act(sum_psum)."""
    if act == "none":
        copy(y_sb, sum_psum, number)
    else:
        nisa.activation(dst=y_sb, op=activation_function(act), data=sum_psum)


def _load_matrices(
    tensor: nl.NkiTensor, factor: Factor, count: int, depths: tuple[int, int], sizes: tuple[int, int]
) -> nl.NkiTensor:
    """``depths`` (first, end) of the contraction and ``sizes`` of the rows or columns of some matrices, in SBUF (P,
    K/128, G, F): index b*128 + p of the contraction on partition p. G is 1 if all matrices are the same."""
    batch, along, across = factor.batch, factor.along, factor.across
    depth, size = depths[1] - depths[0], sizes[1] - sizes[0]
    count = 1 if batch == 0 else count
    first = factor.offset + depths[0] * along + sizes[0] * across
    tiles = ceil_div(depth, nl.tile_size.pmax)
    shape = (min(depth, nl.tile_size.pmax), tiles, count, size)
    tile_sb = nl.ndarray(shape, dtype=tensor.dtype, buffer=nl.sbuf)
    if along == 1 and across != 1:
        for f0 in range(0, size, nl.tile_size.pmax):
            f1 = min(size, f0 + nl.tile_size.pmax)
            raw_sb = nl.ndarray((f1 - f0, count, depth), dtype=tensor.dtype, buffer=nl.sbuf)
            pattern = [[across, f1 - f0], [batch, count], [1, depth]]
            nisa.dma_copy(dst=raw_sb, src=tensor.ap(pattern=pattern, offset=first + f0 * across))
            for g in range(count):
                turn_rows(tile_sb[:, :, g, f0:f1], raw_sb[:, g, :])
        return tile_sb
    full = depth // nl.tile_size.pmax
    rest = depth - full * nl.tile_size.pmax
    block = nl.tile_size.pmax * along
    if full > 0:
        pattern = [[along, nl.tile_size.pmax], [block, full], [batch, count], [across, size]]
        nisa.dma_copy(dst=tile_sb[:, 0:full], src=tensor.ap(pattern=pattern, offset=first))
    if rest > 0:
        pattern = [[along, rest], [batch, count], [across, size]]
        nisa.dma_copy(dst=tile_sb[0:rest, full], src=tensor.ap(pattern=pattern, offset=first + full * block))
    return tile_sb
