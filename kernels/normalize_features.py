"""Normalisation of rows whose features are on the partitions, before or after it: between the layers of an encoder.

    features (P, B, rows) --tensor: transposes--> PSUM (rows, features) -> vector: bn_stats, bn_aggr; rates
    scalar: times rate + offset -> SBUF (rows, features) --tensor: transposes--> PSUM (P, rows) -> vector: scale, bias

Scale and bias are numbers of a partition then, so that they cost nothing on the way out of PSUM. Groups of up to 512
rows share these instructions.

Wide rows of bfloat16 in SBUF stay as they are: that leaves PSUM to others, and the next product can start with the
first block of features. On the way to HBM they are transposed at the end.

    features --tensor: times 1--> PSUM: mean --vector: differences--> SBUF --scalar: squares--> SBUF
    tensor: squares times 1 -> PSUM: rate -> vector: differences times rate -> SBUF -> scalar: scale, bias
"""

from typing import Any

from trnrt.kernels.common import block_rows, ceil_div, is_hbm_tensor, item_bytes, load, transpose_is_exact
from trnrt.kernels.operands import BANK_BYTES
from trnrt.nki import nisa, nl

# The most features: rows of float32 and their differences take 48 KiB of a partition for a group.
MAX_WIDTH = 1536
# The fewest features of bfloat16 that stay on the partitions. With fewer there is little time to gain.
LEAST_WIDTH = 512
# Tiles of rows that share instructions, by their results: a bank of 512 float32.
_TILES = 4


def normalize_features_bytes(columns: int, item: int) -> int:
    """The most bytes per partition that the tiles take, with two groups under way."""
    constants = nl.tile_size.pmax * 2 + 4 * nl.tile_size.psum_bank_fmax * 2 if item == 2 else 0
    return 2 * _TILES * columns * (item + 4 + item) + constants + 1024


def normalize_features(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    scale: nl.NkiTensor,
    bias: nl.NkiTensor,
    columns: int,
    eps: float,
    together: int = 0,
) -> None:
    """dst = (src - its mean) / sqrt(its variance + eps) * scale + bias of each row.

    dst: HBM (R, C), or SBUF ``features`` (P, B, R)
    src: HBM (R, C), or SBUF ``features`` (P, B, R), the dtype of dst
    scale, bias: HBM (1, C) float32 if dst is in HBM, else HBM or SBUF (P, B) float32, prepared
    columns: C
    together: rows of an item of the batch. On trn1, where a transpose spreads NaN over a tile, no tile has rows of two
        items. 0: each row is an item
    limits: C <= MAX_WIDTH; one of dst and src is in SBUF

    The arithmetic is float32. In 32 bits the variance is that of differences from a number near the mean, so that rows
    far from 0 keep their precision; a row of 16 bits has lost that already. From LEAST_WIDTH columns of bfloat16 in
    SBUF on, the squares of the differences are rounded to bfloat16 before they are added; and no NaN spreads.

    numpy: m, v = src.mean(axis=1, keepdims=True), src.var(axis=1, keepdims=True);
           (src - m) / sqrt(v + eps) * scale + bias
    """
    rows = src.shape[0] if is_hbm_tensor(src) else src.shape[2]
    assert columns <= MAX_WIDTH, f"normalize_features: rows of {columns} features; the limit is {MAX_WIDTH}"
    if not is_hbm_tensor(src) and src.dtype == nl.bfloat16 and columns >= LEAST_WIDTH:
        _normalize_by_sums(dst, src, scale, bias, columns, eps, together)
        return
    by_column = is_hbm_tensor(dst)
    if by_column:
        scale_sb = load(scale.broadcast(0, min(rows, nl.tile_size.pmax)))
        bias_sb = load(bias.broadcast(0, min(rows, nl.tile_size.pmax)))
    else:
        scale_sb = load(scale) if is_hbm_tensor(scale) else scale
        bias_sb = load(bias) if is_hbm_tensor(bias) else bias
    groups = _divide_rows(rows, together)
    for i in range(len(groups)):
        r0, size, count = groups[i]
        unit_sb = nl.ndarray((size, count, columns), dtype=nl.float32 if by_column else dst.dtype, buffer=nl.sbuf)
        _standardize(unit_sb, src, r0, eps)
        if by_column:
            _store_scaled(dst, unit_sb, scale_sb, bias_sb, r0)
        else:
            _turn_scaled(dst, unit_sb, scale_sb, bias_sb, r0)


def _normalize_by_sums(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    scale: nl.NkiTensor,
    bias: nl.NkiTensor,
    columns: int,
    eps: float,
    together: int,
) -> None:
    """normalize_features of bfloat16 in SBUF, whose features stay on the partitions: a product with ones gives their
    sum on each partition. The sums of squares aren't divided by ``columns``; the scale makes up for it."""
    scale_sb, bias_sb = _load_by_feature(scale, columns), _load_by_feature(bias, columns)
    factor_sb = nl.ndarray(scale_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=factor_sb, data=scale_sb, op0=nl.multiply, operand0=columns**0.5)
    ones_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    rows = src.shape[2]
    if is_hbm_tensor(dst):
        groups = _divide_rows(rows, together)
        for i in range(len(groups)):
            r0, size, count = groups[i]
            r1 = r0 + size * count
            y_sb = nl.ndarray((nl.tile_size.pmax, src.shape[1], r1 - r0), dtype=dst.dtype, buffer=nl.sbuf)
            _normalize_group(y_sb, src[:, :, r0:r1], ones_sb, factor_sb, bias_sb, columns, eps)
            for t in range(count):
                _store_by_row(dst[r0 + t * size : r0 + (t + 1) * size], y_sb[:, :, t * size : (t + 1) * size])
        return
    for r0 in range(0, rows, nl.tile_size.psum_bank_fmax):
        r1 = min(rows, r0 + nl.tile_size.psum_bank_fmax)
        _normalize_group(dst[:, :, r0:r1], src[:, :, r0:r1], ones_sb, factor_sb, bias_sb, columns, eps)


def _normalize_group(
    y_sb: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    ones_sb: nl.NkiTensor,
    factor_sb: nl.NkiTensor,
    bias_sb: nl.NkiTensor,
    columns: int,
    eps: float,
) -> None:
    """y_sb (P, B, rows) = x_sb (P, B, rows), normalised, of up to 512 rows."""
    d_sb = _subtract_mean(x_sb, ones_sb, columns)
    rate_psum = _add_squares(d_sb, ones_sb, columns)
    nisa.tensor_scalar(dst=rate_psum, data=rate_psum, op0=nl.add, operand0=columns * eps, op1=nl.power, operand1=-0.5)
    for b in range(d_sb.shape[1]):
        parts = block_rows(columns, b)
        unit_sb = nl.ndarray((parts, d_sb.shape[2]), dtype=y_sb.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=unit_sb, data1=d_sb[0:parts, b, :], data2=rate_psum[0:parts, :], op=nl.multiply)
        scale, bias = factor_sb[0:parts, b : b + 1], bias_sb[0:parts, b : b + 1]
        nisa.activation(dst=y_sb[0:parts, b, :], op=nl.copy, data=unit_sb, scale=scale, bias=bias)


def _load_by_feature(numbers: nl.NkiTensor, columns: int) -> nl.NkiTensor:
    """A number of each feature in SBUF (P, B), from there or HBM, or from HBM (1, C)."""
    blocks = ceil_div(columns, nl.tile_size.pmax)
    if not is_hbm_tensor(numbers):
        return numbers
    if numbers.shape[0] != 1:
        return load(numbers)
    numbers_sb = nl.ndarray((nl.tile_size.pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    for b in range(blocks):
        parts, first = block_rows(columns, b), b * nl.tile_size.pmax
        column = numbers[:, first : first + parts].permute((1, 0))
        nisa.dma_copy(dst=numbers_sb[0:parts, b : b + 1], src=column)
    return numbers_sb


def _store_by_row(dst: nl.NkiTensor, y_sb: nl.NkiTensor) -> None:
    """dst, HBM (R, C) = y_sb (P, B, R)."""
    size, columns = dst.shape
    parts = _row_parts(y_sb, 0, size, columns)
    rows_sb = nl.ndarray((size, columns), dtype=dst.dtype, buffer=nl.sbuf)
    c0 = 0
    for part in parts:
        c1 = c0 + part.shape[1]
        nisa.activation(dst=rows_sb[:, c0:c1], op=nl.copy, data=part)
        c0 = c1
    nisa.dma_copy(dst=dst, src=rows_sb)


def _subtract_mean(x_sb: nl.NkiTensor, ones_sb: nl.NkiTensor, columns: int) -> nl.NkiTensor:
    """x_sb (P, B, rows) less the mean of each row, float32."""
    rows, blocks = x_sb.shape[2], ceil_div(columns, nl.tile_size.pmax)
    mean_psum = nl.ndarray((nl.tile_size.pmax, rows), dtype=nl.float32, buffer=nl.psum)
    for b in range(blocks):
        parts = block_rows(columns, b)
        nisa.nc_matmul(dst=mean_psum, stationary=ones_sb[0:parts], moving=x_sb[0:parts, b, :], accumulate=b > 0)
    nisa.activation(dst=mean_psum, op=nl.copy, data=mean_psum, scale=1.0 / columns)
    d_sb = nl.ndarray((nl.tile_size.pmax, blocks, rows), dtype=nl.float32, buffer=nl.sbuf)
    for b in range(blocks):
        parts = block_rows(columns, b)
        part_sb = x_sb[0:parts, b, :]
        nisa.tensor_tensor(dst=d_sb[0:parts, b, :], data1=part_sb, data2=mean_psum[0:parts, :], op=nl.subtract)
    return d_sb


def _add_squares(d_sb: nl.NkiTensor, ones_sb: nl.NkiTensor, columns: int) -> nl.NkiTensor:
    """The sum of the squares of each row of d_sb (P, B, rows), on each partition of a PSUM tile (P, rows)."""
    rows = d_sb.shape[2]
    sum_psum = nl.ndarray((nl.tile_size.pmax, rows), dtype=nl.float32, buffer=nl.psum)
    for b in range(d_sb.shape[1]):
        parts = block_rows(columns, b)
        square_sb = nl.ndarray((parts, rows), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.activation(dst=square_sb, op=nl.square, data=d_sb[0:parts, b, :])
        nisa.nc_matmul(dst=sum_psum, stationary=ones_sb[0:parts], moving=square_sb, accumulate=b > 0)
    return sum_psum


def _divide_rows(rows: int, together: int) -> list[tuple[int, int, int]]:
    """(first row, rows of a tile, tiles) of each group of equal tiles; where transposes spread NaN, no tile has rows of
    two items of ``together`` rows."""
    apart = rows if transpose_is_exact() else max(1, together)
    if apart % nl.tile_size.pmax == 0:
        apart = rows
    found = []
    for first in range(0, rows, apart):
        end = min(rows, first + apart)
        r0 = first
        while r0 < end:
            size = min(nl.tile_size.pmax, end - r0)
            count = min(_TILES, (end - r0) // size)
            found.append((r0, size, count))
            r0 += size * count
    return found


def _standardize(unit_sb: nl.NkiTensor, src: nl.NkiTensor, r0: int, eps: float) -> None:
    """unit_sb (rows, tiles, columns) = the rows from ``r0`` on with mean 0 and variance 1."""
    size, count, columns = unit_sb.shape
    moments_sb = nl.ndarray((size, count, 2), dtype=nl.float32, buffer=nl.sbuf)
    tiles = []
    for t in range(count):
        parts = _row_parts(src, r0 + t * size, size, columns)
        if item_bytes(src.dtype) == 4:
            parts = [_differences_of(parts, size, columns)]
        _measure(moments_sb[:, t, :], parts)
        tiles.append(parts)
    rate_sb = nl.ndarray((size, count), dtype=nl.float32, buffer=nl.sbuf)
    offset_sb = nl.ndarray((size, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rate_sb, data=moments_sb[:, :, 1], op0=nl.add, operand0=eps, op1=nl.power, operand1=-0.5)
    nisa.scalar_tensor_tensor(
        dst=offset_sb, data=moments_sb[:, :, 0], op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=rate_sb
    )
    for t in range(count):
        c0 = 0
        for part in tiles[t]:
            c1 = c0 + part.shape[1]
            nisa.activation(
                dst=unit_sb[:, t, c0:c1],
                op=nl.copy,
                data=part,
                scale=rate_sb[:, t : t + 1],
                bias=offset_sb[:, t : t + 1],
            )
            c0 = c1


def _row_parts(src: nl.NkiTensor, r0: int, size: int, columns: int) -> list[nl.NkiTensor]:
    """Rows ``r0``... (size, columns), in parts of columns that a PSUM bank holds if they were on the partitions."""
    if is_hbm_tensor(src):
        return [load(src[r0 : r0 + size])]
    width = BANK_BYTES // item_bytes(src.dtype)
    parts = []
    for c0 in range(0, columns, width):
        c1 = min(columns, c0 + width)
        rows_psum = nl.ndarray((size, c1 - c0), dtype=src.dtype, buffer=nl.psum)
        for b0 in range(c0, c1, nl.tile_size.pmax):
            b1 = min(c1, b0 + nl.tile_size.pmax)
            part_sb = src[0 : b1 - b0, b0 // nl.tile_size.pmax, r0 : r0 + size]
            nisa.nc_transpose(dst=rows_psum[:, b0 - c0 : b1 - c0], data=part_sb, engine=nisa.engine.tensor)
        parts.append(rows_psum)
    return parts


def _differences_of(parts: list[nl.NkiTensor], size: int, columns: int) -> nl.NkiTensor:
    """The rows less a number near their mean, in SBUF."""
    d_sb = nl.ndarray((size, columns), dtype=nl.float32, buffer=nl.sbuf)
    sums_sb = nl.ndarray((size, len(parts)), dtype=nl.float32, buffer=nl.sbuf)
    c0 = 0
    for i in range(len(parts)):
        c1 = c0 + parts[i].shape[1]
        nisa.activation_reduce(
            dst=d_sb[:, c0:c1], op=nl.copy, data=parts[i], reduce_op=nl.add, reduce_res=sums_sb[:, i : i + 1]
        )
        c0 = c1
    mean_sb = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=mean_sb, op=nl.add, data=sums_sb, axis=(1,))
    nisa.tensor_scalar(dst=mean_sb, data=mean_sb, op0=nl.multiply, operand0=1.0 / columns)
    nisa.tensor_scalar(dst=d_sb, data=d_sb, op0=nl.subtract, operand0=mean_sb)
    return d_sb


def _measure(moments_sb: nl.NkiTensor, parts: list[nl.NkiTensor]) -> None:
    """moments_sb (rows, 2) = the mean and the variance of each row."""
    pieces = []
    for part in parts:
        count = ceil_div(part.shape[1], nl.tile_size.bn_stats_fmax)
        width = ceil_div(part.shape[1], count)
        for c0 in range(0, part.shape[1], width):
            pieces.append(part[:, c0 : min(part.shape[1], c0 + width)])
    statistics_sb = nl.ndarray((moments_sb.shape[0], len(pieces), 6), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(len(pieces)):
        nisa.bn_stats(dst=statistics_sb[:, i, :], data=pieces[i])
    nisa.bn_aggr(dst=moments_sb, data=statistics_sb)


def _turn_scaled(dst: nl.NkiTensor, unit_sb: nl.NkiTensor, scale_sb: Any, bias_sb: Any, r0: int) -> None:
    """dst (P, B, R) = unit_sb (rows, tiles, columns) times scale plus bias, from row ``r0`` on."""
    size, count, columns = unit_sb.shape
    for b in range(ceil_div(columns, nl.tile_size.pmax)):
        parts = block_rows(columns, b)
        turned_psum = nl.ndarray((parts, count, size), dtype=unit_sb.dtype, buffer=nl.psum)
        c0 = b * nl.tile_size.pmax
        for t in range(count):
            part_sb = unit_sb[:, t, c0 : c0 + parts]
            nisa.nc_transpose(dst=turned_psum[:, t, :], data=part_sb, engine=nisa.engine.tensor)
        nisa.tensor_scalar(
            dst=dst[0:parts, b, r0 : r0 + count * size],
            data=turned_psum.flatten_dims(1, 2),
            op0=nl.multiply,
            operand0=scale_sb[0:parts, b : b + 1],
            op1=nl.add,
            operand1=bias_sb[0:parts, b : b + 1],
        )


def _store_scaled(dst: nl.NkiTensor, unit_sb: nl.NkiTensor, scale_sb: Any, bias_sb: Any, r0: int) -> None:
    """dst (R, C) = unit_sb (rows, tiles, columns) times scale plus bias, from row ``r0`` on."""
    size, count = unit_sb.shape[0], unit_sb.shape[1]
    scale_part = scale_sb[0:size].expand_dim(1).broadcast(1, count)
    bias_part = bias_sb[0:size].expand_dim(1).broadcast(1, count)
    nisa.tensor_tensor(dst=unit_sb, data1=unit_sb, data2=scale_part, op=nl.multiply)
    y_sb = nl.ndarray(unit_sb.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=y_sb, data1=unit_sb, data2=bias_part, op=nl.add)
    for t in range(count):
        nisa.dma_copy(dst=dst[r0 + t * size : r0 + (t + 1) * size], src=y_sb[:, t, :])
