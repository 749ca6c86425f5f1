"""Convolutions of whole numbers: sums leave PSUM times a factor, rounded and limited, as quantised models have it.

Prepared biases then have WHOLE columns for each block of outputs, one block after the other: the biases, the factors,
the lower and upper limits, and -ROUNDER. All are numbers of an output; the activation is called "whole".
"""

from typing import Any

from trnrt.kernels.compute_math import ROUNDER
from trnrt.kernels.conv.double_rows import SCALED
from trnrt.kernels.double_row import is_scaled
from trnrt.nki import nisa, nl

RESCALED = 5


def columns_each(dtype: Any, act: str) -> int:
    """Columns of prepared biases for each block of outputs; ``dtype``: that of the weights."""
    if act == "whole":
        return RESCALED
    return SCALED if is_scaled(dtype) else 1


def bias_columns(bias_sb: nl.NkiTensor, block: int, outputs: int, dtype: Any, act: str) -> nl.NkiTensor:
    """The columns (outputs, columns_each) of a block of outputs in prepared biases."""
    blocks = bias_sb.shape[1] // columns_each(dtype, act)
    return bias_sb[0:outputs, block : bias_sb.shape[1] : blocks]


def evacuate_whole(y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, columns: nl.NkiTensor) -> None:
    """y_sb = clip(rint((sum_psum + bias) * factor), low, high), each operator rounded to float32, with ``columns`` of
    ``bias_columns``: two passes of the scalar engine, which add alone, and two of the vector engine.

    limits: low and high are whole numbers, at most 2**21 in size: then they may come before the rounding, and adding
    and subtracting ROUNDER rounds half to even. Zeros are positive.
    """
    line_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    near_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=line_sb, op=nl.copy, data=sum_psum, bias=columns[:, 0:1])
    nisa.tensor_scalar(
        dst=near_sb,
        data=line_sb,
        op0=nl.multiply,
        operand0=columns[:, 1:2],
        op1=nl.maximum,
        operand1=columns[:, 2:3],
        engine=nisa.engine.vector,
    )
    nisa.tensor_scalar(
        dst=line_sb,
        data=near_sb,
        op0=nl.minimum,
        operand0=columns[:, 3:4],
        op1=nl.add,
        operand1=ROUNDER,
        engine=nisa.engine.vector,
    )
    nisa.activation(dst=y_sb, op=nl.copy, data=line_sb, bias=columns[:, 4:5])
