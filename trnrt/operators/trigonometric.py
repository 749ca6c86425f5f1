"""Angles and hyperbolic functions: each is written in operations of the ``compute`` kernel that lose no digits.

``x`` is the element, ``a`` its magnitude. Odd functions are computed of the magnitude and take the sign of x at last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log

import numpy as np
import onnx_ir as ir

from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Array, Case
from trnrt.operators.bounds.rounding import function_bound
from trnrt.operators.elementwise import bound_extreme, bound_function, bound_of_one, carry_error
from trnrt.operators.programs import Program, Register, add_compute
from trnrt.operators.record import CHEAP, Declaration
from trnrt.planner.lowering.walk import Lowering, attribute

Write = Callable[[Program, Register], Register]

# From here on 1 doesn't count beside a number's square root, and squares may overflow.
_LARGE = 1e9
_LN_2 = log(2.0)


def _sign_as(program: Program, x: Register, size: Register) -> Register:
    """The magnitude with the sign of x."""
    return program.apply("multiply", size, program.apply("sign", x))


def _log_sum(program: Program, a: Register, rest: Register) -> Register:
    """ln(1 + rest); for an ``a`` so large that rest is 2 * a and may overflow, ln(a) + ln(2)."""
    large = program.apply("greater", a, _LARGE)
    near = program.apply("log1p", program.apply("where", large, 0.0, rest))
    far = program.apply("add", program.apply("log", program.apply("maximum", a, _LARGE)), _LN_2)
    return program.apply("where", large, far, near)


def _root(program: Program, x: Register, more: float) -> Register:
    """The square root of x + more."""
    return program.apply("sqrt", program.apply("add", x, more))


def _asin(program: Program, x: Register) -> Register:
    """atan(x / sqrt((1 - x) * (1 + x))): at 1 and -1 the quotient is infinite."""
    left, right = program.apply("subtract", 1.0, x), program.apply("add", x, 1.0)
    cosine = program.apply("sqrt", program.apply("multiply", left, right))
    return program.apply("atan", program.apply("divide", x, cosine))


def _acos(program: Program, x: Register) -> Register:
    """2 * atan(sqrt((1 - x) / (1 + x)))."""
    quotient = program.apply("divide", program.apply("subtract", 1.0, x), program.apply("add", x, 1.0))
    return program.apply("multiply", program.apply("atan", program.apply("sqrt", quotient)), 2.0)


def _asinh(program: Program, x: Register) -> Register:
    """ln(1 + a + a * a / (1 + sqrt(a * a + 1)))."""
    a = program.apply("abs", x)
    limited = program.apply("minimum", a, _LARGE)
    root = _root(program, program.apply("multiply", limited, limited), 1.0)
    part = program.apply("divide", limited, program.apply("add", root, 1.0))
    rest = program.apply("add", a, program.apply("multiply", a, part))
    return _sign_as(program, x, _log_sum(program, a, rest))


def _acosh(program: Program, x: Register) -> Register:
    """ln(1 + d + sqrt(d) * sqrt(x + 1)) with d = x - 1, which is exact near 1."""
    more = program.apply("subtract", x, 1.0)
    roots = program.apply("multiply", program.apply("sqrt", more), _root(program, x, 1.0))
    return _log_sum(program, x, program.apply("add", more, roots))


def _atanh(program: Program, x: Register) -> Register:
    """ln(1 + 2 * a / (1 - a)) / 2."""
    a = program.apply("abs", x)
    quotient = program.apply("divide", program.apply("multiply", a, 2.0), program.apply("subtract", 1.0, a))
    return _sign_as(program, x, program.apply("multiply", program.apply("log1p", quotient), 0.5))


def _halves(program: Program, x: Register) -> tuple[Register, Register]:
    """exp(a) / 2 and exp(-a) / 2. exp(a / 2) overflows only where exp(a) / 2 does."""
    root = program.apply("exp", program.apply("multiply", program.apply("abs", x), 0.5))
    inverse = program.apply("reciprocal", root)
    grown = program.apply("multiply", program.apply("multiply", root, 0.5), root)
    return grown, program.apply("multiply", program.apply("multiply", inverse, 0.5), inverse)


def _sinh(program: Program, x: Register) -> Register:
    """(exp(a) - exp(-a)) / 2; below 1, where that loses digits, 2 * t / (1 - t * t) with t = tanh(x / 2)."""
    grown, shrunk = _halves(program, x)
    far = _sign_as(program, x, program.apply("subtract", grown, shrunk))
    t = program.apply("tanh", program.apply("multiply", x, 0.5))
    under = program.apply("subtract", 1.0, program.apply("multiply", t, t))
    near = program.apply("divide", program.apply("multiply", t, 2.0), program.apply("maximum", under, 0.5))
    return program.apply("where", program.apply("less", program.apply("abs", x), 1.0), near, far)


def _cosh(program: Program, x: Register) -> Register:
    """(exp(a) + exp(-a)) / 2."""
    return program.apply("add", *_halves(program, x))


def _one(name: str) -> Write:
    return lambda program, x: program.apply(name, x)


_WRITTEN: dict[str, Write] = {
    "Acos": _acos,
    "Acosh": _acosh,
    "Asin": _asin,
    "Asinh": _asinh,
    "Atan": _one("atan"),
    "Atanh": _atanh,
    "Cosh": _cosh,
    "Sinh": _sinh,
    "Tan": _one("tan"),
}


def bound_tangent(case: Case) -> list[Array]:
    """The angle's error, and the function's, times the slope 1 + y * y: turns are taken away from the angle."""
    return [carry_error(case) + function_bound() * (np.abs(case.y) + (1 + case.y**2) * np.abs(case.x))]


def bound_wide_exponential(case: Case) -> list[Array]:
    """An exponential of half the number, squared: twice its error, which grows with the number."""
    return [carry_error(case) + function_bound() * (2 + np.abs(case.x)) * np.abs(case.y)]


_of_elements = partial(
    Declaration, batch=batch.elementwise, values=(), shapes=shapes.by_onnx, order=order.unary, folds=CHEAP
)


@_of_elements({"Acos": (7, 22)}, bound=bound_of_one)
@_of_elements({"Acosh": (9, 22), "Asinh": (9, 22), "Atanh": (9, 22)}, bound=bound_function)
@_of_elements({"Asin": (7, 22), "Atan": (7, 22)}, bound=bound_function)
@_of_elements({"Sinh": (9, 22), "Cosh": (9, 22)}, bound=bound_wide_exponential)
@_of_elements({"Tan": (7, 22)}, bound=bound_tangent)
def lower_angle(lowering: Lowering, node: ir.Node) -> None:
    """A function of each element, accurate to a few roundings."""
    program = Program()
    _WRITTEN[node.op_type](program, program.source(lowering.operand(node.inputs[0])))
    add_compute(lowering, node, program)


@_of_elements({"IsInf": (10, 20)}, bound=bound_extreme)
def lower_is_infinite(lowering: Lowering, node: ir.Node) -> None:
    """1 where an element is infinite and has a sign that the attributes ask for, else 0."""
    program = Program()
    x = program.source(lowering.operand(node.inputs[0]))
    found = program.apply("is_inf", x)
    wanted = [bool(attribute(node, name, 1)) for name in ("detect_negative", "detect_positive")]
    if wanted != [True, True]:
        of_sign = program.apply("less" if wanted[0] else "greater", x, 0.0)
        found = program.apply("and", found, of_sign if any(wanted) else 0.0)
    add_compute(lowering, node, program)
