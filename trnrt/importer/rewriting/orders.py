"""Orders of axes, and which operators do the same in another one: ``through`` tells what has to change for that.

An order says how a tensor that is stored with permuted axes must be transposed to be what the graph means:
axis ``k`` of the graph's tensor is the stored axis ``order[k]``, which is what Transpose calls ``perm``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import Editor, input_at, integers, is_computed, is_used
from trnrt.importer.values import static_shape, static_size

Order = tuple[int, ...]


def composed(first: Order, second: Order) -> Order:
    """The order of a Transpose by ``second`` after one by ``first``."""
    return tuple(first[axis] for axis in second)


def inverse(order: Order) -> Order:
    """The order that undoes ``order``."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_kept(order: Order) -> bool:
    """Does the order leave all axes where they are?"""
    return order == tuple(range(len(order)))


def moves_nothing(shape: Sequence[int], order: Order) -> bool:
    """Does a Transpose of a tensor whose result has ``shape`` only move axes of one element?"""
    real = [axis for axis, size in zip(order, shape, strict=True) if size > 1]
    return real == sorted(real)


def stored(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The shape in which a tensor of ``shape`` is stored."""
    return tuple(shape[axis] for axis in inverse(order))


@dataclass(frozen=True)
class Through:
    """How a node works on stored tensors: the order of each input (None: read as it is) and output, and an edit."""

    inputs: tuple[Order | None, ...]
    outputs: tuple[Order, ...]
    edit: Callable[[Editor], None] | None = None


_Rule = Callable[[ir.Node, Order], Through | None]
_RULES: dict[str, _Rule] = {}

_UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu""".split()  # noqa: SIM905
_BROADCASTING = """Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum
Where Xor""".split()  # noqa: SIM905
_REDUCING = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare""".split()  # noqa: SIM905


def through(node: ir.Node, order: Order) -> Through | None:
    """What the node does if its (main) input is stored in ``order``; None if it can't work on that."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None or any(static_shape(value) is None or value.dtype is None for value in node.outputs if value.name):
        return None
    return rule(node, order)


def _for(*operators: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def _rest(node: ir.Node) -> tuple[None, ...]:
    return (None,) * (len(node.inputs) - 1)


def _opset(node: ir.Node) -> int:
    return 0 if node.graph is None else node.graph.opset_imports.get("", 0)


@_for(*_UNARY)
def _unary(node: ir.Node, order: Order) -> Through | None:
    return Through((order, *_rest(node)), (order,))


@_for("Dropout")
def _dropout(node: ir.Node, order: Order) -> Through | None:
    if any(is_used(value) for value in node.outputs[1:]):
        return None
    return Through((order, *_rest(node)), (order,) * len(node.outputs))


@_for(*_BROADCASTING)
def _broadcasting(node: ir.Node, order: Order) -> Through | None:
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
    return Through(tuple(needs), (order,))


@_for("Concat")
def _concat(node: ir.Node, order: Order) -> Through | None:
    axis = node.attributes.get_int("axis", 1)
    return Through((order,) * len(node.inputs), (order,), _axis_edit(node, order[axis % len(order)]))


@_for("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: ir.Node, order: Order) -> Through | None:
    is_old = _opset(node) < 13
    axis = order[node.attributes.get_int("axis", 1 if is_old else -1) % len(order)]
    if is_old:
        # Before opset 13 all axes from this one on are normalised together: the others must have one element.
        shape = static_shape(node.outputs[0]) or ()
        first = node.attributes.get_int("axis", 1) % len(order)
        if any(size > 1 for size in shape[first + 1 :]) or any(size > 1 for size in stored(shape, order)[axis + 1 :]):
            return None
    return Through((order,), (order,), _axis_edit(node, axis))


@_for("Split")
def _split(node: ir.Node, order: Order) -> Through | None:
    axis = order[node.attributes.get_int("axis", 0) % len(order)]
    return Through((order, *_rest(node)), (order,) * len(node.outputs), _axis_edit(node, axis))


@_for("ArgMax", "ArgMin")
def _arg(node: ir.Node, order: Order) -> Through | None:
    axis = node.attributes.get_int("axis", 0) % len(order)
    keeps = bool(node.attributes.get_int("keepdims", 1))
    return Through((order,), (order if keeps else _without(order, [axis]),), _axis_edit(node, order[axis]))


@_for(*_REDUCING)
def _reduce(node: ir.Node, order: Order) -> Through | None:
    if is_computed(node, 1):
        return None
    keeps = bool(node.attributes.get_int("keepdims", 1))
    axes = integers(node, "axes", 1)
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            return None
        return Through((order, *_rest(node)), (order if keeps else (),))
    axes = [axis % len(order) for axis in axes]
    made = order if keeps else _without(order, axes)
    return Through((order, *_rest(node)), (made,), _axes_edit(node, [order[axis] for axis in axes], 1))


@_for("Squeeze")
def _squeeze(node: ir.Node, order: Order) -> Through | None:
    if is_computed(node, 1):
        return None
    shape = static_shape(node.inputs[0]) or ()
    axes = integers(node, "axes", 1)
    if axes is None:
        return Through((order, *_rest(node)), (_without(order, [a for a, size in enumerate(shape) if size == 1]),))
    axes = [axis % len(order) for axis in axes]
    edit = _axes_edit(node, [order[axis] for axis in axes], 1)
    return Through((order, *_rest(node)), (_without(order, axes),), edit)


@_for("Slice")
def _slice(node: ir.Node, order: Order) -> Through | None:
    if is_computed(node, 3):
        return None
    axes = integers(node, "axes", 3)
    if axes is None:
        starts = node.attributes["starts"].as_ints() if "starts" in node.attributes else None
        count = len(starts) if starts is not None else static_size(input_at(node, 1))
        if count is None:
            return None
        axes = list(range(count))
    edit = _axes_edit(node, [order[axis % len(order)] for axis in axes], 3)
    return Through((order, *(None,) * max(3, len(node.inputs) - 1)), (order,), edit)


@_for("Pad")
def _pad(node: ir.Node, order: Order) -> Through | None:
    if is_computed(node, 3) or is_computed(node, 1):
        return None
    needs = (order, *_rest(node))
    if (axes := integers(node, "axes", 3)) is not None:
        return Through(needs, (order,), _axes_edit(node, [order[axis % len(order)] for axis in axes], 3))
    pads = integers(node, "pads", 1)
    rank = len(order)
    if pads is None or len(pads) != 2 * rank:
        return None
    turned = [pads[side * rank + axis] for side in (0, 1) for axis in inverse(order)]
    return Through(needs, (order,), _numbers_edit(node, "pads", turned, 1))


def _without(order: Order, axes: Sequence[int]) -> Order:
    """The order that is left when the graph's ``axes`` are gone."""
    left = [order[axis] for axis in range(len(order)) if axis not in axes]
    return tuple(sorted(left).index(axis) for axis in left)


def _axis_edit(node: ir.Node, axis: int) -> Callable[[Editor], None]:
    def edit(_editor: Editor) -> None:
        node.attributes["axis"] = ir.AttrInt64("axis", axis)

    return edit


def _axes_edit(node: ir.Node, axes: list[int], index: int) -> Callable[[Editor], None]:
    return _numbers_edit(node, "axes", axes, index)


def _numbers_edit(node: ir.Node, name: str, numbers: list[int], index: int) -> Callable[[Editor], None]:
    """Numbers stand in an attribute where the operator has it in this opset, else in input ``index``."""

    def edit(editor: Editor) -> None:
        is_attribute = name in node.attributes or (node.op_type == "Slice" and _opset(node) < 10)
        if is_attribute:
            node.attributes[name] = ir.AttrInt64s(name, numbers)
        else:
            editor.set_input(node, index, editor.constant(np.array(numbers, np.int64), f"{node.name}_{name}"))

    return edit
