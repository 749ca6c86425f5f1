"""onnxruntime's quantised operators that compute in floats: dequantise, do the plain operator, quantise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.quantised.bytes import quantize_float, requantize
from trnrt.importer.quantised.forms import BYTES, Left, Number, are_equal, one_number, rank, shape_of
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.values import attribute, input_at


def add_or_multiply(writer: Writer, node: ir.Node) -> None:
    """(a, scale, zero point), (b, scale, zero point), (y's scale, zero point): the floats' sum or product."""
    operands = [_float(writer, node, place) for place in (0, 3)]
    _finish(writer, node, writer.apply(node.op_type.removeprefix("QLinear"), *operands), 6)


def apply_function(writer: Writer, node: ir.Node) -> None:
    """(x, scale, zero point), (y's scale, zero point): a function of the floats."""
    dropped = ("channels_last", "opset")
    attributes = {key: value for key, value in node.attributes.items() if key not in dropped}
    last = bool(attribute(node, "channels_last", 0))
    made = _apply(writer, node, attributes, _channels_first(writer, _float(writer, node, 0), last))
    _finish(writer, node, _channels_last(writer, made, last), 3)


def _channels_first(writer: Writer, numbers: Number, applies: bool) -> Number:
    dims = rank(numbers)
    return writer.apply("Transpose", numbers, perm=[0, dims - 1, *range(1, dims - 1)]) if applies else numbers


def _channels_last(writer: Writer, numbers: Number, applies: bool) -> Number:
    dims = rank(numbers)
    return writer.apply("Transpose", numbers, perm=[0, *range(2, dims), 1]) if applies else numbers


def _apply(writer: Writer, node: ir.Node, attributes: dict[str, Any], numbers: Number) -> Number:
    operands: list[Number | None] = [numbers]
    operator = node.op_type.removeprefix("QLinear")
    if operator == "ReduceMean" and writer.editor.opset >= 18 and "axes" in attributes:
        operands.append(np.asarray(attributes.pop("axes").as_ints(), np.int64))
    return writer.apply(operator, *operands, **attributes)


def apply_softmax(writer: Writer, node: ir.Node) -> None:
    """(x, scale, zero point), (y's scale, zero point): softmax along an axis, or before opset 13 from an axis on."""
    rank = len(shape_of(node.inputs[0]))
    axis, flattens = attribute(node, "axis", -1) % max(rank, 1), attribute(node, "opset", 13) < 13
    if flattens != (writer.editor.opset < 13) and axis != rank - 1:
        raise Left(f"Softmax of opset {attribute(node, 'opset', 13)} along axis {axis} of {rank}")
    _finish(writer, node, writer.apply("Softmax", _float(writer, node, 0), axis=axis), 3)


def average_channels(writer: Writer, node: ir.Node) -> None:
    """(x, scale, zero point), (y's scale, zero point): whole sums, with one factor for scales and count."""
    shape = shape_of(node.inputs[0])
    first = 1 if attribute(node, "channels_last", 0) else 2
    axes = list(range(first, first + len(shape) - 2))
    size = np.asarray(np.prod([shape[axis] for axis in axes]), np.float32)
    numbers = writer.centre(writer.whole(node.inputs[0]), writer.zero(node.inputs[2]))
    if writer.editor.opset >= 13:
        sums = writer.apply("ReduceSum", numbers, np.asarray(axes, np.int64))
    else:
        sums = writer.apply("ReduceSum", numbers, axes=axes)
    scale, zero, kind = _target(writer, node, 3)
    factor = writer.apply("Div", writer.real(node.inputs[1]), writer.apply("Mul", scale, size))
    writer.know(node.outputs[0], requantize(writer, sums, factor, zero, kind, node.name or ""))


def choose(writer: Writer, node: ir.Node) -> None:
    """Condition, (x, scale, zero point), (y, scale, zero point), (z's scale, zero point)."""
    x, y = (_float(writer, node, place) for place in (1, 4))
    _finish(writer, node, writer.apply("Where", node.inputs[0], x, y), 7)


def join(writer: Writer, node: ir.Node) -> None:
    """(y's scale, zero point), then (x, scale, zero point) of each part: each is brought to y's scale."""
    scale, zero, kind = _target(writer, node, 0)
    parts: list[Number | None] = []
    for place in range(2, len(node.inputs), 3):
        form, own = writer.whole(node.inputs[place]), writer.zero(node.inputs[place + 2])
        is_same = are_equal(writer.real(node.inputs[place + 1]), scale) and are_equal(own, zero)
        if not is_same:
            form = quantize_float(writer, _float(writer, node, place), scale, zero, kind, "")
        parts.append(writer.centre(form, zero))
    form = quantize_float(writer, np.zeros((), np.float32), np.ones((), np.float32), zero, kind, "")
    joined = writer.apply("Concat", *parts, name=node.name or "", axis=attribute(node, "axis", 1))
    writer.know(node.outputs[0], type(form)(joined, zero, form.low, form.high))


def _float(writer: Writer, node: ir.Node, place: int) -> Number:
    """A tensor, its scale and its zero point, three inputs in this order, as floats."""
    value, scale, zero = (input_at(node, k) for k in range(place, place + 3))
    numbers = writer.centre(writer.whole(value), one_number(writer.zero(zero)))
    return writer.apply("Mul", numbers, one_number(writer.real(scale)))


def _target(writer: Writer, node: ir.Node, place: int) -> tuple[Number, Number, ir.DataType]:
    """The result's scale, zero point and type; the two are inputs from ``place`` on."""
    made, zero = node.outputs[0], input_at(node, place + 1)
    source = next(value for value in node.inputs if value is not None and value.dtype in BYTES)
    kind = (zero.dtype if zero is not None else source.dtype) or ir.DataType.UINT8
    made.dtype = kind
    return one_number(writer.real(node.inputs[place])), one_number(writer.zero(zero)), kind


def _finish(writer: Writer, node: ir.Node, floats: Number, place: int) -> None:
    scale, zero, kind = _target(writer, node, place)
    writer.know(node.outputs[0], quantize_float(writer, floats, scale, zero, kind, node.name or ""))
