"""Parts without elements: exporters split rows where nothing may be left of them, and put the parts together again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor
from trnrt.importer.values import is_used, static_shape, static_size


def drop_empty_parts(editor: Editor) -> list[str]:
    """Leave empty inputs of Concat out, remove a Split of which one part has all elements, and make results without
    elements constants; return notes."""
    return [note for node in list(editor.graph) if (note := _drop(editor, node))]


def _drop(editor: Editor, node: ir.Node) -> str | None:
    if _is_empty(node):
        return _make_constant(editor, node)
    if node.domain == "" and node.op_type == "Concat":
        return _drop_inputs(editor, node)
    return _remove_split(editor, node) if node.domain == "" and node.op_type == "Split" else None


def _is_empty(node: ir.Node) -> bool:
    """True if a node only makes a tensor that is known to have no elements, for other nodes."""
    made = node.outputs[0]
    alone = len(node.outputs) == 1 and not made.is_graph_output() and bool(made.uses())
    numbers = made.dtype is not None and not made.dtype.is_string()
    return alone and numbers and static_size(made) == 0


def _make_constant(editor: Editor, node: ir.Node) -> str:
    made = node.outputs[0]
    shape = static_shape(made)
    assert made.dtype is not None and shape is not None
    made.replace_all_uses_with(editor.constant(np.zeros(shape, made.dtype.numpy()), like=f"{made.name}.empty"))
    note = f"{node_text(node)} is a constant, as it has no elements"
    editor.remove(node)
    return note


def _drop_inputs(editor: Editor, node: ir.Node) -> str | None:
    kept = [value for value in node.inputs if value is not None and static_size(value) != 0]
    if not kept or len(kept) == len(node.inputs):
        return None
    note = f"{node_text(node)}: empty inputs left out"
    if len(kept) == 1:
        editor.bypass(node, kept[0])
        return note
    for place, value in enumerate(kept):
        node.replace_input_with(place, value)
    node.resize_inputs(len(kept))
    return note


def _remove_split(editor: Editor, node: ir.Node) -> str | None:
    full = [value for value in node.outputs if value.name and static_size(value) != 0]
    others = [value for value in node.outputs if value not in full]
    source = node.inputs[0]
    if len(full) != 1 or not others or source is None or any(map(is_used, others)) or full[0].is_graph_output():
        return None
    if static_size(full[0]) is None or static_size(full[0]) != static_size(source):  # a part that is left out has some
        return None
    note = f"{node_text(node)} removed, as one part has all elements"
    full[0].replace_all_uses_with(source)
    editor.remove(node)
    return note
