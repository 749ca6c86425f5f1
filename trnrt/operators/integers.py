"""Arithmetic on integers, as whole numbers of the session's dtype: exact within its limits, rounded and wrapped around
as ONNX's integers are."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.operators.programs import Program, Register, Term
from trnrt.planner.lowering.blocked import use_float32
from trnrt.planner.lowering.integers import EXACT, is_exact, limits_before_wrapping
from trnrt.planner.lowering.walk import INTEGERS, Blocked, Lowering

# Up to these, a product with the rounded inverse gives the exact quotient (``divide_whole``).
_MOST_DIVIDED, _MOST_DIVISOR = 2.0**21, 2.0**20
# Numbers of less than 2**22 have no fraction left after this is added to them: it is rounded to the nearest.
_ROUNDER = 1.5 * 2.0**23


def makes_integers(node: ir.Node) -> bool:
    """True if a node's first output is of an integer type."""
    return node.outputs[0].dtype in INTEGERS


def check_integers(lowering: Lowering, value: ir.Value) -> None:
    """Block a result of integer arithmetic that the session's dtype may not represent."""
    node = value.producer()
    dtype = "float32" if node is not None and any(map(lowering.is_wide, node.inputs)) else lowering.dtype
    if is_exact(lowering.wholes, value, dtype):
        return
    lowering.mark_whole_numbers(value)  # so that the nodes after it are not blamed
    found, most = lowering.wholes.limits_of(value), EXACT[dtype]
    hint = f"{dtype} is exact for those up to {most:.0f}: cast to a float before it, or limit them (Clip)"
    hint += f"; {use_float32(dtype)}"
    if found is None:
        raise Blocked("integers of unknown size", hint)
    if limits_before_wrapping(lowering.wholes, value) is not None:
        raise Blocked(f"integers that may wrap around in {value.dtype.name.lower() if value.dtype else '?'}", hint)
    raise Blocked(f"integers of up to {found.size:.0f}", hint)


def truncate(program: Program, value: Register) -> Register:
    """Round towards 0."""
    below = program.apply("ceil", value)
    return program.apply("where", program.apply("less", value, 0.0), below, program.apply("floor", value))


def divide_by_number(lowering: Lowering, node: ir.Node, program: Program, left: Term, right: Term) -> bool:
    """Append an integer Div or Mod by a number in a few operations, where a division and its rounding take thirty;
    False if the dividend is not certainly within the limits."""
    limits = lowering.wholes.limits_of(node.inputs[0])
    if limits is None or not isinstance(left, Register) or isinstance(right, Register):
        return False
    if limits.low < 0 or limits.high > _MOST_DIVIDED or right % 1 or not 1 <= right <= _MOST_DIVISOR:
        return False
    check_integers(lowering, node.outputs[0])
    whole = divide_whole(program, left, right)
    if node.op_type == "Mod":
        program.apply("subtract", left, program.apply("multiply", whole, right))
    return True


def divide_whole(program: Program, dividend: Register, divisor: float) -> Register:
    """The whole part of the quotient of whole numbers within the limits.

    ``(x + 0.5) / d - 0.5`` is at least ``0.5 / d`` away from where rounding to the nearest goes to another number than
    the whole part of x / d. Its three roundings are off by at most ``3 * 2**-24 * x / d``, which is less.
    """
    scaled = program.apply("multiply", dividend, 1.0 / divisor)
    moved = program.apply("add", scaled, 0.5 / divisor - 0.5)
    return program.apply("subtract", program.apply("add", moved, _ROUNDER), _ROUNDER)


def finish_integers(lowering: Lowering, node: ir.Node, program: Program, value: Register) -> None:
    """The operations that follow one on integers: a quotient is truncated, and a short type wraps around."""
    made = node.outputs[0]
    check_integers(lowering, made)
    if node.op_type == "Div":
        value = truncate(program, value)
    if limits_before_wrapping(lowering.wholes, made) is None or made.dtype is None:
        return
    count = 2.0**made.dtype.bitwidth
    lowest = -count / 2 if made.dtype.is_signed() else 0.0
    turned = program.apply("mod", program.apply("subtract", value, lowest), count)
    program.apply("add", turned, lowest)
