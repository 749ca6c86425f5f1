"""Convolutions and matrix products of quantised tensors: products of whole numbers, scaled afterwards."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.quantised.bytes import requantize, spread
from trnrt.importer.quantised.forms import ZERO, Left, Number, Scaled, Whole, count, one_number, rank, shape_of
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.rewriting.editing import Array
from trnrt.importer.values import attribute, input_at
from trnrt.importer.wholes import EXACT_SUM

# A bias in units of the product's scale is the float32 product of two scales; exporters may round it once more.
_SAME_SCALE = 2.0**-22


def multiply_floats(writer: Writer, node: ir.Node) -> None:
    """Conv, ConvTranspose, Gemm or MatMul of two dequantised tensors. Left if one side is a float."""
    left, right = (writer.find_scaled(value) for value in node.inputs[:2])
    if left is None or right is None or left.is_sum or right.is_sum or left.is_limited or right.is_limited:
        raise Left("")
    if not isinstance(left.numbers, ir.Value) and not isinstance(right.numbers, ir.Value):
        raise Left("")
    factor = _product_scale(writer, node, left.scale, right.scale)
    bias = input_at(node, 2)
    numbers = _whole_bias(writer, bias, factor) if bias is not None and attribute(node, "beta", 1.0) == 1 else None
    sums = multiply(writer, node, left.numbers, right.numbers, numbers)
    alpha = np.float32(attribute(node, "alpha", 1.0))
    factor = factor if alpha == 1 else writer.apply("Mul", factor, np.asarray(alpha))
    form = Scaled(sums, factor, kind=node.outputs[0].dtype or left.kind)
    writer.know(node.outputs[0], form)
    if bias is not None and numbers is None:
        add_float_bias(writer, node, form, bias)


def _product_scale(writer: Writer, node: ir.Node, left: Number, right: Number) -> Number:
    """The scale of the sums. Left if it differs between the terms of a sum."""
    if node.op_type in _CONVOLUTIONS:
        right = _channel_scale(writer, node, right)
        if count(left) != 1:
            raise Left("the data's scale differs between channels")
    else:
        turned = [attribute(node, f"trans{side}", 0) for side in "AB"]
        left, right = (_turn(s, node, k) if turned[k] else s for k, s in enumerate((left, right)))
        if _varies(left, -1) or _varies(right, -2 if len(shape_of(node.inputs[1])) > 1 else -1):
            raise Left("a scale differs between the terms of a sum")
    made: Number = writer.apply("Mul", left, right)
    return made


def _channel_scale(writer: Writer, node: ir.Node, scale: Number) -> Number:
    """The scale of a convolution's weights along the channels of its result."""
    if count(scale) == 1:
        return scale
    dims = len(shape_of(node.inputs[1]))
    axis, groups = (1, attribute(node, "group", 1)) if node.op_type == "ConvTranspose" else (0, 1)
    # In its shape, dimension ``axis`` comes first: those before it, of size 1, are left out.
    if groups != 1 or rank(scale) != dims - axis or count(scale) != _first(scale):
        raise Left("the weights' scale differs between the terms of a sum")
    made: Number = writer.apply("Reshape", scale, np.array([-1, *[1] * (dims - 2)], np.int64))
    return made


def _first(number: Number) -> int:
    dims = list(number.shape or ())
    return int(dims[0]) if dims and isinstance(dims[0], int) else 0


def _varies(scale: Number, axis: int) -> bool:
    """True if a scale may differ along an axis, counted from the end."""
    dims: list[object] = list(scale.shape or ())
    return count(scale) != 1 and len(dims) >= -axis and bool(dims[axis] != 1)


def _turn(scale: Number, node: ir.Node, side: int) -> Number:
    if count(scale) == 1:
        return scale
    if isinstance(scale, ir.Value):
        raise Left("a computed scale for each row of a transposed matrix")
    return np.broadcast_to(scale, np.broadcast_shapes(scale.shape, (1, 1))).T


def _whole_bias(writer: Writer, bias: ir.Value, factor: Number) -> Number | None:
    """A bias in units of the sums; None if it has another scale."""
    form = writer.find_scaled(bias)
    if form is None or form.is_limited or isinstance(form.scale, ir.Value) or isinstance(factor, ir.Value):
        return None
    unit = np.broadcast_to(factor.reshape(-1), form.scale.reshape(-1).shape) if factor.size == 1 else factor.reshape(-1)
    if form.scale.size not in (1, unit.size) or np.any(np.abs(form.scale.reshape(-1) - unit) > _SAME_SCALE * unit):
        return None
    return form.numbers


def add_float_bias(writer: Writer, node: ir.Node, form: Scaled, bias: ir.Value) -> None:
    """Add a bias that has no scale, or another one, to the scaled sums."""
    scaled, addend = writer.apply("Mul", form.numbers, form.scale), writer.real(bias)
    if node.op_type in _CONVOLUTIONS:
        dims = len(shape_of(node.outputs[0]))
        addend = writer.apply("Reshape", addend, np.array([-1, *[1] * (dims - 2)], np.int64))
    beta = np.asarray(attribute(node, "beta", 1.0), np.float32)
    addend = addend if beta == 1 else writer.apply("Mul", addend, beta)
    writer.forms.pop(node.outputs[0])
    total = writer.apply("Add", scaled, addend)
    writer.replace(
        node.outputs[0], total if form.kind == ir.DataType.FLOAT else writer.apply("Cast", total, to=form.kind)
    )


# A bias up to here leaves the sums most of the range in which float32 is exact.
_MOST_BIAS = 2.0**22
# An int32 bias in units of it is exact in float32, and so is the rest.
_BIAS_STEP = 2.0**13
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_OF_WINDOWS = ("auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
_OPERATORS = {
    "ConvInteger": "Conv",
    "QLinearConv": "Conv",
    "MatMulInteger": "MatMul",
    "QLinearMatMul": "MatMul",
    "MatMulIntegerToFloat": "MatMul",
    "DynamicQuantizeMatMul": "MatMul",
    "QGemm": "Gemm",
}


def multiply(writer: Writer, node: ir.Node, left: Number, right: Number, bias: Number | None = None) -> ir.Value:
    """The sums of products of whole numbers, and of a whole bias: rounded once, if they exceed 2^24."""
    operator = _OPERATORS.get(node.op_type, node.op_type)
    kept = (*_OF_WINDOWS, "transA", "transB")
    attributes = {name: node.attributes[name] for name in kept if name in node.attributes}
    _check_computed(node, operator, right)
    within, beyond = _divide_bias(bias)
    operands = [left, right] if within is None else [left, right, within]
    name = f"{node.outputs[0].name}_sums"
    sums = writer.insert(operator, operands, 1, name, node.name or "", attributes)[0]
    if beyond is None:
        return sums
    addend = beyond.reshape(-1, *[1] * (len(shape_of(sums)) - 2)) if operator in _CONVOLUTIONS else beyond
    return writer.insert("Add", [sums, addend], 1, name, "", None)[0]


def _check_computed(node: ir.Node, operator: str, weights: Number) -> None:
    """Left if a convolution's weights are computed, and its sums might be inexact and can't be split."""
    if not isinstance(weights, ir.Value) or operator not in _CONVOLUTIONS:
        return
    # Sums are split between channels, but not those of groups.
    size = 255 * 255 * int(np.prod(shape_of(weights)[1 if attribute(node, "group", 1) > 1 else 2 :]))
    if size >= EXACT_SUM:
        raise Left(f"sums of up to {size} with computed weights; up to {EXACT_SUM:.0f} are exact: make them constants")


def _divide_bias(bias: Number | None) -> tuple[Number | None, Array | None]:
    """A constant bias as a part that float32 adds to sums exactly, and a rest of multiples of a large number."""
    if bias is None or isinstance(bias, ir.Value) or np.abs(bias).max(initial=0) <= _MOST_BIAS:
        return bias, None
    beyond = np.rint(bias / _BIAS_STEP) * _BIAS_STEP
    return (bias - beyond).astype(np.float32), beyond.astype(np.float32)


def convolve_bytes(writer: Writer, node: ir.Node) -> None:
    """(x, scale, zero point), (w, scale, zero point), (y's scale, zero point), bias of whole numbers."""
    x, w = (_side(writer, node, place) for place in (0, 3))
    if count(x[1]) != 1:
        raise Left("the data's scale differs between channels")
    weights = writer.centre(w[0], spread(writer, w[2], shape_of(node.inputs[3]), 0))
    bias = input_at(node, 8)
    sums = multiply(writer, node, writer.centre(x[0], x[2]), weights, writer.whole(bias).numbers if bias else None)
    scale = spread(writer, writer.apply("Mul", x[1], w[1]), shape_of(sums), 1)
    know_requantized(writer, node, sums, scale, 6)


def multiply_bytes(writer: Writer, node: ir.Node) -> None:
    """(a, scale, zero point), (b, scale, zero point), (y's scale, zero point)."""
    a, b = (_side(writer, node, place) for place in (0, 3))
    (scale_a, zero_a), (scale_b, zero_b) = (
        tuple(_spread_matrix(writer, number, shape_of(node.inputs[place]), axis) for number in side[1:])
        for side, place, axis in ((a, 0, -2), (b, 3, -1))
    )
    sums = multiply(writer, node, writer.centre(a[0], zero_a), writer.centre(b[0], zero_b))
    know_requantized(writer, node, sums, writer.apply("Mul", scale_a, scale_b), 6)


def multiply_matrices(writer: Writer, node: ir.Node) -> None:
    """(a, scale, zero point), (b, scale, zero point), bias of whole numbers, (y's scale, zero point). Without
    a scale of y, the result is a float."""
    a, b = (_side(writer, node, place) for place in (0, 3))
    is_turned = bool(attribute(node, "transB", 0))
    scale_b, zero_b = (spread(writer, number, shape_of(node.inputs[3]), 0 if is_turned else 1) for number in b[1:])
    bias = input_at(node, 6)
    addend = None if bias is None else writer.whole(bias).numbers
    sums = multiply(writer, node, writer.centre(a[0], a[2]), writer.centre(b[0], zero_b), addend)
    scale = writer.apply("Mul", a[1], scale_b if not is_turned or count(scale_b) == 1 else b[1])
    alpha = np.asarray(attribute(node, "alpha", 1.0), np.float32)
    scale = scale if alpha == 1 else writer.apply("Mul", scale, alpha)
    if input_at(node, 7) is None:
        writer.know(node.outputs[0], Scaled(sums, scale))
    else:
        know_requantized(writer, node, sums, scale, 7)


def _side(writer: Writer, node: ir.Node, place: int) -> tuple[Whole, Number, Number]:
    """A tensor, its scale and its zero point, three inputs in this order."""
    value, scale, zero = node.inputs[place : place + 3]
    return writer.whole(value), writer.real(scale), writer.zero(zero)


def _spread_matrix(writer: Writer, number: Number, shape: tuple[int, ...], axis: int) -> Number:
    """A scale or zero point of a matrix's rows (axis -2) or columns (-1)."""
    return number if rank(number) > 1 and count(number) != 1 else spread(writer, number, shape, axis)


def know_requantized(writer: Writer, node: ir.Node, sums: Number, scale: Number, place: int) -> None:
    """Make the node's output the sums with the scale and zero point that are inputs from ``place`` on."""
    target, zero_value = node.inputs[place], input_at(node, place + 1)
    made = node.outputs[0]
    kind = zero_value.dtype if zero_value is not None else made.dtype or ir.DataType.UINT8
    made.dtype = kind or ir.DataType.UINT8
    factor = writer.apply("Div", scale, one_number(writer.real(target)))
    # The product has the node's name.
    writer.know(made, requantize(writer, sums, factor, one_number(writer.zero(zero_value)), kind, ""))


def convolve_integers(writer: Writer, node: ir.Node) -> None:
    """(x, w, x's zero point, w's zero point); the sums are its result."""
    zero = spread(writer, writer.zero(input_at(node, 3)), shape_of(node.inputs[1]), 0)
    weights = writer.centre(writer.whole(node.inputs[1]), zero)
    data = writer.centre(writer.whole(node.inputs[0]), writer.zero(input_at(node, 2)))
    shape = shape_of(node.inputs[1])
    _check_integers(node, weights, tuple(range(1, len(shape))), int(np.prod(shape[1:])))
    _know_sums(writer, node, multiply(writer, node, data, weights))


def multiply_integers(writer: Writer, node: ir.Node) -> None:
    """(a, b, a's zero point, b's zero point); the sums are its result."""
    left, right = center_matrices(writer, node, 2)
    shape = shape_of(node.inputs[1])
    _check_integers(node, right, (max(len(shape) - 2, 0),), shape[-2:][0])
    _know_sums(writer, node, multiply(writer, node, left, right))


def center_matrices(writer: Writer, node: ir.Node, place: int) -> tuple[Number, Number]:
    """Two matrices less their zero points, which are inputs from ``place`` on."""
    left, right = (
        writer.centre(
            writer.whole(node.inputs[side]),
            _spread_matrix(writer, writer.zero(input_at(node, place + side)), shape_of(node.inputs[side]), axis),
        )
        for side, axis in ((0, -2), (1, -1))
    )
    return left, right


def center_columns(writer: Writer, node: ir.Node, side: int, place: int) -> Number:
    """A matrix less the zero points of its columns, which are input ``place``."""
    zero = _spread_matrix(writer, writer.zero(input_at(node, place)), shape_of(node.inputs[side]), -1)
    return writer.centre(writer.whole(node.inputs[side]), zero)


def _check_integers(node: ir.Node, weights: Number, axes: tuple[int, ...], terms: int) -> None:
    """Left if the sums are read as integers, and may be larger than float32 holds exactly."""
    made = node.outputs[0]
    readers = [reader for reader, _ in made.uses()]
    if not made.is_graph_output() and all(reader.op_type == "Cast" for reader in readers):
        return
    size = 255.0 * terms if isinstance(weights, ir.Value) else float(np.abs(weights).sum(axes).max(initial=0))
    if 255 * size > EXACT_SUM:
        raise Left(
            f"sums of up to {255 * size:.0f} that are read as integers; up to {EXACT_SUM:.0f} are exact:"
            " cast them to float first"
        )


def _know_sums(writer: Writer, node: ir.Node, sums: ir.Value) -> None:
    node.outputs[0].dtype = ir.DataType.INT32
    writer.know(node.outputs[0], Whole(sums, ZERO, -np.inf, np.inf))
