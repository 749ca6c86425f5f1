"""QuantizeLinear and DequantizeLinear, and the arithmetic that they share with other quantised operators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.quantised.forms import BYTES, LIMITS, Left, Number, Scaled, Whole, are_equal, count, shape_of
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.values import attribute, input_at


def dequantize(writer: Writer, node: ir.Node) -> None:
    """(x - zero point) * scale, computed only where a node reads the float."""
    source, made, scale_value = node.inputs[0], node.outputs[0], node.inputs[1]
    form, shape, axis = writer.whole(source), shape_of(source), attribute(node, "axis", 1)
    block = attribute(node, "block_size", 0)
    zero = spread(writer, writer.zero(input_at(node, 2)), shape, axis, block)
    scale = spread(writer, writer.real(scale_value), shape, axis, block)
    numbers = writer.centre(form, zero)
    low, high = (form.low, form.high) if numbers is form.numbers else tensor_bounds(source, zero)
    kind = made.dtype or (scale_value.dtype if scale_value is not None else None) or ir.DataType.FLOAT
    # Constants that meet no other integers are folded into floats, as in models whose weights alone are quantised.
    writer.know(made, Scaled(numbers, scale, low, high, kind), there=not isinstance(numbers, ir.Value))


def quantize(writer: Writer, node: ir.Node) -> None:
    """Round(x / scale), limited to the type's range less the zero point."""
    source, made, zero_value = node.inputs[0], node.outputs[0], input_at(node, 2)
    kind = made.dtype or (ir.DataType.UINT8 if zero_value is None else zero_value.dtype)
    if source is None or kind not in BYTES:
        raise Left(f"its result is {kind.name.lower() if kind else '?'}; int8 and uint8 are supported")
    made.dtype = kind
    shape, axis, block = shape_of(source), attribute(node, "axis", 1), attribute(node, "block_size", 0)
    scale = spread(writer, writer.real(node.inputs[1]), shape, axis, block)
    zero = spread(writer, writer.zero(zero_value), shape, axis, block)
    writer.know(made, quantize_value(writer, source, scale, zero, kind, node.name or ""))


def quantize_value(
    writer: Writer, source: ir.Value, scale: Number, zero: Number, kind: ir.DataType | None, name: str
) -> Whole:
    """A float of the model, quantised; sums of products are multiplied by a single factor."""
    form = writer.find_scaled(source)
    is_one = count(scale) == 1 and not isinstance(scale, ir.Value) and not isinstance(zero, ir.Value)
    if form is None or not (form.is_sum or are_equal(form.scale, scale)) or (form.is_limited and not is_one):
        return quantize_float(writer, writer.real(source), scale, zero, kind, name)
    low, high = type_limits(writer, kind, zero)
    if form.is_limited and not isinstance(scale, ir.Value):
        # Rounding keeps the order: a limit of the float is the rounded limit of the quotient.
        low, high = (
            writer.apply(op, limit, np.rint(np.float32(real) / scale))
            for op, limit, real in (("Max", low, form.least), ("Min", high, form.most))
        )
    if form.is_sum:
        return requantize(writer, form.numbers, writer.apply("Div", form.scale, scale), zero, kind, name, (low, high))
    numbers = form.numbers
    if isinstance(low, ir.Value) or isinstance(high, ir.Value) or np.any(low > form.low) or np.any(high < form.high):
        numbers = writer.limit(numbers, low, high, name)
    return Whole(numbers, zero, *type_bounds(kind, zero))


def quantize_float(
    writer: Writer, numbers: Number, scale: Number, zero: Number, kind: ir.DataType | None, name: str
) -> Whole:
    """A float divided by its scale, rounded half to even, and limited."""
    rounded = writer.apply("Round", writer.apply("Div", numbers, scale))
    limited = writer.limit(rounded, *type_limits(writer, kind, zero), name)
    return Whole(limited, zero, *type_bounds(kind, zero))


def requantize(
    writer: Writer,
    sums: Number,
    factor: Number,
    zero: Number,
    kind: ir.DataType | None,
    name: str,
    limits: tuple[Number, Number] | None = None,
) -> Whole:
    """Sums of products times a factor, rounded half to even, and limited."""
    rounded = writer.apply("Round", writer.apply("Mul", sums, factor))
    limited = writer.limit(rounded, *(limits or type_limits(writer, kind, zero)), name)
    return Whole(limited, zero, *type_bounds(kind, zero))


def type_limits(writer: Writer, kind: ir.DataType | None, zero: Number) -> tuple[Number, Number]:
    """The range of a type, less a zero point."""
    low, high = (np.asarray(limit, np.float32) for limit in LIMITS[kind or ir.DataType.UINT8])
    return writer.apply("Sub", low, zero), writer.apply("Sub", high, zero)


def tensor_bounds(value: ir.Value | None, zero: Number) -> tuple[float, float]:
    """The lowest and the highest number of a tensor less its zero point."""
    return type_bounds(value.dtype if value is not None else None, zero)


def type_bounds(kind: ir.DataType | None, zero: Number) -> tuple[float, float]:
    """The lowest and the highest number of a type less a zero point."""
    low, high = LIMITS[kind or ir.DataType.UINT8]
    least, most = (low, high) if isinstance(zero, ir.Value) else (float(zero.min()), float(zero.max()))
    return low - most, high - least


def spread(writer: Writer, number: Number, shape: tuple[int, ...], axis: int, block: int = 0) -> Number:
    """A scale or zero point so that it broadcasts to a tensor of this shape: one for all elements, for each index of
    ``axis``, or for each ``block`` of elements along it."""
    if count(number) == 1:
        return number if isinstance(number, ir.Value) else number.reshape(())
    given, place = tuple(number.shape or ()), axis % max(len(shape), 1)
    parts = (*shape[:place], -(-shape[place] // block), *shape[place + 1 :]) if block > 0 else shape[place : place + 1]
    if not -len(shape) <= axis < len(shape) or given != parts:
        by = f"in blocks of {block} along" if block else "along"
        raise Left(f"a scale or zero point of shape {given} {by} axis {axis} of a tensor of shape {shape}")
    if block:
        return _repeat(writer, number, shape, place, block)
    after = len(shape) - 1 - place
    return writer.apply("Reshape", number, np.array([-1, *[1] * after], np.int64)) if after else number


def _repeat(writer: Writer, number: Number, shape: tuple[int, ...], axis: int, block: int) -> Number:
    """Each index of an axis repeated ``block`` times, and cut to the shape."""
    apart = (*shape[:axis], -(-shape[axis] // block), 1, *shape[axis + 1 :])
    repeats, joined = [1] * len(apart), list(shape)
    repeats[axis + 1], joined[axis] = block, apart[axis] * block
    number = writer.apply("Reshape", number, np.array(apart, np.int64))
    number = writer.apply("Tile", number, np.array(repeats, np.int64))
    number = writer.apply("Reshape", number, np.array(joined, np.int64))
    ends = (np.array([value], np.int64) for value in (0, shape[axis], axis))
    return number if joined == list(shape) else writer.apply("Slice", number, *ends)
