"""The index of the largest or the smallest element of each row, and the element itself."""

from typing import Optional

from trnrt.kernels.common import COUNTED, ceil_div, is_hbm_tensor
from trnrt.nki import nisa, nl

# Columns per search. The hardware's searches take 8 to 16,384; with half of that, the next half loads meanwhile.
CHUNK = 8192
SEARCH_MIN = 8
# Rows up to this long share a partition, SEARCHED_TOGETHER elements together: 128 of them at a time would take as long
# as longer rows.
SHORT_COLUMNS = 128
SEARCHED_TOGETHER = 2048
# float32, in which places are compared, represents every index up to here exactly.
MAX_COLUMNS = COUNTED


def argmax(
    dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor] = None, last: bool = False
) -> None:
    """dst = the index of the first largest element of each row, or of the ``last`` one, values = that element.

    NaN is never the largest, but a row that starts with one gives 0, as in onnxruntime.

    dst: HBM (N, 1) uint32
    src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    values: None, or HBM (N, 1) of src's dtype
    last: find the last one of equal elements
    limits: F <= MAX_COLUMNS

    numpy: where(isnan(src[:, 0]), 0, argmax(where(isnan(src), -inf, src), axis=1)), and src at these places
    """
    _extreme(dst, src, rows, values, False, last)


def argmin(
    dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor] = None, last: bool = False
) -> None:
    """dst = the index of the first smallest element of each row, or of the ``last`` one, values = that element.

    NaN is never the smallest, but a row that starts with one gives 0, as in onnxruntime.

    dst: HBM (N, 1) uint32
    src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    values: None, or HBM (N, 1) of src's dtype
    last: find the last one of equal elements
    limits: F <= MAX_COLUMNS

    numpy: where(isnan(src[:, 0]), 0, argmin(where(isnan(src), inf, src), axis=1)), and src at these places
    """
    _extreme(dst, src, rows, values, True, last)


def _extreme(
    dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor], smallest: bool, last: bool
) -> None:
    """argmax, or argmin as the argmax of the negated elements."""
    columns = src.shape[-1]
    assert columns <= MAX_COLUMNS, f"argmax: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    if columns <= SHORT_COLUMNS and rows > nl.tile_size.pmax and is_hbm_tensor(src):
        _extreme_short(dst, src, rows, values, smallest, last)
    else:
        _extreme_blocks(dst, src, rows, values, smallest, last)


def _extreme_short(
    dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor], smallest: bool, last: bool
) -> None:
    """Short rows in HBM, several on each partition."""
    columns = src.shape[1]
    ranks_sb = nl.ndarray((nl.tile_size.pmax, 1, columns), dtype=nl.float32, buffer=nl.sbuf)
    if last:
        nisa.iota(dst=ranks_sb, pattern=[[1, columns]], offset=1)
    else:
        nisa.iota(dst=ranks_sb, pattern=[[-1, columns]], offset=columns)
    r0 = 0
    while r0 < rows:
        n = min(nl.tile_size.pmax, rows - r0)
        more = min(SEARCHED_TOGETHER // columns, (rows - r0) // n)
        r1 = r0 + n * more
        x_sb = nl.ndarray((n, more, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=src[r0:r1].reshape_dim(0, (n, more)))
        if smallest:
            nisa.tensor_scalar(dst=x_sb, data=x_sb, op0=nl.multiply, operand0=-1.0)
        best_sb, rank_sb = _search_packed(x_sb, ranks_sb[0:n])
        index_sb = nl.ndarray((n, more, 1), dtype=nl.uint32, buffer=nl.sbuf)
        place_sb = nl.ndarray((n, more, 1), dtype=nl.float32, buffer=nl.sbuf)
        of_rank_1 = 1.0 if last else float(columns)
        nisa.tensor_scalar(dst=place_sb, data=rank_sb, op0=nl.subtract, operand0=of_rank_1, reverse0=not last)
        nisa.scalar_tensor_tensor(
            dst=index_sb, data=rank_sb, op0=nl.greater, operand0=0.0, op1=nl.multiply, operand1=place_sb
        )
        nisa.dma_copy(dst=dst[r0:r1].reshape_dim(0, (n, more)), src=index_sb)
        if values is not None:
            value_sb = nl.ndarray((n, more, 1), dtype=values.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=value_sb, data=best_sb, op0=nl.multiply, operand0=-1.0 if smallest else 1.0)
            nisa.dma_copy(dst=values[r0:r1].reshape_dim(0, (n, more)), src=value_sb)
        r0 = r1


def _search_packed(x_sb: nl.NkiTensor, ranks_sb: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(the largest, the largest rank among its equals) of K rows per partition, x_sb (P, K, F); ranks_sb (P, 1, F),
    counted from 1. A row that starts with NaN gives NaN, and rank 0."""
    n, more, columns = x_sb.shape
    is_nan_sb = nl.ndarray(x_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    numbers_sb = nl.ndarray(x_sb.shape, dtype=x_sb.dtype, buffer=nl.sbuf)
    best_sb = nl.ndarray((n, more, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan_sb, data1=x_sb, data2=x_sb, op=nl.not_equal)  # NaN doesn't equal even itself
    nisa.tensor_copy(dst=numbers_sb, src=x_sb)
    nisa.tensor_copy_predicated(dst=numbers_sb, src=x_sb[:, :, 0:1].broadcast(2, columns), predicate=is_nan_sb)
    nisa.tensor_reduce(dst=best_sb, op=nl.maximum, data=numbers_sb, axis=(2,))
    found_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    rank_sb = nl.ndarray((n, more, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=found_sb, data1=x_sb, data2=best_sb.broadcast(2, columns), op=nl.equal)
    nisa.tensor_tensor(dst=found_sb, data1=found_sb, data2=ranks_sb.broadcast(1, more), op=nl.multiply)
    nisa.tensor_reduce(dst=rank_sb, op=nl.maximum, data=found_sb, axis=(2,))
    return best_sb, rank_sb


def _extreme_blocks(
    dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor], smallest: bool, last: bool
) -> None:
    """argmax or argmin, 128 rows at a time."""
    columns = src.shape[-1]
    for block in range(ceil_div(rows, nl.tile_size.pmax)):
        n = min(nl.tile_size.pmax, rows - block * nl.tile_size.pmax)
        r0 = block * nl.tile_size.pmax
        if columns <= CHUNK and not last:
            value_hbm = None if values is None else values[r0 : r0 + n, :]
            _extreme_whole(dst[r0 : r0 + n, :], src, block, n, value_hbm, smallest)
            continue
        best_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        place_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        number_sb = nl.ndarray((n, 1), dtype=nl.uint8, buffer=nl.sbuf)
        first_sb = nl.ndarray((n, 1), dtype=src.dtype, buffer=nl.sbuf)
        for c0 in range(0, columns, CHUNK):
            x_sb = _chunk(src, block, n, c0, min(CHUNK, columns - c0), smallest)
            if c0 == 0:
                nisa.tensor_copy(dst=first_sb, src=x_sb[:, 0:1])
                nisa.tensor_tensor(dst=number_sb, data1=first_sb, data2=first_sb, op=nl.equal)
            if last:
                _search_last(best_sb, place_sb, x_sb[:, 0 : min(CHUNK, columns - c0)], first_sb, c0)
            else:
                _replace_nan(x_sb, first_sb)
                _search_columns(best_sb, place_sb, x_sb, c0)
        index_sb = nl.ndarray((n, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=index_sb, data1=place_sb, data2=number_sb, op=nl.multiply)
        nisa.dma_copy(dst=dst[r0 : r0 + n, :], src=index_sb)
        if values is not None:
            _store_values(values[r0 : r0 + n, :], best_sb, first_sb, number_sb, smallest)


def _extreme_whole(
    dst: nl.NkiTensor, src: nl.NkiTensor, block: int, n: int, values: Optional[nl.NkiTensor], smallest: bool
) -> None:
    """argmax, or argmin, of the ``n`` rows of a block, in one search each. It uses as few dependent instructions as
    possible, because a small model's label waits for all of them."""
    columns = src.shape[-1]
    copied = is_hbm_tensor(src) or smallest or columns < SEARCH_MIN
    x_sb = _chunk(src, block, n, 0, columns, smallest) if copied else src[0:n, block, :]
    is_nan_sb = nl.ndarray(x_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    numbers_sb = nl.ndarray(x_sb.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.activation(dst=numbers_sb, op=nl.copy, data=x_sb)
    # NaN doesn't equal even itself. A short row need not wait for the vector engine's other work.
    engine = nisa.engine.gpsimd if columns <= SHORT_COLUMNS and not copied else nisa.engine.vector
    nisa.tensor_tensor(dst=is_nan_sb, data1=x_sb, data2=x_sb, op=nl.not_equal, engine=engine)
    first = x_sb[:, 0:1].broadcast(1, x_sb.shape[1])
    nisa.tensor_copy_predicated(dst=numbers_sb, src=first, predicate=is_nan_sb)
    top_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.float32, buffer=nl.sbuf)
    found_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=top_sb, src=numbers_sb)
    nisa.nc_find_index8(dst=found_sb, data=numbers_sb, vals=top_sb)
    index_sb = nl.ndarray((n, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=index_sb, data=is_nan_sb[:, 0:1], op0=nl.equal, operand0=0.0, op1=nl.multiply, operand1=found_sb[:, 0:1]
    )
    nisa.dma_copy(dst=dst, src=index_sb)
    if values is not None:
        first_sb = nl.ndarray((n, 1), dtype=src.dtype, buffer=nl.sbuf)
        number_sb = nl.ndarray((n, 1), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.tensor_copy(dst=first_sb, src=x_sb[:, 0:1])
        nisa.tensor_tensor(dst=number_sb, data1=first_sb, data2=first_sb, op=nl.equal)
        _store_values(values, top_sb[:, 0:1], first_sb, number_sb, smallest)


def _store_values(
    dst: nl.NkiTensor, best_sb: nl.NkiTensor, first_sb: nl.NkiTensor, number_sb: nl.NkiTensor, negated: bool
) -> None:
    """dst = the best element of each row, or its first one if that is NaN."""
    value_sb = nl.ndarray(first_sb.shape, dtype=first_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=value_sb, src=best_sb)
    nisa.tensor_copy_predicated(dst=first_sb, src=value_sb, predicate=number_sb)
    nisa.tensor_scalar(dst=value_sb, data=first_sb, op0=nl.multiply, operand0=-1.0 if negated else 1.0)
    nisa.dma_copy(dst=dst, src=value_sb)


def _chunk(src: nl.NkiTensor, block: int, n: int, c0: int, columns: int, negated: bool) -> nl.NkiTensor:
    """A copy of columns ``c0``... of a block of rows, in SBUF; fewer than 8 are padded with copies of the first one,
    which a search finds before them."""
    x_sb = nl.ndarray((n, max(SEARCH_MIN, columns)), dtype=src.dtype, buffer=nl.sbuf)
    found_sb = x_sb[:, 0:columns]
    r0 = block * nl.tile_size.pmax
    if is_hbm_tensor(src):
        nisa.dma_copy(dst=found_sb, src=src[r0 : r0 + n, c0 : c0 + columns])
    if negated:
        inner_sb = found_sb if is_hbm_tensor(src) else src[0:n, block, c0 : c0 + columns]
        nisa.tensor_scalar(dst=found_sb, data=inner_sb, op0=nl.multiply, operand0=-1.0)
    elif not is_hbm_tensor(src):
        nisa.tensor_copy(dst=found_sb, src=src[0:n, block, c0 : c0 + columns])
    if columns < SEARCH_MIN:
        nisa.tensor_copy(dst=x_sb[:, columns:SEARCH_MIN], src=x_sb[:, 0:1].broadcast(1, SEARCH_MIN - columns))
    return x_sb


def _replace_nan(x_sb: nl.NkiTensor, first_sb: nl.NkiTensor) -> None:
    """Replace each NaN by the row's first element, which is never found anywhere but at the row's start."""
    is_nan_sb = nl.ndarray(x_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan_sb, data1=x_sb, data2=x_sb, op=nl.not_equal)  # NaN doesn't equal even itself
    nisa.tensor_copy_predicated(dst=x_sb, src=first_sb.broadcast(1, x_sb.shape[1]), predicate=is_nan_sb)


def _search_columns(best_sb: nl.NkiTensor, place_sb: nl.NkiTensor, x_sb: nl.NkiTensor, c0: int) -> None:
    """Search columns ``c0``...; best_sb (value) and place_sb (its index) change only where these are larger."""
    n = x_sb.shape[0]
    top_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.float32, buffer=nl.sbuf)
    found_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=top_sb, src=x_sb)
    nisa.nc_find_index8(dst=found_sb, data=x_sb, vals=top_sb)
    better_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    if c0 > 0:
        nisa.tensor_tensor(dst=better_sb, data1=top_sb[:, 0:1], data2=best_sb, op=nl.greater)
    _keep_better(best_sb, place_sb, top_sb[:, 0:1], found_sb[:, 0:1], better_sb, c0)


def _search_last(
    best_sb: nl.NkiTensor, place_sb: nl.NkiTensor, x_sb: nl.NkiTensor, first_sb: nl.NkiTensor, c0: int
) -> None:
    """``_search_columns`` for the last one of equal elements; x_sb still contains its NaN, which equal nothing."""
    n, columns = x_sb.shape
    numbers_sb = nl.ndarray((n, columns), dtype=x_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=numbers_sb, src=x_sb)
    _replace_nan(numbers_sb, first_sb)
    top_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top_sb, op=nl.maximum, data=numbers_sb, axis=(1,))
    # Elements that equal the largest keep their place, counted from 1; all others become 0.
    count_sb = nl.ndarray((n, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=count_sb, pattern=[[1, columns]], offset=1)
    nisa.scalar_tensor_tensor(
        dst=count_sb, data=x_sb, op0=nl.equal, operand0=top_sb, op1=nl.multiply, operand1=count_sb
    )
    found_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=found_sb, op=nl.maximum, data=count_sb, axis=(1,))
    better_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
    if c0 > 0:
        seen_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=seen_sb, data=found_sb, op0=nl.greater, operand0=0.0)
        nisa.tensor_tensor(dst=better_sb, data1=top_sb, data2=best_sb, op=nl.greater_equal)
        nisa.tensor_tensor(dst=better_sb, data1=better_sb, data2=seen_sb, op=nl.multiply)
    nisa.tensor_scalar(dst=found_sb, data=found_sb, op0=nl.subtract, operand0=1.0)
    _keep_better(best_sb, place_sb, top_sb, found_sb, better_sb, c0)


def _keep_better(
    best_sb: nl.NkiTensor,
    place_sb: nl.NkiTensor,
    top_sb: nl.NkiTensor,
    found_sb: nl.NkiTensor,
    better_sb: nl.NkiTensor,
    c0: int,
) -> None:
    """place_sb becomes c0 + found_sb if better_sb is 1 or ``c0`` is 0; best_sb becomes the larger of itself and
    top_sb."""
    if c0 == 0:
        nisa.tensor_copy(dst=best_sb, src=top_sb)
        nisa.tensor_copy(dst=place_sb, src=found_sb)
    else:
        step_sb = nl.ndarray((best_sb.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        # place += better * (found + c0 - place)
        nisa.tensor_scalar(dst=step_sb, data=found_sb, op0=nl.add, operand0=c0)
        nisa.tensor_tensor(dst=step_sb, data1=step_sb, data2=place_sb, op=nl.subtract)
        nisa.tensor_tensor(dst=step_sb, data1=step_sb, data2=better_sb, op=nl.multiply)
        nisa.tensor_tensor(dst=place_sb, data1=place_sb, data2=step_sb, op=nl.add)
        nisa.tensor_tensor(dst=best_sb, data1=best_sb, data2=top_sb, op=nl.maximum)
