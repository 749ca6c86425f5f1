"""Element-wise functions between angles and their tangents, and the logarithm of numbers near 1.

Values are those of ``values.py``. A destination has the shape of the result and is never one of the arguments.
"""

from trnrt.kernels.compute_math import ROUNDER, logarithm
from trnrt.kernels.values import as_float32, fresh, settle
from trnrt.nki import nisa, nl

# pi / 2 in three parts; products of the first two with whole numbers up to 2**15 are exact.
QUARTER = (1.5703125, 0.0004835128784179688, 3.1391647326017846e-07)
INVERSE_QUARTER = 0.6366197723675814
# pi / 2 in float32, and what that leaves out.
HALF_PI, HALF_PI_REST = 1.5707963705062866, -4.371139000186241e-08


def tangent(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = tan(x), right to 8e-7 of its size up to 2**15 quarter turns.

    With the nearest quarter turns taken away the angle is within pi / 4, where neither sine nor cosine loses digits. An
    odd number of quarter turns exchanges the two, and the sign.
    """
    turns_sb, angle_sb, half_sb = fresh(dst.shape), fresh(dst.shape), fresh(dst.shape)
    nisa.tensor_scalar(dst=turns_sb, data=x, op0=nl.multiply, operand0=INVERSE_QUARTER)
    nisa.tensor_scalar(dst=turns_sb, data=turns_sb, op0=nl.add, operand0=ROUNDER, op1=nl.subtract, operand1=ROUNDER)
    rest = x
    for part in QUARTER:
        nisa.scalar_tensor_tensor(
            dst=angle_sb, data=turns_sb, op0=nl.multiply, operand0=-part, op1=nl.add, operand1=rest
        )
        rest = angle_sb
    nisa.tensor_scalar(dst=turns_sb, data=turns_sb, op0=nl.multiply, operand0=0.5)
    nisa.tensor_scalar(dst=half_sb, data=turns_sb, op0=nl.add, operand0=ROUNDER, op1=nl.subtract, operand1=ROUNDER)
    odd_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=odd_sb, data1=turns_sb, data2=half_sb, op=nl.not_equal)
    # cos(a) = sin(pi / 2 - |a|); ``half_sb`` and ``turns_sb`` are spare from here on.
    nisa.tensor_scalar(dst=half_sb, data=angle_sb, op0=nl.abs, operand0=0.0, op1=nl.multiply, operand1=-1.0)
    nisa.tensor_scalar(dst=half_sb, data=half_sb, op0=nl.add, operand0=HALF_PI, op1=nl.add, operand1=HALF_PI_REST)
    cosine_sb, sine_sb = fresh(dst.shape), fresh(dst.shape)
    nisa.activation(dst=cosine_sb, op=nl.sin, data=half_sb)
    nisa.activation(dst=sine_sb, op=nl.sin, data=angle_sb)
    nisa.tensor_scalar(dst=turns_sb, data=cosine_sb, op0=nl.multiply, operand0=-1.0)
    nisa.tensor_copy(dst=half_sb, src=sine_sb)
    nisa.tensor_copy_predicated(dst=sine_sb, src=turns_sb, predicate=odd_sb)
    nisa.tensor_copy_predicated(dst=cosine_sb, src=half_sb, predicate=odd_sb)
    nisa.reciprocal(dst=cosine_sb, data=cosine_sb)
    nisa.tensor_tensor(dst=dst, data1=sine_sb, data2=cosine_sb, op=nl.multiply)


def arctangent(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = atan(x), right to 4e-7 of its size.

    The scalar engine takes numbers up to pi / 2: beyond 1, atan(x) is pi / 2 less atan(1 / x).
    """
    size_sb, inverse_sb = fresh(dst.shape), fresh(dst.shape)
    large_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.activation(dst=size_sb, op=nl.abs, data=x)
    nisa.tensor_scalar(dst=large_sb, data=size_sb, op0=nl.greater, operand0=1.0)
    nisa.reciprocal(dst=inverse_sb, data=size_sb)
    nisa.tensor_copy_predicated(dst=size_sb, src=inverse_sb, predicate=large_sb)
    angle_sb = fresh(dst.shape)
    nisa.activation(dst=angle_sb, op=nl.arctan, data=size_sb)
    nisa.tensor_scalar(dst=inverse_sb, data=angle_sb, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=HALF_PI)
    nisa.tensor_copy_predicated(dst=angle_sb, src=inverse_sb, predicate=large_sb)
    nisa.activation(dst=size_sb, op=nl.sign, data=x)
    nisa.tensor_tensor(dst=dst, data1=angle_sb, data2=size_sb, op=nl.multiply)


def log_of_one_plus(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = ln(1 + x), right to 6e-7 of its size.

    Below 1, rounding 1 + x loses digits of x. What was added, w - 1, is exact, and so is ln(w) / (w - 1) nearly the
    factor of x: the error of w cancels.
    """
    more_sb, added_sb = fresh(dst.shape), fresh(dst.shape)
    made_sb = dst if dst.dtype == nl.float32 else fresh(dst.shape)
    nisa.tensor_scalar(dst=more_sb, data=x, op0=nl.add, operand0=1.0)
    logarithm(made_sb, more_sb)
    nisa.tensor_scalar(dst=added_sb, data=more_sb, op0=nl.subtract, operand0=1.0)
    nothing_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    small_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=nothing_sb, data=added_sb, op0=nl.equal, operand0=0.0)
    nisa.tensor_scalar(dst=small_sb, data=added_sb, op0=nl.less, operand0=1.0)
    nisa.reciprocal(dst=added_sb, data=added_sb)
    nisa.tensor_tensor(dst=added_sb, data1=added_sb, data2=made_sb, op=nl.multiply)
    x = as_float32(x)
    nisa.tensor_tensor(dst=more_sb, data1=added_sb, data2=x, op=nl.multiply)
    nisa.tensor_copy_predicated(dst=more_sb, src=x, predicate=nothing_sb)
    nisa.tensor_copy_predicated(dst=made_sb, src=more_sb, predicate=small_sb)
    settle(dst, made_sb)
