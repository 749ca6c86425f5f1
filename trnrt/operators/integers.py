"""Arithmetic on integers, as whole numbers of the session's dtype: exact within its limits, rounded and wrapped around
as ONNX's integers are."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.operators.programs import Program, Register
from trnrt.planner.lowering.blocked import use_float32
from trnrt.planner.lowering.integers import EXACT, is_exact, limits_before_wrapping
from trnrt.planner.lowering.walk import INTEGERS, Blocked, Lowering


def makes_integers(node: ir.Node) -> bool:
    """True if a node's first output is of an integer type."""
    return node.outputs[0].dtype in INTEGERS


def check_integers(lowering: Lowering, value: ir.Value) -> None:
    """Block a result of integer arithmetic that the session's dtype may not represent."""
    if is_exact(lowering.wholes, value, lowering.dtype):
        return
    lowering.mark_whole_numbers(value)  # so that the nodes after it are not blamed
    found, most = lowering.wholes.limits_of(value), EXACT[lowering.dtype]
    hint = f"{lowering.dtype} is exact for those up to {most:.0f}: cast to a float before it, or limit them (Clip)"
    hint += f"; {use_float32(lowering.dtype)}"
    if found is None:
        raise Blocked("integers of unknown size", hint)
    if limits_before_wrapping(lowering.wholes, value) is not None:
        raise Blocked(f"integers that may wrap around in {value.dtype.name.lower() if value.dtype else '?'}", hint)
    raise Blocked(f"integers of up to {found.size:.0f}", hint)


def truncate(program: Program, value: Register) -> Register:
    """Round towards 0."""
    below = program.apply("ceil", value)
    return program.apply("where", program.apply("less", value, 0.0), below, program.apply("floor", value))


def finish_integers(lowering: Lowering, node: ir.Node, program: Program, value: Register) -> None:
    """What follows an operation on integers: a quotient is truncated, and a short type wraps around."""
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
