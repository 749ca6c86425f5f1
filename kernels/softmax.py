"""Softmax and its logarithm along rows of any length."""

from typing import Any

from trnrt.kernels.common import COUNTED, ceil_div, is_hbm_tensor, item_bytes
from trnrt.nki import nisa, nl

# A row up to this long is in SBUF as a whole, with its exponentials.
WHOLE_COLUMNS = 8192
# Columns per chunk of a longer row.
SOFTMAX_CHUNK = 2048
# Bytes per partition up to which the chunks of a row stay in SBUF; those of a longer row are loaded twice.
KEPT_BYTES = 96 * 1024
# AHEAD blocks of rows start before the first one finishes, if they have at most AHEAD_COLUMNS together, so that no
# engine idles. LOGS_TOGETHER logarithms finish one after the other: switching functions takes the scalar engine longer
# than most blocks. Five random shapes in float32, predicted: AHEAD = 0 takes 8 % more on average (up to 50 %), 2 takes
# 1 % less; half and twice of LOGS_TOGETHER change nothing.
AHEAD = 1
LOGS_TOGETHER = 8
AHEAD_COLUMNS = 8192
# Rows up to this long share a partition, SHORT_TOGETHER elements together: 128 of them at a time would take as long as
# longer rows.
SHORT_COLUMNS = 128
SHORT_TOGETHER = 4096
# The maxima and sums of a row's chunks stay in SBUF.
MAX_COLUMNS = COUNTED
# The negated maximum of a row that still counts as finite: a chunk of only -inf must not add NaN.
HIGHEST = 3.4028234e38


def softmax(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int) -> None:
    """dst = exp(src - max(src)) / sum(exp(src - max(src))) of each row.

    dst, src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    limits: F <= MAX_COLUMNS

    A row with a NaN or a +inf, or of only -inf, becomes NaN.

    numpy: e = exp(src - src.max(axis=1, keepdims=True)); e / e.sum(axis=1, keepdims=True)
    """
    _normalize_rows(dst, src, rows, False)


def log_softmax(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int) -> None:
    """dst = src - max(src) - log(sum(exp(src - max(src)))) of each row.

    dst, src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    limits: F <= MAX_COLUMNS

    A row with a NaN or a +inf, or of only -inf, becomes NaN.

    numpy: d = src - src.max(axis=1, keepdims=True); d - log(exp(d).sum(axis=1, keepdims=True))
    """
    _normalize_rows(dst, src, rows, True)


def _normalize_rows(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, log: bool) -> None:
    """softmax or log_softmax."""
    columns = src.shape[-1]
    assert columns <= MAX_COLUMNS, f"softmax: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    if columns <= SHORT_COLUMNS and rows > nl.tile_size.pmax and is_hbm_tensor(src) and is_hbm_tensor(dst):
        _normalize_short(dst, src, rows, log)
    else:
        _normalize_blocks(dst, src, rows, log)


def _normalize_short(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, log: bool) -> None:
    """Short rows in HBM, several on each partition."""
    columns = src.shape[1]
    r0 = 0
    while r0 < rows:
        n = min(nl.tile_size.pmax, rows - r0)
        more = min(SHORT_TOGETHER // columns, (rows - r0) // n)
        r1 = r0 + n * more
        x_sb = nl.ndarray((n, more, columns), dtype=src.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=src[r0:r1].reshape_dim(0, (n, more)), dge_mode=nisa.dge_mode.none)
        y_sb = nl.ndarray((n, more, columns), dtype=dst.dtype, buffer=nl.sbuf)
        _normalize_packed(y_sb, x_sb, log)
        nisa.dma_copy(dst=dst[r0:r1].reshape_dim(0, (n, more)), src=y_sb, dge_mode=nisa.dge_mode.none)
        r0 = r1


def _normalize_packed(y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, log: bool) -> None:
    """y_sb (P, K, F) = the result of K rows per partition."""
    n, more, columns = x_sb.shape
    one_sb = nl.ndarray((n, more), dtype=nl.float32, buffer=nl.sbuf)
    each = one_sb.expand_dim(2).broadcast(2, columns)
    difference_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    exp_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=one_sb, op=nl.maximum, data=x_sb, axis=(2,))
    nisa.tensor_tensor(dst=difference_sb, data1=x_sb, data2=each, op=nl.subtract)
    nisa.activation(dst=exp_sb, op=nl.exp, data=difference_sb)
    nisa.tensor_reduce(dst=one_sb, op=nl.add, data=exp_sb, axis=(2,))
    _invert_total(one_sb, log)
    if log:
        nisa.tensor_tensor(dst=y_sb, data1=difference_sb, data2=each, op=nl.subtract)
    else:
        nisa.tensor_tensor(dst=y_sb, data1=exp_sb, data2=each, op=nl.multiply)


def _normalize_blocks(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int, log: bool) -> None:
    """softmax or log_softmax, 128 rows at a time. A block of short rows finishes after later ones have started."""
    columns = src.shape[-1]
    ahead = min(AHEAD, AHEAD_COLUMNS // columns)
    together = max(1, min(LOGS_TOGETHER, AHEAD_COLUMNS // columns))
    blocks = ceil_div(rows, nl.tile_size.pmax)
    begun = []
    finished = 0
    for block in range(blocks):
        n = min(nl.tile_size.pmax, rows - block * nl.tile_size.pmax)
        if columns > WHOLE_COLUMNS:
            _normalize_chunks(dst, src, block, n, log)
        else:
            begun.append(_begin_block(src, block, n, log))
            due = (block + 1) // together * together if log else block + 1 - ahead
            for other in range(finished, blocks if block == blocks - 1 else due):
                _finish_block(dst, begun[other], other, log)
                finished = other + 1


def _begin_block(src: nl.NkiTensor, block: int, n: int, log: bool) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """(exponentials, or the rows themselves for the logarithm; negated maxima; sums) of the ``n`` rows of a block."""
    x_sb = row_block(src, block, n, 0, src.shape[-1])
    exp_sb = _tile(n, x_sb.shape[1], x_sb.shape[1], nl.float32)
    negated_max_sb = _tile(n, 1, 1, nl.float32)
    total_sb = _tile(n, 1, 1, nl.float32)
    nisa.tensor_reduce(dst=negated_max_sb, op=nl.maximum, data=x_sb, axis=(1,), negate=True)
    nisa.activation_reduce(dst=exp_sb, op=nl.exp, data=x_sb, reduce_op=nl.add, reduce_res=total_sb, bias=negated_max_sb)
    return x_sb if log else exp_sb, negated_max_sb, total_sb


def _finish_block(
    dst: nl.NkiTensor, begun: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor], block: int, log: bool
) -> None:
    """Finish the block that ``_begin_block`` started."""
    rows_sb, negated_max_sb, total_sb = begun
    n, columns = rows_sb.shape
    _invert_total(total_sb, log)
    y_sb = _softmax_tile(dst, block, n, 0, columns)
    if log:
        _subtract_logarithm(y_sb, rows_sb, negated_max_sb, total_sb)
    else:
        nisa.tensor_scalar(dst=y_sb, data=rows_sb, op0=nl.multiply, operand0=total_sb)
    _store_result(dst, y_sb, block, n, 0, columns)


def _normalize_chunks(dst: nl.NkiTensor, src: nl.NkiTensor, block: int, n: int, log: bool) -> None:
    """The ``n`` rows of one block chunk by chunk: their maxima and sums first, then their results."""
    columns = src.shape[-1]
    count = ceil_div(columns, SOFTMAX_CHUNK)
    maxima_sb = _tile(n, count, count, nl.float32)
    totals_sb = _tile(n, count, count, nl.float32)
    keep = columns * item_bytes(src.dtype) <= KEPT_BYTES
    chunks_sb = []
    for i in range(count):
        x_sb = row_block(src, block, n, i * SOFTMAX_CHUNK, min(columns, (i + 1) * SOFTMAX_CHUNK))
        _measure_chunk(maxima_sb[:, i : i + 1], totals_sb[:, i : i + 1], x_sb)
        if keep:
            chunks_sb.append(x_sb)
    negated_max_sb = _tile(n, 1, 1, nl.float32)
    total_sb = _tile(n, 1, 1, nl.float32)
    _combine(negated_max_sb, total_sb, maxima_sb, totals_sb)
    if log:
        _void_empty(total_sb)
    _invert_total(total_sb, log)
    for c0 in range(0, columns, SOFTMAX_CHUNK):
        c1 = min(columns, c0 + SOFTMAX_CHUNK)
        if keep:
            x_sb = chunks_sb[c0 // SOFTMAX_CHUNK]
        else:
            x_sb = row_block(src, block, n, c0, c1)
        y_sb = _softmax_tile(dst, block, n, c0, c1)
        if log:
            _subtract_logarithm(y_sb, x_sb, negated_max_sb, total_sb)
        else:
            exp_sb = _tile(n, c1 - c0, SOFTMAX_CHUNK, nl.float32)
            nisa.activation(dst=exp_sb, op=nl.exp, data=x_sb, bias=negated_max_sb)
            nisa.tensor_scalar(dst=y_sb, data=exp_sb, op0=nl.multiply, operand0=total_sb)
        _store_result(dst, y_sb, block, n, c0, c1)


def _measure_chunk(negated_max_sb: nl.NkiTensor, total_sb: nl.NkiTensor, x_sb: nl.NkiTensor) -> None:
    """A chunk's negated maximum, and the sum of its exponentials relative to it: chunks don't wait for each other."""
    exp_sb = _tile(x_sb.shape[0], x_sb.shape[1], SOFTMAX_CHUNK, nl.float32)
    nisa.tensor_reduce(dst=negated_max_sb, op=nl.maximum, data=x_sb, axis=(1,), negate=True)
    nisa.tensor_scalar(dst=negated_max_sb, data=negated_max_sb, op0=nl.minimum, operand0=HIGHEST)
    nisa.activation_reduce(dst=exp_sb, op=nl.exp, data=x_sb, reduce_op=nl.add, reduce_res=total_sb, bias=negated_max_sb)


def _combine(
    negated_max_sb: nl.NkiTensor, total_sb: nl.NkiTensor, maxima_sb: nl.NkiTensor, totals_sb: nl.NkiTensor
) -> None:
    """A row's negated maximum and sum from those of its chunks: the sum of a chunk shrinks with its own maximum."""
    nisa.tensor_reduce(dst=negated_max_sb, op=nl.minimum, data=maxima_sb, axis=(1,))
    nisa.activation(dst=maxima_sb, op=nl.exp, data=maxima_sb, scale=-1.0, bias=negated_max_sb)
    nisa.tensor_tensor(dst=totals_sb, data1=totals_sb, data2=maxima_sb, op=nl.multiply)
    nisa.tensor_reduce(dst=total_sb, op=nl.add, data=totals_sb, axis=(1,))


def _void_empty(total_sb: nl.NkiTensor) -> None:
    """NaN for the sum of a row of only -inf: the scalar engine has no logarithm of 0."""
    empty_sb = nl.ndarray(total_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=empty_sb, data=total_sb, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=total_sb, src=float("nan"), predicate=empty_sb)


def _invert_total(total_sb: nl.NkiTensor, log: bool) -> None:
    """total_sb = the factor of a row's exponentials, or the number to subtract from its differences."""
    if log:
        nisa.activation(dst=total_sb, op=nl.log, data=total_sb)
    else:
        nisa.reciprocal(dst=total_sb, data=total_sb)


def _subtract_logarithm(
    y_sb: nl.NkiTensor, x_sb: nl.NkiTensor, negated_max_sb: nl.NkiTensor, log_total_sb: nl.NkiTensor
) -> None:
    """Subtract the maximum first: that difference is exact where it matters."""
    nisa.tensor_scalar(dst=y_sb, data=x_sb, op0=nl.add, operand0=negated_max_sb, op1=nl.subtract, operand1=log_total_sb)


def _tile(n: int, columns: int, room: int, dtype: Any) -> nl.NkiTensor:
    """A tile (n, columns) inside 128 partitions and ``room`` columns: tiles of one shape reuse the same addresses, even
    the last one, which may be smaller."""
    return nl.ndarray((nl.tile_size.pmax, room), dtype=dtype, buffer=nl.sbuf)[0:n, 0:columns]


def _room(columns: int) -> int:
    """The columns of a tile for rows of this many."""
    return columns if columns <= WHOLE_COLUMNS else SOFTMAX_CHUNK


def row_block(src: nl.NkiTensor, block: int, n: int, c0: int, c1: int) -> nl.NkiTensor:
    """Columns ``c0`` to ``c1`` of the rows of block number ``block`` of 128, in SBUF (n, c1 - c0)."""
    if not is_hbm_tensor(src):
        return src[0:n, block, c0:c1]
    r0 = block * nl.tile_size.pmax
    x_sb = _tile(n, c1 - c0, _room(src.shape[1]), src.dtype)
    nisa.dma_copy(dst=x_sb, src=src[r0 : r0 + n, c0:c1], dge_mode=nisa.dge_mode.none)
    return x_sb


def _softmax_tile(dst: nl.NkiTensor, block: int, n: int, c0: int, c1: int) -> nl.NkiTensor:
    """The place to compute a result: in dst itself, or in a tile on its way to HBM."""
    if is_hbm_tensor(dst):
        return _tile(n, c1 - c0, _room(dst.shape[1]), dst.dtype)
    return dst[0:n, block, c0:c1]


def _store_result(dst: nl.NkiTensor, y_sb: nl.NkiTensor, block: int, n: int, c0: int, c1: int) -> None:
    """Store a tile of ``_softmax_tile`` to HBM; nothing to do if it was computed in place."""
    if is_hbm_tensor(dst):
        r0 = block * nl.tile_size.pmax
        nisa.dma_copy(dst=dst[r0 : r0 + n, c0:c1], src=y_sb, dge_mode=nisa.dge_mode.none)
