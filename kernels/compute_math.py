"""Element-wise functions that take several instructions: quotients, remainders, rounding, logarithms, sines.

Values are those of ``values.py``. A destination has the shape of the result and is never one of the arguments.
"""

import math
from typing import Any

from trnrt.kernels.values import apply, apply_two, as_float32, column, fresh, is_number, settle, wide
from trnrt.nki import nisa, nl

# From here on every float32 is a whole number.
WHOLE = 8388608.0
# Sign, exponent and the 11 leading bits of the fraction of a float32: products of two such numbers are exact. -4096 is
# the mask, 0xFFFFF000, as an integer.
LEADING_BITS = -4096
# The scalar engine's logarithm works from 2**-64 to 2**64; numbers beyond 2**-63 and 2**63 are scaled into this range.
LEAST_LOG, MOST_LOG = math.pow(2.0, -63.0), math.pow(2.0, 63.0)
LOG_VALID = (math.pow(2.0, -64.0), math.pow(2.0, 64.0))
UP, DOWN = math.pow(2.0, 86.0), math.pow(2.0, -64.0)
LN_2 = 0.6931471805599453
# 2 * pi in three parts; products of the first two with whole numbers up to 2**15 are exact.
TURN = (6.28125, 0.001934051513671875, 1.2556658930407139e-06)
INVERSE_TURN = 0.15915494309189535
PI = 3.1415927410125732
# Adding and subtracting it rounds numbers below 2**22 to whole ones; HALVER those below 2**21 to halves.
ROUNDER = 12582912.0
HALVER = 6291456.0


def take_leading_bits(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = x without the 12 last bits of its fraction; both float32."""
    bits, source = dst.view(nl.int32), x.view(nl.int32)
    nisa.tensor_scalar(dst=bits, data=source, op0=nl.bitwise_and, operand0=LEADING_BITS)


def halves(x: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Two tiles of 12 bits each whose sum is the float32 tile x."""
    high_sb, low_sb = fresh(x.shape), fresh(x.shape)
    take_leading_bits(high_sb, x)
    nisa.tensor_tensor(dst=low_sb, data1=x, data2=high_sb, op=nl.subtract)
    return high_sb, low_sb


def take_product(rest_sb: nl.NkiTensor, x: Any, quotient: nl.NkiTensor, y_high: Any, y_low: Any) -> None:
    """rest_sb = x - quotient * (y_high + y_low), exactly, where the quotient is nearly x / y."""
    high_sb, low_sb = halves(quotient)
    product_sb = fresh(quotient.shape)
    rest = x
    for pair in ((high_sb, y_high), (high_sb, y_low), (low_sb, y_high), (low_sb, y_low)):
        apply(product_sb, pair[0], pair[1], nl.multiply)
        apply(rest_sb, rest, product_sb, nl.subtract)
        rest = rest_sb


def is_power_of_two(number: float) -> bool:
    """True if a number's reciprocal is exact, and neither is near the ends of float32."""
    if number == 0.0 or abs(number) < 1e-30 or abs(number) > 1e30:
        return False
    return math.pow(2.0, math.floor(math.log2(abs(number)) + 0.5)) == abs(number)


def divide(dst: nl.NkiTensor, x: Any, y: Any) -> None:
    """dst = x / y, rounded as a division is if y and the quotient are normal numbers.

    x * (1 / y) is two roundings off. Its remainder, computed exactly and divided by y, is the correction. If the
    quotient or y is infinite or NaN, so is the correction; then the first product is right.
    """
    if is_number(y) and is_power_of_two(y):
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=1.0 / y)
    else:
        x = column(x, dst) if is_number(x) else x
        y = column(y, dst) if is_number(y) else as_float32(y)
        inverse_sb = fresh(y.shape)
        nisa.reciprocal(dst=inverse_sb, data=y)
        apply(dst, x, inverse_sb, nl.multiply)
        # Two roundings of float32 are far smaller than one of 16 bits.
        if dst.dtype == nl.float32:
            _mend(dst, x, y, inverse_sb)


def _mend(quotient_sb: nl.NkiTensor, x: Any, y: nl.NkiTensor, inverse_sb: nl.NkiTensor) -> None:
    """quotient_sb = x / y, refined from an approximation in it; ``inverse_sb`` is 1 / y."""
    rest_sb = fresh(quotient_sb.shape)
    y_high_sb, y_low_sb = halves(y)
    take_product(rest_sb, x, quotient_sb, y_high_sb, y_low_sb)
    finite_sb = nl.ndarray(quotient_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    infinity = float("inf")
    nisa.tensor_scalar(dst=finite_sb, data=rest_sb, op0=nl.abs, operand0=0.0, op1=nl.less, operand1=infinity)
    apply(rest_sb, rest_sb, inverse_sb, nl.multiply)
    apply(rest_sb, rest_sb, quotient_sb, nl.add)
    nisa.tensor_copy_predicated(dst=quotient_sb, src=rest_sb, predicate=finite_sb)


def remainder(dst: nl.NkiTensor, x: Any, y: Any, signed_as_y: bool) -> None:
    """dst = the remainder of x / y: with the sign of x (C's fmod), or of y (Python's %). Exact if the quotient is below
    2**24."""
    x = column(x, dst) if is_number(x) else as_float32(x)
    y = column(y, dst) if is_number(y) else as_float32(y)
    size_sb, by_sb = fresh(x.shape), fresh(y.shape)
    nisa.activation(dst=size_sb, op=nl.abs, data=x)
    nisa.activation(dst=by_sb, op=nl.abs, data=y)
    quotient_sb, whole_sb, rest_sb = fresh(dst.shape), fresh(dst.shape), fresh(dst.shape)
    divide(quotient_sb, size_sb, by_sb)
    round_whole(whole_sb, quotient_sb, "floor")
    high_sb, low_sb = halves(by_sb)
    take_product(rest_sb, size_sb, whole_sb, high_sb, low_sb)
    # A quotient that was rounded up leaves a negative remainder.
    nisa.tensor_scalar(dst=quotient_sb, data=rest_sb, op0=nl.less, operand0=0.0)
    apply(quotient_sb, quotient_sb, by_sb, nl.multiply)
    apply(rest_sb, rest_sb, quotient_sb, nl.add)
    # Where the quotient is 0 the remainder is x, also for an infinite y.
    chosen_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=chosen_sb, data=whole_sb, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=rest_sb, src=wide(size_sb, dst.shape), predicate=chosen_sb)
    sign_sb = fresh(x.shape)
    nisa.activation(dst=sign_sb, op=nl.sign, data=x)
    if not signed_as_y:
        apply(dst, rest_sb, sign_sb, nl.multiply)
    else:
        apply(quotient_sb, rest_sb, sign_sb, nl.multiply)
        _sign_as(dst, quotient_sb, y)


def _sign_as(dst: nl.NkiTensor, rest_sb: nl.NkiTensor, y: nl.NkiTensor) -> None:
    """dst = rest_sb, plus y if their signs differ."""
    sign_sb, y_sign_sb, sum_sb = fresh(rest_sb.shape), fresh(y.shape), fresh(rest_sb.shape)
    nisa.activation(dst=sign_sb, op=nl.sign, data=rest_sb)
    nisa.activation(dst=y_sign_sb, op=nl.sign, data=y)
    apply(sign_sb, sign_sb, y_sign_sb, nl.multiply)
    differ_sb = nl.ndarray(rest_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=differ_sb, data=sign_sb, op0=nl.less, operand0=0.0)
    apply(sum_sb, rest_sb, y, nl.add)
    nisa.tensor_copy_predicated(dst=rest_sb, src=sum_sb, predicate=differ_sb)
    nisa.tensor_copy(dst=dst, src=rest_sb)


def round_whole(dst: nl.NkiTensor, x: nl.NkiTensor, name: str) -> None:
    """dst = x rounded to a whole number, exactly: to the nearest ("round", ties to even), "floor" or "ceil"."""
    size_sb, magic_sb = fresh(dst.shape), fresh(dst.shape)
    nisa.activation(dst=size_sb, op=nl.abs, data=x)
    # 2**23 if there is a fraction to lose, else 0.
    nisa.tensor_scalar(dst=magic_sb, data=size_sb, op0=nl.less, operand0=WHOLE, op1=nl.multiply, operand1=WHOLE)
    nisa.tensor_tensor(dst=size_sb, data1=size_sb, data2=magic_sb, op=nl.add)
    nisa.tensor_tensor(dst=size_sb, data1=size_sb, data2=magic_sb, op=nl.subtract)
    nisa.activation(dst=magic_sb, op=nl.sign, data=x)
    if name == "round":
        nisa.tensor_tensor(dst=dst, data1=size_sb, data2=magic_sb, op=nl.multiply)
    else:
        near_sb = fresh(dst.shape)
        nisa.tensor_tensor(dst=near_sb, data1=size_sb, data2=magic_sb, op=nl.multiply)
        beyond, back = (nl.greater, nl.subtract) if name == "floor" else (nl.less, nl.add)
        nisa.tensor_tensor(dst=magic_sb, data1=near_sb, data2=x, op=beyond)
        nisa.tensor_tensor(dst=dst, data1=near_sb, data2=magic_sb, op=back)


def quantise(dst: nl.NkiTensor, x: nl.NkiTensor, numbers: list[float]) -> None:
    """dst = the whole number nearest to the float32 quotient x / s, half to even, between whole limits low and high.

    numbers: low * s and high * s; 1 / s; -a and -b, where s = a + b and a has 15 bits; 1 / s, or a float next to it
    limits: |low|, |high| <= 256; s and 1 / s are normal numbers; the last number is one that is right at all ties of s

    Only quotients next to a tie h need care: h is k / 2 of 9 bits at most. There x / s rounded to halves is h, h * a
    and h * b are exact, and so is the remainder x - h * a - h * b: x is near h * a (Sterbenz), and what is left is a
    few units of the last place. Its quotient, less than an ulp of h, is added to h in one rounding, as if x / s were
    rounded itself. Seven passes, where a general quotient and its rounding take 24. Zeros are positive.

    numpy: np.clip(np.rint(x / s), low, high) in float32
    """
    low, high, inverse, leading, rest, correction = numbers
    near_sb, left_sb, x_sb = fresh(dst.shape), fresh(dst.shape), fresh(dst.shape)
    nisa.tensor_scalar(dst=x_sb, data=x, op0=nl.maximum, operand0=low, op1=nl.minimum, operand1=high)
    nisa.tensor_scalar(dst=left_sb, data=x_sb, op0=nl.multiply, operand0=inverse, op1=nl.add, operand1=HALVER)
    nisa.tensor_scalar(dst=near_sb, data=left_sb, op0=nl.subtract, operand0=HALVER)
    apply_two(left_sb, near_sb, nl.multiply, leading, nl.add, x_sb)
    apply_two(x_sb, near_sb, nl.multiply, rest, nl.add, left_sb)
    apply_two(left_sb, x_sb, nl.multiply, correction, nl.add, near_sb)
    nisa.tensor_scalar(dst=dst, data=left_sb, op0=nl.add, operand0=ROUNDER, op1=nl.subtract, operand1=ROUNDER)


def logarithm(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = ln(x): numbers beyond the scalar engine's range are scaled into it by a power of two.

    The engine never sees numbers without a logarithm in that range (0, infinity, negative numbers, NaN).
    """
    up_sb, down_sb, scaled_sb = fresh(dst.shape), fresh(dst.shape), fresh(dst.shape)
    nisa.tensor_scalar(dst=up_sb, data=x, op0=nl.less, operand0=LEAST_LOG, op1=nl.multiply, operand1=UP)
    nisa.tensor_scalar(dst=down_sb, data=x, op0=nl.less_equal, operand0=MOST_LOG, op1=nl.maximum, operand1=DOWN)
    nisa.scalar_tensor_tensor(dst=scaled_sb, data=up_sb, op0=nl.maximum, operand0=1.0, op1=nl.multiply, operand1=x)
    nisa.tensor_tensor(dst=scaled_sb, data1=scaled_sb, data2=down_sb, op=nl.multiply)
    least, most = LOG_VALID
    nisa.tensor_scalar(dst=scaled_sb, data=scaled_sb, op0=nl.maximum, operand0=least, op1=nl.minimum, operand1=most)
    result_sb = dst if dst.dtype == nl.float32 else scaled_sb
    nisa.activation(dst=result_sb, op=nl.log, data=scaled_sb)
    nisa.scalar_tensor_tensor(
        dst=result_sb, data=up_sb, op0=nl.multiply, operand0=-86.0 * LN_2 / UP, op1=nl.add, operand1=result_sb
    )
    nisa.tensor_scalar(dst=down_sb, data=down_sb, op0=nl.less, operand0=1.0, op1=nl.multiply, operand1=64.0 * LN_2)
    nisa.tensor_tensor(dst=result_sb, data1=result_sb, data2=down_sb, op=nl.add)
    end_sb = nl.ndarray(dst.shape, dtype=nl.uint8, buffer=nl.sbuf)
    mend_logarithm(result_sb, x, end_sb)
    settle(dst, result_sb)


def mend_logarithm(result_sb: nl.NkiTensor, x: nl.NkiTensor, where_sb: nl.NkiTensor) -> None:
    """result_sb = -inf where x is 0, inf where x is inf, NaN where x is below 0 or NaN. ``where_sb``: spare, uint8."""
    nisa.tensor_scalar(dst=where_sb, data=x, op0=nl.equal, operand0=0.0)
    nisa.tensor_copy_predicated(dst=result_sb, src=float("-inf"), predicate=where_sb)
    nisa.tensor_scalar(dst=where_sb, data=x, op0=nl.equal, operand0=float("inf"))
    nisa.tensor_copy_predicated(dst=result_sb, src=float("inf"), predicate=where_sb)
    nisa.tensor_scalar(dst=where_sb, data=x, op0=nl.greater_equal, operand0=0.0, op1=nl.equal, operand1=0.0)
    nisa.tensor_copy_predicated(dst=result_sb, src=float("nan"), predicate=where_sb)


def sine(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = sin(x), right to 3e-7 up to 2**15 turns."""
    angle_sb = fresh(dst.shape)
    _within_a_turn(angle_sb, x, 0.0)
    nisa.activation(dst=dst, op=nl.sin, data=angle_sb)


def cosine(dst: nl.NkiTensor, x: nl.NkiTensor) -> None:
    """dst = cos(x) = sin(x + pi / 2), right to 5e-7 up to 2**15 turns."""
    angle_sb = fresh(dst.shape)
    _within_a_turn(angle_sb, x, 0.25)
    nisa.activation(dst=dst, op=nl.sin, data=angle_sb)


def _within_a_turn(angle_sb: nl.NkiTensor, x: nl.NkiTensor, ahead: float) -> None:
    """angle_sb = the angle from -pi / 2 to pi / 2 with the same sine as x and ``ahead`` turns."""
    turns_sb = fresh(angle_sb.shape)
    nisa.tensor_scalar(dst=turns_sb, data=x, op0=nl.multiply, operand0=INVERSE_TURN, op1=nl.add, operand1=ahead)
    nisa.tensor_scalar(dst=turns_sb, data=turns_sb, op0=nl.add, operand0=ROUNDER, op1=nl.subtract, operand1=ROUNDER)
    rest = x
    for part in TURN:
        nisa.scalar_tensor_tensor(
            dst=angle_sb, data=turns_sb, op0=nl.multiply, operand0=-part, op1=nl.add, operand1=rest
        )
        rest = angle_sb
    nisa.tensor_scalar(dst=angle_sb, data=angle_sb, op0=nl.add, operand0=2.0 * PI * ahead)
    # The turns of large angles are counted roughly: an angle beyond pi or -pi has the sine of its mirror image.
    nisa.scalar_tensor_tensor(
        dst=angle_sb, data=angle_sb, op0=nl.subtract, operand0=PI, op1=nl.minimum, operand1=angle_sb, reverse0=True
    )
    nisa.scalar_tensor_tensor(
        dst=angle_sb, data=angle_sb, op0=nl.subtract, operand0=-PI, op1=nl.maximum, operand1=angle_sb, reverse0=True
    )
