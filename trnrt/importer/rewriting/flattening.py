"""Transposes before matrix products: reorder the weight's rows instead. Transposes that move nothing: Reshapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, is_private, maker, shape_of
from trnrt.importer.rewriting.orders import inverse, is_kept, moves_nothing
from trnrt.importer.rewriting.transposes import order_of
from trnrt.importer.values import static_shape

_FLATTENING = ("Flatten", "Reshape")


def order_weights(editor: Editor) -> list[str]:
    """Let a Gemm or MatMul that reads a flattened, transposed tensor read it untransposed; return notes."""
    return [note for node in list(editor.graph) if (note := _reorder_weight(editor, node))]


def name_reshapes(editor: Editor) -> list[str]:
    """Turn Transposes that only move axes of one element into Reshapes, which can be merged."""
    notes = []
    for node in list(editor.graph):
        order = order_of(node) if maker(node.outputs[0], "Transpose") is node else None
        shape = static_shape(node.outputs[0])
        if order is None or shape is None or is_kept(order) or not moves_nothing(shape, order) or editor.opset < 5:
            continue
        notes.append(f"{node_text(node)} made a Reshape, as it only moves axes of one element")
        source = node.inputs[0]
        assert source is not None
        editor.bypass(node, editor.reshape(node, source, shape, f"{node.outputs[0].name}_reshaped", node.name or ""))
    return notes


def _reorder_weight(editor: Editor, node: ir.Node) -> str | None:
    if node.domain != "" or node.op_type not in ("Gemm", "MatMul") or len(node.inputs) < 2:
        return None
    flat, weight = node.inputs[0], node.inputs[1]
    reshape = maker(flat, *_FLATTENING)
    transpose = None if reshape is None else maker(reshape.inputs[0], "Transpose")
    if flat is None or weight is None or weight.const_value is None or reshape is None or transpose is None:
        return None
    order, made, wide = order_of(transpose), static_shape(transpose.outputs[0]), static_shape(flat)
    if order is None or made is None or wide is None or order[0] != 0 or is_kept(order) or len(wide) != 2:
        return None
    if wide[0] != made[0] or not (is_private(flat) and is_private(transpose.outputs[0])):
        return None
    if node.attributes.get_int("transA", 0) or len(shape_of(weight)) != 2:
        return None
    turned = _reorder_rows(weight.const_value.numpy(), made[1:], order, bool(node.attributes.get_int("transB", 0)))
    editor.set_input(node, 1, editor.constant(turned, f"{weight.name}_ordered"))
    reshape.replace_input_with(0, transpose.inputs[0])
    note = f"{node_text(transpose)} folded into {node_text(node)}: its weight's rows are in the other order"
    if reshape.op_type == "Reshape":
        # Its shape may refer to its input's (0 means: the same).
        editor.set_input(reshape, 1, editor.constant(np.array(wide, np.int64), f"{flat.name}_shape"))
        if "allowzero" in reshape.attributes:
            del reshape.attributes["allowzero"]
    editor.remove(transpose)
    return note


def _reorder_rows(weight: Array, made: tuple[int, ...], order: tuple[int, ...], is_turned: bool) -> Array:
    """The weight to use without a Transpose by ``order``, whose result has the shape ``made``, batch aside."""
    rows = weight.T if is_turned else weight
    inner = tuple(axis - 1 for axis in order[1:])
    whole = rows.reshape(*made, -1).transpose(*inverse(inner), len(inner)).reshape(rows.shape)
    return np.ascontiguousarray(whole.T if is_turned else whole)
