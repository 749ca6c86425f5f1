"""Integers of the model's inputs as whole numbers of the session's dtype, which is exact up to a limit.

The limit is checked when the session runs. Integer arithmetic lowers it: results must be exact, too.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.importer.wholes import Limits, Wholes, find_wholes
from trnrt.planner.lowering.host import host_function
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, DeviceTensor, HostNode

EXACT = {"float32": 2.0**24, "float16": 2048.0, "bfloat16": 256.0}
"""Each dtype represents all whole numbers up to here."""
ARITHMETIC = frozenset({"Abs", "Add", "CumSum", "Div", "Mod", "Mul", "Neg", "ReduceSum", "Sub"})
"""Operators whose results may be larger than their operands."""
_SEARCHES = frozenset({"ArgMax", "ArgMin", "Shape"})
_LOOK_UPS = frozenset({"Gather", "GatherElements", "GatherND"})
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_LONG = (ir.DataType.INT32, ir.DataType.INT64)
# Types whose arithmetic wraps around within float32's exact range.
_SHORT_BITS = 16
_LEAST = 4


def bound_integers(graph: ir.Graph, dtype: str) -> tuple[float, Wholes]:
    """The largest magnitude in integer inputs for which all integer arithmetic is exact, a power of two (or one less),
    and the limits of all whole numbers with it. If there is none: what the dtype represents."""
    first = most = EXACT[dtype]
    while most >= 2.0**_LEAST:
        for limit in (most, most - 1):
            wholes = find_wholes(graph, limit)
            if all(is_exact(wholes, value, dtype) for value in _integer_results(graph)):
                return limit, wholes
        most /= 2
    return first, find_wholes(graph, first)


def _integer_results(graph: ir.Graph) -> list[ir.Value]:
    """Results of arithmetic on integers."""
    made = (node.outputs[0] for node in graph if node.domain == "" and node.op_type in ARITHMETIC)
    return [value for value in made if value.dtype is not None and value.dtype.is_integer()]


def is_exact(wholes: Wholes, value: ir.Value, dtype: str) -> bool:
    """True if a result of integer arithmetic is exact, and wraps around only where that can be computed."""
    found, wrapped = wholes.limits_of(value), wholes.wraps.get(value.name or "")
    if found is None or value.dtype is None:
        return False
    short = value.dtype.bitwidth <= _SHORT_BITS
    return (wrapped or found).size <= EXACT[dtype] and (wrapped is None or short)


def limits_before_wrapping(wholes: Wholes, value: ir.Value) -> Limits | None:
    """The limits of a result before it wraps around; None if its type holds it."""
    return wholes.wraps.get(value.name or "")


def is_only_searched(value: ir.Value) -> bool:
    """True if integers are nothing but searched (ArgMax, ArgMin) and looked up by: then a session of 16 bits can hold
    them in float32."""
    if value.is_graph_output():
        return False
    for node, position in value.uses():
        if node.domain != "":
            return False
        if node.op_type in _SEARCHES or (node.op_type in _LOOK_UPS and position == 1):
            continue
        to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
        moves = to in _LONG if to else node.op_type in _MOVES and position == 0
        if not moves or not all(map(is_only_searched, node.outputs)):
            return False
    return True


def check_on_host(tensor: DeviceTensor, name: str, limit: float) -> HostNode:
    """The host's node that makes ``tensor`` of the integers of an input, and checks them when the session runs."""
    check = partial(whole_numbers, limit=limit, what=f"'{printable(name)}'", dtype=tensor.dtype)
    return HostNode(tensor.name, "Cast", (name,), tensor.name, check)


@host_function
def whole_numbers(values: Array, limit: float, what: str, dtype: str) -> Array:
    """The integers themselves, if none is larger than ``limit`` in magnitude; else an InputError that names one."""
    wrong = values[(values > limit) | (values < -limit)] if values.dtype.kind == "i" else values[values > limit]
    if wrong.size:
        raise InputError(
            f"input {what} holds {wrong.reshape(-1)[0]}; the NeuronCore computes with its integers as floats, "
            f"exactly up to {limit:.0f}",
            hint=f"keep its magnitudes within {limit:.0f}" + ("" if dtype == "float32" else "; use --dtype float32"),
        )
    return values
