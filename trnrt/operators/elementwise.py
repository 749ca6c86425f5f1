"""Element-wise operators: each adds to a small program of the ``compute`` kernel."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.operators import batch, order, record, shapes
from trnrt.operators.bounds.case import Array, Case, exact
from trnrt.operators.bounds.rounding import SUMS, function_bound, operation_bound
from trnrt.operators.functions import name_swish
from trnrt.operators.integers import divide_by_number, finish_integers, makes_integers, truncate
from trnrt.operators.programs import Program, Register, Term, add_compute, term
from trnrt.operators.record import CHEAP, COUNTS, SMALL, Declaration
from trnrt.planner.lowering.integers import ARITHMETIC, EXACT
from trnrt.planner.lowering.walk import INTEGERS, Blocked, Lowering, attribute

# -- errors ------------------------------------------------------------------------------------------
# The slope is a difference quotient. Its step is the error itself, but at least the step at which a float32 quotient is
# most exact: the square root of the unit roundoff, relative to the element.

_STEP = float(np.sqrt(SUMS))


@exact
def bound_piecewise(case: Case) -> list[Array]:
    """Unchanged or negated elements, or a limit."""
    limits = sum(case.error(k).max(initial=0) for k in range(1, len(case.inputs)))
    return [carry_error(case) + limits]


def bound_arithmetic(case: Case) -> list[Array]:
    """A few arithmetic operations."""
    return [carry_error(case) + operation_bound() * np.abs(case.y)]


def bound_exponential(case: Case) -> list[Array]:
    """The argument is reduced first, whose rounding is a relative error of the result."""
    return [carry_error(case) + (function_bound() + operation_bound() * np.abs(case.x)) * np.abs(case.y)]


def bound_function(case: Case) -> list[Array]:
    """Functions whose error is relative to their result."""
    return [carry_error(case) + function_bound() * np.abs(case.y)]


def bound_of_one(case: Case) -> list[Array]:
    """Functions computed from numbers near 1, whose rounding errors stay when these cancel."""
    return [carry_error(case) + function_bound() * np.maximum(np.abs(case.y), 1)]


def bound_gate(case: Case) -> list[Array]:
    """The argument times a number in [0, 1], whose error is that of a number near 1."""
    return [carry_error(case) + function_bound() * np.abs(case.x)]


@exact
def bound_step_function(case: Case) -> list[Array]:
    """Exact, except within the argument's error of a step."""
    return [_reach(case, case.e)]


def bound_sum(case: Case) -> list[Array]:
    """Sums of a few tensors."""
    terms = len(case.inputs)
    share = case.sums(terms)
    size = sum(np.abs(array) for array in case.inputs if array is not None)
    error = sum(case.error(k) for k in range(terms)) + share * size
    return [np.broadcast_to(error / terms if case.op == "Mean" else error, case.y.shape)]


def bound_multiplication(case: Case) -> list[Array]:
    """Each factor's error times the other factor."""
    (a, ea), (b, eb) = _sides(case)
    return [np.abs(a) * eb + np.abs(b) * ea + ea * eb + operation_bound() * np.abs(case.y)]


def bound_division(case: Case) -> list[Array]:
    """The dividend's error plus the quotient times the divisor's, over the smallest possible divisor."""
    (_, ea), (b, eb) = _sides(case)
    return [(ea + np.abs(case.y) * eb) / _smallest(b, eb) + operation_bound() * np.abs(case.y)]


def bound_prelu(case: Case) -> list[Array]:
    """The slope's error counts if the number is negative, or may be."""
    (x, e), (slope, slope_error) = _sides(case)
    by_slope = np.where(x - e < 0, case.size * slope_error, 0)
    return [e * np.maximum(1, np.abs(slope)) + by_slope + operation_bound() * np.abs(case.y)]


@exact
def bound_extreme(case: Case) -> list[Array]:
    """The largest of the inputs' errors; for truths, 1 if an input is in doubt."""
    errors = [np.broadcast_to(case.error(k), case.y.shape) for k in range(len(case.inputs))]
    return [np.max(errors, axis=0)]


def bound_remainder(case: Case) -> list[Array]:
    """``a - n * b`` with a whole n; off by one more b if the quotient may be on either side of a whole number."""
    (a, ea), (b, eb) = _sides(case)
    quotient = a / b
    of_quotient = (ea + np.abs(quotient) * eb) / _smallest(b, eb)
    near = np.abs(quotient - np.round(quotient)) <= of_quotient + 2 * SUMS * np.abs(quotient)
    moved = ea + np.abs(quotient) * eb + operation_bound() * np.abs(a)
    return [moved + np.where(near, np.abs(b) + eb, 0)]


def bound_corners(case: Case) -> list[Array]:
    """The operator at the ends of both sides' ranges."""
    size = np.abs(case.y) * (1 + np.abs(np.log(np.maximum(np.abs(case.y), np.float32(1e-30)))))
    return [_corners(case) + function_bound() * size]


@exact
def bound_comparison(case: Case) -> list[Array]:
    """In doubt if the sides are closer than their errors."""
    (a, ea), (b, eb) = _sides(case)
    doubt = ea + eb
    close = (doubt > 0) & (np.abs(a.astype(np.float32) - b.astype(np.float32)) <= doubt)
    return [np.where(close, np.float32(1), np.float32(0))]


@exact
def bound_choose(case: Case) -> list[Array]:
    """The chosen side's error, plus the distance of the sides if the condition is in doubt."""
    kept = np.where(case.x, case.error(1), case.error(2))
    return [kept + np.where(case.error(0) > 0, np.abs(case.required_input(1) - case.required_input(2)), 0)]


def _sides(case: Case) -> list[tuple[Array, Array]]:
    """The first two inputs, each with its error."""
    return [(case.required_input(k), case.error(k)) for k in (0, 1)]


def _smallest(divisor: Array, error: Array) -> Array:
    """The smallest magnitude that a divisor may have."""
    smallest: Array = np.maximum(np.abs(divisor) - error, np.abs(divisor) * _STEP)
    return smallest


def _reach(case: Case, width: Array) -> Array:
    """The largest change of the result if the first input changes by ``width``."""
    up, down = (case.first(case.x + sign * width) for sign in (1, -1))
    apart: Array = np.maximum(np.abs(up - case.y), np.abs(down - case.y))
    return apart


def carry_error(case: Case) -> Array:
    """The error of the first input times the slope there."""
    if not np.any(case.e):
        return np.zeros(case.y.shape, np.float32)
    width = np.maximum(case.e, np.float32(_STEP) * np.abs(case.x))
    apart = _reach(case, width)
    share: Array = np.divide(case.e, width, out=np.zeros_like(width), where=width > 0)
    # No bound if the function is undefined within the error.
    return np.where(case.e == 0, np.float32(0), np.where(np.isnan(apart), np.float32(np.inf), apart * share))


def _corners(case: Case) -> Array:
    """The largest distance of the four corners from the result."""
    (a, ea), (b, eb) = _sides(case)
    apart = np.zeros(case.y.shape, np.float32)
    if not np.any(ea) and not np.any(eb):
        return apart
    for up, left in product((1, -1), repeat=2):
        made = case.first((a + up * ea).astype(np.float32), (b + left * eb).astype(np.float32))
        apart = np.maximum(apart, np.abs(made - case.y))
    return apart


# -- operators of one input ---------------------------------------------------------------------------


class Element(NamedTuple):
    """An operator that is one operation, and the facets in which its record differs from the others: see ``_declare``.

    ``parameters``: the attributes that the operation takes, each with ONNX's default.
    """

    operation: str
    opsets: tuple[int, ...]
    bound: record.BoundRule
    folds: record.Folding
    parameters: tuple[tuple[str, float], ...] = ()
    shapes: record.ShapeRule = shapes.by_onnx


_elementwise = partial(Declaration, batch=batch.elementwise, values=(), shapes=shapes.by_onnx)


def _declare(rows: dict[str, Element], lower: record.Lower, order: record.OrderRule) -> None:
    for name, row in rows.items():
        _elementwise({name: row.opsets}, order=order, bound=row.bound, folds=row.folds, shapes=row.shapes)(lower)


_UNARY = {
    "Relu": Element("relu", (6, 13, 14), bound_piecewise, CHEAP),
    "Sigmoid": Element("sigmoid", (6, 13), bound_of_one, CHEAP),
    "Tanh": Element("tanh", (6, 13), bound_function, CHEAP),
    "Exp": Element("exp", (6, 13), bound_exponential, CHEAP),
    "Log": Element("log", (6, 13), bound_function, CHEAP),
    "Sqrt": Element("sqrt", (6, 13), bound_arithmetic, CHEAP | COUNTS),
    "Reciprocal": Element("reciprocal", (6, 13), bound_arithmetic, CHEAP),
    "Abs": Element("abs", (6, 13), bound_piecewise, CHEAP | COUNTS),
    "Neg": Element("neg", (6, 13), bound_piecewise, CHEAP | COUNTS),
    "Sign": Element("sign", (9, 13), bound_step_function, CHEAP),
    "Floor": Element("floor", (6, 13), bound_step_function, CHEAP | COUNTS),
    "Ceil": Element("ceil", (6, 13), bound_step_function, CHEAP | COUNTS),
    "Round": Element("round", (11, 22), bound_step_function, CHEAP),
    "Erf": Element("erf", (9, 13), bound_function, SMALL),
    "Softplus": Element("softplus", (6, 22), bound_of_one, CHEAP),
    "Softsign": Element("softsign", (6, 22), bound_function, CHEAP),
    "Mish": Element("mish", (18, 22), bound_gate, CHEAP),
    "HardSwish": Element("hard_swish", (14, 22), bound_gate, CHEAP),
    "Not": Element("not", (6,), bound_extreme, CHEAP),
    "IsNaN": Element("is_nan", (9, 13, 20), bound_extreme, CHEAP),
    "Sin": Element("sin", (7, 22), bound_of_one, CHEAP),
    "Cos": Element("cos", (7, 22), bound_of_one, CHEAP),
    "LeakyRelu": Element("leaky_relu", (6, 16), bound_arithmetic, CHEAP, (("alpha", 0.01),)),
    "Elu": Element("elu", (6, 22), bound_of_one, CHEAP, (("alpha", 1.0),)),
    "Celu": Element("celu", (12, 28), bound_of_one, CHEAP, (("alpha", 1.0),)),
    "Selu": Element(
        "selu", (6, 22), bound_of_one, CHEAP, (("alpha", 1.6732631921768188), ("gamma", 1.0507010221481323))
    ),
    "HardSigmoid": Element("hard_sigmoid", (6, 22), bound_arithmetic, CHEAP, (("alpha", 0.2), ("beta", 0.5))),
}


# Of integers, too.
_OF_INTEGERS = frozenset({"Abs", "Neg", "Relu", "Sign"})


def lower_unary(lowering: Lowering, node: ir.Node) -> None:
    """A function of each element."""
    row = _UNARY[node.op_type]
    if node.op_type == "Celu" and attribute(node, "alpha", 1.0) == 0:
        raise Blocked("alpha=0, which Celu divides by")
    program = Program()
    source = program.source(lowering.operand(node.inputs[0], short_integers=node.op_type in _OF_INTEGERS))
    numbers = (float(attribute(node, *parameter)) for parameter in row.parameters)
    result = program.apply(row.operation, source, *numbers)
    if makes_integers(node) and node.op_type in ARITHMETIC:
        finish_integers(lowering, node, program, result)
    add_compute(lowering, node, program)


_declare(_UNARY, lower_unary, order.unary)


@_elementwise({"Gelu": (20,)}, order=order.unary, bound=bound_gate, folds=CHEAP)
def lower_gelu(lowering: Lowering, node: ir.Node) -> None:
    """Gelu, exact or approximated with tanh."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    program.apply("gelu_tanh" if attribute(node, "approximate", "none") == "tanh" else "gelu", source)
    add_compute(lowering, node, program)


@_elementwise({"Swish": (24,)}, order=order.unary, bound=bound_gate, folds=CHEAP)
def lower_swish(lowering: Lowering, node: ir.Node) -> None:
    """x * sigmoid(alpha * x)."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    alpha = float(attribute(node, "alpha", 1.0))
    name = name_swish(alpha)
    if name:
        program.apply(name, source)
    else:
        program.apply("multiply", source, program.apply("sigmoid", program.apply("multiply", source, alpha)))
    add_compute(lowering, node, program)


@_elementwise({"ThresholdedRelu": (10, 22)}, order=order.unary, bound=bound_piecewise, folds=CHEAP)
def lower_thresholded_relu(lowering: Lowering, node: ir.Node) -> None:
    """x where it is greater than alpha, else 0."""
    program = Program()
    source = program.source(lowering.operand(node.inputs[0]))
    greater = program.apply("greater", source, float(attribute(node, "alpha", 1.0)))
    program.apply("where", greater, source, 0.0)
    add_compute(lowering, node, program)


@_elementwise({"Clip": (6, 11, 12, 13)}, order=order.unary, bound=bound_piecewise, values=(1, 2), folds=CHEAP)
def lower_clip(lowering: Lowering, node: ir.Node) -> None:
    """Each element, limited to [min, max]; either may be missing. Before opset 11 they are attributes."""
    program = Program()
    value: Term = program.source(lowering.operand(node.inputs[0], short_integers=True))
    if lowering.opset < 11:
        low, high = (float(attribute(node, key, default)) for key, default in (("min", -np.inf), ("max", np.inf)))
        limits: list[Term | None] = [low if np.isfinite(low) else None, high if np.isfinite(high) else None]
    else:
        given = (input_at(node, position) for position in (1, 2))
        limits = [None if limit is None else term(lowering, program, limit, integers=True) for limit in given]
    for name, limit in zip(("maximum", "minimum"), limits, strict=True):
        if limit is not None:
            value = program.apply(name, value, limit)
    if not program.operations:
        program.apply("copy", value)
    add_compute(lowering, node, program)


# -- operators of several inputs ----------------------------------------------------------------------

_BINARY = {
    "PRelu": Element("prelu", (6, 7, 9, 16), bound_prelu, CHEAP, shapes=shapes.broadcast),
    "Add": Element("add", (6, 7, 13, 14), bound_sum, CHEAP | COUNTS),
    "Sub": Element("subtract", (6, 7, 13, 14), bound_sum, CHEAP | COUNTS),
    "Mul": Element("multiply", (6, 7, 13, 14), bound_multiplication, CHEAP | COUNTS),
    "Div": Element("divide", (6, 7, 13, 14), bound_division, CHEAP | COUNTS),
    "Pow": Element("power", (6, 7, 12, 13, 15), bound_corners, CHEAP),
}
# Comparisons and logic: exact for short integers, too.
_CHOOSING = {
    "Greater": Element("greater", (6, 7, 9, 13), bound_comparison, CHEAP | COUNTS),
    "GreaterOrEqual": Element("greater_equal", (12, 16), bound_comparison, CHEAP),
    "Less": Element("less", (6, 7, 9, 13), bound_comparison, CHEAP | COUNTS),
    "LessOrEqual": Element("less_equal", (12, 16), bound_comparison, CHEAP),
    "Equal": Element("equal", (6, 7, 11, 13, 19), bound_comparison, CHEAP | COUNTS),
    "And": Element("and", (6, 7), bound_extreme, CHEAP),
    "Or": Element("or", (6, 7), bound_extreme, CHEAP),
    "Xor": Element("xor", (6, 7), bound_extreme, CHEAP),
}
_VARIADIC = {
    "Max": Element("maximum", (6, 8, 12, 13), bound_extreme, CHEAP | COUNTS),
    "Min": Element("minimum", (6, 8, 12, 13), bound_extreme, CHEAP | COUNTS),
    "Sum": Element("add", (6, 8, 13), bound_sum, CHEAP),
    "Mean": Element("add", (6, 8, 13), bound_sum, CHEAP),
}


def lower_binary(lowering: Lowering, node: ir.Node) -> None:
    """An operation on two tensors, with ONNX's broadcasting."""
    integers = node.op_type in _CHOOSING or (makes_integers(node) and node.op_type in ARITHMETIC)
    program = Program()
    left, right = (term(lowering, program, _broadcastable(lowering, node, k), integers=integers) for k in (0, 1))
    if not isinstance(left, Register) and not isinstance(right, Register):
        raise Blocked("both sides are constants")
    whole = makes_integers(node)
    if node.op_type != "Div" or not whole or not divide_by_number(lowering, node, program, left, right):
        result = program.apply((_BINARY | _CHOOSING)[node.op_type].operation, left, right)
        if whole:
            finish_integers(lowering, node, program, result)
    add_compute(lowering, node, program)


_declare(_BINARY | _CHOOSING, lower_binary, order.broadcasting)


def _broadcastable(lowering: Lowering, node: ir.Node, position: int) -> ir.Value | None:
    """An input; blocks the broadcasting along ``axis`` that opset 6 had."""
    if lowering.opset < 7 and position == 1 and attribute(node, "broadcast", 0) and "axis" in node.attributes:
        raise Blocked("broadcast=1 with an axis, as before opset 7", "convert the model to opset 7 or later")
    return node.inputs[position]


def lower_variadic(lowering: Lowering, node: ir.Node) -> None:
    """The sum, mean, largest or smallest of any number of tensors."""
    integers = node.op_type in ("Max", "Min")
    program = Program()
    terms = [term(lowering, program, value, integers=integers) for value in node.inputs]
    # An operation takes a number on one side, but not on both: tensors come first.
    result, *others = sorted(terms, key=lambda each: not isinstance(each, Register))
    for other in others:
        result = program.apply(_VARIADIC[node.op_type].operation, result, other)
    if node.op_type == "Mean":
        program.apply("multiply", result, 1.0 / len(terms))
    elif len(terms) == 1:
        program.apply("copy", result)
    add_compute(lowering, node, program)


_declare(_VARIADIC, lower_variadic, order.broadcasting)


@_elementwise({"Where": (9, 16)}, order=order.broadcasting, bound=bound_choose, folds=CHEAP | COUNTS)
def lower_where(lowering: Lowering, node: ir.Node) -> None:
    """One tensor where a condition holds, another elsewhere."""
    lowering.mark_whole_numbers(node.outputs[0])  # so that, if this node is refused, those after it are not blamed
    program = Program()
    condition, x, y = (term(lowering, program, node.inputs[k], integers=True) for k in range(3))
    program.apply("where", condition, x, y)
    add_compute(lowering, node, program)


@_elementwise({"Mod": (10, 13, 28)}, order=order.broadcasting, bound=bound_remainder, folds=CHEAP | COUNTS)
def lower_mod(lowering: Lowering, node: ir.Node) -> None:
    """The remainder of a division, with the dividend's sign; for integers with fmod=0, with the divisor's."""
    integers = makes_integers(node)
    if not integers and not attribute(node, "fmod", 0):
        raise Blocked("fmod=0, which is for integers", "export the model with fmod=1")
    program = Program()
    left, right = (term(lowering, program, node.inputs[k], integers=integers) for k in (0, 1))
    if not integers or not divide_by_number(lowering, node, program, left, right):
        result = program.apply("fmod" if attribute(node, "fmod", 0) else "mod", left, right)
        if integers:
            finish_integers(lowering, node, program, result)
    add_compute(lowering, node, program)


def add_cast(lowering: Lowering, node: ir.Node, target: ir.DataType) -> None:
    """A cast: of a float to a whole number, towards zero, or of anything to truth."""
    program, value = Program(), node.inputs[0]
    if target is ir.DataType.BOOL:
        # Whatever an input's integers are rounded to, only 0 becomes 0: they need no check.
        given = value is not None and value.dtype in INTEGERS and lowering.is_input(value)
        view = lowering.index_view(value) if given and value else lowering.view_of(value, short_integers=True)
        source = lowering.operand_of(view)
        program.apply("not_equal", program.source(source), 0.0)
    else:
        truncate(program, program.source(lowering.operand(value, short_integers=True)))
    add_compute(lowering, node, program)


def add_float(lowering: Lowering, node: ir.Node) -> None:
    """Append a cast of whole numbers in float32 to the session's 16 bits; blocks those that these would round."""
    found = lowering.wholes.limits_of(node.inputs[0])
    if found is None or found.size > EXACT[lowering.dtype]:
        most = "any size" if found is None else f"up to {found.size:.0f}"
        raise Blocked(
            f"indices of {most} as {lowering.dtype}, which counts only up to {EXACT[lowering.dtype]:.0f}",
            "use --dtype float32",
        )
    program = Program()
    program.apply("copy", program.source(lowering.operand(node.inputs[0], short_integers=True)))
    add_compute(lowering, node, program)
