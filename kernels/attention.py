"""Attention: the scores of queries and keys, their softmax, and the values weighted with it, without HBM between.

    features (heads side by side on the partitions): q, k
    tensor: q @ k.T -> PSUM (queries, heads, keys) -> vector: largest of each row -> scalar: exp
    tensor: transposed, head by head -> (keys, heads, queries); times v, and times 1 -> PSUM (heads * size, queries)
    vector: one over the other -> features (heads * size, queries); or rows (queries, heads * size)

Queries are on the partitions, up to 128 of one item of the batch at a time. The tensor engine adds the exponentials up,
as the vector engine has most to do; they are divided by their sum after the second product, where there are fewer
numbers. Scores stay in PSUM if a head's fit a bank and nothing is added
to them; else the vector engine brings them to SBUF, with the mask.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.attention_operands import (
    READABLE_HEADS,
    count_head_rows,
    load_masks,
    load_value_rows,
    store_heads,
    take_columns_from,
    take_keys,
    turn_heads,
)
from trnrt.kernels.common import ceil_div, is_hbm_tensor, item_bytes
from trnrt.kernels.operands import BANK_BYTES, copy, unit_matrix
from trnrt.nki import nisa, nl

# The longest head that the tensor engine contracts at once.
MAX_HEAD = 128
# The most keys: a row of scores in float32 takes 16 KiB of a partition.
MAX_KEYS = 4096
# The longest row of values: a PSUM bank of float32.
MAX_VALUE_SIZE = 512
# Bytes per partition of scores in SBUF, and of the keys, and the values, of as many heads as are held at once.
SCORE_BYTES = 16 * 1024
HELD_BYTES = 24 * 1024
# Banks of scores of a group: the scores of the next one need as many, and the products behind them the rest.
SCORE_BANKS = 2
# Smaller than the negated largest of a row in which every key is masked.
_FINITE = 3e38
# What the tensor engine adds to hide a key, where a product with infinity would be NaN: the scores are lost beside it.
# Of a row with the largest below half of it, all keys are hidden. float16 ends at 65504.
_HIDDEN, _HIDDEN_HALF = -1e30, -6e4
# Added to the sum of such a row, which is 0; float16 has nothing smaller.
_LEAST, _LEAST_HALF = 1e-30, 6e-8


def attention_tile_bytes(sizes: tuple[int, int, int, int], item: int, masks: int, brought: int) -> int:
    """The most bytes per partition that the tiles take, with two groups of heads under way.

    sizes: queries, keys, heads, and the columns of a head
    masks: heads whose masks are added, 0 to all
    brought: how many of queries, keys and values are not on chip as the kernel reads them
    """
    _, keys, heads, size = sizes
    together = _heads_together(heads, keys, size, item)
    tiles = ceil_div(keys, nl.tile_size.pmax)
    group = 2 * together * keys * item + tiles * together * nl.tile_size.pmax * item
    if keys > nl.tile_size.psum_bank_fmax or (masks > 0 and item == 4):
        group += together * keys * 4
    held = min(HELD_BYTES, heads * max(keys, tiles * size) * item)
    columns = heads * size * item
    return 2 * (group + masks * keys * item) + brought * 2 * (held + columns) + 2 * columns + 1024


def attend(
    dst: nl.NkiTensor,
    q: nl.NkiTensor,
    k: nl.NkiTensor,
    v: nl.NkiTensor,
    mask: Any,
    items: int,
    heads: int,
    width: int,
    size: int,
    scale: float = 1.0,
    empty_is_zero: bool = False,
    firsts: tuple[int, int, int] = (0, 0, 0),
    by_rows: bool = False,
    shared: int = 1,
    ends: tuple[int, ...] = (),
    more: Any = None,
) -> None:
    """dst = softmax(scale * q @ k.T + mask + more) @ v, for each head of each item.

    dst: HBM (N*S, H*E), or SBUF ``features`` (P, B, N*S)
    q: HBM (N*S, H*D or more), or (N, H, S, D); or SBUF ``features`` (P, B, N*S) if D is one of READABLE_HEADS
    k: HBM (N*T, K*D or more), or (N, K, T, D); or SBUF as q
    v: HBM (N*T, K*E or more), or (N, K, T, E); or SBUF ``features`` (P, B, N*T), or ``rows`` (P, B, K*E or more) if T
        is a multiple of 128, and ``by_rows``; all of one dtype
    mask: None, or HBM (M, G, R, T) float32: item n and head h add matrix (n % M, h % G); R is S, or 1 for one row
    items: N
    heads, width, size: H, D, E
    scale: the factor of the scores
    empty_is_zero: what a query gets whose keys are all masked by -inf: 0; else NaN
    firsts: the columns of q, k and v from which on they have the heads; in SBUF multiples of 128
    shared: the heads of queries that share a head of keys and values: K = H / shared; head h uses h // shared. If
        not 1, q and k are in HBM, or D is 128
    ends: for each 128 queries, the keys that count: the mask hides all later ones; () if all do
    more: a second mask
    limits: D <= MAX_HEAD, T <= MAX_KEYS, E <= MAX_VALUE_SIZE

    Scores, sums and the quotient are float32. With 16 bits the tensor engine adds a mask, in which -inf becomes -1e30:
    a query whose keys are all masked gets 0, or the mean of the values. On trn1 NaN in one query spreads to the others
    of its item.

    numpy: s = scale * q @ k.T + mask + more; e = exp(s - s.max(-1, keepdims=True)); e @ v / e.sum(-1, keepdims=True)
    """
    queries, keys = count_head_rows(q) // items, count_head_rows(k) // items
    assert width <= MAX_HEAD, f"attend: heads of {width}; the limit is {MAX_HEAD}"
    assert keys <= MAX_KEYS, f"attend: {keys} keys; the limit is {MAX_KEYS}"
    assert size <= MAX_VALUE_SIZE, f"attend: values of {size}; the limit is {MAX_VALUE_SIZE}"
    q, k, v = take_columns_from(q, firsts[0]), take_columns_from(k, firsts[1]), take_columns_from(v, firsts[2], by_rows)
    held = shared * _heads_held(heads // shared, keys, width, size, item_bytes(q.dtype))
    turned = not is_hbm_tensor(dst) and size in READABLE_HEADS
    begun: Any = None
    ones_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=q.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    least_sb: Any = None
    if empty_is_zero:
        least_sb = nl.ndarray((1, nl.tile_size.psum_bank_fmax), dtype=q.dtype, buffer=nl.sbuf)
        nisa.memset(dst=least_sb, value=_LEAST_HALF if q.dtype == nl.float16 else _LEAST)
    unit_sb: Any = None
    if mask is not None and _adds_by_product(q.dtype):
        unit_sb = unit_matrix(q.dtype)
    for n in range(items):
        for h0 in range(0, heads, held):
            h1 = min(heads, h0 + held)
            k_sb = turn_heads(k, n * keys, keys, width, h0 // shared, ceil_div(h1, shared), shared)
            v_sb = load_value_rows(v, n * keys, keys, size, h0 // shared, ceil_div(h1, shared), by_rows)
            for q0 in range(0, queries, nl.tile_size.pmax):
                q1 = min(queries, q0 + nl.tile_size.pmax)
                end = ends[q0 // nl.tile_size.pmax] if len(ends) > 0 else keys
                q_sb = turn_heads(q, n * queries + q0, q1 - q0, width, h0, h1, shared)
                mask_sb = load_masks((mask, more), n, (h0, h1), (q0, q1), end)
                if unit_sb is not None:
                    mask_sb = _limit_mask(mask_sb, scale, q.dtype)
                used_sb = take_keys(k_sb, h1 - h0, shared, end)
                block = Block(dst, n * queries + q0, h0, q_sb, used_sb, v_sb, shared, ones_sb, least_sb, turned)
                adding = Adding(mask_sb, unit_sb, scale, empty_is_zero)
                begun = _attend_block(block, adding, begun)
    _finish_group(begun)


@dataclass
class Block(nl.NKIObject):
    """Up to 128 queries of an item and some of its heads, from row ``row`` and head ``head`` on.

    ``q_sb``, ``k_sb``: queries and keys (width, rows) of each head; ``v_sb``: values (P, T/128, heads / shared, size).
    ``ones_sb`` (128, 128), and ``least_sb`` (1, 512) to add to the sums, if that is needed. ``turned``: the result's
    features are on the partitions."""

    dst: nl.NkiTensor
    row: int
    head: int
    q_sb: Any
    k_sb: Any
    v_sb: nl.NkiTensor
    shared: int
    ones_sb: nl.NkiTensor
    least_sb: Any
    turned: bool

    def rows(self) -> int:
        """The number of queries."""
        return int(self.q_sb[0].shape[1])

    def values(self, keys: int, tile: int, head: int) -> nl.NkiTensor:
        """The values (keys, size) of a tile of up to 128 keys."""
        return self.v_sb[0:keys, tile, head // self.shared, :]


@dataclass
class Adding(nl.NKIObject):
    """How scores are scaled and masked: ``scale`` times the score, plus ``mask_sb`` (queries, heads or 1, keys) if it
    isn't None.

    With a ``unit_sb``, an identity matrix, the mask is divided by ``scale`` already, and a product adds it."""

    mask_sb: Any
    unit_sb: Any
    scale: float
    empty_is_zero: bool

    def part(self, g0: int, g1: int) -> Any:
        """The same for some heads."""
        if self.mask_sb is None or self.mask_sb.shape[1] == 1:
            return self
        return Adding(self.mask_sb[:, g0:g1], self.unit_sb, self.scale, self.empty_is_zero)


@dataclass
class Group(nl.NKIObject):
    """Heads ``first`` to ``end`` of a block whose exponentials (queries, heads, keys) are there. ``y_sb``: the block's
    rows so far, unless the result is turned."""

    block: Block
    first: int
    end: int
    exp_sb: nl.NkiTensor
    y_sb: Any


def _heads_held(heads: int, keys: int, width: int, size: int, item: int) -> int:
    """The number of heads whose keys and values are in SBUF at once: all, or as many as whole blocks of partitions
    have."""
    tiles = ceil_div(keys, nl.tile_size.pmax)
    together = max(1, nl.tile_size.pmax // width)
    together = max(together, max(1, nl.tile_size.pmax // size))
    fit = min(HELD_BYTES // (keys * item), HELD_BYTES // (tiles * size * item))
    return min(heads, max(1, fit // together) * together)


def _heads_together(heads: int, keys: int, size: int, item: int) -> int:
    """The number of heads whose scores, transposed exponentials and results are in PSUM at once."""
    transposed = BANK_BYTES // (nl.tile_size.pmax * item)
    transposed = min(transposed, SCORE_BANKS * max(1, nl.tile_size.psum_bank_fmax // keys))
    return max(1, min(min(heads, transposed), min(nl.tile_size.psum_bank_fmax // size, SCORE_BYTES // (keys * 4))))


def _fit_blocks(together: int, size: int) -> int:
    """So many heads, or fewer, that a group's features are whole blocks of partitions, or lie within one."""
    each = nl.tile_size.pmax // size
    if together >= each:
        return together // each * each
    while each % together != 0:
        together -= 1
    return together


def _attend_block(block: Block, adding: Adding, begun: Any) -> Any:
    """Attend one block, some heads at a time, and return the last group, to be finished.

    The group before, ``begun``, is finished once the exponentials of the next one are on their way, so that the tensor
    engine doesn't wait for them."""
    heads, size = len(block.q_sb), block.v_sb.shape[3]
    rows, keys = block.rows(), block.k_sb[0].shape[1]
    y_sb: Any = None
    if not block.turned:
        y_sb = nl.ndarray((rows, heads, size), dtype=block.dst.dtype, buffer=nl.sbuf)
    together = _heads_together(heads, keys, size, item_bytes(block.v_sb.dtype))
    if block.turned:
        together = _fit_blocks(together, size)
    for g0 in range(0, heads, together):
        g1 = min(heads, g0 + together)
        exp_sb = nl.ndarray((rows, g1 - g0, keys), dtype=block.v_sb.dtype, buffer=nl.sbuf)
        _weigh_keys(exp_sb, block.q_sb[g0:g1], block.k_sb[g0:g1], adding.part(g0, g1))
        if begun is not None:
            _finish_group(begun)
        begun = Group(block, g0, g1, exp_sb, y_sb)
    return begun


def _finish_group(group: Group) -> None:
    """Multiply a group's exponentials with the values, and divide by their sums; the last group stores the block."""
    block = group.block
    weights = _turn_weights(group.exp_sb)
    if block.turned:
        _weigh_turned(group, weights)
        return
    heads, size = len(block.q_sb), block.v_sb.shape[3]
    rows, count = block.rows(), group.end - group.first
    sum_psum = nl.ndarray((rows, count, size), dtype=nl.float32, buffer=nl.psum)
    total_psum = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    if block.least_sb is not None:
        ones, least = block.ones_sb[0:1, 0:rows], block.least_sb[:, 0:count]
        nisa.nc_matmul(dst=total_psum, stationary=ones, moving=least, accumulate=False)
    for g in range(count):
        for t in range(len(weights)):
            part = weights[t][:, g, :]
            keys = part.shape[0]
            values, ones = block.values(keys, t, group.first + g), block.ones_sb[0:keys, 0:1]
            more = t > 0 or block.least_sb is not None
            nisa.nc_matmul(dst=sum_psum[:, g, :], stationary=part, moving=values, accumulate=t > 0)
            nisa.nc_matmul(dst=total_psum[:, g : g + 1], stationary=part, moving=ones, accumulate=more)
    rate_sb = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=rate_sb, data=total_psum)
    rate = rate_sb.expand_dim(2).broadcast(2, size)
    nisa.tensor_tensor(dst=group.y_sb[:, group.first : group.end, :], data1=sum_psum, data2=rate, op=nl.multiply)
    if group.end == heads:
        store_heads(block.dst, group.y_sb.flatten_dims(1, 2), block.row, block.head * size)


def _weigh_turned(group: Group, weights: list[nl.NkiTensor]) -> None:
    """The result's features (heads * size, queries): values times exponentials, over the sums that a product with ones
    gives on each of their partitions."""
    block = group.block
    size, rows, count = block.v_sb.shape[3], block.rows(), group.end - group.first
    each = nl.tile_size.pmax // size
    # Of a group within a block, heads before may have the first partitions.
    skipped = group.first % each
    blocks = ceil_div(count, each)
    parts = min(skipped + count, each) * size
    sum_psum = nl.ndarray((parts, blocks, rows), dtype=nl.float32, buffer=nl.psum)
    total_psum = nl.ndarray((parts, blocks, rows), dtype=nl.float32, buffer=nl.psum)
    for b in range(blocks):
        if block.least_sb is not None:
            used = min(each, count - b * each) * size
            total = total_psum[skipped * size : skipped * size + used, b, :]
            ones, least = block.ones_sb[0:1, 0:used], block.least_sb[:, 0:rows]
            nisa.nc_matmul(dst=total, stationary=ones, moving=least, accumulate=False)
    for g in range(count):
        first = (skipped + g) % each * size
        for t in range(len(weights)):
            part = weights[t][:, g, :]
            keys = part.shape[0]
            values, ones = block.values(keys, t, group.first + g), block.ones_sb[0:keys, 0:size]
            place = sum_psum[first : first + size, g // each, :]
            total = total_psum[first : first + size, g // each, :]
            more = t > 0 or block.least_sb is not None
            nisa.nc_matmul(dst=place, stationary=values, moving=part, accumulate=t > 0)
            nisa.nc_matmul(dst=total, stationary=ones, moving=part, accumulate=more)
    first = (block.head + group.first) * size // nl.tile_size.pmax
    whole = count // each
    dst = block.dst[:, first : first + blocks, block.row : block.row + rows]
    if whole > 0:
        _divide(dst[0:parts, 0:whole], sum_psum[:, 0:whole], total_psum[:, 0:whole])
    if whole < blocks:
        p0, p1 = skipped * size, (skipped + count - whole * each) * size
        _divide(dst[p0:p1, whole], sum_psum[p0:p1, whole], total_psum[p0:p1, whole])


def _divide(dst: nl.NkiTensor, sum_psum: nl.NkiTensor, total_psum: nl.NkiTensor) -> None:
    """dst = sum_psum / total_psum. An instruction reads one input from PSUM at most: the reciprocals go to SBUF."""
    rate_sb = nl.ndarray(total_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=rate_sb, data=total_psum)
    nisa.tensor_tensor(dst=dst, data1=sum_psum, data2=rate_sb, op=nl.multiply)


def _weigh_keys(exp_sb: nl.NkiTensor, q_sb: list[nl.NkiTensor], k_sb: list[nl.NkiTensor], adding: Adding) -> None:
    """exp_sb (queries, heads, keys) = the exponentials of the scores relative to the largest of their row."""
    rows, heads, keys = exp_sb.shape
    by_product = adding.unit_sb is not None
    in_psum = (adding.mask_sb is None or by_product) and keys <= nl.tile_size.psum_bank_fmax
    score_sb: Any = None
    if not in_psum:
        score_sb = nl.ndarray((rows, heads, keys), dtype=nl.float32, buffer=nl.sbuf)
    parts = _score_keys(score_sb, q_sb, k_sb, adding)
    step = max(1, nl.tile_size.psum_bank_fmax // keys)
    shift_sb = nl.ndarray((rows, heads), dtype=nl.float32, buffer=nl.sbuf)
    if in_psum:
        for i in range(len(parts)):
            g0 = i * step
            g1 = min(heads, g0 + step)
            nisa.tensor_reduce(dst=shift_sb[:, g0:g1], op=nl.maximum, data=parts[i], axis=(2,), negate=True)
    else:
        nisa.tensor_reduce(dst=shift_sb, op=nl.maximum, data=score_sb, axis=(2,), negate=True)
    factor = adding.scale if score_sb is None or by_product or adding.mask_sb is None else 1.0
    if factor != 1.0:
        nisa.tensor_scalar(dst=shift_sb, data=shift_sb, op0=nl.multiply, operand0=factor)
    if adding.empty_is_zero:
        most = -0.5 * factor * _hiding_score(exp_sb.dtype) if by_product else _FINITE
        nisa.tensor_scalar(dst=shift_sb, data=shift_sb, op0=nl.minimum, operand0=most)
    for g in range(heads):
        score = parts[g // step][:, g % step, :] if in_psum else score_sb[:, g, :]
        nisa.activation(dst=exp_sb[:, g, :], op=nl.exp, data=score, bias=shift_sb[:, g : g + 1], scale=factor)


def _score_keys(
    score_sb: Any, q_sb: list[nl.NkiTensor], k_sb: list[nl.NkiTensor], adding: Adding
) -> list[nl.NkiTensor]:
    """The products of queries and keys with the mask in score_sb (queries, heads, keys); without one, in PSUM tiles of
    as many heads as a bank holds, which are returned."""
    rows, keys = q_sb[0].shape[1], k_sb[0].shape[1]
    step = max(1, nl.tile_size.psum_bank_fmax // keys)
    by_product = adding.unit_sb is not None
    parts = []
    for g0 in range(0, len(q_sb), step):
        g1 = min(len(q_sb), g0 + step)
        for k0 in range(0, keys, nl.tile_size.psum_bank_fmax):
            k1 = min(keys, k0 + nl.tile_size.psum_bank_fmax)
            score_psum = nl.ndarray((rows, g1 - g0, k1 - k0), dtype=nl.float32, buffer=nl.psum)
            if by_product:
                part = _mask_part(adding.mask_sb, g0, g1, k0, k1)
                nisa.nc_matmul(dst=score_psum, stationary=adding.unit_sb[0:rows, 0:rows], moving=part, accumulate=False)
            for g in range(g0, g1):
                place, moving = score_psum[:, g - g0, :], k_sb[g][:, k0:k1]
                nisa.nc_matmul(dst=place, stationary=q_sb[g], moving=moving, accumulate=by_product)
            if score_sb is None:
                parts.append(score_psum)
                continue
            place = score_sb[:, g0:g1, k0:k1]
            if by_product or adding.mask_sb is None:
                copy(place, score_psum, k0 // nl.tile_size.psum_bank_fmax)
            else:
                nisa.scalar_tensor_tensor(
                    dst=place,
                    data=score_psum,
                    op0=nl.multiply,
                    operand0=adding.scale,
                    op1=nl.add,
                    operand1=_mask_part(adding.mask_sb, g0, g1, k0, k1),
                )
    return parts


def _mask_part(mask_sb: nl.NkiTensor, g0: int, g1: int, k0: int, k1: int) -> nl.NkiTensor:
    """The mask (queries, heads, keys) of some heads and keys; one for all heads is repeated."""
    if mask_sb.shape[1] == 1:
        return mask_sb[:, :, k0:k1].broadcast(1, g1 - g0)
    return mask_sb[:, g0:g1, k0:k1]


def _adds_by_product(dtype: Any) -> bool:
    """True if the tensor engine adds the mask to the scores: of 16 bits, in a quarter of float32's time."""
    return item_bytes(dtype) == 2


def _limit_mask(mask_sb: nl.NkiTensor, scale: float, dtype: Any) -> nl.NkiTensor:
    """The mask divided by ``scale``, with a finite number in place of -inf."""
    limited_sb = nl.ndarray(mask_sb.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=limited_sb,
        data=mask_sb,
        op0=nl.multiply,
        operand0=1.0 / scale,
        op1=nl.maximum,
        operand1=_hiding_score(dtype),
    )
    return limited_sb


def _hiding_score(dtype: Any) -> float:
    """The number that a mask of this dtype adds to a score to hide its key."""
    return _HIDDEN if dtype == nl.bfloat16 else _HIDDEN_HALF


def _turn_weights(exp_sb: nl.NkiTensor) -> list[nl.NkiTensor]:
    """(keys, heads, queries) for each 128 keys of exp_sb (queries, heads, keys)."""
    rows, heads, keys = exp_sb.shape
    turned = []
    for k0 in range(0, keys, nl.tile_size.pmax):
        size = min(nl.tile_size.pmax, keys - k0)
        turned_psum = nl.ndarray((size, heads, rows), dtype=exp_sb.dtype, buffer=nl.psum)
        for g in range(heads):
            part_sb = exp_sb[:, g, k0 : k0 + size]
            nisa.nc_transpose(dst=turned_psum[:, g, :], data=part_sb, engine=nisa.engine.tensor)
        turned_sb = nl.ndarray((size, heads, rows), dtype=exp_sb.dtype, buffer=nl.sbuf)
        copy(turned_sb, turned_psum, k0 // nl.tile_size.pmax)
        turned.append(turned_sb)
    return turned
