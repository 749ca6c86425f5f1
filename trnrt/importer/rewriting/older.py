"""Opsets 6 and 10 rewritten as the next, which changed common operators; and old operators in simpler terms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor
from trnrt.importer.rewriting.scales import scale_and_shift
from trnrt.importer.values import constant_array, copies_at_inference, has_subgraph, input_at, is_used, static_shape

_BROADCASTING = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Xor".split())  # noqa: SIM905
# Changed in opset 7, too, and not worth rewriting: where one is, the opset stays.
_LEFT = frozenset({"GRU", "LSTM", "RNN", "Upsample"})
_GONE = ("axis", "broadcast", "consumed_inputs", "is_test")


def renew_opset_6(model: ir.Model) -> None:
    """Rewrite a graph of opset 6 in opset 7, if all its nodes allow it. Shapes must be known."""
    nodes = [node for node in model.graph if node.domain == ""]
    if model.opset_imports.get("", 0) != 6 or not all(_can_be_renewed(node) for node in nodes):
        return
    editor = Editor(model)
    for node in nodes:
        _renew(editor, node)
    model.opset_imports[""] = 7
    model.graph.opset_imports[""] = 7


def _can_be_renewed(node: ir.Node) -> bool:
    if has_subgraph(node):
        return False
    if node.op_type in ("BatchNormalization", "Dropout"):
        # Without is_test they train.
        return bool(node.attributes.get_int("is_test", 0))
    if node.op_type in _BROADCASTING and node.attributes.get_int("broadcast", 0) != 0:
        return all(static_shape(value) is not None for value in node.inputs)
    return node.op_type not in _LEFT


def _renew(editor: Editor, node: ir.Node) -> None:
    if node.op_type in _BROADCASTING and node.attributes.get_int("broadcast", 0) != 0 and "axis" in node.attributes:
        _align(editor, node)
    if node.op_type == "PRelu":
        _align_slope(editor, node)
    renewed = _BROADCASTING | {"BatchNormalization", "Dropout", "Gemm"}
    for name in _GONE if node.op_type in renewed else ("consumed_inputs",):
        if name in node.attributes:
            del node.attributes[name]


def _align(editor: Editor, node: ir.Node) -> None:
    """The second operand lies along the first one's axes from ``axis`` on: append the axes that follow, of size 1."""
    first, second = static_shape(node.inputs[0]) or (), static_shape(node.inputs[1]) or ()
    axis = node.attributes.get_int("axis", 0) % max(len(first), 1)
    _append_ones(editor, node, len(first) - axis - len(second))


def _align_slope(editor: Editor, node: ir.Node) -> None:
    """Opset 6 has one slope for each channel."""
    data, slope = static_shape(node.inputs[0]), static_shape(node.inputs[1])
    if data is not None and slope is not None and len(slope) == 1 and slope[0] > 1 and len(data) > 2:
        _append_ones(editor, node, len(data) - 2)


def _append_ones(editor: Editor, node: ir.Node, count: int) -> None:
    value = node.inputs[1]
    shape = static_shape(value)
    if value is None or shape is None or count <= 0:
        return
    wanted = (*shape, *[1] * count)
    array = constant_array(value)
    if array is not None:
        editor.set_input(node, 1, editor.constant(array.reshape(wanted), f"{value.name}_aligned"))
        return
    name = editor.node_name(f"{node.name}_reshape")
    node.replace_input_with(1, editor.reshape(node, value, wanted, f"{value.name}_aligned", name))


def renew_opset_10(model: ir.Model) -> None:
    """Rewrite a graph of opset 10 in opset 11, which has Round. Attributes of Clip and Pad became inputs there, and
    Resize got more ways to find coordinates."""
    if model.opset_imports.get("", 0) != 10 or any(map(_stays_in_10, model.graph)):
        return
    editor = Editor(model)
    for node in list(model.graph):
        change = _CHANGED_IN_11.get(node.op_type) if node.domain == "" else None
        if change is not None:
            change(editor, node)
    model.opset_imports[""] = 11
    model.graph.opset_imports[""] = 11


def _stays_in_10(node: ir.Node) -> bool:
    """True for a node with a body, or a Resize of the nearest pixels by scales that are computed."""
    is_nearest = node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "nearest"
    return has_subgraph(node) or (is_nearest and node.domain == "" and _scales_of(node) is None)


def _scales_of(node: ir.Node) -> np.ndarray | None:
    """The constant scales of a Resize of opset 10."""
    tensor = None if node.inputs[1] is None else ir.convenience.get_const_tensor(node.inputs[1])
    return None if tensor is None else np.asarray(tensor.numpy())


def _renew_clip(editor: Editor, node: ir.Node) -> None:
    for place, name in enumerate(("min", "max"), 1):
        if name in node.attributes:
            _set_number(editor, node, place, node.attributes.pop(name).as_float(), name)


def _renew_pad(editor: Editor, node: ir.Node) -> None:
    amounts = np.array(node.attributes.pop("pads").as_ints(), np.int64)
    editor.set_input(node, 1, editor.constant(amounts, f"{node.outputs[0].name}_pads"))
    if "value" in node.attributes:
        _set_number(editor, node, 2, node.attributes.pop("value").as_float(), "value")


def _renew_resize(editor: Editor, node: ir.Node) -> None:
    """Opset 10 rounds the places of nearest pixels down along axes that grow, and up along those that shrink: in opset
    11 these are two nodes."""
    scales, source = _scales_of(node), node.inputs[0]
    is_nearest = node.attributes.get_string("mode", "nearest") == "nearest"
    if is_nearest and scales is not None and (scales < 1).any():
        if (scales > 1).any():
            larger = editor.result(f"{node.outputs[0].name}_larger", node.outputs[0].dtype, ())
            larger.shape = None
            first = ir.node(
                "Resize",
                [source, editor.constant(np.maximum(scales, 1), f"{larger.name}_scales")],
                {"mode": "nearest"},
                outputs=[larger],
                name=editor.node_name(f"{node.name}_larger"),
            )
            editor.graph.insert_before(node, first)
            _renew_resize(editor, first)
            node.replace_input_with(0, larger)
            editor.set_input(node, 1, editor.constant(np.minimum(scales, 1), f"{node.outputs[0].name}_scales"))
        _name_rounding(editor, node, "ceil")
    else:
        _name_rounding(editor, node, "floor")


def _name_rounding(editor: Editor, node: ir.Node, rounding: str) -> None:
    """Make a Resize of opset 10 one of opset 11."""
    editor.set_input(node, 2, node.inputs[1])
    # Opset 11 has no Resize without a roi.
    editor.set_input(node, 1, editor.constant(np.array([], np.float32), f"{node.outputs[0].name}_roi"))
    for name, word in (("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", rounding)):
        node.attributes[name] = ir.AttrString(name, word)


_CHANGED_IN_11 = {"Clip": _renew_clip, "Pad": _renew_pad, "Resize": _renew_resize}


def _set_number(editor: Editor, node: ir.Node, place: int, number: float, name: str) -> None:
    """Set an input to a number of the first input's type: float32 if that is not known yet."""
    source = node.inputs[0]
    kind = ir.DataType.FLOAT if source is None or source.dtype is None else source.dtype
    editor.set_input(node, place, editor.constant(np.array(number, kind.numpy()), f"{node.outputs[0].name}_{name}"))


def fill_masks(editor: Editor) -> list[str]:
    """Make masks of Dropout constant, as it drops nothing at inference: all ones. Before opset 12, where ONNX doesn't
    define the mask, onnxruntime's is all zeros."""
    notes = []
    for node in list(editor.graph):
        if node.op_type != "Dropout" or node.domain != "" or len(node.outputs) < 2 or not is_used(node.outputs[1]):
            continue
        mask = node.outputs[1]
        data = node.inputs[0]
        shape = static_shape(data)
        if data is None or shape is None or data.dtype is None or not copies_at_inference(node):
            continue
        kind = data.dtype if editor.opset < 10 else ir.DataType.BOOL
        number = int(editor.opset >= 12)
        notes.append(f"the mask of {node_text(node)} is constant: all {'ones' if number else 'zeros'}")
        one = np.full((1,) * len(shape), number, kind.numpy())
        _put_constant(editor, mask, ir.tensor(np.broadcast_to(one, shape)))
        node.resize_outputs(1)
    return notes


def _put_constant(editor: Editor, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    name = value.name or ""
    value.name = f"{name}_replaced"
    new = ir.val(name, const_value=tensor)
    value.replace_all_uses_with(new, replace_graph_outputs=True)
    editor.graph.register_initializer(new)


def spread_normalizations(editor: Editor) -> list[str]:
    """Turn a BatchNormalization of opsets 7 and 8 that normalises each element by itself into Mul and Add."""
    notes = []
    for node in list(editor.graph):
        if node.op_type != "BatchNormalization" or node.domain != "" or node.attributes.get_int("spatial", 1) != 0:
            continue
        data, made, shape = node.inputs[0], node.outputs[0], static_shape(node.outputs[0])
        found, gamma = scale_and_shift(node), constant_array(input_at(node, 1))
        if data is None or shape is None or found is None or gamma is None or any(map(is_used, node.outputs[1:])):
            continue
        scale, shift = (array.astype(gamma.dtype) for array in found)
        factor = editor.constant(scale, f"{made.name}_scale")
        term = editor.constant(shift, f"{made.name}_shift")
        scaled, shifted = (editor.result(f"{made.name}_{word}", made.dtype, shape) for word in ("scaled", "shifted"))
        name = node.name or ""
        mul = ir.node("Mul", [data, factor], outputs=[scaled], name=editor.node_name(f"{name}_scale"))
        add = ir.node("Add", [scaled, term], outputs=[shifted], name=name)
        editor.graph.insert_before(node, [mul, add])
        notes.append(f"{node_text(node)} made one Mul and one Add, as it normalises each number by itself")
        editor.bypass(node, shifted)
    return notes


def name_casts(editor: Editor) -> list[str]:
    """Turn each CastLike into a Cast to the type of its second input."""
    notes = []
    for node in list(editor.graph):
        like = input_at(node, 1) if node.op_type == "CastLike" and node.domain == "" else None
        if like is None or like.dtype is None:
            continue
        notes.append(f"{node_text(node)} made a Cast to {like.dtype.name}")
        made = editor.result(f"{node.outputs[0].name}_cast", like.dtype, static_shape(node.outputs[0]) or ())
        made.shape = node.outputs[0].shape
        cast = ir.node("Cast", [node.inputs[0]], {"to": int(like.dtype)}, outputs=[made], name=node.name)
        editor.graph.insert_before(node, cast)
        editor.bypass(node, made)
    return notes
