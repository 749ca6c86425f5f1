"""The rules that clean a graph up: onnxscript's, with checks that they lack, and trnrt's own.

``_TABLE`` lists onnxscript's rules, where they may be used, and their notes. They match and build; this module decides,
applies and names: their own driver gives constants names that the model may use already, and doesn't report what it
did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter.rules import common as rules

from trnrt.importer.naming import node_text, unique
from trnrt.importer.rewriting.editing import Editor, maker
from trnrt.importer.rewriting.einsum import spread_einsums
from trnrt.importer.rewriting.emptying import drop_empty_parts
from trnrt.importer.rewriting.flattening import name_reshapes, order_weights
from trnrt.importer.rewriting.gathering import spread_gathers
from trnrt.importer.rewriting.grids import write_affine_grids
from trnrt.importer.rewriting.halves import swap_halves
from trnrt.importer.rewriting.joined import split_joined
from trnrt.importer.rewriting.older import fill_masks, name_casts, spread_normalizations
from trnrt.importer.rewriting.padding import fold_padding
from trnrt.importer.rewriting.pool_indices import write_indices
from trnrt.importer.rewriting.pooling import write_pooling
from trnrt.importer.rewriting.repeated import shrink_repeated
from trnrt.importer.rewriting.rotations import fold_signs
from trnrt.importer.rewriting.scales import fold_scales
from trnrt.importer.rewriting.scattering import write_scatters
from trnrt.importer.rewriting.splitting import split_variadic
from trnrt.importer.rewriting.transposes import cancel_transposes, merge_transposes, turn_after_norms
from trnrt.importer.rewriting.turned_rows import move_row_turns
from trnrt.importer.rewriting.unpooling import write_unpools
from trnrt.importer.rewriting.wrapping import unwrap_indices
from trnrt.importer.values import is_used, static_shape

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def _is_linear_layer(add: ir.Node) -> bool:
    """True if an Add and its product with a constant matrix make a Gemm: the added constant broadcasts to the
    product."""
    product = next((n for n in (maker(value, "MatMul") for value in add.inputs) if n is not None), None)
    if product is None or add.outputs[0].dtype not in _FLOATS:
        return False
    bias = add.inputs[1] if add.inputs[0] is product.outputs[0] else add.inputs[0]
    weight = product.inputs[1]
    if bias is None or weight is None or bias.const_value is None or weight.const_value is None:
        return False
    shapes = [static_shape(value) for value in (product.inputs[0], weight, product.outputs[0])]
    if any(shape is None or len(shape) != 2 for shape in shapes):
        return False
    return static_shape(add.outputs[0]) == shapes[2] and len(static_shape(bias) or ()) <= 2


@dataclass(frozen=True)
class _Rewrite:
    """Rules for patterns that end in an operator ``root``, if ``applies`` is true and the opset is ``since`` or later.

    The new node takes the name of the matched node with the operator ``keeps``. In ``note``, ``{root}``, ``{kept}`` and
    ``{other}`` stand for the nodes.
    """

    root: str
    keeps: str
    note: str
    rules: Sequence[Any]
    since: int
    applies: Callable[[ir.Node], bool] = lambda _node: True


_TABLE: tuple[_Rewrite, ...] = (
    _Rewrite(
        "Add",
        "MatMul",
        "{kept} and {root} made one Gemm",
        rules.matmul_add_to_gemm_rule.commute(),
        since=7,
        applies=_is_linear_layer,
    ),
    _Rewrite("Reshape", "Reshape", "{root} merged with {other}", [rules.reshape_reshape_rule], since=5),
)


_OWN: tuple[Callable[[Editor], list[str]], ...] = (
    fill_masks,
    name_casts,
    spread_einsums,
    spread_gathers,
    unwrap_indices,
    drop_empty_parts,
    write_scatters,
    write_unpools,
    write_indices,
    write_affine_grids,
    spread_normalizations,
    fold_padding,
    shrink_repeated,
    split_joined,
    move_row_turns,
    merge_transposes,
    turn_after_norms,
    cancel_transposes,
    order_weights,
    fold_scales,
    fold_signs,
    swap_halves,
    write_pooling,
    split_variadic,
)


def apply_rules(model: ir.Model) -> list[str]:
    """Apply every rule wherever it fits; return notes on what was done."""
    editor = Editor(model)
    notes = [note for rewrite in _TABLE for node in model.graph if (note := _rewrite_node(rewrite, editor, node))]
    for rule in _OWN:
        notes += rule(Editor(model))
    # Last, as the other rules know Transposes better than Reshapes.
    return notes or name_reshapes(Editor(model))


def _rewrite_node(rewrite: _Rewrite, editor: Editor, node: ir.Node) -> str | None:
    if editor.opset < rewrite.since or maker(node.outputs[0], rewrite.root) is not node or not rewrite.applies(node):
        return None
    for rule in rewrite.rules:
        found = rule.try_rewrite(editor.model, editor.graph, node)
        if found is not None:
            return _apply(rewrite, editor, node, found)
    return None


def _apply(rewrite: _Rewrite, editor: Editor, root: ir.Node, found: Any) -> str:
    """Replace matched nodes by those that a rule built; return a note."""
    graph = editor.graph
    matched: list[ir.Node] = [node for node in found.match.nodes if node.op_type != "Constant"]
    kept = next(node for node in [*(n for n in matched if n is not root), root] if node.op_type == rewrite.keeps)
    other = next((node for node in matched if node not in (root, kept)), kept)
    note = rewrite.note.format(root=node_text(root), kept=node_text(kept), other=node_text(other))
    for node in found.new_nodes:
        node.name = kept.name
    ir.convenience.replace_nodes_and_values(graph, root, [], found.new_nodes, found.match.outputs, found.new_outputs)
    while gone := [node for node in matched if node.graph is graph and not any(map(is_used, node.outputs))]:
        for node in gone:
            editor.remove(node)
    for value in found.new_initializers:
        value.name = unique(value.name, editor.taken)
        graph.register_initializer(value)
    return note
