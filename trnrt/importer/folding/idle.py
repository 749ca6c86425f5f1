"""Operators that change nothing for the shapes and types at hand, as far as onnxscript's folder misses them."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.values import is_resolved, static_shape

# These reinterpret or copy their input; where shape and type stay as they are, so do the values.
COPYING = frozenset({"Cast", "CastLike", "Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def is_idle(node: ir.Node) -> bool:
    """Does the first output always equal the first input, and is there no other output in use?"""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return False
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return False
    source, made = node.inputs[0], node.outputs[0]
    if node.op_type in COPYING:
        same_shape = static_shape(source) == static_shape(made)
        return is_resolved(source) and is_resolved(made) and same_shape and source.dtype == made.dtype
    if node.op_type == "Transpose":
        return _keeps_order(node, static_shape(source))
    return node.op_type == "Dropout" and _is_inference(node)


def _keeps_order(node: ir.Node, shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return False
    order = list(range(len(shape)))
    return list(node.attributes.get_ints("perm", order[::-1])) == order


def _is_inference(node: ir.Node) -> bool:
    """Dropout of opsets 7 to 11 only knows inference. (The folder knows the later ones.)"""
    opset = node.graph.opset_imports[""] if node.graph is not None else 0
    return 7 <= opset < 12 or (opset == 6 and node.attributes.get_int("is_test", 0) != 0)
