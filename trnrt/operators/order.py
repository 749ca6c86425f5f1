"""Rules for the order of axes: how an operator's node changes if its input is stored in another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import Editor, integers, is_computed
from trnrt.importer.rewriting.orders import CHANNELS_LAST, NodeOrders, Order, inverse, stored_shape
from trnrt.importer.values import input_at, is_used, opset_of, static_shape, static_size


def keep_order(_node: ir.Node, _order: Order) -> NodeOrders | None:
    """Refuse: no Transpose moves past this operator."""
    return None


def _make_orders(node: ir.Node, order: Order, made: Order, edit: Callable[[Editor], None] | None = None) -> NodeOrders:
    """The main input in ``order``, the other inputs unchanged, each output in the order ``made``."""
    return NodeOrders((order, *(None,) * (len(node.inputs) - 1)), (made,) * len(node.outputs), edit)


def unary(node: ir.Node, order: Order) -> NodeOrders | None:
    return _make_orders(node, order, order)


def dropout(node: ir.Node, order: Order) -> NodeOrders | None:
    if any(is_used(value) for value in node.outputs[1:]):
        return None
    return _make_orders(node, order, order)


def broadcasting(node: ir.Node, order: Order) -> NodeOrders | None:
    if len(static_shape(node.outputs[0]) or ()) != len(order):
        return None
    needs: list[Order | None] = []
    for value in node.inputs:
        shape = static_shape(value)
        if value is None or shape is None or (value.const_value is None and len(shape) not in (0, len(order))):
            return None
        # One number is the same in any order.
        is_number = shape == () or (value.const_value is not None and static_size(value) == 1)
        needs.append(None if is_number else order)
    return NodeOrders(tuple(needs), (order,))


def concat(node: ir.Node, order: Order) -> NodeOrders | None:
    axis = node.attributes.get_int("axis", 1)
    return NodeOrders((order,) * len(node.inputs), (order,), _axis_edit(node, order[axis % len(order)]))


def softmax(node: ir.Node, order: Order) -> NodeOrders | None:
    is_old = opset_of(node) < 13
    first = node.attributes.get_int("axis", 1 if is_old else -1) % len(order)
    axis = order[first]
    if is_old:
        # Before opset 13 all axes from this one on are normalised together: the later ones must have one element.
        shape = static_shape(node.outputs[0]) or ()
        if any(size > 1 for size in shape[first + 1 :]) or any(
            size > 1 for size in stored_shape(shape, order)[axis + 1 :]
        ):
            return None
    return _make_orders(node, order, order, _axis_edit(node, axis))


def split(node: ir.Node, order: Order) -> NodeOrders | None:
    axis = order[node.attributes.get_int("axis", 0) % len(order)]
    return _make_orders(node, order, order, _axis_edit(node, axis))


def arg(node: ir.Node, order: Order) -> NodeOrders | None:
    axis = node.attributes.get_int("axis", 0) % len(order)
    keeps = bool(node.attributes.get_int("keepdims", 1))
    return _make_orders(node, order, order if keeps else _drop_axes(order, [axis]), _axis_edit(node, order[axis]))


def reduce(node: ir.Node, order: Order) -> NodeOrders | None:
    if is_computed(node, 1):
        return None
    keeps = bool(node.attributes.get_int("keepdims", 1))
    axes = integers(node, "axes", 1)
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            return None
        return _make_orders(node, order, order if keeps else ())
    made = order if keeps else _drop_axes(order, axes)
    return _make_orders(node, order, made, _axes_edit(node, order, axes, 1))


def product(node: ir.Node, order: Order) -> NodeOrders | None:
    """A product of the channels of images (N, H, W, C) with a constant matrix is a convolution of images (N, C, H, W)
    by a kernel of 1 x 1."""
    weight = input_at(node, 1)
    if order != CHANNELS_LAST or weight is None or weight.const_value is None or len(static_shape(weight) or ()) != 2:
        return None

    def edit(editor: Editor) -> None:
        assert weight.const_value is not None
        kernel = np.ascontiguousarray(weight.const_value.numpy().T)[:, :, None, None]
        editor.set_input(node, 1, editor.constant(kernel, f"{weight.name}_kernel"))
        node.op_type = "Conv"

    return _make_orders(node, order, order, edit)


def squeeze(node: ir.Node, order: Order) -> NodeOrders | None:
    if is_computed(node, 1):
        return None
    shape = static_shape(node.inputs[0]) or ()
    axes = integers(node, "axes", 1)
    if axes is None:
        return _make_orders(node, order, _drop_axes(order, [a for a, size in enumerate(shape) if size == 1]))
    return _make_orders(node, order, _drop_axes(order, axes), _axes_edit(node, order, axes, 1))


def slicing(node: ir.Node, order: Order) -> NodeOrders | None:
    if is_computed(node, 3):
        return None
    axes = integers(node, "axes", 3)
    if axes is None:
        starts = node.attributes["starts"].as_ints() if "starts" in node.attributes else None
        count = len(starts) if starts is not None else static_size(input_at(node, 1))
        if count is None:
            return None
        axes = list(range(count))
    needs = (order, *(None,) * max(3, len(node.inputs) - 1))
    return NodeOrders(needs, (order,), _axes_edit(node, order, axes, 3))


def pad(node: ir.Node, order: Order) -> NodeOrders | None:
    if is_computed(node, 3) or is_computed(node, 1):
        return None
    if (axes := integers(node, "axes", 3)) is not None:
        return _make_orders(node, order, order, _axes_edit(node, order, axes, 3))
    pads = integers(node, "pads", 1)
    rank = len(order)
    if pads is None or len(pads) != 2 * rank:
        return None
    turned = [pads[side * rank + axis] for side in (0, 1) for axis in inverse(order)]
    return _make_orders(node, order, order, _numbers_edit(node, "pads", turned, 1))


def _drop_axes(order: Order, axes: Sequence[int]) -> Order:
    """The order of the remaining axes when the graph's ``axes`` are dropped."""
    gone = {axis % len(order) for axis in axes}
    left = [order[axis] for axis in range(len(order)) if axis not in gone]
    return tuple(sorted(left).index(axis) for axis in left)


def _axis_edit(node: ir.Node, axis: int) -> Callable[[Editor], None]:
    def edit(_editor: Editor) -> None:
        node.attributes["axis"] = ir.AttrInt64("axis", axis)

    return edit


def _axes_edit(node: ir.Node, order: Order, axes: Sequence[int], index: int) -> Callable[[Editor], None]:
    return _numbers_edit(node, "axes", [order[axis % len(order)] for axis in axes], index)


def _numbers_edit(node: ir.Node, name: str, numbers: list[int], index: int) -> Callable[[Editor], None]:
    """Write numbers into the attribute if the operator has it in this opset, else into input ``index``."""

    def edit(editor: Editor) -> None:
        is_attribute = name in node.attributes or (node.op_type == "Slice" and opset_of(node) < 10)
        if is_attribute:
            node.attributes[name] = ir.AttrInt64s(name, numbers)
        else:
            editor.set_input(node, index, editor.constant(np.array(numbers, np.int64), f"{node.name}_{name}"))

    return edit
