"""Activations: those that onnxruntime fuses into products, and GELU and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.quantised.forms import Left
from trnrt.importer.values import attribute, input_at

# Attributes of the activations that have some, in the order of onnxruntime's ``activation_params``.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    **dict.fromkeys(("HardSwish", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
}


def activate(writer: Writer, value: ir.Value, activation: str, parameters: Sequence[float]) -> ir.Value:
    """The activation that a fused product ends with; none if it is empty. Left if it isn't known."""
    if activation in ("", "Identity"):
        return value
    if activation == "Clip":
        return _clip(writer, value, *parameters)
    names = _PARAMETERS.get(activation)
    if names is None or len(parameters) < len(names):
        raise Left(f"activation={activation!r} with {len(parameters)} parameters")
    attributes = dict(zip(names, map(float, parameters), strict=False))
    return writer.insert(activation, [value], 1, "", attributes)[0]


def _clip(writer: Writer, value: ir.Value, low: float, high: float) -> ir.Value:
    if writer.opset < 11:
        return writer.apply("Clip", value, min=float(low), max=float(high))
    return writer.apply("Clip", value, writer.number(low, value), writer.number(high, value))


def gelu(writer: Writer, value: ir.Value, *, tanh: bool = False, name: str = "") -> ir.Value:
    """x times the normal distribution's probability below x; ``tanh``: its approximation."""
    if writer.opset >= 20:
        return writer.apply("Gelu", value, name=name, approximate="tanh" if tanh else "none")

    def number(x: float) -> ir.Value:
        return writer.constant(writer.number(x, value), value.name or "")

    if tanh:
        square = writer.apply("Mul", value, value)
        cubic = writer.apply("Mul", writer.apply("Mul", square, value), number(0.044715))
        inner = writer.apply("Mul", writer.apply("Add", value, cubic), number(sqrt(2 / pi)))
        bent = writer.apply("Tanh", inner)
    else:
        bent = writer.apply("Erf", writer.apply("Div", value, number(sqrt(2))))
    half = writer.apply("Mul", value, number(0.5))
    return writer.apply("Mul", half, writer.apply("Add", bent, number(1.0)), name=name)


def write_gelu(writer: Writer, node: ir.Node) -> None:
    """Gelu of x, or of x + bias; FastGelu is the approximation by tanh."""
    value, bias = node.inputs[0], input_at(node, 1)
    assert value is not None
    if bias is not None:
        value = writer.apply("Add", value, bias)
    writer.finish(gelu(writer, value, tanh=node.op_type == "FastGelu", name=node.name or ""))


def write_quick_gelu(writer: Writer, node: ir.Node) -> None:
    """x * sigmoid(alpha * x)."""
    value = node.inputs[0]
    assert value is not None
    alpha = float(attribute(node, "alpha", 1.702))
    inner = value if alpha == 1 else writer.apply("Mul", value, writer.number(alpha, value))
    writer.finish(writer.apply("Mul", value, writer.apply("Sigmoid", inner), name=node.name or ""))


def write_bias_split_gelu(writer: Writer, node: ir.Node) -> None:
    """x + bias in two halves of the last axis: the first times the GELU of the second."""
    total = writer.apply("Add", *node.inputs)
    axis, half = writer.rank(total) - 1, writer.size(total, -1) // 2
    left, right = writer.split(total, [half, half], axis)
    writer.finish(writer.apply("Mul", left, gelu(writer, right), name=node.name or ""))


def write_bias_add(writer: Writer, node: ir.Node) -> None:
    """x + bias + skip."""
    first, bias, skip = node.inputs
    writer.finish(writer.apply("Add", writer.apply("Add", first, bias), skip, name=node.name or ""))
