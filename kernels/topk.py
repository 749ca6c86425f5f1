"""The k largest or smallest elements of each row, in order, and their places."""

from typing import Any, Optional

from trnrt.kernels.common import COUNTED, ceil_div
from trnrt.kernels.topk_spread import SpreadConstants, is_spread, key_range, spread_constants, spread_search
from trnrt.nki import nisa, nl

# The hardware's searches take 8 to 16,384 elements and find 8 at a time.
SEARCH_MIN, SEARCH_MAX = 8, 16384
# Elements per search of a longer row.
CHUNK = 8192
# The most elements found per row, over all its chunks.
MOST_FOUND = 8192
# float32, in which places are gathered, represents every index up to here exactly.
MAX_COLUMNS = COUNTED
# Keys that replace -inf and NaN during the search, where -inf marks elements already found.
MINUS_INFINITY, NOT_A_NUMBER = -3.4028232635611926e38, -3.4028234663852886e38


def topk(
    values: Optional[nl.NkiTensor], indices: Optional[nl.NkiTensor], src: nl.NkiTensor, k: int, largest: bool
) -> None:
    """values, indices = the k largest (or smallest) elements of each row in their order, and their places.

    Of equal elements the first one comes first. NaN comes after all numbers, whether the largest or the smallest are
    requested.

    values: None, or HBM (R, k) of src's dtype
    indices: None, or HBM (R, k) uint32
    src: HBM (R, C)
    limits: 1 <= k <= C <= MAX_COLUMNS; k <= MOST_FOUND. Of rows longer than SEARCH_MAX the k best of each CHUNK are
        compared: ceil(C / CHUNK) * (k rounded up to a multiple of 8) <= MOST_FOUND. The two float32 of the largest
        magnitude count as infinity where they are among the least, and in a few long rows (topk_spread.py) also where
        they are among the best.

    numpy: indices = argsort(-src if largest else src, axis=1, kind="stable")[:, :k]; src at these places
    """
    found = _check_topk(src.shape[1], k)
    shared = spread_constants(src.shape[1], k) if is_spread(src, k) else None
    at_once = nl.tile_size.pmax if shared is None else 1
    for r0 in range(0, src.shape[0], at_once):
        r1 = min(src.shape[0], r0 + at_once)
        best_sb, places_sb = _search_rows(src[r0:r1], k, found, largest, shared)
        if indices is not None:
            nisa.dma_copy(dst=indices[r0:r1], src=places_sb[:, 0:k])
        if values is not None:
            y_sb = nl.ndarray((r1 - r0, k), dtype=values.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=y_sb, src=_values(best_sb[:, 0:k], src.dtype, largest, shared is not None))
            nisa.dma_copy(dst=values[r0:r1], src=y_sb)


def topk_pairs(dst: nl.NkiTensor, src: nl.NkiTensor, k: int, largest: bool) -> None:
    """dst = the k largest (or smallest) elements of each row in their order, then their places; see topk.

    dst: HBM (R, 2 * k) float32, which represents every place exactly
    src: HBM (R, C)
    limits: those of topk

    numpy: i = argsort(-src if largest else src, axis=1, kind="stable")[:, :k]; concatenate([src at i, i], axis=1)
    """
    assert dst.dtype == nl.float32, f"topk_pairs: dst is {dst.dtype}; it must be float32, to represent every place"
    found = _check_topk(src.shape[1], k)
    shared = spread_constants(src.shape[1], k) if is_spread(src, k) else None
    at_once = nl.tile_size.pmax if shared is None else 1
    for r0 in range(0, src.shape[0], at_once):
        r1 = min(src.shape[0], r0 + at_once)
        best_sb, places_sb = _search_rows(src[r0:r1], k, found, largest, shared)
        y_sb = nl.ndarray((r1 - r0, 2 * k), dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=y_sb[:, 0:k], src=_values(best_sb[:, 0:k], src.dtype, largest, shared is not None))
        nisa.tensor_copy(dst=y_sb[:, k : 2 * k], src=places_sb[:, 0:k])
        nisa.dma_copy(dst=dst[r0:r1], src=y_sb)


def _check_topk(columns: int, k: int) -> int:
    """Check the limits of topk; the elements found in one search: k rounded up to a multiple of 8."""
    candidates = found_together(columns, k)
    assert 1 <= k <= columns, f"topk: k={k} of rows of {columns} elements; it must be from 1 to their length"
    assert columns <= MAX_COLUMNS, f"topk: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    assert candidates <= MOST_FOUND, (
        f"topk: k={k} of rows of {columns} elements: {candidates} are found; the limit is {MOST_FOUND}"
    )
    return ceil_div(k, SEARCH_MIN) * SEARCH_MIN


def _search_rows(
    src: nl.NkiTensor, k: int, found: int, largest: bool, shared: Optional[SpreadConstants]
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The keys of the best elements of each row in HBM in their order, k or ``found`` of them, and their places
    (uint32). ``shared``: search a single row by all partitions, with these constants."""
    if shared is not None:
        return spread_search(src, k, largest, shared)
    if src.shape[1] <= SEARCH_MAX:
        return _take_largest(_keys(src, 0, src.shape[1], largest), found)
    return _search_chunks(src, found, largest)


def found_together(columns: int, k: int) -> int:
    """The number of elements found per row, over all its chunks: at most MOST_FOUND."""
    found = ceil_div(k, SEARCH_MIN) * SEARCH_MIN
    return found if columns <= SEARCH_MAX else ceil_div(columns, CHUNK) * found


def topk_values(dst: nl.NkiTensor, src: nl.NkiTensor, k: int, largest: bool) -> None:
    """dst = the k largest (or smallest) elements of each row in their order; see topk.

    dst: HBM (R, k) of src's dtype
    src: HBM (R, C)

    numpy: -sort(-src, axis=1)[:, :k] if largest else sort(src, axis=1)[:, :k]
    """
    topk(dst, None, src, k, largest)


def topk_indices(dst: nl.NkiTensor, src: nl.NkiTensor, k: int, largest: bool) -> None:
    """dst = the places of the k largest (or smallest) elements of each row, in their order; see topk.

    dst: HBM (R, k) uint32
    src: HBM (R, C)

    numpy: argsort(-src if largest else src, axis=1, kind="stable")[:, :k]
    """
    topk(None, dst, src, k, largest)


def _keys(src: nl.NkiTensor, c0: int, c1: int, largest: bool) -> nl.NkiTensor:
    """Columns ``c0`` to ``c1`` of rows in HBM as float32 keys, at least 8, to search for the largest: no NaN, and -inf
    only as padding."""
    n = src.shape[0]
    x_sb = nl.ndarray((n, max(SEARCH_MIN, c1 - c0)), dtype=nl.float32, buffer=nl.sbuf)
    keys_sb = x_sb[:, 0 : c1 - c0]
    given_sb = keys_sb
    if src.dtype != nl.float32:
        given_sb = nl.ndarray((n, c1 - c0), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=given_sb, src=src[:, c0:c1])
    is_nan_sb = nl.ndarray(given_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan_sb, data1=given_sb, data2=given_sb, op=nl.not_equal)  # NaN doesn't equal even itself
    sign = 1.0 if largest else -1.0
    nisa.tensor_scalar(
        dst=keys_sb, data=given_sb, op0=nl.multiply, operand0=sign, op1=nl.maximum, operand1=MINUS_INFINITY
    )
    nisa.tensor_copy_predicated(dst=keys_sb, src=NOT_A_NUMBER, predicate=is_nan_sb)
    if c1 - c0 < SEARCH_MIN:
        nisa.memset(dst=x_sb[:, c1 - c0 : SEARCH_MIN], value=float("-inf"))
    return x_sb


def _take_largest(x_sb: nl.NkiTensor, found: int) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The ``found`` largest of each row of x_sb (P, C) in their order, and their places (uint32). x_sb loses them."""
    n = x_sb.shape[0]
    best_sb = nl.ndarray((n, found), dtype=nl.float32, buffer=nl.sbuf)
    places_sb = nl.ndarray((n, found), dtype=nl.uint32, buffer=nl.sbuf)
    for i in range(0, found, SEARCH_MIN):
        eight_sb = best_sb[:, i : i + SEARCH_MIN]
        nisa.max8(dst=eight_sb, src=x_sb)
        nisa.nc_find_index8(dst=places_sb[:, i : i + SEARCH_MIN], data=x_sb, vals=eight_sb)
        if i + SEARCH_MIN < found:
            nisa.nc_match_replace8(dst=x_sb, data=x_sb, vals=eight_sb, imm=float("-inf"))
    return best_sb, places_sb


def _search_chunks(src: nl.NkiTensor, found: int, largest: bool) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """``_take_largest`` of rows in HBM, by chunks: the best of each are searched again.

    The results of a chunk are in the order of their places, and so are the chunks: of equals the first stays the first.
    """
    n, columns = src.shape
    count = ceil_div(columns, CHUNK)
    best_sb = nl.ndarray((n, count * found), dtype=nl.float32, buffer=nl.sbuf)
    places_sb = nl.ndarray((n, count * found), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(count):
        c0, c1 = i * CHUNK, min(columns, (i + 1) * CHUNK)
        most = min(found, ceil_div(c1 - c0, SEARCH_MIN) * SEARCH_MIN)
        chunk_best_sb, chunk_places_sb = _take_largest(_keys(src, c0, c1, largest), most)
        first = i * found
        nisa.tensor_copy(dst=best_sb[:, first : first + most], src=chunk_best_sb)
        nisa.tensor_scalar(dst=places_sb[:, first : first + most], data=chunk_places_sb, op0=nl.add, operand0=float(c0))
        if most < found:
            nisa.memset(dst=best_sb[:, first + most : first + found], value=float("-inf"))
            nisa.memset(dst=places_sb[:, first + most : first + found], value=0.0)
    top_sb, which_sb = _take_largest(best_sb, found)
    chosen_sb = nl.ndarray((n, found), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=chosen_sb, data=places_sb, indices=which_sb)
    index_sb = nl.ndarray((n, found), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=index_sb, src=chosen_sb)
    return top_sb, index_sb


def _values(keys_sb: nl.NkiTensor, dtype: Any, largest: bool, spread: bool) -> nl.NkiTensor:
    """The elements of a dtype behind the keys."""
    keys = key_range(dtype)
    scale, bottom, least = (
        (1.0 / keys.scale, keys.bottom, keys.least) if spread else (1.0, MINUS_INFINITY, NOT_A_NUMBER)
    )
    sign = 1.0 if largest else -1.0
    value_sb = nl.ndarray(keys_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    where_sb = nl.ndarray(keys_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=value_sb, data=keys_sb, op0=nl.multiply, operand0=sign * scale)
    if spread:
        nisa.tensor_scalar(dst=where_sb, data=keys_sb, op0=nl.greater_equal, operand0=keys.top)
        nisa.tensor_copy_predicated(dst=value_sb, src=sign * float("inf"), predicate=where_sb)
    nisa.tensor_scalar(dst=where_sb, data=keys_sb, op0=nl.less_equal, operand0=bottom)
    nisa.tensor_copy_predicated(dst=value_sb, src=-sign * float("inf"), predicate=where_sb)
    nisa.tensor_scalar(dst=where_sb, data=keys_sb, op0=nl.less_equal, operand0=least)
    nisa.tensor_copy_predicated(dst=value_sb, src=float("nan"), predicate=where_sb)
    return value_sb
