"""Split operators with many inputs into a chain: no kernel has room for a hundred tensors at once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, shape_of
from trnrt.importer.values import static_shape

_MOST = 6


def split_variadic(editor: Editor) -> list[str]:
    """Split every Max, Mean, Min and Sum of more than a few inputs; return notes on what was done."""
    return [note for node in list(editor.graph) if (note := _split(editor, node))]


def _split(editor: Editor, node: ir.Node) -> str | None:
    if node.domain != "" or node.op_type not in ("Max", "Mean", "Min", "Sum") or len(node.inputs) <= _MOST:
        return None
    values = [value for value in node.inputs if value is not None]
    made = node.outputs[0]
    if made.dtype is None or len(values) < len(node.inputs) or any(static_shape(value) is None for value in values):
        return None
    # Sums are added in the same order as before: no result changes.
    op = "Sum" if node.op_type == "Mean" else node.op_type
    value, rest = values[0], values[1:]
    while rest:
        value, rest = _insert_node(editor, node, op, [value, *rest[: _MOST - 1]]), rest[_MOST - 1 :]
    if node.op_type == "Mean":
        part = np.full((), 1 / len(values), made.dtype.numpy())
        value = _insert_node(editor, node, "Mul", [value, editor.constant(part, f"{made.name}_part")])
    note = f"{node_text(node)} of {len(values)} inputs made a chain of {op} nodes of up to {_MOST}"
    editor.bypass(node, value)
    return note


def _insert_node(editor: Editor, node: ir.Node, op: str, values: list[ir.Value]) -> ir.Value:
    shape = np.broadcast_shapes(*(shape_of(value) for value in values))
    made = editor.result(f"{node.outputs[0].name}_of_some", node.outputs[0].dtype, shape)
    name = editor.node_name(f"{node.name}_of_some")
    editor.graph.insert_before(node, ir.node(op, values, outputs=[made], name=name))
    return made
