"""Sums, products, maxima and minima over one dimension of any length and position."""

from trnrt.kernels.compute_math import mend_logarithm
from trnrt.nki import nisa, nl

# Elements per partition and load: whole groups if they are that small, else a part of one.
CHUNK = 8192
# Columns (B) of a group per step.
COLUMNS = 2048
# A few groups are spread over more partitions: by their columns if runs keep LEAST_RUN elements, or by the reduced
# dimension if each partition keeps LEAST_PART.
LEAST_RUN = 16
LEAST_PART = 4
# The scalar engine's logarithm works from 2**-64 to 2**64: numbers near these ends or beyond are scaled by powers of 2.
LARGE, LARGE_SCALE, LARGE_LOG = 2.0**60, 2.0**-64, 44.361419555836498
LEAST, MOST = 2.0**-64, 2.0**64
SMALL, SMALL_SCALE, SMALL_LOG = 2.0**-60, 2.0**100, 69.314718055994533
# The scalar engine's functions of each element, and the vector engine's operators of reductions.
FUNCTIONS = {"square": nl.square, "abs": nl.abs, "exp": nl.exp}
OPERATORS = {"add": nl.add, "multiply": nl.multiply, "maximum": nl.maximum, "minimum": nl.minimum}
# (groups on the partitions, more groups, the reduced dimension, columns); a result has no third dimension.
Views = list[nl.NkiTensor]


def reduce(
    dst: nl.NkiTensor, src: nl.NkiTensor, op: str, before: str = "none", factor: float = 1.0, after: str = "none"
) -> None:
    """dst = after(factor * op-reduction over the middle dimension of before(src)).

    dst: HBM (A, B)
    src: HBM (A, R, B)
    op: "add", "multiply", "maximum", "minimum"; each propagates NaN
    before: "none", "square", "abs", "exp"
    after: "none", "sqrt", "log"
    limits: no dimension is 0

    The arithmetic is float32.

    numpy: after(factor * {op}.reduce(before(src), axis=1))
    """
    groups, length, width = src.shape
    assert groups > 0 and length > 0 and width > 0, (
        f"reduce: src is {src.shape}; it takes at least one element a dimension"
    )
    assert op in OPERATORS, f"reduce: op={op}; it must be add, multiply, maximum or minimum"
    assert before == "none" or before in FUNCTIONS, f"reduce: before={before}; it must be none, square, abs or exp"
    assert dst.shape == (groups, width), f"reduce: dst is {dst.shape}; of {src.shape} it must be {(groups, width)}"
    spare = nl.tile_size.pmax // groups
    strips = max(1, min(spare, width // LEAST_RUN))
    parts = max(1, min(spare, length // LEAST_PART))
    if strips > 1 and 2 * strips >= parts:
        _reduce_strips(dst, src, strips, op, before, factor, after)
    elif parts > 1:
        _reduce_parts(dst, src, parts, op, before, factor, after)
    else:
        _reduce_groups(dst, src, op, before, factor, after)


def _reduce_strips(
    dst: nl.NkiTensor, src: nl.NkiTensor, strips: int, op: str, before: str, factor: float, after: str
) -> None:
    """reduce with the columns of each group on ``strips`` partitions."""
    groups, _, width = src.shape
    each = width // strips
    dsts, srcs = [], []
    for a in range(groups):
        strip = src[a, :, 0 : strips * each].reshape_dim(1, (strips, each)).permute((1, 0, 2))
        srcs.append(strip.expand_dim(1))
        dsts.append(dst[a, 0 : strips * each].reshape_dim(0, (strips, each)).expand_dim(1))
    _reduce_views(dsts, srcs, op, before, factor, after)
    if strips * each < width:
        _reduce_groups(dst[:, strips * each : width], src[:, :, strips * each : width], op, before, factor, after)


def _reduce_parts(
    dst: nl.NkiTensor, src: nl.NkiTensor, parts: int, op: str, before: str, factor: float, after: str
) -> None:
    """reduce with the reduced dimension of each group on ``parts`` partitions; the parts' results meet in HBM."""
    groups, length, width = src.shape
    each = length // parts
    rest = length - parts * each
    partial = nl.ndarray((groups, parts + min(1, rest), width), dtype=nl.float32, buffer=nl.private_hbm)
    dsts, srcs = [], []
    for a in range(groups):
        srcs.append(src[a, 0 : parts * each, :].reshape_dim(0, (parts, each)).expand_dim(1))
        dsts.append(partial[a, 0:parts, :].expand_dim(1))
    _reduce_views(dsts, srcs, op, before, 1.0, "none")
    if rest > 0:
        _reduce_groups(partial[:, parts, :], src[:, parts * each : length, :], op, before, 1.0, "none")
    _reduce_groups(dst, partial, op, "none", factor, after)


def _reduce_groups(dst: nl.NkiTensor, src: nl.NkiTensor, op: str, before: str, factor: float, after: str) -> None:
    """reduce with whole groups on the partitions, several of them on each if they are small."""
    groups, length, width = src.shape
    room = CHUNK // (length * width)
    a0 = 0
    while a0 < groups:
        n = min(nl.tile_size.pmax, groups - a0)
        more = max(1, min(room, (groups - a0) // n))
        a1 = a0 + n * more
        part = src[a0:a1].reshape_dim(0, (n, more))
        _reduce_views([dst[a0:a1].reshape_dim(0, (n, more))], [part], op, before, factor, after)
        a0 = a1


def _reduce_views(dsts: Views, srcs: Views, op: str, before: str, factor: float, after: str) -> None:
    """Reduce views in HBM whose first dimensions together, at most 128, become the partitions."""
    _, more, length, width = srcs[0].shape
    n = 0
    for part in srcs:
        n = n + part.shape[0]
    for b0 in range(0, width, COLUMNS):
        b1 = min(width, b0 + COLUMNS)
        total_sb = nl.ndarray((n, more, b1 - b0), dtype=nl.float32, buffer=nl.sbuf)
        step = max(1, CHUNK // (more * (b1 - b0)))
        for r0 in range(0, length, step):
            r1 = min(length, r0 + step)
            x_sb = nl.ndarray((n, more, r1 - r0, b1 - b0), dtype=srcs[0].dtype, buffer=nl.sbuf)
            p0 = 0
            for part in srcs:
                p1 = p0 + part.shape[0]
                nisa.dma_copy(dst=x_sb[p0:p1], src=part[:, :, r0:r1, b0:b1])
                p0 = p1
            _accumulate(total_sb, x_sb, op, before, r0 == 0)
        y_sb = nl.ndarray((n, more, b1 - b0), dtype=dsts[0].dtype, buffer=nl.sbuf)
        _finish_total(y_sb, total_sb, factor, after)
        p0 = 0
        for part in dsts:
            p1 = p0 + part.shape[0]
            nisa.dma_copy(dst=part[:, :, b0:b1], src=y_sb[p0:p1])
            p0 = p1


def _accumulate(total_sb: nl.NkiTensor, x_sb: nl.NkiTensor, op: str, before: str, first: bool) -> None:
    """total_sb (P, K, B) = the reduction of before(x_sb) (P, K, R, B), combined with total_sb unless it is the
    ``first``."""
    if before != "none":
        given_sb = x_sb
        x_sb = nl.ndarray(given_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=x_sb, op=FUNCTIONS[before], data=given_sb)
    operator = OPERATORS[op]
    rows = x_sb.permute((0, 1, 3, 2))
    if first:
        nisa.tensor_reduce(dst=total_sb, op=operator, data=rows, axis=(3,))
    else:
        part_sb = nl.ndarray(total_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=part_sb, op=operator, data=rows, axis=(3,))
        nisa.tensor_tensor(dst=total_sb, data1=total_sb, data2=part_sb, op=operator)


def _finish_total(y_sb: nl.NkiTensor, total_sb: nl.NkiTensor, factor: float, after: str) -> None:
    """y_sb = after(factor * total_sb). The scalar engine's square root is wrong at 0; the power is right."""
    if after == "sqrt":
        nisa.tensor_scalar(dst=y_sb, data=total_sb, op0=nl.multiply, operand0=factor, op1=nl.power, operand1=0.5)
    elif after == "log":
        nisa.tensor_scalar(dst=total_sb, data=total_sb, op0=nl.multiply, operand0=factor)
        take_logarithm(y_sb, total_sb)
    else:
        assert after == "none", f"reduce: after={after}; it must be none, sqrt or log"
        nisa.tensor_scalar(dst=y_sb, data=total_sb, op0=nl.multiply, operand0=factor)


def take_logarithm(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst = log(src) of any float32: -inf of 0, NaN of negative numbers.

    dst: SBUF tile of at most 5 dimensions
    src: SBUF tile of the same shape, float32

    numpy: log(src)
    """
    scaled_sb = nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
    offset_sb = nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
    other_sb = nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
    where_sb = nl.ndarray(src.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_copy(dst=scaled_sb, src=src)
    nisa.tensor_scalar(dst=where_sb, data=src, op0=nl.greater, operand0=LARGE)
    nisa.tensor_scalar(dst=other_sb, data=src, op0=nl.multiply, operand0=LARGE_SCALE)
    nisa.tensor_copy_predicated(dst=scaled_sb, src=other_sb, predicate=where_sb)
    nisa.tensor_scalar(dst=offset_sb, data=where_sb, op0=nl.multiply, operand0=LARGE_LOG)
    nisa.tensor_scalar(dst=where_sb, data=src, op0=nl.less, operand0=SMALL)
    nisa.tensor_scalar(dst=other_sb, data=src, op0=nl.multiply, operand0=SMALL_SCALE)
    nisa.tensor_copy_predicated(dst=scaled_sb, src=other_sb, predicate=where_sb)
    nisa.scalar_tensor_tensor(
        dst=offset_sb, data=where_sb, op0=nl.multiply, operand0=-SMALL_LOG, op1=nl.add, operand1=offset_sb
    )
    # The engine never sees 0, infinity, negative numbers and NaN.
    nisa.tensor_scalar(dst=scaled_sb, data=scaled_sb, op0=nl.maximum, operand0=LEAST, op1=nl.minimum, operand1=MOST)
    nisa.activation(dst=scaled_sb, op=nl.log, data=scaled_sb)
    nisa.tensor_tensor(dst=scaled_sb, data1=scaled_sb, data2=offset_sb, op=nl.add)
    mend_logarithm(scaled_sb, src, where_sb)
    nisa.tensor_copy(dst=dst, src=scaled_sb)
