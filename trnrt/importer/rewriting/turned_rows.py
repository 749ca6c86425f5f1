"""Transposes of a batch's rows around the projections of an attention, as nn.MultiheadAttention has them with
``batch_first``.

It turns (items, tokens, width) to (tokens, items, width), projects, splits the heads and turns them; and all that back
behind it. A projection treats each row alone, so that the heads can be turned in its place, by an access pattern.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, maker
from trnrt.importer.rewriting.transposes import order_of
from trnrt.importer.values import attribute, constant_array, static_shape

_SWAP = (1, 0, 2)


def move_row_turns(editor: Editor) -> list[str]:
    """Move each such Transpose behind the projections that read it, or before the one that it reads; return notes."""
    notes = []
    for node in list(editor.graph):
        if node.domain != "" or node.op_type != "Transpose" or order_of(node) != _SWAP:
            continue
        note = node_text(node)
        if _move_behind(editor, node) or _move_before(editor, node):
            notes.append(f"{note} moved to the heads of an attention")
    return notes


def _sole_reader(value: ir.Value) -> ir.Node | None:
    readers = [node for node, _ in value.uses()]
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None


def _is_projection(node: ir.Node | None) -> bool:
    """True for a product of rows with a constant matrix."""
    if node is None or node.domain != "" or node.op_type not in ("MatMul", "Gemm"):
        return False
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return False
    weight = constant_array(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    is_row = bias is None or len(static_shape(bias) or (0, 0)) == 1
    return weight is not None and weight.ndim == 2 and is_row


def _is_bias(node: ir.Node | None) -> bool:
    """True for an Add of a constant row."""
    if node is None or node.domain != "" or node.op_type != "Add":
        return False
    constants = [constant_array(value) for value in node.inputs]
    return sum(array is not None and array.ndim <= 1 for array in constants) == 1


# -- behind the projections ---------------------------------------------------------------------------


def _move_behind(editor: Editor, turn: ir.Node) -> bool:
    """Turn what the projections of turned rows give, if only Reshapes read that."""
    source, made = turn.inputs[0], turn.outputs[0]
    products = list(dict.fromkeys(node for node, _ in made.uses()))
    if source is None or made.is_graph_output() or not products:
        return False
    chains = [_follow_projection(node, made) for node in products]
    if any(chain is None for chain in chains):
        return False
    for product, chain in zip(products, chains, strict=True):
        assert chain is not None
        product.replace_input_with(0, source)
        for value in chain:
            tokens, items, width = static_shape(value) or ()
            value.shape = ir.Shape((items, tokens, width))
        end = chain[-1]
        uses = list(end.uses())
        turned = _insert_turn(editor, end, 3)
        for node, index in uses:
            node.replace_input_with(index, turned)
    editor.remove(turn)
    return True


def _follow_projection(product: ir.Node, made: ir.Value) -> list[ir.Value] | None:
    """The results of a product of ``made`` and of the bias behind it, if only Reshapes read the last one."""
    if not _is_projection(product) or product.op_type == "Gemm" or product.inputs[0] is not made:
        return None
    values = [product.outputs[0]]
    reader = _sole_reader(values[0])
    if reader is not None and _is_bias(reader):
        values.append(reader.outputs[0])
    readers = [node for node, _ in values[-1].uses()]
    split = all(node.domain == "" and node.op_type == "Reshape" for node in readers)
    known = all(static_shape(value) is not None for value in values)
    return values if readers and split and known and not values[-1].is_graph_output() else None


def _insert_turn(editor: Editor, value: ir.Value, rank: int) -> ir.Value:
    """The value with its first two axes swapped, by a new Transpose behind the node that makes it."""
    shape = static_shape(value) or ()
    made = editor.result(f"{value.name}_swapped", value.dtype, (shape[1], shape[0], *shape[2:]))
    name = editor.node_name(f"{value.name}_swap")
    order = (1, 0, *range(2, rank))
    node = ir.node("Transpose", [value], {"perm": order}, outputs=[made], name=name)
    before = value.producer()
    assert before is not None
    editor.graph.insert_after(before, node)
    return made


# -- before the projection ----------------------------------------------------------------------------


def _move_before(editor: Editor, turn: ir.Node) -> bool:
    """Turn the heads whose rows a projection reads, in place of its result."""
    found = _find_heads(turn)
    if found is None:
        return False
    joining, reshapes, values = found
    heads = joining.inputs[0]
    assert heads is not None
    joining.replace_input_with(0, _insert_turn(editor, heads, len(static_shape(heads) or ())))
    for reshape in reshapes:
        tokens, items, *rest = static_shape(reshape.outputs[0]) or ()
        target = editor.constant(np.array((items, tokens, *rest), np.int64), f"{reshape.outputs[0].name}_swapped_shape")
        editor.set_input(reshape, 1, target)
        reshape.attributes.pop("allowzero", None)
    for value in values:
        tokens, items, *rest = static_shape(value) or ()
        value.shape = ir.Shape((items, tokens, *rest))
    made = turn.inputs[0]
    assert made is not None
    editor.bypass(turn, made)
    return True


def _find_heads(turn: ir.Node) -> tuple[ir.Node, list[ir.Node], list[ir.Value]] | None:
    """Up from a turn past biases and a projection: the Reshape that joins turned heads to rows, the Reshapes that give
    rows of three dimensions, and the values that are such rows."""
    value = turn.inputs[0]
    whole = static_shape(value)
    reshapes, values, is_projected = list[ir.Node](), list[ir.Value](), False
    while value is not None and whole is not None and _sole_reader(value) is not None:
        node, shape = value.producer(), static_shape(value)
        if node is None or shape is None or prod(shape[:-1]) != prod(whole[:2]):
            return None
        if len(shape) == 3:
            values.append(value)
        if maker(value, "Reshape") is not None:
            before = static_shape(node.inputs[0])
            if len(shape) == 3:
                reshapes.append(node)
            if before is not None and len(before) > 2 and before[:2] == whole[:2]:
                turned = maker(node.inputs[0], "Transpose") is not None and _sole_reader(_first(node)) is node
                return (node, reshapes, values) if is_projected and turned else None
            if before is None or len(before) != 2 or len(shape) != 3:
                return None
            value = node.inputs[0]
        elif _is_bias(node):
            value = node.inputs[0 if constant_array(node.inputs[0]) is None else 1]
        elif _is_projection(node):
            is_projected, value = True, node.inputs[0]
        else:
            return None
    return None


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value
