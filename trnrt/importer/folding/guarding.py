"""Slices to hide from onnx's shape inference, which crashes the process if a sliced dimension is negative.

It infers such dimensions for windows, parts and padding that don't fit their input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from trnrt.importer.values import static_shape

# ONNX doesn't have this operator: inference ignores it.
_HIDDEN = "TrnrtHiddenSlice"
# A chain of Slices needs an inference of the whole graph for each, up to this many.
_MOST_ROUNDS = 32


def is_dangerous(node: ir.Node) -> bool:
    """True if the node is a Slice whose input has a negative dimension."""
    return _is_slice(node) and min(static_shape(node.inputs[0]) or (0,)) < 0


def is_premature(node: ir.Node) -> bool:
    """True if the node is a Slice whose input is not known yet, or dangerous."""
    return _is_slice(node) and (static_shape(node.inputs[0]) is None or is_dangerous(node))


def _is_slice(node: ir.Node) -> bool:
    return node.op_type == "Slice" and node.domain == "" and bool(node.inputs)


def infer_graph(model: onnx.ModelProto) -> onnx.GraphProto:
    """Let onnx infer the whole graph; a Slice is hidden until its input is known to be safe."""
    waiting = [node for node in model.graph.node if node.op_type == "Slice" and node.domain == "" and node.input]
    graph: onnx.GraphProto
    for _ in range(_MOST_ROUNDS):
        with _hide_nodes(waiting):
            graph = onnx.shape_inference.infer_shapes(model).graph
        known = _smallest_sizes(graph)
        left = [node for node in waiting if known.get(node.input[0], -1) < 0]
        if len(left) == len(waiting):
            break
        waiting = left
    return graph


@contextmanager
def _hide_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[None]:
    """Rename the operators of ``nodes`` in a with block."""
    try:
        for node in nodes:
            node.op_type = _HIDDEN
        yield
    finally:
        for node in nodes:
            node.op_type = "Slice"


def _smallest_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Value -> its smallest dimension; an open dimension counts as 0."""
    found = {tensor.name: 0 for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            found[info.name] = min((dim.dim_value for dim in info.type.tensor_type.shape.dim), default=0)
    return found
