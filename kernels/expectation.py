"""Sums weighted by a softmax: the mean of a distribution, as detectors decode the sides of a box from bins."""

from typing import Any

from trnrt.kernels.common import ceil_div, is_hbm_tensor, keep_where
from trnrt.nki import nisa, nl

# Bins of a distribution: a matrix of 128 x 128 is kept for each.
MAX_BINS = 32
# Elements of a partition at a time: the loads of the next ones hide behind the sums of these. YOLOv8n's boxes (16 bins,
# 4 x 8400 distributions, bfloat16) alone on trn2: 31.8 us with 2048, 32.8 with 4096, 40.5 with 4800; at batch 8 101, 87
# and 279.
TOGETHER = 4096
# Fewer rows than MANY_ROWS share the partitions: up to SHARED_BY for each. With less, each load brings too little: 32
# rows of 8400 columns take 290 us with 4 for each, and 87 with 32.
MANY_ROWS = 96
SHARED_BY = 32
# Partitions that may be idle where that divides the distributions evenly.
IDLE_SHARE = 4


def weighted_softmax(dst: nl.NkiTensor, src: nl.NkiTensor, factors: nl.NkiTensor) -> None:
    """dst = the sum of a softmax over src's middle dimension, weighted.

    dst: HBM (R, M)
    src: HBM (R, F, M)
    factors: (128, F + 1) float32, HBM or SBUF: every row the F weights, which are rounded to src's dtype, and a number
        that is added
    limits: F <= MAX_BINS

    Exponentials are rounded to src's dtype. NaN or infinity in one distribution may make others NaN.

    numpy: e = exp(src - src.max(axis=1, keepdims=True))
        (e * factors[0, :F, None]).sum(axis=1) / e.sum(axis=1) + factors[0, F]
    """
    rows, bins, columns = src.shape
    assert bins <= MAX_BINS, f"weighted_softmax: {bins} bins; the limit is {MAX_BINS}"
    assert factors.shape == (nl.tile_size.pmax, bins + 1), f"weighted_softmax: factors of {factors.shape}"
    factors_sb = factors
    if is_hbm_tensor(factors):
        factors_sb = nl.ndarray(factors.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=factors_sb, src=factors)
    diagonals = _make_diagonals(factors_sb, bins, src.dtype)
    together = nl.tile_size.pmax
    if rows < MANY_ROWS:
        together = nl.tile_size.pmax // min(columns, SHARED_BY)
    for r0 in range(0, rows, together):
        r1 = min(rows, r0 + together)
        each = partitions_of_row(r1 - r0, columns)
        most = min(TOGETHER // bins, nl.tile_size.psum_bank_fmax)
        most = ceil_div(columns // each, ceil_div(columns // each, most)) if columns >= each else 1
        c0 = 0
        while c0 < columns:
            left = columns - c0
            used = min(each, left)
            size = min(most, left // used)
            part = src[r0:r1, :, c0 : c0 + used * size]
            _weigh_part(dst[r0:r1, c0 : c0 + used * size], part, factors_sb[:, bins : bins + 1], diagonals, used)
            c0 = c0 + used * size


def partitions_of_row(rows: int, columns: int) -> int:
    """The partitions that share a row: as many as there are, or a few less if they share it evenly."""
    most = nl.tile_size.pmax // rows
    for each in range(most, most - most // IDLE_SHARE - 1, -1):
        if each > 0 and columns % each == 0:
            return each
    return most


def _make_diagonals(factors_sb: nl.NkiTensor, bins: int, dtype: Any) -> list[nl.NkiTensor]:
    """The identity, and for each bin the diagonal matrix of its weight: stationary operands of products."""
    size = nl.tile_size.pmax
    ones_sb = nl.ndarray((size, size), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    made = [nl.ndarray((size, size), dtype=dtype, buffer=nl.sbuf)]
    keep_where(made[0], ones_sb, 1, -1, 0, nl.equal)
    for k in range(bins):
        made.append(nl.ndarray((size, size), dtype=dtype, buffer=nl.sbuf))
        nisa.tensor_scalar(dst=made[k + 1], data=made[0], op0=nl.multiply, operand0=factors_sb[:, k : k + 1])
    return made


def _weigh_part(
    dst: nl.NkiTensor, src: nl.NkiTensor, shift_sb: nl.NkiTensor, diagonals: list[nl.NkiTensor], each: int
) -> None:
    """``weighted_softmax`` of columns of at most 128 rows, each row on ``each`` partitions."""
    rows, bins, columns = src.shape
    size, n = columns // each, rows * each
    x_sb = nl.ndarray((n, bins, size), dtype=src.dtype, buffer=nl.sbuf)
    if each == 1:
        nisa.dma_copy(dst=x_sb, src=src)
    for r in range(rows if each > 1 else 0):
        part = src[r].reshape_dim(1, (each, size)).permute((1, 0, 2))
        nisa.dma_copy(dst=x_sb[r * each : (r + 1) * each], src=part)
    most_sb = _find_largest(x_sb)
    difference_sb = nl.ndarray((n, bins, size), dtype=nl.float32, buffer=nl.sbuf)
    most = most_sb.expand_dim(1).broadcast(1, bins)
    nisa.tensor_tensor(dst=difference_sb, data1=x_sb, data2=most, op=nl.subtract)
    exp_sb = nl.ndarray((n, bins, size), dtype=src.dtype, buffer=nl.sbuf)
    nisa.activation(dst=exp_sb, op=nl.exp, data=difference_sb)
    total_psum = nl.ndarray((n, size), dtype=nl.float32, buffer=nl.psum)
    sum_psum = nl.ndarray((n, size), dtype=nl.float32, buffer=nl.psum)
    for k in range(bins):
        nisa.nc_matmul(dst=total_psum, stationary=diagonals[0][0:n, 0:n], moving=exp_sb[:, k])
    for k in range(bins):
        nisa.nc_matmul(dst=sum_psum, stationary=diagonals[k + 1][0:n, 0:n], moving=exp_sb[:, k])
    share_sb = nl.ndarray((n, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=share_sb, data=total_psum)
    mean_sb = nl.ndarray((n, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=mean_sb, data1=sum_psum, data2=share_sb, op=nl.multiply)
    y_sb = nl.ndarray((n, size), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=y_sb, data=mean_sb, op0=nl.add, operand0=shift_sb[0:n])
    if each == 1:
        nisa.dma_copy(dst=dst, src=y_sb)
    for r in range(rows if each > 1 else 0):
        nisa.dma_copy(dst=dst[r].reshape_dim(0, (each, size)), src=y_sb[r * each : (r + 1) * each])


def _find_largest(x_sb: nl.NkiTensor) -> nl.NkiTensor:
    """The largest (P, size) over the middle dimension, by halves: each step reads contiguous elements."""
    n, bins, size = x_sb.shape
    left = x_sb
    while bins > 1:
        half = ceil_div(bins, 2)
        half_sb = nl.ndarray((n, half, size), dtype=x_sb.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=half_sb, data1=left[:, 0:half], data2=left[:, bins - half : bins], op=nl.maximum)
        left, bins = half_sb, half
    return left[:, 0]
