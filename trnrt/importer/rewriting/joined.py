"""Transposes of joined dimensions, which PyTorch's exporter writes around attention.

A Reshape joins the first dimensions, a Transpose turns the others, a Reshape splits the first ones again. One Transpose
says the same, and is an access pattern."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, maker
from trnrt.importer.rewriting.transposes import order_of
from trnrt.importer.values import static_shape


def split_joined(editor: Editor) -> list[str]:
    """Transpose the split dimensions themselves; return notes."""
    notes = []
    for last in list(editor.graph):
        turning = maker(last.inputs[0], "Transpose") if maker(last.outputs[0], "Reshape") is last else None
        joining = None if turning is None else maker(turning.inputs[0], "Reshape")
        if turning is None or joining is None:
            continue
        order = _split_order(joining, turning, last)
        source = joining.inputs[0]
        if order is None or source is None:
            continue
        notes.append(f"{node_text(joining)}, {node_text(turning)} and {node_text(last)} made one Transpose")
        made = last.outputs[0]
        turned = editor.result(f"{made.name}_split", made.dtype, static_shape(made) or ())
        node = ir.node("Transpose", [source], {"perm": order}, outputs=[turned], name=turning.name)
        editor.graph.insert_before(last, node)
        editor.bypass(last, turned)
        for old in (turning, joining):
            if not old.outputs[0].uses() and not old.outputs[0].is_graph_output():
                editor.remove(old)
    return notes


def _split_order(joining: ir.Node, turning: ir.Node, last: ir.Node) -> tuple[int, ...] | None:
    """The order of a Transpose of the dimensions before the first Reshape that gives those behind the last one."""
    values = joining.inputs[0], joining.outputs[0], last.outputs[0]
    whole, joined, made = (None if value is None else static_shape(value) for value in values)
    order = order_of(turning)
    if whole is None or joined is None or made is None or order is None or order[0] != 0:
        return None
    split = len(whole) - len(joined) + 1
    if split < 2 or whole[split:] != joined[1:]:
        return None
    found = (*range(split), *(axis + split - 1 for axis in order[1:]))
    return found if made == tuple(whole[axis] for axis in found) else None
