"""Contradictions between a node's inputs that onnx's inference lets pass: weights of another layer, a bias too long."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from trnrt.importer.values import static_shape

Shape = tuple[int, ...]
_Rule = Callable[[ir.Node, list[Shape | None]], str | None]
_RULES: dict[str, _Rule] = {}


def contradiction(node: ir.Node) -> str | None:
    """What is wrong with the shapes of the node's inputs, in words; None where nothing is."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if rule is None or not node.inputs or static_shape(node.inputs[0]) is None:
        return None
    return rule(node, [static_shape(value) for value in node.inputs])


def _for(*operators: str) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


def _at(shapes: list[Shape | None], index: int) -> Shape | None:
    return shapes[index] if index < len(shapes) else None


def broadcasts_to(shape: Shape, wanted: Shape) -> bool:
    """Can a tensor of ``shape`` be repeated to be of shape ``wanted``?"""
    tail = wanted[len(wanted) - len(shape) :]
    return len(shape) <= len(wanted) and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


@_for("Gemm")
def _gemm(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    a, b, c = _at(shapes, 0), _at(shapes, 1), _at(shapes, 2)
    if a is None or b is None:
        return None
    if len(a) != 2 or len(b) != 2:
        return f"it multiplies tensors of shape {a} and {b}, which are no matrices"
    for name in ("alpha", "beta"):
        factor = node.attributes.get_float(name, 1.0)
        if not math.isfinite(factor):
            return f"its {name} is {factor}"
    rows, inner = reversed(a) if node.attributes.get_int("transA", 0) else a
    other, columns = reversed(b) if node.attributes.get_int("transB", 0) else b
    if inner != other:
        return f"it multiplies matrices of shape {(rows, inner)} and {(other, columns)}"
    if c is not None and not broadcasts_to(c, (rows, columns)):
        return f"it adds a tensor of shape {c} to a product of shape {(rows, columns)}"
    return None


@_for("Conv")
def _conv(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data, weight, bias, group = _at(shapes, 0), _at(shapes, 1), _at(shapes, 2), node.attributes.get_int("group", 1)
    if data is None or weight is None:
        return None
    if len(data) < 3 or len(weight) != len(data):
        return f"it has an input of shape {data} and weights of shape {weight}"
    if group < 1 or weight[1] * group != data[1] or weight[0] % group:
        return f"it has {data[1]} channels in {group} groups and weights of shape {weight}"
    if bias is not None and bias != (weight[0],):
        return f"it has weights of shape {weight} and a bias of shape {bias}"
    return None


@_for("ConvTranspose")
def _conv_transpose(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data, weight, bias, group = _at(shapes, 0), _at(shapes, 1), _at(shapes, 2), node.attributes.get_int("group", 1)
    if data is None or weight is None:
        return None
    if len(data) < 3 or len(weight) != len(data):
        return f"it has an input of shape {data} and weights of shape {weight}"
    if group < 1 or weight[0] != data[1] or data[1] % group:
        return f"it has {data[1]} channels in {group} groups and weights of shape {weight}"
    if bias is not None and bias != (weight[1] * group,):
        return f"it has weights of shape {weight} in {group} groups and a bias of shape {bias}"
    return None


@_for("BatchNormalization", "InstanceNormalization")
def _normalization(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data = shapes[0] or ()
    if not node.attributes.get_int("spatial", 1):
        return None
    wanted = (data[1] if len(data) > 1 else 1,)
    wrong = next((shape for shape in shapes[1:] if shape is not None and shape != wanted), None)
    return None if wrong is None else f"it has an input of shape {data} and parameters of shape {wrong}"


@_for("LayerNormalization", "PRelu", "RMSNormalization")
def _broadcasting(node: ir.Node, shapes: list[Shape | None]) -> str | None:
    data, opset = shapes[0] or (), node.graph.opset_imports.get("", 0) if node.graph is not None else 0
    if node.op_type == "PRelu" and opset < 7:
        return None
    wrong = next((shape for shape in shapes[1:] if shape is not None and not broadcasts_to(shape, data)), None)
    return None if wrong is None else f"it has an input of shape {data} and parameters of shape {wrong}"
