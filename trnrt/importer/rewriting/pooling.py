"""The mean of a text's tokens, weighted by its mask, as exporters write it: a product instead of repeated numbers.

PyTorch repeats the mask along the features of each token, converts and multiplies it, and sums twice. Here what repeats
is computed once, and the sum of weighted tokens is a product with the row of weights.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, integers, is_private, maker
from trnrt.importer.values import constant_array, static_shape

_UNARY = frozenset({"Cast", "Clip"})
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div"})
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def write_pooling(editor: Editor) -> list[str]:
    """Move Expands along the last dimension behind their readers, then write weighted sums as products."""
    if editor.opset < 13:  # axes of ReduceSum are an attribute before
        return []
    notes = []
    for node in list(editor.graph):
        title = node_text(node)
        if node.domain == "" and (_drop_expand(editor, node) or _compute_once(editor, node)):
            notes.append(f"{title} reads its input before it is repeated")
    for node in list(editor.graph):
        title = node_text(node)
        if maker(node.outputs[0], "ReduceSum") is node and _write_product(editor, node):
            notes.append(f"{title} of weighted rows made a MatMul")
    return notes


def _expand_source(value: ir.Value | None) -> ir.Value | None:
    """The source of an Expand that makes the value and repeats the last dimension alone; None without one."""
    node = maker(value, "Expand")
    source = None if node is None else node.inputs[0]
    before, after = static_shape(source), static_shape(value)
    if not before or not after or len(before) != len(after) or before[-1] != 1 or before[:-1] != after[:-1]:
        return None
    return source


def _drop_expand(editor: Editor, node: ir.Node) -> bool:
    """Let an operator that broadcasts read what is repeated for it."""
    if node.op_type not in _BROADCASTING:
        return False
    for index, value in enumerate(node.inputs):
        source = _expand_source(value)
        if source is not None and static_shape(node.inputs[1 - index]) == static_shape(node.outputs[0]):
            node.replace_input_with(index, source)
            _remove_unread(editor, value)
            return True
    return False


def _remove_unread(editor: Editor, value: ir.Value | None) -> None:
    """Remove the node that makes a value, if nothing reads it any more."""
    node = None if value is None else value.producer()
    if value is not None and node is not None and not value.uses() and not value.is_graph_output():
        editor.remove(node)


def _compute_once(editor: Editor, node: ir.Node) -> bool:
    """Compute with what an Expand repeats, and repeat the result."""
    made, source = node.outputs[0], _expand_source(node.inputs[0]) if node.inputs else None
    shape = static_shape(made)
    if source is None or not shape or not _keeps_features(node):
        return False
    others = [value for value in node.inputs[1:] if value is not None]
    if made.is_graph_output() or any(constant_array(value) is None for value in others):
        return False
    once = editor.result(f"{made.name}_once", made.dtype, (*shape[:-1], 1))
    attributes = list(node.attributes.values())
    computed = ir.Node("", node.op_type, [source, *node.inputs[1:]], attributes, outputs=[once], name=node.name)
    repeated = editor.result(f"{made.name}_repeated", made.dtype, shape)
    target = editor.constant(np.array(shape, np.int64), f"{repeated.name}_shape")
    repeat = ir.node("Expand", [once, target], outputs=[repeated], name=editor.node_name(f"{node.name}_expand"))
    editor.graph.insert_before(node, [computed, repeat])
    before = node.inputs[0]
    editor.bypass(node, repeated)
    _remove_unread(editor, before)
    return True


def _keeps_features(node: ir.Node) -> bool:
    """True if each number along the last dimension becomes one of its own."""
    if node.op_type == "ReduceSum":
        axes, shape = integers(node, "axes", 1), static_shape(node.inputs[0]) or ()
        return bool(axes) and all(axis % len(shape) != len(shape) - 1 for axis in axes or ())
    return node.op_type in _UNARY


def _write_product(editor: Editor, node: ir.Node) -> bool:
    """``ReduceSum(Mul(rows, weights))`` over the rows, with a weight for each, is weights times rows."""
    product, made = maker(node.inputs[0], "Mul"), node.outputs[0]
    shape = None if product is None else static_shape(product.outputs[0])
    result, axes = static_shape(made), integers(node, "axes", 1)
    if product is None or result is None or not shape or len(shape) < 3 or axes is None or len(axes) != 1:
        return False
    if axes[0] % len(shape) != len(shape) - 2 or made.dtype not in _FLOATS or not is_private(product.outputs[0]):
        return False
    wanted = (*shape[:-1], 1)
    index = next((k for k, value in enumerate(product.inputs) if static_shape(value) == wanted != shape), None)
    if index is None or static_shape(product.inputs[1 - index]) != shape:
        return False
    weights, rows = product.inputs[index], product.inputs[1 - index]
    assert weights is not None
    line = (*shape[:-2], 1, shape[-2])
    name = editor.node_name(f"{node.name}_weights")
    turned = editor.reshape(node, weights, line, f"{weights.name}_row", name)
    summed = editor.result(f"{made.name}_row", made.dtype, (*shape[:-2], 1, shape[-1]))
    editor.graph.insert_before(node, ir.node("MatMul", [turned, rows], outputs=[summed], name=node.name))
    kept = editor.reshape(node, summed, result, f"{made.name}_sum", editor.node_name(f"{node.name}_reshape"))
    editor.bypass(node, kept)
    editor.remove(product)
    return True
