"""Make a model that rounds at random: the spread of its outputs is the effect of rounding.

RandomUniformLike nodes move each computed number, and each input of a computation, by up to two unit roundoffs.
onnxruntime runs the result like any model, and each run differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from trnrt.operators.bounds import sums
from trnrt.operators.bounds.case import is_exact
from trnrt.operators.bounds.rounding import ENDLESS, SUMS, unit_roundoff
from trnrt.validate.bounds import rule_of

_FLOATS = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
# 4 and 3 significant bits.
_EIGHT_BITS = {"float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}
_SHORT = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
# Inputs from this position on are sizes and scales, which are not rounded.
_FIXED_FROM = {"Resize": 1, "Upsample": 1}
# The first opset with Where.
_WHERE = 9
# The last opset whose RandomUniformLike onnxruntime runs: it has none of opset 22. Other operators only gained dtypes
# or attributes since; a model that needs those is refused by onnxruntime, as it would be with its own opset.
_RANDOM = 21
_PRODUCTS = (sums.convolution, sums.gemm, sums.matmul)
# Their results depend on a tensor's shape alone.
_OF_SHAPES = ("Shape", "Size")


def shake_model(model: ir.Model, known: Mapping[str, ir.DataType], dtype: str) -> bytes:
    """The model with a random rounding wherever a session of ``dtype`` rounds.

    ``known``: name -> dtype of values for which ONNX's own inference finds none. In float32, numbers move by up to two
    unit roundoffs of float32 or of their own dtype. In 16 bits they are also rounded to ``dtype``; constants are only
    rounded. In 8 bits, both factors of layers with constant weights move by up to a unit roundoff; all else is as in
    bfloat16.
    """
    copy = model.clone()
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    _infer_dtypes(copy)
    shaker = _Shaker(copy, known, dtype)
    shaker.walk()
    copy.opset_imports[""] = min(copy.opset_imports.get("", _RANDOM), _RANDOM)
    stored: onnx.ModelProto = ir.to_proto(copy)
    content: bytes = stored.SerializeToString()
    return content


def _infer_dtypes(model: ir.Model) -> None:
    """Infer the values' dtypes. onnx_ir has no type for a list of dicts, so ZipMap is removed meanwhile."""
    graph, outputs = model.graph, list(model.graph.outputs)
    zipping = [node for node in graph if node.op_type == "ZipMap"]
    graph.outputs[:] = [output for output in outputs if output.producer() not in zipping]
    graph.remove(zipping)
    passes.ShapeInferencePass()(model)
    graph.extend(zipping)
    graph.outputs[:] = outputs


class _Shaker:
    """The pass over a graph. ``flowing``: values that depend on the inputs; ``shaken``: random values."""

    def __init__(self, model: ir.Model, known: Mapping[str, ir.DataType], dtype: str) -> None:
        self.graph, self.opset = model.graph, model.opset_imports.get("", 0)
        self.eight = _EIGHT_BITS.get(dtype, 0.0)
        self.known, self.dtype = known, "bfloat16" if self.eight else dtype
        self.flowing: set[ir.Value] = set(model.graph.inputs)
        self.shaken: set[ir.Value] = set()
        self.made: dict[tuple[ir.Value, float], ir.Value] = {}
        self.limits: dict[ir.DataType, ir.Value] = {}
        self.count = 0

    def walk(self) -> None:
        """Shake the values that are rounded, in the order of the graph."""
        for node in list(self.graph):
            if node.op_type in _OF_SHAPES or not any(value in self.flowing for value in node.inputs):
                continue
            self.flowing.update(node.outputs)
            rule = rule_of(node)
            if is_exact(rule) and not self._is_shortening(node):
                if any(value in self.shaken for value in node.inputs):
                    self.shaken.update(node.outputs)
                continue
            if rule is not None:
                self._shake_inputs(node)
            for output in node.outputs:
                self._shake_output(output, node)

    def _shake_inputs(self, node: ir.Node) -> None:
        for position, value in enumerate(node.inputs[: _FIXED_FROM.get(node.op_type)]):
            if value is None or self._float(value) is None:
                continue
            eight = self.eight if position < 2 and self._is_layer(node) else 0.0
            if value in self.shaken and not eight:
                continue
            if value not in self.flowing and self.dtype not in _SHORT:
                continue  # noise in one factor of a product is enough, and weights have more elements
            if (value, eight) not in self.made:
                self.made[value, eight] = self._noise(value, node, before=True, eight=eight)
            node.replace_input_with(position, self.made[value, eight])

    def _is_layer(self, node: ir.Node) -> bool:
        """True for a convolution or a matrix product with constant weights: a session can multiply it in 8 bits."""
        return rule_of(node) in _PRODUCTS and node.inputs[1] not in self.flowing

    def _shake_output(self, value: ir.Value, node: ir.Node) -> None:
        if self._float(value) is None or not (value.uses() or value.is_graph_output()):
            return
        readers = tuple(value.uses())
        noisy = self._noise(value, node, before=False)
        for reader, position in readers:
            reader.replace_input_with(position, noisy)
        for position, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[position] = noisy
        self.flowing.add(noisy)

    def _limit(self, dtype: ir.DataType) -> ir.Value:
        """``ENDLESS`` as a constant of the graph."""
        if dtype not in self.limits:
            name = f"endless {dtype.name}"
            limit = ir.Value(name=name, const_value=ir.tensor(np.array(ENDLESS, dtype.numpy()), name=name))
            self.limits[dtype] = limit
            self.graph.register_initializer(limit)
        return self.limits[dtype]

    def _float(self, value: ir.Value) -> ir.DataType | None:
        """A value's dtype if it is one of ``_FLOATS``."""
        dtype = value.dtype or self.known.get(value.name or "")
        return dtype if dtype in _FLOATS else None

    def _is_shortening(self, node: ir.Node) -> bool:
        return node.op_type == "Cast" and self._float(node.outputs[0]) in _SHORT.values()

    def _noise(self, value: ir.Value, node: ir.Node, *, before: bool, eight: float = 0.0) -> ir.Value:
        """The value with noise, by nodes before or after ``node``; ``eight``: its reach, if it has 8 bits there."""
        dtype = self._float(value)
        assert dtype is not None
        own = _FLOATS[dtype]
        is_wide = own in ("float32", "float64")
        nodes: list[ir.Node] = []

        def add(op: str, inputs: list[ir.Value], kind: ir.DataType, **attributes: Any) -> ir.Value:
            self.count += 1
            made = ir.node(op, inputs, attributes)
            made.name = made.outputs[0].name = f"shaken {self.count}"
            made.outputs[0].dtype = kind
            nodes.append(made)
            return made.outputs[0]

        wide = dtype if is_wide else ir.DataType.FLOAT
        given = x = value if is_wide else add("Cast", [value], wide, to=wide)
        target = _SHORT.get(self.dtype)
        if target is None or value in self.flowing or eight:
            reach = 2 * max(SUMS, unit_roundoff(own)) if target is None else eight or unit_roundoff(self.dtype)
            random = add("RandomUniformLike", [x], wide, low=-reach, high=reach, seed=float(self.count))
            x = add("Add", [x, add("Mul", [x, random], wide)], wide)
        if target is not None:
            x = add("Cast", [add("Cast", [x], target, to=target)], wide, to=wide)
        if self.opset >= _WHERE and (before or rule_of(node) not in _PRODUCTS):  # masks are added
            # To move a number of a mask would decide by chance which of a row's masked elements counts.
            is_usual = add("Less", [add("Abs", [given], wide), self._limit(wide)], ir.DataType.BOOL)
            x = add("Where", [is_usual, x, given], wide)
        if not is_wide:
            x = add("Cast", [x], dtype, to=dtype)
        (self.graph.insert_before if before else self.graph.insert_after)(node, nodes)
        self.shaken.add(x)
        return x
