"""What several lowering functions do after their own node: take the following bias or activation along."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.planner.lowering import Lowering, node_name

# ONNX operator -> activation name of the kernels.
ACTIVATIONS = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def next_activation(lowering: Lowering, value: ir.Value, into: ir.Node) -> tuple[str, list[ir.Node]]:
    """The activation that follows ``value``, and its node: ("none", []) where there is none to fuse."""
    follower, why_not = lowering.sole_consumer(value)
    if follower is not None and follower.domain == "" and follower.op_type in ACTIVATIONS:
        return ACTIVATIONS[follower.op_type], [follower]
    for reader, _ in value.uses():
        if follower is None and reader.domain == "" and reader.op_type in ACTIVATIONS:
            what = f"{reader.op_type} {node_name(reader)!r}"
            lowering.notes.append(f"{what} is not fused into {into.op_type} {node_name(into)!r}: {why_not}")
    return "none", []
