"""Nodes that change nothing for the shapes and types at hand, and that onnxscript's folder misses."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.values import copies_at_inference, is_resolved, is_used, static_shape

# These reinterpret or copy their input: if shape and type stay the same, so do the values.
COPYING = frozenset({"Cast", "CastLike", "Expand", "Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def is_idle(node: ir.Node) -> bool:
    """True if the first output always equals the first input, and no other output is used."""
    if node.domain != "" or not node.inputs or node.inputs[0] is None:
        return False
    if any(map(is_used, node.outputs[1:])):
        return False
    source, made = node.inputs[0], node.outputs[0]
    if node.op_type in COPYING:
        same_shape = static_shape(source) == static_shape(made)
        return is_resolved(source) and is_resolved(made) and same_shape and source.dtype == made.dtype
    if node.op_type == "Transpose":
        order = list(range(len(static_shape(source) or ())))
        return static_shape(source) is not None and list(node.attributes.get_ints("perm", order[::-1])) == order
    return node.op_type == "Dropout" and copies_at_inference(node)
