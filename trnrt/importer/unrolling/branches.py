"""An If whose condition is computed: both branches are computed, and Where selects."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.folding.inference import infer
from trnrt.importer.fused.writing import Writer
from trnrt.importer.naming import node_text
from trnrt.importer.unrolling.copying import copy_body, lift_constants, take_all_names
from trnrt.importer.values import has_subgraph, is_resolved, release_bodies, static_shape

# Their results have no shape before the run, or there is nothing to select.
_OPEN = frozenset(
    {"Compress", "NonMaxSuppression", "NonZero", "Unique", "RandomNormal", "RandomUniform", "Multinomial"}
)


def select_branches(writer: Writer) -> list[str]:
    """Write out each If whose branches give tensors of the same shapes."""
    notes = []
    take_all_names(writer.editor)
    for node in list(writer.model.graph):
        condition = node.inputs[0] if node.op_type == "If" and not node.domain else None
        if condition is not None:
            note, writer.node = node_text(node), node
            if _select(writer, condition):
                notes.append(f"{note} depends on the data: both branches are computed, and Where selects")
    return notes


def _select(writer: Writer, condition: ir.Value) -> bool:
    """Copy both branches before the node, and select; undo that if their results don't fit each other."""
    node, editor = writer.node, writer.editor
    bodies = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    inner = [one for body in bodies for one in body]
    if any(has_subgraph(one) or one.op_type in _OPEN for one in inner):
        return False
    made, added = list[list[ir.Value]](), list[ir.Node]()
    for name, body in zip(("then", "else"), bodies, strict=True):
        lift_constants(editor, body, str(node.name))
        values, nodes = copy_body(editor, node, body, [], f"{node.name}_{name}")
        made.append(values)
        added += nodes
        for one in nodes:
            infer(one, editor.model, {})
    if not all(_alike(a, b) for a, b in zip(*made, strict=True)):
        for one in reversed(added):
            editor.remove(one)
        return False
    condition = _scalar(writer, condition)
    writer.finish(*(writer.apply("Where", condition, a, b) for a, b in zip(*made, strict=True)))
    release_bodies(node)
    return True


def _alike(a: ir.Value, b: ir.Value) -> bool:
    return is_resolved(a) and is_resolved(b) and a.dtype == b.dtype and static_shape(a) == static_shape(b)


def _scalar(writer: Writer, condition: ir.Value) -> ir.Value:
    """The condition without dimensions: it may have one of size 1."""
    return condition if static_shape(condition) == () else writer.reshape(condition)
