"""Attention: the scores of queries and keys, their softmax, and the values weighted with it, without HBM between.

    features (heads side by side on the partitions): q, k
    tensor: q @ k.T -> PSUM (queries, heads, keys) -> vector: largest of each row -> scalar: exp -> SBUF, float32
    vector: sums -> scalar: over the sums -> tensor: transposed, head by head -> PSUM (keys, heads, queries) -> SBUF
    tensor: times v -> PSUM -> features (heads * size, queries); or rows (queries, heads * size)

Queries are on the partitions, up to 128 of one item of the batch at a time. trn1's vector and scalar engine take turns
at PSUM, which bounds the time there: so sums and quotients are computed in SBUF, and the scalar engine, which has the
faster clock, brings the rest out of PSUM. From trn2 on, the tensor engine adds up many keys of 16 bits, and the results
are divided by their sums. Scores stay in PSUM if a head's fit a bank and nothing is added to them; else the vector
engine brings them to SBUF, with the mask.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.attention_operands import (
    READABLE_HEADS,
    count_head_rows,
    evacuate_psum,
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
# The most banks of scores of a group, and with results divided, whose sums take banks, too. ViT-B/16 of two layers at
# batch 8 on trn1, predicted: 1 takes 3 % more, 2 the same. Attention to 512 keys on trn2, divided late: 1 takes 13 %
# more, 3 takes 19 %.
SCORE_BANKS, LATE_SCORE_BANKS = 3, 2
# Smaller than the negated largest of a row in which every key is masked.
_FINITE = 3e38
# What the tensor engine adds to hide a key, where a product with infinity would be NaN: the scores are lost beside it.
# Of a row with the largest below half of it, all keys are hidden. float16 ends at 65504.
_HIDDEN, _HIDDEN_HALF = -1e30, -6e4
# Added to all sums: that of such a row is 0, every other one is at least 1.
_LEAST = 1e-30
# Keys of 16 bits from which on trn2 and later divide the results, in place of the exponentials. Two layers on trn2,
# predicted: with 197 keys (ViT-B/16, batch 8) that takes 2 % less time, with 128 (BERT-base, batch 16) 2 % more.
LATE_KEYS = 129


def attention_tile_bytes(sizes: tuple[int, int, int, int], item: int, masks: int, brought: int) -> int:
    """The most bytes per partition that the tiles take, with two groups of heads under way.

    sizes: queries, keys, heads, and the columns of a head
    masks: heads whose masks are added, 0 to all
    brought: how many of queries, keys and values are not on chip as the kernel reads them
    """
    _, keys, heads, size = sizes
    together = _heads_together(heads, keys, size, item, SCORE_BANKS)
    tiles = ceil_div(keys, nl.tile_size.pmax)
    group = together * keys * (4 + item) + tiles * together * nl.tile_size.pmax * item
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
    begun = Begun(None, None)
    ones_sb: Any = None
    if keys >= LATE_KEYS and item_bytes(q.dtype) == 2 and nisa.get_nc_version() >= nisa.nc_version.gen3:
        ones_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=q.dtype, buffer=nl.sbuf)
        nisa.memset(dst=ones_sb, value=1.0)
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
                block = Block(dst, n * queries + q0, h0, q_sb, used_sb, v_sb, shared, ones_sb, turned)
                adding = Adding(mask_sb, unit_sb, scale, empty_is_zero)
                begun = _attend_block(block, adding, begun)
    _advance(_advance(begun, None), None)


@dataclass
class Block(nl.NKIObject):
    """Up to 128 queries of an item and some of its heads, from row ``row`` and head ``head`` on.

    ``q_sb``, ``k_sb``: queries and keys (width, rows) of each head; ``v_sb``: values (P, T/128, heads / shared, size).
    ``ones_sb`` (128, 128) if results are divided by the sums, None if exponentials are. ``turned``: the result's
    features are on the partitions."""

    dst: nl.NkiTensor
    row: int
    head: int
    q_sb: Any
    k_sb: Any
    v_sb: nl.NkiTensor
    shared: int
    ones_sb: Any
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
    """Heads ``first`` to ``end`` of a block. ``y_sb``: the block's rows so far, unless the result is turned.

    ``scores``: PSUM tiles (queries, heads of a bank, keys), or none if ``exp_sb`` (queries, heads, keys) has them. An
    exponential is that of a score times ``factor`` plus ``shift_sb`` (queries, heads)."""

    block: Block
    first: int
    end: int
    y_sb: Any
    scores: list[nl.NkiTensor]
    exp_sb: Any
    shift_sb: nl.NkiTensor
    factor: float


@dataclass
class Weighed(nl.NKIObject):
    """A group whose weights (queries, heads, keys) are there: exponentials, over their sums unless results are."""

    group: Group
    weights_sb: nl.NkiTensor


@dataclass
class Begun(nl.NKIObject):
    """The groups under way: one whose scores are there, and the ``Weighed`` one before it; or None."""

    scored: Any
    weighed: Any


def _heads_held(heads: int, keys: int, width: int, size: int, item: int) -> int:
    """The number of heads whose keys and values are in SBUF at once: all, or those of whole blocks of values, so that
    their results begin at partition 0."""
    tiles = ceil_div(keys, nl.tile_size.pmax)
    each = max(1, nl.tile_size.pmax // size)
    together = ceil_div(max(1, nl.tile_size.pmax // width), each) * each
    fit = min(HELD_BYTES // (keys * item), HELD_BYTES // (tiles * size * item))
    return min(heads, max(1, fit // together) * together)


def _heads_together(heads: int, keys: int, size: int, item: int, banks: int) -> int:
    """The number of heads whose scores, transposed exponentials and results are in PSUM at once."""
    transposed = BANK_BYTES // (nl.tile_size.pmax * item)
    transposed = min(transposed, banks * max(1, nl.tile_size.psum_bank_fmax // keys))
    return max(1, min(min(heads, transposed), min(nl.tile_size.psum_bank_fmax // size, SCORE_BYTES // (keys * 4))))


def _fit_blocks(together: int, each: int) -> int:
    """At most ``together`` heads: whole blocks of ``each``, or a number that divides one, a power of 2."""
    if together >= each:
        return together // each * each
    while each > together:
        each = each // 2
    return each


def _attend_block(block: Block, adding: Adding, begun: Begun) -> Begun:
    """Attend one block, some heads at a time, and return the last groups, to be finished."""
    heads, size = len(block.q_sb), block.v_sb.shape[3]
    rows, keys = block.rows(), block.k_sb[0].shape[1]
    y_sb: Any = None
    if not block.turned:
        y_sb = nl.ndarray((rows, heads, size), dtype=block.dst.dtype, buffer=nl.sbuf)
    banks = SCORE_BANKS if block.ones_sb is None else LATE_SCORE_BANKS
    together = _heads_together(heads, keys, size, item_bytes(block.v_sb.dtype), banks)
    if block.turned:
        together = _fit_blocks(together, nl.tile_size.pmax // size)
    for g0 in range(0, heads, together):
        g1 = min(heads, g0 + together)
        begun = _advance(begun, _score_group(block, g0, g1, y_sb, adding.part(g0, g1)))
    return begun


def _advance(begun: Begun, scored: Any) -> Begun:
    """Add a group, or None, to those under way. Three groups are, each a stage further than the next, so that engines
    seldom wait for each other.

    BERT of two layers at batch 16 on trn2, predicted: two groups take 2 % more, and the last stage first 1 %."""
    weighed: Any = None
    if begun.scored is not None:
        weighed = _weigh_keys(begun.scored)
    if begun.weighed is not None:
        _finish_group(begun.weighed)
    return Begun(scored, weighed)


def _finish_group(weighed: Weighed) -> None:
    """Multiply a group's weights with the values; the last group stores the block."""
    group, block = weighed.group, weighed.group.block
    weights = _turn_weights(weighed.weights_sb)
    if block.turned:
        _multiply_turned(group, weights)
        return
    heads, size = len(block.q_sb), block.v_sb.shape[3]
    rows, count = block.rows(), group.end - group.first
    y_psum = nl.ndarray((rows, count, size), dtype=nl.float32, buffer=nl.psum)
    sum_psum: Any = None
    if block.ones_sb is not None:
        sum_psum = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    for g in range(count):
        for t in range(len(weights)):
            part = weights[t][:, g, :]
            values = block.values(part.shape[0], t, group.first + g)
            nisa.nc_matmul(dst=y_psum[:, g, :], stationary=part, moving=values, accumulate=t > 0)
            if sum_psum is not None:
                ones = block.ones_sb[0 : part.shape[0], 0:1]
                nisa.nc_matmul(dst=sum_psum[:, g : g + 1], stationary=part, moving=ones, accumulate=t > 0)
    dst = group.y_sb[:, group.first : group.end, :]
    if sum_psum is None:
        evacuate_psum(dst, y_psum, 1)
    else:
        rate = _invert(sum_psum).expand_dim(2).broadcast(2, size)
        nisa.tensor_tensor(dst=dst, data1=y_psum, data2=rate, op=nl.multiply)
    if group.end == heads:
        store_heads(block.dst, group.y_sb.flatten_dims(1, 2), block.row, block.head * size)


def _multiply_turned(group: Group, weights: list[nl.NkiTensor]) -> None:
    """The result's features (heads * size, queries): values times weights. A group of fewer heads than a block of 128
    features has may start within it."""
    block = group.block
    size, rows, count = block.v_sb.shape[3], block.rows(), group.end - group.first
    each = nl.tile_size.pmax // size
    before = (block.head + group.first) % each
    blocks = ceil_div(before + count, each)
    shape = (nl.tile_size.pmax, blocks, rows)
    y_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    sum_psum: Any = None
    if block.ones_sb is not None:
        sum_psum = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for g in range(count):
        first, b = (before + g) % each * size, (before + g) // each
        for t in range(len(weights)):
            part = weights[t][:, g, :]
            values = block.values(part.shape[0], t, group.first + g)
            place = y_psum[first : first + size, b, :]
            nisa.nc_matmul(dst=place, stationary=values, moving=part, accumulate=t > 0)
            if sum_psum is not None:
                total, ones = sum_psum[first : first + size, b, :], block.ones_sb[0 : part.shape[0], 0:size]
                nisa.nc_matmul(dst=total, stationary=ones, moving=part, accumulate=t > 0)
    b0 = (block.head + group.first) // each
    dst = block.dst[:, b0 : b0 + blocks, block.row : block.row + rows]
    p0 = before * size
    whole = (before + count) // each
    if whole > 0:
        p1 = nl.tile_size.pmax // size * size
        _store_quotients(dst[p0:p1, 0:whole], y_psum[p0:p1, 0:whole], sum_psum, p0, 0)
    if whole < blocks:
        p1 = (before + count - whole * each) * size
        _store_quotients(dst[p0:p1, whole:blocks], y_psum[p0:p1, whole:blocks], sum_psum, p0, whole)


def _store_quotients(dst: nl.NkiTensor, y_psum: nl.NkiTensor, sum_psum: Any, p0: int, b0: int) -> None:
    """dst (P, blocks, queries) = y_psum over sum_psum from partition ``p0`` and block ``b0`` on, if that isn't None."""
    if sum_psum is None:
        evacuate_psum(dst, y_psum, 1)
        return
    rate_sb = _invert(sum_psum[p0 : p0 + y_psum.shape[0], b0 : b0 + y_psum.shape[1]])
    nisa.tensor_tensor(dst=dst, data1=y_psum, data2=rate_sb, op=nl.multiply)


def _invert(sums: nl.NkiTensor) -> nl.NkiTensor:
    """1 / sums, in SBUF; of a sum of 0 it is finite."""
    rate_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rate_sb, data=sums, op0=nl.add, operand0=_LEAST, op1=nl.power, operand1=-1.0)
    return rate_sb


def _score_group(block: Block, g0: int, g1: int, y_sb: Any, adding: Adding) -> Group:
    """The scores of heads ``g0`` to ``g1``, and the shift that makes the largest of each row 0."""
    rows, heads, keys = block.rows(), g1 - g0, block.k_sb[0].shape[1]
    dtype = block.v_sb.dtype
    by_product = adding.unit_sb is not None
    in_psum = (adding.mask_sb is None or by_product) and keys <= nl.tile_size.psum_bank_fmax
    exp_sb: Any = None
    if not in_psum or block.ones_sb is None:
        exp_sb = nl.ndarray((rows, heads, keys), dtype=nl.float32, buffer=nl.sbuf)
    scores = _score_keys(None if in_psum else exp_sb, block.q_sb[g0:g1], block.k_sb[g0:g1], adding)
    step = max(1, nl.tile_size.psum_bank_fmax // keys)
    shift_sb = nl.ndarray((rows, heads), dtype=nl.float32, buffer=nl.sbuf)
    if in_psum:
        for i in range(len(scores)):
            shift = shift_sb[:, i * step : min(heads, (i + 1) * step)]
            nisa.tensor_reduce(dst=shift, op=nl.maximum, data=scores[i], axis=(2,), negate=True)
    else:
        nisa.tensor_reduce(dst=shift_sb, op=nl.maximum, data=exp_sb, axis=(2,), negate=True)
    factor = adding.scale if in_psum or by_product or adding.mask_sb is None else 1.0
    most = -0.5 * factor * _hiding_score(dtype) if by_product else _FINITE
    if adding.empty_is_zero:
        nisa.tensor_scalar(dst=shift_sb, data=shift_sb, op0=nl.multiply, operand0=factor, op1=nl.minimum, operand1=most)
    elif factor != 1.0:
        nisa.tensor_scalar(dst=shift_sb, data=shift_sb, op0=nl.multiply, operand0=factor)
    return Group(block, g0, g1, y_sb, scores, exp_sb, shift_sb, factor)


def _weigh_keys(group: Group) -> Weighed:
    """The exponentials of a group's scores, over their sums unless results are divided."""
    block, exp_sb, shift_sb = group.block, group.exp_sb, group.shift_sb
    rows, heads, keys = block.rows(), group.end - group.first, block.k_sb[0].shape[1]
    step = max(1, nl.tile_size.psum_bank_fmax // keys)
    weights_sb = nl.ndarray((rows, heads, keys), dtype=block.v_sb.dtype, buffer=nl.sbuf)
    late = block.ones_sb is not None
    for g in range(heads):
        score = group.scores[g // step][:, g % step, :] if len(group.scores) > 0 else exp_sb[:, g, :]
        dst, shift = weights_sb[:, g, :] if late else exp_sb[:, g, :], shift_sb[:, g : g + 1]
        nisa.activation(dst=dst, op=nl.exp, data=score, bias=shift, scale=group.factor)
    if late:
        return Weighed(group, weights_sb)
    sum_sb = nl.ndarray((rows, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sum_sb, op=nl.add, data=exp_sb, axis=(2,))
    rate_sb = _invert(sum_sb)
    for g in range(heads):
        rate = rate_sb[:, g : g + 1]
        nisa.activation(dst=weights_sb[:, g, :], op=nl.copy, data=exp_sb[:, g, :], scale=rate)
    return Weighed(group, weights_sb)


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


def _turn_weights(weights_sb: nl.NkiTensor) -> list[nl.NkiTensor]:
    """(keys, heads, queries) for each 128 keys of weights_sb (queries, heads, keys)."""
    rows, heads, keys = weights_sb.shape
    turned = []
    for k0 in range(0, keys, nl.tile_size.pmax):
        size = min(nl.tile_size.pmax, keys - k0)
        turned_psum = nl.ndarray((size, heads, rows), dtype=weights_sb.dtype, buffer=nl.psum)
        for g in range(heads):
            part_sb = weights_sb[:, g, k0 : k0 + size]
            nisa.nc_transpose(dst=turned_psum[:, g, :], data=part_sb, engine=nisa.engine.tensor)
        turned_sb = nl.ndarray((size, heads, rows), dtype=weights_sb.dtype, buffer=nl.sbuf)
        evacuate_psum(turned_sb, turned_psum, k0 // nl.tile_size.pmax)
        turned.append(turned_sb)
    return turned
