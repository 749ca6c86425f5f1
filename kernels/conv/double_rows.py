"""Convolutions of 8-bit floats: two terms of a sum in one product, and results that are scaled as they leave PSUM.

A term is one tap of one block of 128 channels. The tensor engine of NeuronCore-v3 and later adds up two terms in the
time of one (perf_mode double_row) if both operands are 8-bit floats, and hold the two as their first free dimension:
two blocks under one tap, or two taps of a block, which are one access pattern on the image. Terms are paired if the
same results see both; the others take a product each, at the rate of 16 bits.

8-bit floats carry scales: a number stands for scale * number. Prepared biases therefore have SCALED columns for each
block of outputs, one block after the other: the biases, the scales of the sums, and their reciprocals. The scales are
powers of two, so that products with them are exact.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import Pair, activation_function, block_rows
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.taps import list_taps, visible_range
from trnrt.kernels.double_row import as_pair, is_scaled
from trnrt.nki import nisa, nl

SCALED = 3


@dataclass
class Term(nl.NKIObject):
    """Tap number ``product`` of a block of ``height`` channels: (row, column) of the band that the first of its results
    sees, and (first, end) of the rows and columns of these."""

    block: int
    product: int
    height: int
    start: Pair
    rows: Pair
    columns: Pair


def accumulate_terms(
    sum_psum: nl.NkiTensor, x_sb: nl.NkiTensor, w: nl.NkiTensor, shape: ConvShape, lead: Pair, seen: Any, at: Pair
) -> None:
    """sum_psum (o, n, rows, columns) = the sum over all taps and channels of weights (P, B, T, o) times the band; both
    are 8-bit floats. See ``convolving.accumulate``."""
    terms = _visible_terms(sum_psum, w, shape, lead, seen, at)
    paired = []
    for _ in range(len(terms)):
        paired.append(False)
    begun = False
    for i in range(len(terms)):
        if not paired[i]:
            other = _find_partner(terms, paired, i)
            first, second = min(i, other), max(i, other)
            if other != i and _place_of(terms[second]) < _place_of(terms[first]):
                first, second = second, first
            _multiply(sum_psum, x_sb, w, shape, terms[first], terms[second], begun)
            paired[other] = True
            begun = True


def _visible_terms(
    sum_psum: nl.NkiTensor, w: nl.NkiTensor, shape: ConvShape, lead: Pair, seen: Any, at: Pair
) -> list[Term]:
    """The terms that any result sees, the one that all results see first."""
    _, _, rows, cols = sum_psum.shape
    (low, high), stride, dilation = seen, shape.stride, shape.dilation
    terms = []
    for block in range(w.shape[1]):
        for tap in list_taps(shape.kernel, (1, 1, 0), lead):
            product, u, v = tap
            y, x = at[0] * stride[0] + u * dilation[0], at[1] * stride[1] + v * dilation[1]
            r0, r1 = visible_range(y, rows, stride[0], low[0], high[0])
            c0, c1 = visible_range(x, cols, stride[1], low[1], high[1])
            if r0 < r1 and c0 < c1:
                start = (y + r0 * stride[0] - low[0], x + c0 * stride[1] - low[1])
                terms.append(Term(block, product, block_rows(shape.channels, block), start, (r0, r1), (c0, c1)))
    return terms


def _find_partner(terms: list[Term], paired: list[bool], i: int) -> int:
    """The next term that is free and that the same results see as number ``i``; itself if there is none."""
    mine = terms[i]
    for j in range(i + 1, len(terms)):
        term = terms[j]
        alike = term.rows == mine.rows and term.columns == mine.columns and term.height == mine.height
        if alike and not paired[j]:
            return j
    return i


def _place_of(term: Term) -> Pair:
    """The order of a term in the weights, which is also that in the band."""
    return (term.block, term.product)


def _multiply(
    sum_psum: nl.NkiTensor,
    x_sb: nl.NkiTensor,
    w: nl.NkiTensor,
    shape: ConvShape,
    first: Term,
    second: Term,
    begun: bool,
) -> None:
    """Add the product of one term, or of two, to the results that see them; the first product overwrites."""
    (r0, r1), (c0, c1), (y, x), stride = first.rows, first.columns, first.start, shape.stride
    k = first.height
    rows_sb = x_sb[0:k, first.block, :, y : y + (r1 - r0 - 1) * stride[0] + 1 : stride[0]]
    moving = rows_sb[:, :, :, x : x + (c1 - c0 - 1) * stride[1] + 1 : stride[1]]
    stationary = w[0:k, first.block, first.product, :]
    mode = nisa.matmul_perf_mode.none
    if _place_of(first) != _place_of(second):
        blocks = second.block - first.block
        weights, band = w.get_pattern(), x_sb.get_pattern()
        apart = blocks * weights[1][0] + (second.product - first.product) * weights[2][0]
        down, right = second.start[0] - first.start[0], second.start[1] - first.start[1]
        stationary = as_pair(stationary, apart)
        moving = as_pair(moving, blocks * band[1][0] + down * band[3][0] + right * band[4][0])
        mode = nisa.matmul_perf_mode.double_row
    nisa.nc_matmul(
        dst=sum_psum[:, :, r0:r1, c0:c1], stationary=stationary, moving=moving, accumulate=begun, perf_mode=mode
    )


def evacuate_scaled(
    y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, columns: nl.NkiTensor, act: str, by_vector: bool, added: Any = None
) -> None:
    """y_sb = act(sum_psum * scale + bias + added), with ``columns`` of ``bias_columns``: one pass of the scalar engine,
    or two of the vector engine ("none": one), of which the second is fast where y_sb has 16 bits.

    An 8-bit y_sb has scales of its own, which bias and scale of the columns contain; that no result is too large for
    it, the caller knows from the weights.
    """
    bias, scale = columns[:, 0:1], columns[:, 1:2]
    function = activation_function("relu" if act == "relu6" else act)
    if added is not None:
        total_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=total_sb, data=sum_psum, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=added
        )
        nisa.activation(dst=y_sb, op=function, data=total_sb, bias=bias)
    elif by_vector and (act == "none" or act == "relu"):
        narrow = act == "relu" and is_scaled(y_sb.dtype)
        line_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf) if narrow else y_sb
        nisa.tensor_scalar(
            dst=line_sb,
            data=sum_psum,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.add,
            operand1=bias,
            engine=nisa.engine.vector,
        )
        if act == "relu":
            nisa.tensor_scalar(dst=y_sb, data=line_sb, op0=nl.maximum, operand0=0.0, engine=nisa.engine.vector)
    else:
        nisa.activation(dst=y_sb, op=function, data=sum_psum, scale=scale, bias=bias)
    if act == "relu6":
        nisa.tensor_scalar(dst=y_sb, data=y_sb, op0=nl.minimum, operand0=6.0, engine=nisa.engine.vector)


def scale_identity(identity_sb: nl.NkiTensor, columns: nl.NkiTensor) -> nl.NkiTensor:
    """An identity matrix (o, o) times the reciprocal of each output's scale: by it, the tensor engine adds another
    tensor to sums that still have to be scaled. Powers of two are exact in any dtype."""
    outputs = columns.shape[0]
    scaled_sb = nl.ndarray((outputs, outputs), dtype=identity_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=scaled_sb,
        data=identity_sb[0:outputs, 0:outputs],
        op0=nl.multiply,
        operand0=columns[:, 2:3],
        engine=nisa.engine.vector,
    )
    return scaled_sb
