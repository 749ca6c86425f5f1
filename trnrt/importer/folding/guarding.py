"""Slices that onnx's shape inference must not see: of a dimension of fewer than 0 elements it ends the whole process.

It infers such dimensions for windows, parts and padding that do not fit what they are taken from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from trnrt.importer.values import static_shape

# No operator of ONNX's: inference passes over it.
_HIDDEN = "TrnrtHiddenSlice"
# Slices of what comes of Slices of ...: whole graphs are inferred again so often at most.
_MOST_ROUNDS = 32


def is_dangerous(node: ir.Node) -> bool:
    """Whether the node is a Slice whose input has a negative dimension."""
    return _is_slice(node) and min(static_shape(node.inputs[0]) or (0,)) < 0


def is_premature(node: ir.Node) -> bool:
    """Whether the node is a Slice whose input is not known yet, or dangerous."""
    return _is_slice(node) and (static_shape(node.inputs[0]) is None or is_dangerous(node))


def _is_slice(node: ir.Node) -> bool:
    return node.op_type == "Slice" and node.domain == "" and bool(node.inputs)


def infer_graph(model: onnx.ModelProto) -> onnx.GraphProto:
    """onnx's inference of the whole graph. A Slice is left out of it until its input is known to be safe."""
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
    """Call nodes something else meanwhile."""
    try:
        for node in nodes:
            node.op_type = _HIDDEN
        yield
    finally:
        for node in nodes:
            node.op_type = "Slice"


def _smallest_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Value -> its smallest dimension; one that is open counts as 0."""
    found = {tensor.name: 0 for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            found[info.name] = min((dim.dim_value for dim in info.type.tensor_type.shape.dim), default=0)
    return found
