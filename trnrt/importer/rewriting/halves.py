"""Order the channels of a convolution so that the part which other steps read comes first.

CSP blocks split a convolution's channels in two, compute on with the second part, and concatenate everything for the
next convolution. Engines read tiles from their first partition on: if the second part comes first, it is read where it
is. Both convolutions' weights are put in the other order; the numbers are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, is_private, maker, shape_of
from trnrt.importer.values import constant_array, input_at, static_shape

# Functions of one element: they don't depend on its channel.
_POINTWISE = ("Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "Softplus", "Tanh")
# A part that starts at a multiple of this is read where it is already.
_BLOCK = 128


@dataclass(frozen=True)
class _Block:
    """A Split in two, the convolution before it, and the Concat of both parts with the convolution behind that.
    ``first`` is the position of the first part in the Concat."""

    split: ir.Node
    before: ir.Node
    concat: ir.Node
    first: int
    after: ir.Node


def swap_halves(editor: Editor) -> list[str]:
    """Swap the parts of every Split where that saves a copy; return notes on what was done."""
    found = [_find_block(node) for node in list(editor.graph) if node.domain == "" and node.op_type == "Split"]
    return [_swap(editor, block) for block in found if block is not None]


def _find_block(split: ir.Node) -> _Block | None:
    if len(split.outputs) != 2 or split.attributes.get_int("axis", 0) != 1:
        return None
    shape = static_shape(split.outputs[0])
    one, other = split.outputs
    if shape is None or static_shape(other) is None or len(shape) != 4 or shape[1] % _BLOCK == 0:
        return None
    if not is_private(one) or other.is_graph_output() or len({node for node, _ in other.uses()}) < 2:
        return None
    concat, position = next(iter(one.uses()))
    joins = concat.domain == "" and concat.op_type == "Concat" and concat.attributes.get_int("axis", 1) in (1, -3)
    beside = list(concat.inputs[position : position + 2]) == [one, other]
    if not joins or not beside or sum(node is concat for node, _ in other.uses()) != 1:
        return None
    before, after = _find_convolution(split.inputs[0]), _sole_reader(concat.outputs[0])
    if before is None or after is None or not _has_plain_weights(after) or after.inputs[0] is not concat.outputs[0]:
        return None
    return _Block(split, before, concat, position, after)


def _sole_reader(value: ir.Value) -> ir.Node | None:
    return next(iter(value.uses()))[0] if is_private(value) else None


def _find_convolution(value: ir.Value | None) -> ir.Node | None:
    """The convolution whose results, each through the same function, are the value; None if others read them."""
    while value is not None and not value.is_graph_output():
        node, readers = value.producer(), {node for node, _ in value.uses()}
        if node is None or node.domain != "" or len(readers) != 1:
            return None
        if node.op_type == "Conv":
            return node if _has_plain_weights(node) else None
        if node.op_type == "Mul":
            gate = next((one for one in (maker(v, "Sigmoid") for v in node.inputs) if one is not None), None)
            source = None if gate is None else gate.inputs[0]
            if gate is None or source is None or not is_private(gate.outputs[0]) or source not in node.inputs:
                return None
            found = source.producer()
            plain = found is not None and found.domain == "" and found.op_type == "Conv" and _has_plain_weights(found)
            alone = {reader for reader, _ in source.uses()} == {gate, node} and not source.is_graph_output()
            return found if plain and alone else None
        value = node.inputs[0] if node.op_type in _POINTWISE else None
    return None


def _has_plain_weights(node: ir.Node) -> bool:
    """True for a convolution of one group whose weights are constants."""
    if node.domain != "" or node.op_type != "Conv" or node.attributes.get_int("group", 1) != 1:
        return False
    bias = input_at(node, 2)
    return constant_array(node.inputs[1]) is not None and (bias is None or constant_array(bias) is not None)


def _swap(editor: Editor, block: _Block) -> str:
    split, concat = block.split, block.concat
    one, other = (shape_of(value)[1] for value in split.outputs)
    order = np.r_[one : one + other, 0:one]
    _reorder(editor, block.before, 1, order, axis=0)
    if input_at(block.before, 2) is not None:
        _reorder(editor, block.before, 2, order, axis=0)
    start = sum(shape_of(value)[1] for value in concat.inputs[: block.first] if value is not None)
    channels = np.arange(shape_of(concat.outputs[0])[1])
    channels[start : start + one + other] = start + order
    _reorder(editor, block.after, 1, channels, axis=1)
    _swap_outputs(editor, split, (other, one))
    first, second = concat.inputs[block.first], concat.inputs[block.first + 1]
    concat.replace_input_with(block.first, second)
    concat.replace_input_with(block.first + 1, first)
    return f"{node_text(split)}: its second part comes first, as {node_text(block.before)} computes it"


def _swap_outputs(editor: Editor, split: ir.Node, sizes: tuple[int, int]) -> None:
    """Let a Split make its second output first; the values keep their names."""
    made = [editor.result(value.name or "", value.dtype, shape_of(value)) for value in reversed(split.outputs)]
    inputs = [split.inputs[0]]
    attributes: dict[str, int | list[int]] = {"axis": 1}
    if editor.opset >= 13:
        inputs.append(editor.constant(np.array(sizes, np.int64), f"{split.name}_sizes"))
    else:
        attributes["split"] = list(sizes)
    node = ir.node("Split", inputs, attributes, outputs=made, name=split.name)
    editor.graph.insert_before(split, node)
    names = [value.name for value in split.outputs]
    for old, new, name in zip(split.outputs, reversed(made), names, strict=True):
        old.replace_all_uses_with(new)
        old.name, new.name = new.name, name
    editor.remove(split)


def _reorder(editor: Editor, node: ir.Node, index: int, order: Array, *, axis: int) -> None:
    """Take the elements of a constant input along an axis in another order."""
    value = node.inputs[index]
    array = constant_array(value)
    assert value is not None and array is not None
    editor.set_input(node, index, editor.constant(np.take(array, order, axis=axis), value.name or ""))
