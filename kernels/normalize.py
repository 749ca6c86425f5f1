"""Normalisation of rows by their mean and variance, or by the mean of their squares."""

from typing import Any, Optional

from trnrt.kernels.common import COUNTED, ceil_div, load
from trnrt.nki import nisa, nl

# A row up to this long is in SBUF as a whole; a longer one is loaded twice, in parts of that many elements.
NORMALIZED_CHUNK = 4096
# float32 counts the elements of a row exactly up to here.
MAX_COLUMNS = COUNTED
# Its square is a normal float32.
LEAST_NORM = 1.1e-19
# One number per column, or one per row.
Coefficients = Optional[nl.NkiTensor]


def normalize_rows(dst: nl.NkiTensor, src: nl.NkiTensor, scale: Coefficients, bias: Coefficients, eps: float) -> None:
    """dst = (src - its mean) / sqrt(its variance + eps) * scale + bias of each row.

    dst, src: HBM (R, C)
    scale, bias: None, or HBM (1, C): one number per column, or (R, 1): one per row; both alike
    limits: C <= MAX_COLUMNS

    The arithmetic is float32. The variance is that of the differences from a number near the mean, so that rows far
    from 0 keep their precision. A row with NaN or infinity becomes NaN.

    numpy: m, v = src.mean(axis=1, keepdims=True), src.var(axis=1, keepdims=True);
           (src - m) / sqrt(v + eps) * scale + bias
    """
    _check(dst, src, scale, bias)
    rows, columns = src.shape
    kept_sb = (_load_kept(scale, rows, columns), _load_kept(bias, rows, columns))
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        shift_sb, d_sb, moments_sb = _measure_rows(src[r0:r1])
        rate_sb = _column(r1 - r0)
        nisa.tensor_scalar(dst=rate_sb, data=moments_sb[:, 1:2], op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
        if scale is not None and _is_per_row(scale, rows):
            nisa.tensor_tensor(dst=rate_sb, data1=rate_sb, data2=load(scale[r0:r1]), op=nl.multiply)
        offset_sb = _column(r1 - r0)
        nisa.scalar_tensor_tensor(
            dst=offset_sb, data=moments_sb[:, 0:1], op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=rate_sb
        )
        if bias is not None and _is_per_row(bias, rows):
            nisa.tensor_tensor(dst=offset_sb, data1=offset_sb, data2=load(bias[r0:r1]), op=nl.add)
        for c0 in range(0, columns, NORMALIZED_CHUNK):
            c1 = min(columns, c0 + NORMALIZED_CHUNK)
            if columns > NORMALIZED_CHUNK:
                d_sb = _differences(src[r0:r1, c0:c1], shift_sb)
            y_sb = nl.ndarray(d_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=y_sb, op=nl.copy, data=d_sb, scale=rate_sb, bias=offset_sb)
            y_sb = _by_column(y_sb, scale, kept_sb[0], c0, nl.multiply)
            y_sb = _by_column(y_sb, bias, kept_sb[1], c0, nl.add)
            _store_converted(dst[r0:r1, c0:c1], y_sb)


def inverse_deviations(dst: nl.NkiTensor, src: nl.NkiTensor, eps: float) -> None:
    """dst = 1 / sqrt(the variance + eps) of each row: the factor in normalize_rows.

    dst: HBM (R, 1)
    src: HBM (R, C)
    limits: C <= MAX_COLUMNS

    numpy: 1 / sqrt(src.var(axis=1, keepdims=True) + eps)
    """
    rows, columns = src.shape
    assert dst.shape == (rows, 1), f"inverse_deviations: dst is {dst.shape}; of {rows} rows it must be {(rows, 1)}"
    assert columns <= MAX_COLUMNS, f"inverse_deviations: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        moments_sb = _measure_rows(src[r0:r1])[2]
        rate_sb = _column(r1 - r0)
        nisa.tensor_scalar(dst=rate_sb, data=moments_sb[:, 1:2], op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
        _store_converted(dst[r0:r1], rate_sb)


def normalize_rows_rms(dst: nl.NkiTensor, src: nl.NkiTensor, scale: Coefficients, eps: float) -> None:
    """dst = src / sqrt(the mean of its squares + eps) * scale of each row.

    dst, src: HBM (R, C)
    scale: None, or HBM (1, C): one number per column, or (R, 1): one per row
    limits: C <= MAX_COLUMNS

    The arithmetic is float32. A row with NaN becomes NaN.

    numpy: src / sqrt((src**2).mean(axis=1, keepdims=True) + eps) * scale
    """
    _check(dst, src, scale, None)
    rows, columns = src.shape
    kept_sb = _load_kept(scale, rows, columns)
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        x_sb, rate_sb = _measure_squares(src[r0:r1], eps)
        if scale is not None and _is_per_row(scale, rows):
            nisa.tensor_tensor(dst=rate_sb, data1=rate_sb, data2=load(scale[r0:r1]), op=nl.multiply)
        for c0 in range(0, columns, NORMALIZED_CHUNK):
            if columns > NORMALIZED_CHUNK:
                x_sb = load(src[r0:r1, c0 : min(columns, c0 + NORMALIZED_CHUNK)])
            y_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=y_sb, op=nl.copy, data=x_sb, scale=rate_sb)
            y_sb = _by_column(y_sb, scale, kept_sb, c0, nl.multiply)
            _store_converted(dst[r0:r1, c0 : c0 + x_sb.shape[1]], y_sb)


def divide_rows_by_norm(dst: nl.NkiTensor, src: nl.NkiTensor, least: float) -> None:
    """dst = src over the 2-norm of each row, or over ``least`` where the norm is smaller.

    dst, src: HBM (R, C)
    least: 0, or at least LEAST_NORM, whose square is a normal float32
    limits: C <= MAX_COLUMNS

    The arithmetic is float32. A row with NaN becomes NaN, and so does a row of zeros if ``least`` is 0.

    numpy: src / maximum(sqrt((src**2).sum(axis=1, keepdims=True)), least)
    """
    _check(dst, src, None, None)
    assert least == 0.0 or least >= LEAST_NORM, (
        f"divide_rows_by_norm: least is {least}; it must be 0, or at least {LEAST_NORM}"
    )
    rows, columns = src.shape
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        x_sb, rate_sb = _sum_squares(src[r0:r1])
        nisa.tensor_scalar(
            dst=rate_sb, data=rate_sb, op0=nl.maximum, operand0=least * least, op1=nl.power, operand1=-0.5
        )
        for c0 in range(0, columns, NORMALIZED_CHUNK):
            if columns > NORMALIZED_CHUNK:
                x_sb = load(src[r0:r1, c0 : min(columns, c0 + NORMALIZED_CHUNK)])
            y_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=y_sb, op=nl.copy, data=x_sb, scale=rate_sb)
            _store_converted(dst[r0:r1, c0 : c0 + x_sb.shape[1]], y_sb)


def _check(dst: nl.NkiTensor, src: nl.NkiTensor, scale: Coefficients, bias: Coefficients) -> None:
    """Check the arguments of both kernels."""
    rows, columns = src.shape
    assert dst.shape == src.shape, f"normalize_rows: dst is {dst.shape}, src {src.shape}; they must be equal"
    assert columns <= MAX_COLUMNS, f"normalize_rows: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    if scale is not None:
        shape = scale.shape
        assert shape == (1, columns) or shape == (rows, 1), (
            f"normalize_rows: scale is {shape}; of rows {src.shape} it must be {(1, columns)} or {(rows, 1)}"
        )
    if scale is not None and bias is not None:
        assert scale.shape == bias.shape, (
            f"normalize_rows: scale is {scale.shape}, bias {bias.shape}; they must be equal"
        )


def _measure_rows(src: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """(a number near the mean of each row, negated; the differences from it, if rows are no longer than
    NORMALIZED_CHUNK; their mean and variance) of rows in HBM, at most 128."""
    n, columns = src.shape
    count = ceil_div(columns, NORMALIZED_CHUNK)
    first_sb = load(src[:, 0 : min(columns, NORMALIZED_CHUNK)])
    d_sb = nl.ndarray(first_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    shift_sb = _column(n)
    nisa.activation_reduce(dst=d_sb, op=nl.copy, data=first_sb, reduce_op=nl.add, reduce_res=shift_sb)
    nisa.tensor_scalar(dst=shift_sb, data=shift_sb, op0=nl.multiply, operand0=-1.0 / min(columns, NORMALIZED_CHUNK))
    triples_sb = nl.ndarray((n, count, 3), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(count):
        c0, c1 = i * NORMALIZED_CHUNK, min(columns, (i + 1) * NORMALIZED_CHUNK)
        if i == 0:
            nisa.tensor_scalar(dst=d_sb, data=first_sb, op0=nl.add, operand0=shift_sb)
        else:
            d_sb = _differences(src[:, c0:c1], shift_sb)
        moments_sb = _moments(d_sb)
        if count > 1:
            nisa.memset(dst=triples_sb[:, i, 0:1], value=float(c1 - c0))
            nisa.tensor_copy(dst=triples_sb[:, i, 1:2], src=moments_sb[:, 0:1])
            nisa.tensor_scalar(
                dst=triples_sb[:, i, 2:3], data=moments_sb[:, 1:2], op0=nl.multiply, operand0=float(c1 - c0)
            )
    if count > 1:
        moments_sb = nl.ndarray((n, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.bn_aggr(dst=moments_sb, data=triples_sb)
    return shift_sb, d_sb, moments_sb


def _measure_squares(src: nl.NkiTensor, eps: float) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(rows from HBM, at most 128, if they are no longer than NORMALIZED_CHUNK; 1 / sqrt(mean square + eps))."""
    x_sb, rate_sb = _sum_squares(src)
    nisa.tensor_scalar(
        dst=rate_sb, data=rate_sb, op0=nl.multiply, operand0=1.0 / src.shape[1], op1=nl.add, operand1=eps
    )
    nisa.tensor_scalar(dst=rate_sb, data=rate_sb, op0=nl.power, operand0=-0.5)
    return x_sb, rate_sb


def _sum_squares(src: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """(rows from HBM, at most 128, if they are no longer than NORMALIZED_CHUNK; the sum of the squares of each)."""
    n, columns = src.shape
    count = ceil_div(columns, NORMALIZED_CHUNK)
    totals_sb = nl.ndarray((n, count), dtype=nl.float32, buffer=nl.sbuf)
    x_sb = load(src[:, 0 : min(columns, NORMALIZED_CHUNK)])
    for i in range(count):
        if i > 0:
            x_sb = load(src[:, i * NORMALIZED_CHUNK : min(columns, (i + 1) * NORMALIZED_CHUNK)])
        square_sb = nl.ndarray(x_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        total_sb = totals_sb[:, i : i + 1]
        nisa.activation_reduce(dst=square_sb, op=nl.square, data=x_sb, reduce_op=nl.add, reduce_res=total_sb)
    sum_sb = _column(n)
    nisa.tensor_reduce(dst=sum_sb, op=nl.add, data=totals_sb, axis=(1,))
    return x_sb, sum_sb


def _moments(x_sb: nl.NkiTensor) -> nl.NkiTensor:
    """(P, 2): the mean and the variance of each row of x_sb (P, C)."""
    n, columns = x_sb.shape
    step = nl.tile_size.bn_stats_fmax
    statistics_sb = nl.ndarray((n, ceil_div(columns, step), 6), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(ceil_div(columns, step)):
        nisa.bn_stats(dst=statistics_sb[:, i, :], data=x_sb[:, i * step : min(columns, (i + 1) * step)])
    moments_sb = nl.ndarray((n, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments_sb, data=statistics_sb)
    return moments_sb


def _differences(src: nl.NkiTensor, shift_sb: nl.NkiTensor) -> nl.NkiTensor:
    """src + shift_sb, as float32 in SBUF."""
    x_sb = load(src)
    d_sb = nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=d_sb, data=x_sb, op0=nl.add, operand0=shift_sb)
    return d_sb


def _column(n: int) -> nl.NkiTensor:
    """One float32 per partition."""
    return nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)


def _store_converted(dst: nl.NkiTensor, value_sb: nl.NkiTensor) -> None:
    """Store float32 from SBUF to HBM, in the dtype of the destination."""
    y_sb = value_sb
    if dst.dtype != nl.float32:
        y_sb = nl.ndarray(value_sb.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=y_sb, src=value_sb)
    nisa.dma_copy(dst=dst, src=y_sb)


def _is_per_row(coefficient: nl.NkiTensor, rows: int) -> bool:
    """True if there is one number per row, false if one per column."""
    return coefficient.shape[0] == rows and coefficient.shape[1] == 1


def _load_kept(coefficient: Coefficients, rows: int, columns: int) -> Coefficients:
    """One number per column, on all partitions, if rows are no longer than NORMALIZED_CHUNK."""
    if coefficient is None or _is_per_row(coefficient, rows) or columns > NORMALIZED_CHUNK:
        return None
    return load(coefficient.broadcast(0, min(rows, nl.tile_size.pmax)))


def _by_column(y_sb: nl.NkiTensor, coefficient: Coefficients, kept_sb: Coefficients, c0: int, op: Any) -> nl.NkiTensor:
    """y_sb (P, C) <op> one number per column, from column ``c0`` on; y_sb itself if there is no coefficient."""
    n, columns = y_sb.shape
    if kept_sb is not None:
        nisa.tensor_tensor(dst=y_sb, data1=y_sb, data2=kept_sb[0:n, :], op=op)
    elif coefficient is not None and coefficient.shape[1] > 1:
        part_sb = load(coefficient[:, c0 : c0 + columns].broadcast(0, n))
        nisa.tensor_tensor(dst=y_sb, data1=y_sb, data2=part_sb, op=op)
    return y_sb
