"""Operators that move integers, or choose among them: they do the same with whole numbers less a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trnrt.importer.quantised.forms import BYTES, ZERO, Form, Left, Number, Scaled, Whole, are_equal, count, shape_of
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.values import attribute, constant_array, input_at, is_used


def move(writer: Writer, node: ir.Node) -> None:
    """An operator whose results are elements of its first input."""
    form = _form(writer, node.inputs[0])
    _put(writer, node, form, [form.numbers, *node.inputs[1:]])


def resize(writer: Writer, node: ir.Node) -> None:
    """Resize: the nearest numbers, or of integers the means of neighbours, less their fractions."""
    if attribute(node, "mode", "nearest") == "nearest":
        move(writer, node)
        return
    form, value = _form(writer, node.inputs[0]), node.inputs[0]
    if not isinstance(form, Whole) or value is None or value.dtype is None:
        raise Left("")
    operands = [writer.centre(form, ZERO), *node.inputs[1:]]
    (means,) = writer.insert(
        "Resize", operands, 1, f"{node.outputs[0].name}_means", node.name or "", dict(node.attributes)
    )
    writer.replace(node.outputs[0], writer.apply("Cast", means, to=value.dtype))


def turn(writer: Writer, node: ir.Node) -> None:
    """Transpose: a scale for each index of an axis turns, too."""
    value = node.inputs[0]
    form = _form(writer, value, one_scale=False)
    if isinstance(form, Whole) or count(form.scale) == 1 or isinstance(form.scale, ir.Value) or value is None:
        move(writer, node)
        return
    dims = len(shape_of(value))
    order = attribute(node, "perm", tuple(reversed(range(dims))))
    scale = form.scale.reshape((1,) * (dims - form.scale.ndim) + form.scale.shape).transpose(order)
    _put(writer, node, replace(form, scale=scale), [form.numbers])


def pad(writer: Writer, node: ir.Node) -> None:
    """Pad with a constant: the constant, less the zero point or over the scale."""
    form, value = _form(writer, node.inputs[0]), input_at(node, 2)
    if attribute(node, "mode", "constant") != "constant":
        move(writer, node)
        return
    fill: Number = ZERO
    if isinstance(form, Whole):
        fill = writer.apply("Sub", fill if value is None else writer.zero(value), form.zero)
    elif value is not None:
        fill = _over_scale(writer, form, value)
    elif form.is_limited:
        raise Left("")
    _put(writer, node, form, [form.numbers, node.inputs[1], fill, *node.inputs[3:]])


def _over_scale(writer: Writer, form: Scaled, value: ir.Value) -> Number:
    """A float in units of the scale. Left unless it is a whole number of them."""
    known, array = writer.find_scaled(value), constant_array(value)
    if known is not None and not known.is_limited and are_equal(known.scale, form.scale):
        return known.numbers if isinstance(known.numbers, ir.Value) else known.numbers.reshape(())
    if array is None or array.size != 1 or array.any() or form.is_limited:
        raise Left("")
    return ZERO


def join(writer: Writer, node: ir.Node) -> None:
    """Concat: of integers with the zero point of the first, or of floats of one scale."""
    if all(value is not None and value.dtype in BYTES for value in node.inputs):
        forms = [writer.whole(value) for value in node.inputs]
        zero = forms[0].zero
        if any(count(form.zero) != 1 for form in forms):
            raise Left("")
        numbers = [writer.centre(form, zero) for form in forms]
        _put(writer, node, Whole(numbers[0], zero, -255, 255), numbers)
        return
    scaled = [writer.find_scaled(value) for value in node.inputs]
    known = [form for form in scaled if form is not None and not form.is_limited and not form.is_sum]
    if len(known) < len(scaled) or any(not are_equal(form.scale, known[0].scale) for form in known):
        raise Left("")
    if count(known[0].scale) != 1 or any(form.kind != known[0].kind for form in known):
        raise Left("")
    low, high = min(form.low for form in known), max(form.high for form in known)
    _put(writer, node, replace(known[0], low=low, high=high), [form.numbers for form in known])


def relu(writer: Writer, node: ir.Node) -> None:
    """Relu: of integers by their zero point; of scaled numbers when they are quantised again."""
    _limit(writer, node, 0.0, np.inf)


def clip(writer: Writer, node: ir.Node) -> None:
    """Clip with constant limits."""
    limits = [constant_array(input_at(node, place)) for place in (1, 2)]
    for place, array in enumerate(limits, 1):
        value = input_at(node, place)
        if value is not None and array is None:
            known = writer.find_scaled(value)
            if known is None or isinstance(known.numbers, ir.Value) or isinstance(known.scale, ir.Value):
                raise Left("")
            limits[place - 1] = known.numbers * known.scale
    low, high = (
        float(a.reshape(-1)[0]) if a is not None else d for a, d in zip(limits, (-np.inf, np.inf), strict=True)
    )
    _limit(writer, node, low, high)


def _limit(writer: Writer, node: ir.Node, low: float, high: float) -> None:
    value = node.inputs[0]
    form = writer.whole(value) if value is not None and value.dtype in BYTES else writer.find_scaled(value)
    if form is None or not low <= high:
        raise Left("")
    if isinstance(form, Scaled):
        floor, ceiling = (min(max(x, low), high) for x in (form.least, form.most))
        writer.know(node.outputs[0], replace(form, least=floor, most=ceiling))
        return
    least, most = (writer.apply("Sub", np.asarray(x, np.float32), form.zero) for x in (low, high))
    _copy_kind(value, node.outputs[0])
    writer.know(node.outputs[0], replace(form, numbers=writer.limit(form.numbers, least, most, node.name or "")))


def choose_index(writer: Writer, node: ir.Node) -> None:
    """ArgMax and ArgMin: the same indices for whole numbers, if a positive scale keeps their order."""
    form = _form(writer, node.inputs[0])
    if isinstance(form, Scaled) and (form.is_sum or isinstance(form.scale, ir.Value) or not np.all(form.scale > 0)):
        raise Left("")
    node.replace_input_with(0, writer.value(form.numbers, f"{node.name}_numbers"))


def copy(writer: Writer, node: ir.Node) -> None:
    """Cast between integers that hold the same numbers, or to a float."""
    value, made = node.inputs[0], node.outputs[0]
    if value is None or value not in writer.forms or value.dtype is None:
        raise Left("")
    form, kind = writer.forms[value], ir.DataType(attribute(node, "to", 1))
    if isinstance(form, Whole) and kind == ir.DataType.FLOAT:
        writer.replace(made, writer.centre(form, ZERO))
    elif isinstance(form, Whole) and kind in (ir.DataType.INT32,):
        writer.know(made, form)
    else:
        raise Left("")


def _form(writer: Writer, value: ir.Value | None, *, one_scale: bool = True) -> Form:
    """The knowledge of a tensor. Left if there is none, or if its elements differ in scale or zero point."""
    if value is not None and value.dtype in BYTES:
        whole = writer.whole(value)
        if count(whole.zero) != 1:
            raise Left("")
        return whole
    form = writer.forms.get(value) if value is not None else None
    if form is None or (one_scale and isinstance(form, Scaled) and count(form.scale) != 1):
        raise Left("")
    return form


def _copy_kind(source: ir.Value | None, made: ir.Value) -> None:
    if source is not None and source.dtype is not None:
        made.dtype = source.dtype


def _put(writer: Writer, node: ir.Node, form: Form, operands: Sequence[Number | None]) -> None:
    """Write the node for whole numbers, and record its first output, and those of its type."""
    source = node.inputs[0]
    outputs = list(node.outputs)
    likes = f"{outputs[0].name}_numbers"
    attributes = dict(node.attributes)
    values = writer.insert(node.op_type, operands, len(outputs), likes, node.name or "", attributes)
    for place, (before, value) in enumerate(zip(outputs, values, strict=True)):
        if place and node.op_type != "Split":
            if is_used(before):
                writer.replace(before, value)
            continue
        _copy_kind(source, before)
        before.shape = value.shape
        writer.know(before, replace(form, numbers=value))
