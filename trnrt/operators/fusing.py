"""Fusion that several lowering functions share: with the activation or the sum that follows their node."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name
from trnrt.planner.steps import Operand

# ONNX operator -> activation name of the kernels.
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def next_activation(
    lowering: Lowering, value: ir.Value, into: ir.Node, *, limits: bool = False
) -> tuple[str, list[ir.Node]]:
    """The activation that follows ``value``, and its node; ("none", []) if there is none to fuse. ``limits``: the
    kernel also computes ReLU6."""
    follower, why_not = lowering.sole_consumer(value)
    if follower is not None and follower.domain == "" and follower.op_type in ACTIVATIONS:
        return ACTIVATIONS[follower.op_type], [follower]
    if limits and follower is not None and _is_relu6(lowering, follower):
        return "relu6", [follower]
    for reader, _ in value.uses():
        if follower is None and reader.domain == "" and reader.op_type in ACTIVATIONS:
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
