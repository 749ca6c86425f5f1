"""Fusion that several lowering functions share: with the activation or the sum that follows their node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.operators.functions import name_swish, shorten
from trnrt.operators.programs import Program, Term
from trnrt.operators.rounding import are_limits
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Operand

# ONNX operator -> activation name of the kernels.
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Mish": "mish"}
# Activations that are written out in several nodes, and the operations of these.
_WRITTEN_OUT = frozenset({"gelu", "gelu_tanh", "gelu_sigmoid", "silu", "mish"})
_PARTS = {
    "Add": "add",
    "Div": "divide",
    "Erf": "erf",
    "Mul": "multiply",
    "Pow": "power",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Tanh": "tanh",
}
# The longest: GELU by tanh has 8 nodes, or 9 if it cubes by two products.
_MOST_PARTS = 9
MONOTONIC = frozenset({"none", "relu", "relu6", "sigmoid", "tanh"})
"""Activations that give the same before and after a maximum."""


def next_activation(
    lowering: Lowering, value: ir.Value, into: ir.Node, *, limits: bool = False
) -> tuple[str, list[ir.Node]]:
    """The activation that follows ``value``, and its nodes; ("none", []) if there is none to fuse. ``limits``: the
    kernel also computes ReLU6."""
    written = _written_activation(lowering, value)
    if written is not None:
        return written
    follower, why_not = lowering.sole_consumer(value)
    if follower is not None and (name := _activation_name(follower)):
        return name, [follower]
    if limits and follower is not None and _is_relu6(lowering, follower):
        return "relu6", [follower]
    for reader, _ in value.uses():
        if follower is None and _activation_name(reader):
            what = f"{reader.op_type} {node_name(reader)!r}"
            lowering.notes.append(f"{what} is not fused into {into.op_type} {node_name(into)!r}: {why_not}")
    return "none", []


def _is_relu6(lowering: Lowering, node: ir.Node) -> bool:
    """True if a node limits its input to [0, 6]."""
    if node.domain != "" or node.op_type != "Clip":
        return False
    if lowering.opset < 11:
        return (attribute(node, "min", None), attribute(node, "max", None)) == (0.0, 6.0)
    limits = [lowering.constant(input_at(node, position)) for position in (1, 2)]
    return [None if limit is None else float(limit.reshape(-1)[0]) for limit in limits] == [0.0, 6.0]


def _activation_name(node: ir.Node) -> str:
    """The kernels' name of a node's function, "" if they have none."""
    if node.domain != "":
        return ""
    if node.op_type == "Gelu":
        return "gelu_tanh" if attribute(node, "approximate", "none") == "tanh" else "gelu"
    if node.op_type == "Swish":
        return name_swish(attribute(node, "alpha", 1.0))
    return ACTIVATIONS.get(node.op_type, "")


def _written_activation(lowering: Lowering, value: ir.Value) -> tuple[str, list[ir.Node]] | None:
    """The activation that all readers of ``value`` write out together, and its nodes; None if there is none."""
    program = Program()
    terms: dict[ir.Value, Term] = {value: program.source(Operand(value.name or "", ()))}
    nodes: list[ir.Node] = []
    while len(nodes) < _MOST_PARTS:
        added = next((node for made in terms for node, _ in made.uses() if _is_part(lowering, node, terms)), None)
        if added is None or any(made.is_graph_output() for made in terms):
            return None
        operands = (_part_term(lowering, given, terms) for given in added.inputs)
        terms[added.outputs[0]] = program.apply(_PARTS[added.op_type], *(t for t in operands if t is not None))
        nodes.append(added)
        open_values = [made for made in terms if any(node not in nodes for node, _ in made.uses())]
        if open_values in ([added.outputs[0]], []):
            short = shorten(program).operations
            if len(short) == 1 and short[0][0] in _WRITTEN_OUT:
                return short[0][0], nodes
    return None


def _is_part(lowering: Lowering, node: ir.Node, terms: dict[ir.Value, Term]) -> bool:
    """True if a node may be the next part of a function: an operation on parts before it, and on numbers."""
    if (
        node.domain != ""
        or node.op_type not in _PARTS
        or node.outputs[0] in terms
        or node_name(node) in lowering.no_fuse
    ):
        return False
    shapes = {lowering.shape(node.outputs[0]), *(lowering.shape(made) for made in terms)}
    return len(shapes) == 1 and all(_part_term(lowering, given, terms) is not None for given in node.inputs)


def _part_term(lowering: Lowering, value: ir.Value | None, terms: dict[ir.Value, Term]) -> Term | None:
    """An input as a term: a part before it, or a constant of one number; else None."""
    constant = lowering.constant(value)
    if constant is not None:
        return float(constant.reshape(())) if constant.size == 1 and constant.dtype.kind == "f" else None
    return None if value is None else terms.get(value)


def following_rounding(
    lowering: Lowering, value: ir.Value, outputs: int
) -> tuple[tuple[Array, float, float] | None, list[ir.Node]]:
    """The factors (outputs,) and whole limits of the Mul, Round and Clip that follow ``value``, and these nodes; (None,
    []) if they don't."""
    nodes: list[ir.Node] = []
    for name in ("Mul", "Round", "Clip"):
        follower, _ = lowering.sole_consumer(value)
        if follower is None or follower.domain != "" or follower.op_type != name:
            return None, []
        nodes.append(follower)
        value = follower.outputs[0]
    multiplied, _, limited = nodes
    source = multiplied.inputs[0] if lowering.constant(multiplied.inputs[1]) is not None else multiplied.inputs[1]
    factor = next((c for given in multiplied.inputs if (c := lowering.constant(given)) is not None), None)
    limits = [lowering.constant(input_at(limited, position)) for position in (1, 2)]
    if factor is None or source is None or lowering.opset < 11 or any(c is None or c.size != 1 for c in limits):
        return None, []
    low, high = (float(c.reshape(())) for c in limits if c is not None)
    rank = len(lowering.shape(source))
    by_channel = (1,) * (rank - factor.ndim) + factor.shape == (1, outputs, *(1,) * (rank - 2))
    if not are_limits(low, high) or not ((factor.size == 1 and factor.ndim <= rank) or by_channel):
        return None, []
    factors: Array = np.broadcast_to(factor.astype(np.float32).reshape(-1), (outputs,))
    return (factors, low, high), nodes


def following_sum(lowering: Lowering, node: ir.Node) -> tuple[Operand | None, list[ir.Node]]:
    """The tensor that an Add after ``node`` adds to its result, and that Add; (None, []) if there is none to fuse.

    The tensor must be computed already, and have the result's shape: of two results, the later one's step adds both.
    """
    value = node.outputs[0]
    follower, _ = lowering.sole_consumer(value)
    if follower is None or follower.domain != "" or follower.op_type not in ("Add", "Sum") or len(follower.inputs) != 2:
        return None, []
    other = follower.inputs[1] if follower.inputs[0] is value else follower.inputs[0]
    if other is None or other is value or lowering.constant(other) is not None or not lowering.is_there(other):
        return None, []
    if lowering.shape(other) != lowering.shape(value):
        return None, []
    try:
        return lowering.operand(other), [follower]
    except Blocked:
        return None, []  # its own lowering says why
