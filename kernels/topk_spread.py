"""The k largest elements of one long row: found by all partitions together."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div
from trnrt.nki import nisa, nl

# The row is searched by COPIES copies on SHARES partitions each: a group counts the elements of at least its threshold.
COPIES = 8
SHARES = 16
DIGIT_BITS = 3
# A row of results is one PSUM bank of float32, and so is the part of a row that a partition has.
MOST_TAKEN = 512
SPREAD_MAX = 65536
# For the choice between this search and topk's, in microseconds: the vector engine's cycle, and what an instruction of
# topk's search, a digit, and a row take besides. Measured (predicted on trn2, November 2026) on rows of 1,000 to 24,000
# elements, k from 5 to 300: within 10 %. When the timing model changes, measure again with tests/kernels/test_topk.py.
CYCLE_US = 1 / 960
SEARCH_US = 0.3
OTHER_PASSES = 5
DIGIT_US = 1.5
ROW_US = 24.0
LAST_FLOAT32 = 3.4028234663852886e38


@dataclass
class KeyRange(nl.NKIObject):
    """How elements of a dtype become float32 keys: ``scale`` times the element, infinity as ``top``, minus infinity as
    ``bottom``, and NaN as ``least``, below all others. ``digits``: those of DIGIT_BITS that tell all keys apart, from
    the sign on; ``mask``: the bits of a key that may be set, as int32."""

    scale: float
    top: float
    bottom: float
    least: float
    digits: int
    mask: int


@dataclass
class SpreadConstants(nl.NKIObject):
    """Tiles that all rows share: ``count`` 0, 1, 2 ... on each partition; ``ones``; ``before[i, j]`` = i < j and
    ``after`` = i > j; ``diagonal``; ``group``, the number of a partition's group, and ``groups[i, j]``, whether
    partition i is in group j."""

    count: nl.NkiTensor
    ones: nl.NkiTensor
    before: nl.NkiTensor
    after: nl.NkiTensor
    diagonal: nl.NkiTensor
    group: nl.NkiTensor
    groups: nl.NkiTensor


def is_spread(src: nl.NkiTensor, k: int) -> bool:
    """True if the rows of src (R, C) in HBM are to be searched one after the other, each by all partitions, and not up
    to 128 at a time: by an estimate of both."""
    rows, columns = src.shape
    if k > MOST_TAKEN or columns > SPREAD_MAX or columns < nl.tile_size.pmax:
        return False
    searches = ceil_div(rows, nl.tile_size.pmax) * ceil_div(k, 8)
    together = searches * 3 * (columns * CYCLE_US + SEARCH_US)
    passes = key_range(src.dtype).digits
    spread = (passes + OTHER_PASSES) * ceil_div(columns, SHARES) * CYCLE_US + passes * DIGIT_US + ROW_US
    return rows * spread < together


def key_range(dtype: Any) -> KeyRange:
    """The keys of a dtype. Halves of bfloat16 leave room for infinities that float32 can multiply by 0 and 1."""
    if dtype == nl.bfloat16:
        return KeyRange(0.5, 2.0**127, -(2.0**127), -1.5 * 2.0**127, 6, -32768)
    if dtype == nl.float16:
        return KeyRange(1.0, 2.0**17, -(2.0**17), -(2.0**18), 7, -8192)
    return KeyRange(1.0, LAST_FLOAT32, -3.4028232635611926e38, -LAST_FLOAT32, 11, -1)


def spread_constants(columns: int, k: int) -> SpreadConstants:
    """The constants of spread_search for rows of ``columns`` elements."""
    pmax = nl.tile_size.pmax
    most = max(k, max(ceil_div(columns, pmax), pmax))
    count_sb = nl.ndarray((pmax, most), dtype=nl.float32, buffer=nl.sbuf)
    ones_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    before_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    after_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    diagonal_sb = nl.ndarray((pmax, pmax), dtype=nl.float32, buffer=nl.sbuf)
    groups_sb = nl.ndarray((pmax, COPIES), dtype=nl.float32, buffer=nl.sbuf)
    own_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    whole_sb = nl.ndarray((pmax, 1), dtype=nl.int32, buffer=nl.sbuf)
    group_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=count_sb, pattern=[[1, most]])
    nisa.memset(dst=ones_sb, value=1.0)
    nisa.iota(dst=own_sb, pattern=[[1, 1]], channel_multiplier=1)
    nisa.iota(dst=whole_sb, pattern=[[1, 1]], channel_multiplier=1)
    nisa.tensor_scalar(dst=before_sb, data=count_sb[:, 0:pmax], op0=nl.greater, operand0=own_sb)
    nisa.tensor_scalar(dst=after_sb, data=count_sb[:, 0:pmax], op0=nl.less, operand0=own_sb)
    nisa.tensor_scalar(dst=diagonal_sb, data=count_sb[:, 0:pmax], op0=nl.equal, operand0=own_sb)
    nisa.tensor_scalar(dst=whole_sb, data=whole_sb, op0=nl.right_shift, operand0=4)
    nisa.tensor_copy(dst=group_sb, src=whole_sb)
    nisa.tensor_scalar(dst=groups_sb, data=count_sb[:, 0:COPIES], op0=nl.equal, operand0=group_sb)
    return SpreadConstants(count_sb, ones_sb, before_sb, after_sb, diagonal_sb, group_sb, groups_sb)


def spread_search(
    src: nl.NkiTensor, k: int, largest: bool, constants: SpreadConstants
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(keys, places) (1, k) float32 of the k largest (smallest) elements of a row in HBM (1, C), in their order; of
    equals the first one first.

    The k-th largest key is found digit by digit. The elements above it, and as many equals as there is room for, are
    then brought to one partition each, compared with each other, and put in order.

    limits: k <= MOST_TAKEN, k <= C <= SPREAD_MAX
    """
    columns = src.shape[1]
    assert k <= MOST_TAKEN, f"spread_search: k={k}; the limit is {MOST_TAKEN}"
    assert k <= columns <= SPREAD_MAX, f"spread_search: a row of {columns} elements; it takes {k} to {SPREAD_MAX}"
    keys = key_range(src.dtype)
    copies_sb = _load_keys(src, SHARES, COPIES, keys, largest)
    x_sb = _load_keys(src, nl.tile_size.pmax, 1, keys, largest)
    least_sb = _find_least(copies_sb, k, keys, constants)
    value_sb, place_sb = _collect(x_sb, least_sb, k, constants)
    return _put_in_order(value_sb, place_sb, k, constants)


def _load_keys(src: nl.NkiTensor, shares: int, copies: int, keys: KeyRange, largest: bool) -> nl.NkiTensor:
    """The keys (P, M) of a row (1, C), in ``shares`` parts on as many partitions, ``copies`` times; the least key
    behind the row's end."""
    columns = src.shape[1]
    width = ceil_div(columns, shares)
    whole, rest = columns // width, columns % width
    partitions = shares * copies
    given_sb = nl.ndarray((partitions, width), dtype=src.dtype, buffer=nl.sbuf)
    x_sb = nl.ndarray((partitions, width), dtype=nl.float32, buffer=nl.sbuf)
    if whole < shares:
        nisa.memset(dst=given_sb, value=float("nan"))
    if whole == shares:
        pattern = [[0, copies], [width, shares], [1, width]] if copies > 1 else [[width, shares], [1, width]]
        nisa.dma_copy(dst=given_sb, src=src.ap(pattern=pattern))
    else:
        for copy in range(copies):
            p0 = copy * shares
            nisa.dma_copy(dst=given_sb[p0 : p0 + whole], src=src.ap(pattern=[[width, whole], [1, width]]))
            if rest > 0:
                last = src.ap(pattern=[[width, 1], [1, rest]], offset=whole * width)
                nisa.dma_copy(dst=given_sb[p0 + whole : p0 + whole + 1, 0:rest], src=last)
    is_nan_sb = nl.ndarray(given_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan_sb, data1=given_sb, data2=given_sb, op=nl.not_equal)  # NaN doesn't equal even itself
    scale = keys.scale if largest else -keys.scale
    nisa.tensor_scalar(dst=x_sb, data=given_sb, op0=nl.multiply, operand0=scale, op1=nl.maximum, operand1=keys.bottom)
    nisa.tensor_scalar(dst=x_sb, data=x_sb, op0=nl.minimum, operand0=keys.top)
    nisa.tensor_copy_predicated(dst=x_sb, src=keys.least, predicate=is_nan_sb)
    return x_sb


def _find_least(x_sb: nl.NkiTensor, k: int, keys: KeyRange, constants: SpreadConstants) -> nl.NkiTensor:
    """The k-th largest key (P, 1), the same on all partitions, of copies (P, M) of a row's keys.

    The bits of float32 in order, from the least key to the largest, are whole numbers of 32 bits: the sign bit turned
    where it is clear, and all bits where it is set. Their digits are found from the highest on: the largest one for
    which at least k keys are no less than the number so far. Each group counts for one digit.
    """
    pmax = nl.tile_size.pmax
    number_sb = _column_of_bits()
    threshold_sb = _first_thresholds(constants)
    ordered_sb = nl.ndarray(x_sb.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    for i in range(keys.digits):
        counted_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=ordered_sb,
            data=x_sb,
            op0=nl.greater_equal,
            operand0=threshold_sb.view(nl.float32),
            reduce_op=nl.add,
            reduce_res=counted_sb,
        )
        total_psum = nl.ndarray((pmax, COPIES), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=total_psum, stationary=counted_sb.broadcast(1, pmax), moving=constants.groups)
        digits = COPIES if i < 10 else 4
        shift = 29 - DIGIT_BITS * i if i < 10 else 0
        enough_sb = nl.ndarray((pmax, COPIES), dtype=nl.float32, buffer=nl.sbuf)
        digit_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=enough_sb[:, 1:digits],
            data=total_psum[:, 1:digits],
            op0=nl.greater_equal,
            operand0=float(k),
            reduce_op=nl.add,
            reduce_res=digit_sb,
        )
        step_sb = _column_of_bits()
        nisa.tensor_scalar(dst=step_sb, data=digit_sb, op0=nl.multiply, operand0=2.0**shift)
        nisa.tensor_tensor(
            dst=number_sb, data1=number_sb if i > 0 else _first_mask(digit_sb), data2=step_sb, op=nl.bitwise_xor
        )
        if i + 1 < keys.digits:
            threshold_sb = _column_of_bits()
            next_shift = max(0, 29 - DIGIT_BITS * (i + 1))
            bits_sb = _column_of_bits()
            nisa.tensor_scalar(dst=bits_sb, data=constants.group, op0=nl.multiply, operand0=2.0**next_shift)
            nisa.tensor_tensor(dst=threshold_sb, data1=number_sb, data2=bits_sb, op=nl.bitwise_xor)
    if keys.mask != -1:
        bits_sb = number_sb.view(nl.int32)
        nisa.tensor_scalar(dst=bits_sb, data=bits_sb, op0=nl.bitwise_and, operand0=keys.mask)
    return number_sb.view(nl.float32)


def _column_of_bits() -> nl.NkiTensor:
    return nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.uint32, buffer=nl.sbuf)


def _first_mask(digit_sb: nl.NkiTensor) -> nl.NkiTensor:
    """The bits that differ between a number and its key: the sign bit if the first digit (P, 1) sets it, else all."""
    mask_sb, sign_sb = _column_of_bits(), _column_of_bits()
    positive_sb = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=mask_sb.view(nl.int32), value=-1)
    nisa.memset(dst=sign_sb, value=1)
    nisa.tensor_scalar(dst=sign_sb, data=sign_sb, op0=nl.left_shift, operand0=31)
    nisa.tensor_scalar(dst=positive_sb, data=digit_sb, op0=nl.greater_equal, operand0=COPIES / 2.0)
    nisa.tensor_copy_predicated(dst=mask_sb, src=sign_sb, predicate=positive_sb)
    return mask_sb


def _first_thresholds(constants: SpreadConstants) -> nl.NkiTensor:
    """The key's bits (P, 1) of the number whose first digit is a partition's group, and whose others are 0."""
    bits_sb = _column_of_bits()
    nisa.tensor_scalar(dst=bits_sb, data=constants.group, op0=nl.multiply, operand0=2.0**29)
    nisa.tensor_tensor(dst=bits_sb, data1=bits_sb, data2=_first_mask(constants.group), op=nl.bitwise_xor)
    return bits_sb


def _collect(
    x_sb: nl.NkiTensor, least_sb: nl.NkiTensor, k: int, constants: SpreadConstants
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The keys above ``least_sb`` (P, 1) and the first of its equals, k together, of a row's keys (P, M): lists of
    tiles (n, 1) with up to 128 keys, and with their places, in the order of places."""
    pmax, width = x_sb.shape
    rank_sb = _rank_taken(x_sb, least_sb, k, constants)
    # The first and the next rank of each partition, and of what each rank needs: its partition's first rank and place.
    each_sb = nl.ndarray((pmax, 2), dtype=nl.float32, buffer=nl.sbuf)
    first_psum = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.psum)
    end_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_matmul(dst=first_psum, stationary=constants.before, moving=rank_sb[:, width - 1 : width])
    nisa.tensor_copy(dst=each_sb[:, 0:1], src=first_psum)
    nisa.tensor_tensor(dst=end_sb, data1=first_psum, data2=rank_sb[:, width - 1 : width], op=nl.add)
    nisa.iota(dst=each_sb[:, 1:2], pattern=[[1, 1]], channel_multiplier=width)
    lower_sb = nl.ndarray((pmax, k), dtype=nl.float32, buffer=nl.sbuf)
    held_sb = nl.ndarray((pmax, k), dtype=nl.float32, buffer=nl.sbuf)
    ranks_sb = constants.count[:, 0:k]
    nisa.tensor_scalar(dst=lower_sb, data=ranks_sb, op0=nl.greater_equal, operand0=each_sb[:, 0:1])
    nisa.scalar_tensor_tensor(
        dst=held_sb, data=ranks_sb, op0=nl.less, operand0=end_sb, op1=nl.multiply, operand1=lower_sb
    )
    values, places = [], []
    for s0 in range(0, k, pmax):
        n = min(pmax, k - s0)
        value_sb, place_sb = _take_ranks(x_sb, rank_sb, each_sb, held_sb[:, s0 : s0 + n], s0, constants)
        values.append(value_sb)
        places.append(place_sb)
    return values, places


def _rank_taken(x_sb: nl.NkiTensor, least_sb: nl.NkiTensor, k: int, constants: SpreadConstants) -> nl.NkiTensor:
    """(P, M): how many keys of a partition are taken up to each place, itself included."""
    pmax, width = x_sb.shape
    above_sb = nl.ndarray((pmax, width), dtype=nl.float32, buffer=nl.sbuf)
    equal_sb = nl.ndarray((pmax, width), dtype=nl.float32, buffer=nl.sbuf)
    counts_sb = nl.ndarray((pmax, 2), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(2):
        nisa.tensor_scalar_reduce(
            dst=above_sb if i == 0 else equal_sb,
            data=x_sb,
            op0=nl.greater if i == 0 else nl.equal,
            operand0=least_sb,
            reduce_op=nl.add,
            reduce_res=counts_sb[:, i : i + 1],
        )
    # The room for equals: k, less those above, less the equals on the partitions before.
    taken_psum = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=taken_psum, stationary=constants.ones, moving=counts_sb[:, 0:1])
    nisa.nc_matmul(dst=taken_psum, stationary=constants.before, moving=counts_sb[:, 1:2])
    room_sb = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=room_sb, data=taken_psum, op0=nl.subtract, operand0=float(k), reverse0=True)
    nth_sb = nl.ndarray((pmax, width), dtype=nl.float32, buffer=nl.sbuf)
    none_sb = nl.ndarray((pmax, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=none_sb, value=0.0)
    nisa.tensor_tensor_scan(dst=nth_sb, data0=equal_sb, data1=none_sb, initial=0.0, op0=nl.add, op1=nl.add)
    nisa.scalar_tensor_tensor(
        dst=equal_sb, data=nth_sb, op0=nl.less_equal, operand0=room_sb, op1=nl.multiply, operand1=equal_sb
    )
    nisa.tensor_tensor_scan(dst=nth_sb, data0=equal_sb, data1=above_sb, initial=0.0, op0=nl.add, op1=nl.add)
    return nth_sb


def _take_ranks(
    x_sb: nl.NkiTensor,
    rank_sb: nl.NkiTensor,
    each_sb: nl.NkiTensor,
    held_sb: nl.NkiTensor,
    s0: int,
    constants: SpreadConstants,
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(key, place) (n, 1) of the ranks from ``s0`` on, one on each partition; ``held_sb`` (P, n): which partition of
    x_sb holds each rank. The tensor engine brings that partition's keys and ranks, and the vector engine finds the
    first one that reaches the rank."""
    width, n = x_sb.shape[1], held_sb.shape[1]
    row_psum = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.psum)
    reached_psum = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.psum)
    start_psum = nl.ndarray((n, 2), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=start_psum, stationary=held_sb, moving=each_sb)
    nisa.nc_matmul(dst=reached_psum, stationary=held_sb, moving=rank_sb)
    nisa.nc_matmul(dst=row_psum, stationary=held_sb, moving=x_sb)
    wanted_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    column_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    key_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    place_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    passed_sb = nl.ndarray((n, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=wanted_sb, pattern=[[1, 1]], offset=s0, channel_multiplier=1)
    nisa.tensor_tensor(dst=wanted_sb, data1=wanted_sb, data2=start_psum[:, 0:1], op=nl.subtract)
    nisa.tensor_scalar_reduce(
        dst=passed_sb,
        data=reached_psum,
        op0=nl.less_equal,
        operand0=wanted_sb,
        reduce_op=nl.add,
        reduce_res=column_sb,
    )
    nisa.tensor_tensor(dst=place_sb, data1=column_sb, data2=start_psum[:, 1:2], op=nl.add)
    nisa.scalar_tensor_tensor(
        dst=passed_sb,
        data=constants.count[0:n, 0:width],
        op0=nl.equal,
        operand0=column_sb,
        op1=nl.multiply,
        operand1=row_psum,
    )
    nisa.tensor_reduce(dst=key_sb, op=nl.add, data=passed_sb, axis=(1,))
    return key_sb, place_sb


def _put_in_order(
    values: list[nl.NkiTensor], places: list[nl.NkiTensor], k: int, constants: SpreadConstants
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(keys, places) (1, k) of ``_collect`` in order: each is compared with all, and goes where it belongs."""
    pmax = nl.tile_size.pmax
    all_sb = nl.ndarray((pmax, k), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(len(values)):
        n, s0 = values[i].shape[0], i * pmax
        turned_sb = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.sbuf)
        spread_psum = nl.ndarray((pmax, n), dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_scalar(dst=turned_sb, data=constants.diagonal[0:n, 0:n], op0=nl.multiply, operand0=values[i])
        nisa.nc_matmul(dst=spread_psum, stationary=constants.ones[0:n], moving=turned_sb)
        nisa.tensor_copy(dst=all_sb[:, s0 : s0 + n], src=spread_psum)
    key_psum = nl.ndarray((1, k), dtype=nl.float32, buffer=nl.psum)
    place_psum = nl.ndarray((1, k), dtype=nl.float32, buffer=nl.psum)
    for i in range(len(values)):
        rank_sb = _count_better(all_sb, values[i], i, constants)
        put_sb = nl.ndarray((values[i].shape[0], k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=put_sb, data=constants.count[0 : values[i].shape[0], 0:k], op0=nl.equal, operand0=rank_sb
        )
        nisa.nc_matmul(dst=key_psum, stationary=values[i], moving=put_sb)
        nisa.nc_matmul(dst=place_psum, stationary=places[i], moving=put_sb)
    key_sb = nl.ndarray((1, k), dtype=nl.float32, buffer=nl.sbuf)
    place_sb = nl.ndarray((1, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=key_sb, src=key_psum)
    nisa.tensor_copy(dst=place_sb, src=place_psum)
    return key_sb, place_sb


def _count_better(all_sb: nl.NkiTensor, value_sb: nl.NkiTensor, block: int, constants: SpreadConstants) -> nl.NkiTensor:
    """For each key of block number ``block`` (n, 1) the number of keys, of all of them (P, k), that are larger, or
    equal and earlier."""
    n, k, s0 = value_sb.shape[0], all_sb.shape[1], block * nl.tile_size.pmax
    parts_sb = nl.ndarray((n, 3), dtype=nl.float32, buffer=nl.sbuf)
    rank_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    better_sb = nl.ndarray((n, k), dtype=nl.float32, buffer=nl.sbuf)
    equal_sb = nl.ndarray((n, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=parts_sb, value=0.0)
    nisa.tensor_scalar_reduce(
        dst=better_sb[:, s0:k],
        data=all_sb[0:n, s0:k],
        op0=nl.greater,
        operand0=value_sb,
        reduce_op=nl.add,
        reduce_res=parts_sb[:, 0:1],
    )
    if s0 > 0:
        nisa.tensor_scalar_reduce(
            dst=better_sb[:, 0:s0],
            data=all_sb[0:n, 0:s0],
            op0=nl.greater_equal,
            operand0=value_sb,
            reduce_op=nl.add,
            reduce_res=parts_sb[:, 1:2],
        )
    # Earlier ones of the same block: those before each on the diagonal.
    nisa.scalar_tensor_tensor(
        dst=equal_sb,
        data=all_sb[0:n, s0 : s0 + n],
        op0=nl.equal,
        operand0=value_sb,
        op1=nl.multiply,
        operand1=constants.after[0:n, 0:n],
    )
    nisa.tensor_reduce(dst=parts_sb[:, 2:3], op=nl.add, data=equal_sb, axis=(1,))
    nisa.tensor_reduce(dst=rank_sb, op=nl.add, data=parts_sb, axis=(1,))
    return rank_sb
