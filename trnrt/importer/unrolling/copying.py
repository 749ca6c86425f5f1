"""Copies of a body's nodes in the graph around it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from trnrt.importer.naming import unique
from trnrt.importer.rewriting.editing import Editor
from trnrt.importer.values import bodies_of


def take_all_names(editor: Editor) -> None:
    """Let the editor's names be unique in bodies, too."""
    for node in editor.model.graph.all_nodes():
        editor.taken.update(value.name or "" for value in node.outputs)
        for body in bodies_of(node):
            editor.taken.update(value.name or "" for value in (*body.inputs, *body.initializers.values()))


def lift_constants(editor: Editor, body: ir.Graph, like: str) -> None:
    """Make the constants of a body, and of those in it, the editor's graph's: all copies of the body share them."""
    for before in list(body.initializers.values()):
        value = _free_constant(editor, body, before, before.const_value, like)
        body.initializers.pop(str(before.name))
        editor.graph.register_initializer(value)
    for node in list(body):
        for inner in bodies_of(node):
            lift_constants(editor, inner, like)
        if node.op_type == "Constant" and node.domain == "" and "value" in node.attributes:
            value = _free_constant(editor, body, node.outputs[0], node.attributes["value"].as_tensor(), like)
            body.remove(node, safe=True)
            editor.graph.register_initializer(value)


def _free_constant(
    editor: Editor, body: ir.Graph, before: ir.Value, tensor: ir.TensorProtocol | None, like: str
) -> ir.Value:
    """A constant in the place of a body's own; a body's output becomes a copy of it."""
    value = ir.val(editor.spare_name(f"{like}_{before.name}"), const_value=tensor)
    if before.is_graph_output():
        copy = ir.node("Identity", [value], name=editor.node_name(f"{like}_constant"))
        copy.outputs[0].name = editor.spare_name(f"{value.name}_copy")
        body.append(copy)
        before.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
    else:
        before.replace_all_uses_with(value)
    return value


def copy_body(
    editor: Editor, before: ir.Node, body: ir.Graph, given: Sequence[ir.Value], like: str
) -> tuple[list[ir.Value], list[ir.Node]]:
    """Copy the nodes of a body without constants before a node of the graph, with ``given`` for its inputs; return the
    outputs and the nodes.

    The copies have names that begin with ``like``, and no types or shapes: those in the file may be wrong.
    """
    copy = body.clone(allow_outer_scope_values=True)
    meant = dict(zip(copy.inputs, given, strict=True))
    # A body may hand an input on as it is: the value given for it may be an output of the graph, or a constant.
    outputs = [meant.get(made, made) for made in copy.outputs]
    copy.outputs.clear()
    for formal, value in meant.items():
        formal.replace_all_uses_with(value)
    _rename(editor, copy, like)
    nodes = list(copy)
    copy.remove(nodes)
    editor.graph.insert_before(before, nodes)
    return outputs, nodes


def _rename(editor: Editor, graph: ir.Graph, like: str) -> None:
    """Give all values and nodes of a graph and of its bodies names of their own, and forget their types."""
    for node in graph:
        node.name = editor.node_name(f"{like}_{node.name}")
        for value in node.outputs:
            value.name = unique(f"{like}_{value.name}", editor.taken) if value.name else value.name
            value.type = value.shape = None
        for body in bodies_of(node):
            for value in body.inputs:
                value.name = unique(f"{like}_{value.name}", editor.taken)
            _rename(editor, body, like)
