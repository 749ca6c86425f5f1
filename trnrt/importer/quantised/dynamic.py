"""Quantisation with a scale that is computed from the tensor itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.quantised.bytes import quantize_float
from trnrt.importer.quantised.forms import ZERO, Number, Scaled, Whole
from trnrt.importer.quantised.products import add_float_bias, center_columns, center_matrices, multiply
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.values import input_at

_STEPS = np.asarray(255, np.float32)


def quantize_dynamically(writer: Writer, node: ir.Node) -> None:
    """Quantises to uint8 with the scale (max - min) / 255 of a range that includes 0."""
    form, scale, zero = _quantize(writer, writer.real(node.inputs[0]), node.name or "")
    kinds = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
    for value, kind in zip(node.outputs, kinds, strict=False):
        value.dtype = kind
    writer.know(node.outputs[0], form)
    if len(node.outputs) > 1:
        writer.replace(node.outputs[1], scale)
    if len(node.outputs) > 2:
        writer.know(node.outputs[2], Whole(zero, ZERO, 0, 255))


def _quantize(writer: Writer, numbers: Number, name: str) -> tuple[Whole, Number, Number]:
    """A float tensor as whole numbers, its scale and its zero point."""
    low = writer.apply("Min", writer.apply("ReduceMin", numbers, keepdims=0), ZERO)
    high = writer.apply("Max", writer.apply("ReduceMax", numbers, keepdims=0), ZERO)
    span = writer.apply("Sub", high, low)
    # A tensor of zeros has the scale 1, as in onnxruntime.
    ones = np.ones((), np.float32)
    scale = writer.apply("Where", writer.apply("Equal", span, ZERO), ones, writer.apply("Div", span, _STEPS))
    quotient = writer.apply("Div", writer.apply("Sub", ZERO, low), scale)
    zero = writer.limit(writer.apply("Round", quotient), ZERO, _STEPS)
    return quantize_float(writer, numbers, scale, zero, ir.DataType.UINT8, name), scale, zero


def multiply_to_float(writer: Writer, node: ir.Node) -> None:
    """(a, b, their scales, their zero points, and a bias): a float result."""
    sums = multiply(writer, node, *center_matrices(writer, node, 4))
    _finish(writer, node, sums, writer.real(node.inputs[2]), input_at(node, 3), input_at(node, 6))


def multiply_dynamically(writer: Writer, node: ir.Node) -> None:
    """(float a, b, b's scale, b's zero point, bias): quantises a, and gives a float result."""
    form, scale, _ = _quantize(writer, writer.real(node.inputs[0]), "")
    sums = multiply(writer, node, form.numbers, center_columns(writer, node, 1, 3))
    _finish(writer, node, sums, scale, input_at(node, 2), input_at(node, 4))


def _finish(
    writer: Writer, node: ir.Node, sums: ir.Value, scale: Number, other: ir.Value | None, bias: ir.Value | None
) -> None:
    factor = writer.apply("Mul", scale, writer.real(other))
    form = Scaled(sums, factor)
    node.outputs[0].dtype = ir.DataType.FLOAT
    writer.know(node.outputs[0], form)
    if bias is not None:
        add_float_bias(writer, node, form, bias)
