"""Scales and shifts, a number per channel, folded into the weights of the linear layer before them.

Products are scaled before they are summed, not after: the results differ by rounding, as with any folded normalisation
(the new weights are computed in float64 and rounded once). Factors, shifts and new weights must be finite, so that no
infinity or NaN appears or disappears. For infinite activations, ``inf * w * m`` is ``inf * (w * m)``, unless the
product of two tiny weights is rounded to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, is_private, maker, shape_of
from trnrt.importer.values import constant_array, input_at, is_used, opset_of, static_shape
from trnrt.importer.wholes import Wholes, find_wholes

_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class Affine:
    """``value * scale + shift``, float64, one number or one per channel."""

    value: ir.Value
    scale: Array
    shift: Array


def fold_scales(editor: Editor) -> list[str]:
    """Fold every possible scale and shift; return notes on what was done."""
    wholes = find_wholes(editor.graph)
    nodes = (node for node in list(editor.graph) if node.graph is not None)
    return [note for node in nodes if (note := _fold_affine(editor, node, wholes))]


def _fold_affine(editor: Editor, node: ir.Node, wholes: Wholes) -> str | None:
    if not any(maker(value, *_LINEAR, "BatchNormalization", "Add") for value in node.inputs[:2]):
        return None
    affine = _affine(node)
    if affine is None or not _is_calm(affine.scale, affine.shift):
        return None
    linear, norm = maker(affine.value, *_LINEAR), maker(affine.value, "BatchNormalization")
    if linear is not None and _absorb(editor, linear, affine, wholes):
        return _bypass_node(editor, node, linear)
    add = maker(affine.value, "Add")
    if add is not None and _scale_sum(editor, add, affine, wholes):
        return _bypass_node(editor, node, add)
    if norm is not None and node.op_type != "BatchNormalization" and _merge(editor, norm, affine):
        return _bypass_node(editor, node, norm)
    return None


def _bypass_node(editor: Editor, node: ir.Node, before: ir.Node) -> str:
    note = f"{node_text(node)} folded into {node_text(before)}"
    editor.bypass(node, before.outputs[0])
    return note


def _is_calm(*arrays: Array) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


# -- a node as a scale and shift of each channel -------------------------------------------------------


def _affine(node: ir.Node) -> Affine | None:
    if node.domain != "" or node.outputs[0].dtype not in _FLOATS:
        return None
    if node.op_type == "BatchNormalization":
        return _normalization_affine(node)
    return _arithmetic_affine(node) if node.op_type in _ARITHMETIC and len(node.inputs) == 2 else None


def _arithmetic_affine(node: ir.Node) -> Affine | None:
    first, second = node.inputs
    if first is None or second is None or (first.const_value is None) == (second.const_value is None):
        return None
    value, constant = (first, second) if second.const_value is not None else (second, first)
    shape = static_shape(value)
    if shape is None or static_shape(node.outputs[0]) != shape or not is_private(value):
        return None
    numbers = _by_channel(constant, shape, 1 if maker(value, "Conv", "ConvTranspose", "BatchNormalization") else -1)
    if numbers is None or not _is_calm(numbers) or (node.op_type == "Div" and value is second):
        return None
    one, nothing = np.ones(1), np.zeros(1)
    with np.errstate(all="ignore"):
        if node.op_type == "Add":
            return Affine(value, one, numbers)
        if node.op_type == "Sub":
            return Affine(value, one, -numbers) if value is first else Affine(value, -one, numbers)
        return Affine(value, numbers if node.op_type == "Mul" else 1 / numbers, nothing)


def _by_channel(constant: ir.Value, shape: tuple[int, ...], axis: int) -> Array | None:
    """The constant's numbers along one axis of ``shape``; None if it varies along another one."""
    array = constant_array(constant)
    if array is None or array.ndim > len(shape) or not shape:
        return None
    full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    others = [size for position, size in enumerate(full.shape) if position != axis % len(shape)]
    return full.reshape(-1).astype(np.float64) if all(size == 1 for size in others) else None


def scale_and_shift(norm: ir.Node) -> tuple[Array, Array] | None:
    """A BatchNormalization's constants as a scale and a shift, float64; None if one is computed."""
    arrays = [constant_array(value) for value in norm.inputs[1:5]]
    if len(arrays) < 4 or any(array is None for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
        return scale, beta - mean * scale


def _channel_scale_and_shift(norm: ir.Node) -> tuple[Array, Array] | None:
    """``scale_and_shift`` of a BatchNormalization of inference, by channel, with all constants of one type."""
    values = norm.inputs[:5]
    if len({value.dtype for value in values if value is not None}) != 1 or None in values:
        return None
    if norm.attributes.get_int("training_mode", 0) or not norm.attributes.get_int("spatial", 1):
        return None
    if opset_of(norm) < 7 and not norm.attributes.get_int("is_test", 0):
        return None
    # With five outputs, BatchNormalization of old opsets trains.
    if any(output.name and is_used(output) for output in norm.outputs[1:]):
        return None
    if any(len(static_shape(value) or ()) != 1 for value in values[1:]):
        return None
    return scale_and_shift(norm)


def _normalization_affine(node: ir.Node) -> Affine | None:
    value, found = node.inputs[0], _channel_scale_and_shift(node)
    shape = static_shape(value)
    if value is None or found is None or not is_private(value) or shape is None:
        return None
    if len(shape) != 2 and maker(value, "MatMul", "Add") is not None:
        return None  # the channels are dimension 1, the columns of a product the last one
    return Affine(value, *found)


# -- new weights ---------------------------------------------------------------------------------------


def _absorb(editor: Editor, linear: ir.Node, affine: Affine, wholes: Wholes) -> bool:
    """Change the weights of ``linear`` so that it does ``affine``, too; false if that isn't possible."""
    values = [linear.inputs[0], input_at(linear, 1)]
    if all(wholes.limits_of(value) is not None for value in values):
        return False  # integer arithmetic: exact as it is
    if any(value is None or value.dtype != linear.outputs[0].dtype for value in values):
        return False
    weight = constant_array(linear.inputs[1])
    bias_value = input_at(linear, 2)
    bias = np.zeros(1) if bias_value is None else constant_array(bias_value)
    if weight is None or bias is None or affine.value is not linear.outputs[0]:
        return False
    changed = _CHANGES[linear.op_type](linear, weight.astype(np.float64), bias.astype(np.float64), affine)
    if changed is None:
        return False
    with np.errstate(all="ignore"):
        new_weight, new_bias = (array.astype(weight.dtype) for array in changed)
    if not _is_calm(new_weight.astype(np.float64), new_bias.astype(np.float64)):
        return False
    name = linear.inputs[1].name if linear.inputs[1] is not None else ""
    if (affine.scale != 1).any():
        editor.set_input(linear, 1, editor.constant(new_weight, f"{name}_scaled"))
    if linear.op_type != "MatMul" and (bias_value is not None or (affine.shift != 0).any()):
        editor.set_input(linear, 2, editor.constant(new_bias, f"{name}_bias"))
    return True


def _scale_sum(editor: Editor, add: ir.Node, affine: Affine, wholes: Wholes) -> bool:
    """Scale the weights and the bias of ``x W + b``, as exporters write a linear layer of three dimensions."""
    biased = _affine(add)
    linear = None if biased is None else maker(biased.value, "MatMul")
    if biased is None or linear is None or (affine.shift != 0).any():
        return False
    index = next(k for k, value in enumerate(add.inputs) if value is not biased.value)
    before = constant_array(add.inputs[index])
    assert before is not None
    with np.errstate(all="ignore"):
        bias = (biased.shift * affine.scale).astype(before.dtype)
    scale = Affine(biased.value, affine.scale, np.zeros(1))
    if not _is_calm(biased.shift, bias.astype(np.float64)) or not _absorb(editor, linear, scale, wholes):
        return False
    value = add.inputs[index]
    editor.set_input(add, index, editor.constant(bias, f"{value.name if value else ''}_scaled"))
    return True


def _scale_conv(linear: ir.Node, weight: Array, bias: Array, affine: Affine) -> tuple[Array, Array] | None:
    channels = shape_of(linear.outputs[0])[1]
    scale = np.broadcast_to(affine.scale, (channels,))
    whole = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return whole, np.broadcast_to(bias * scale + affine.shift, (channels,))


def _scale_conv_transpose(linear: ir.Node, weight: Array, bias: Array, affine: Affine) -> tuple[Array, Array] | None:
    channels = shape_of(linear.outputs[0])[1]
    groups = linear.attributes.get_int("group", 1)
    scale = np.broadcast_to(affine.scale, (channels,))
    # The weight is (channels in, channels out of a group, ...); group g makes the g-th part of the channels.
    apart = weight.reshape(groups, -1, *weight.shape[1:]) * scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    return apart.reshape(weight.shape), np.broadcast_to(bias * scale + affine.shift, (channels,))


def _scale_gemm(linear: ir.Node, weight: Array, bias: Array, affine: Affine) -> tuple[Array, Array] | None:
    beta = linear.attributes.get_float("beta", 1.0)
    scale = affine.scale if affine.scale.size > 1 else affine.scale.reshape(())
    whole = weight * (scale.reshape(-1, 1) if linear.attributes.get_int("transB", 0) and scale.ndim else scale)
    shift = affine.shift if affine.shift.size > 1 else affine.shift.reshape(())
    if beta == 0 and len(linear.inputs) > 2:
        return None
    return whole, np.asarray(bias * scale + shift / beta)


def _scale_matmul(linear: ir.Node, weight: Array, bias: Array, affine: Affine) -> tuple[Array, Array] | None:
    if weight.ndim < 2 or (affine.shift != 0).any():
        return None
    return weight * affine.scale, bias


_CHANGES: dict[str, Any] = {
    "Conv": _scale_conv,
    "ConvTranspose": _scale_conv_transpose,
    "Gemm": _scale_gemm,
    "MatMul": _scale_matmul,
}


def _merge(editor: Editor, norm: ir.Node, affine: Affine) -> bool:
    """Let a BatchNormalization do the scale and shift after it, too."""
    if _channel_scale_and_shift(norm) is None or len(shape_of(norm.outputs[0])) < 2:
        return False
    gamma, beta = (np.asarray(constant_array(value), np.float64) for value in norm.inputs[1:3])
    kind = norm.inputs[1].const_value.numpy().dtype  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        new = [(gamma * affine.scale).astype(kind), (beta * affine.scale + affine.shift).astype(kind)]
    if not _is_calm(*(array.astype(np.float64) for array in new)):
        return False
    for index, array in enumerate(new, 1):
        value = norm.inputs[index]
        editor.set_input(norm, index, editor.constant(array, f"{value.name if value else ''}_scaled"))
    return True
