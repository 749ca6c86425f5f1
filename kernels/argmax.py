"""The index of the largest or the smallest element of each row, and the element itself."""

from typing import Optional

from trnrt.kernels.common import ceil_div, is_hbm_tensor
from trnrt.nki import nisa, nl

# Columns that are searched at once. The hardware's searches take 8 to 16,384; half of that is loaded in the time that
# the half before is searched in.
CHUNK = 8192
SEARCH_MIN = 8
# float32, in which places are compared, holds every index up to here.
MAX_COLUMNS = 16777216


def argmax(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor] = None) -> None:
    """dst = the index of the first largest element of each row, values = that element.

    NaN is never the largest, but a row that starts with one gives 0: that is what onnxruntime answers.

    dst: HBM (N, 1) uint32
    src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    values: None, or HBM (N, 1) of src's dtype
    limits: F <= MAX_COLUMNS

    numpy: where(isnan(src[:, 0]), 0, argmax(where(isnan(src), -inf, src), axis=1)), and src at these places
    """
    _extreme(dst, src, rows, values, False)


def argmin(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor] = None) -> None:
    """dst = the index of the first smallest element of each row, values = that element.

    NaN is never the smallest, but a row that starts with one gives 0: that is what onnxruntime answers.

    dst: HBM (N, 1) uint32
    src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    values: None, or HBM (N, 1) of src's dtype
    limits: F <= MAX_COLUMNS

    numpy: where(isnan(src[:, 0]), 0, argmin(where(isnan(src), inf, src), axis=1)), and src at these places
    """
    _extreme(dst, src, rows, values, True)


def _extreme(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, values: Optional[nl.NkiTensor], smallest: bool) -> None:
    """argmax, or argmin: that is the argmax of the negated elements."""
    columns = src.shape[-1]
    assert columns <= MAX_COLUMNS, f"argmax: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    for block in range(ceil_div(rows, nl.tile_size.pmax)):
        n = min(nl.tile_size.pmax, rows - block * nl.tile_size.pmax)
        best_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        place_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        number_sb = nl.ndarray((n, 1), dtype=nl.uint8, buffer=nl.sbuf)
        first_sb = nl.ndarray((n, 1), dtype=src.dtype, buffer=nl.sbuf)
        for c0 in range(0, columns, CHUNK):
            x_sb = _chunk(src, block, n, c0, min(CHUNK, columns - c0), smallest)
            if c0 == 0:
                nisa.tensor_copy(dst=first_sb, src=x_sb[:, 0:1])
                nisa.tensor_tensor(dst=number_sb, data1=first_sb, data2=first_sb, op=nl.equal)
            _replace_nan(x_sb, first_sb)
            _search(best_sb, place_sb, x_sb, c0)
        r0 = block * nl.tile_size.pmax
        index_sb = nl.ndarray((n, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=index_sb, data1=place_sb, data2=number_sb, op=nl.multiply)
        nisa.dma_copy(dst=dst[r0 : r0 + n, :], src=index_sb)
        if values is not None:
            value_sb = nl.ndarray((n, 1), dtype=src.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=value_sb, src=best_sb)
            nisa.tensor_copy_predicated(dst=first_sb, src=value_sb, predicate=number_sb)
            nisa.tensor_scalar(dst=value_sb, data=first_sb, op0=nl.multiply, operand0=-1.0 if smallest else 1.0)
            nisa.dma_copy(dst=values[r0 : r0 + n, :], src=value_sb)


def _chunk(src: nl.NkiTensor, block: int, n: int, c0: int, columns: int, negated: bool) -> nl.NkiTensor:
    """A copy of columns ``c0``... of a block of rows, in SBUF; fewer than 8 are filled up with copies of the first
    one, which can't be found before it."""
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
    """Put the row's first element in the place of each NaN: that is never found before the row's start."""
    is_nan_sb = nl.ndarray(x_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_nan_sb, data1=x_sb, data2=x_sb, op=nl.not_equal)  # NaN equals not even itself
    nisa.tensor_copy_predicated(dst=x_sb, src=first_sb.broadcast(1, x_sb.shape[1]), predicate=is_nan_sb)


def _search(best_sb: nl.NkiTensor, place_sb: nl.NkiTensor, x_sb: nl.NkiTensor, c0: int) -> None:
    """Search columns ``c0``...; best_sb (value) and place_sb (its index) change only where these are larger."""
    n = x_sb.shape[0]
    top_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.float32, buffer=nl.sbuf)
    found_sb = nl.ndarray((n, SEARCH_MIN), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=top_sb, src=x_sb)
    nisa.nc_find_index8(dst=found_sb, data=x_sb, vals=top_sb)
    if c0 == 0:
        nisa.tensor_copy(dst=best_sb, src=top_sb[:, 0:1])
        nisa.tensor_copy(dst=place_sb, src=found_sb[:, 0:1])
    else:
        better_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        step_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=better_sb, data1=top_sb[:, 0:1], data2=best_sb, op=nl.greater)
        # place += better * (found + c0 - place)
        nisa.tensor_scalar(dst=step_sb, data=found_sb[:, 0:1], op0=nl.add, operand0=c0)
        nisa.tensor_tensor(dst=step_sb, data1=step_sb, data2=place_sb, op=nl.subtract)
        nisa.tensor_tensor(dst=step_sb, data1=step_sb, data2=better_sb, op=nl.multiply)
        nisa.tensor_tensor(dst=place_sb, data1=place_sb, data2=step_sb, op=nl.add)
        nisa.tensor_tensor(dst=best_sb, data1=best_sb, data2=top_sb[:, 0:1], op=nl.maximum)
