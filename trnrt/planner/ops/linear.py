"""Gemm and MatMul with constant weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.planner import weights
from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.ops.fusing import next_activation
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Operand, Step, Tensors, WeightName


@dataclass(kw_only=True)
class LinearStep(Step):
    """``act(source @ weight + bias)`` with weight (F, O) and bias (O,)."""

    weight: Array
    bias: Array
    act: str

    def _image(self, tensors: Tensors) -> tuple[int, int]:
        """(channels, positions) of a flattened image, (F, 1) of plain features."""
        stored = tensors.shape(self.sources[0].value)
        if len(stored) == 4 and (stored[0], prod(stored[1:])) == (self.shape[0], self.weight.shape[0]):
            return stored[1], stored[2] * stored[3]
        return self.weight.shape[0], 1

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[0].value)
        if stored == (self.shape[0], self.weight.shape[0]):
            return (Layout.FEATURES, Layout.HBM)
        if len(stored) == 4 and (stored[0], prod(stored[1:])) == (self.shape[0], self.weight.shape[0]):
            return (Layout.CHANNELS, Layout.HBM)
        return (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.ROWS, Layout.HBM)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else (self.shape[0], self.weight.shape[0])

    def on_chip_view(self, name: str, layout: Layout, stored: tuple[int, ...]) -> str:
        """The kernels read (P, B, S, N): one position of plain features, or the pixels of a flattened image."""
        if layout is Layout.FEATURES:
            return f"{name}.expand_dim(2)"
        return f"{name}.flatten_dims(3, 4).permute((0, 1, 3, 2))"

    def call(self, tensors: Tensors) -> Call:
        features, positions = self.weight.shape[0], 1
        if tensors.layout(self.sources[0].value) is Layout.CHANNELS:
            features, positions = self._image(tensors)
        by_features = tensors.layout(self.output) is Layout.FEATURES
        bias = weights.columns(self.bias) if by_features else weights.row(self.bias)
        return Call(
            module="linear",
            kernel="linear_features" if by_features else "linear_rows",
            args=(WeightName("w"), WeightName("b")),
            options={"features": features} | ({"act": self.act} if self.act != "none" else {}),
            weights={"w": weights.linear_weight(self.weight, positions)},
            biases={"b": bias},
        )


def _constant_matrix(lowering: Lowering, value: ir.Value | None, what: str) -> Array:
    matrix = lowering.constant(value)
    if matrix is None:
        raise Blocked(f"{what} is computed; the kernel needs a constant matrix", "export the weights as initializers")
    if matrix.ndim != 2:
        raise Blocked(f"{what} has {matrix.ndim} dimensions; the kernel needs 2")
    return matrix.astype(np.float32)


def _bias_row(bias: Array, outputs: int) -> Array | None:
    """A bias that is one number an output, as (O,); None for any other shape."""
    if bias.size == 1:
        return np.full(outputs, bias.reshape(()), np.float32)
    if bias.shape[-1:] == (outputs,) and bias.size == outputs:
        return bias.reshape(outputs).astype(np.float32)
    return None


@lowers("Gemm")
def lower_gemm(lowering: Lowering, node: ir.Node) -> None:
    """Y = alpha * A @ B + beta * C, with B and C constant."""
    if attribute(node, "transA", 0):
        raise Blocked("transA=1", "transpose the input before the Gemm, or export the model without transA")
    weight = _constant_matrix(lowering, node.inputs[1], "B")
    weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
    outputs = weight.shape[1]
    bias = np.zeros(outputs, np.float32)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        given = lowering.constant(node.inputs[2])
        row = _bias_row(given, outputs) if given is not None else None
        if row is None:
            shape = "computed" if given is None else f"of shape {given.shape}"
            raise Blocked(f"C is {shape}; the kernel adds a constant of one number an output ({outputs},)")
        bias = row * np.float32(attribute(node, "beta", 1.0))
    _add_linear(lowering, [node], lowering.operand(node.inputs[0]), np.ascontiguousarray(weight), bias)


@lowers("MatMul")
def lower_matmul(lowering: Lowering, node: ir.Node) -> None:
    """A @ B with B a constant matrix; a following Add of a constant row becomes the bias."""
    weight = _constant_matrix(lowering, node.inputs[1], "the right side")
    source = lowering.operand(node.inputs[0])
    nodes, bias = [node], np.zeros(weight.shape[1], np.float32)
    follower, _ = lowering.sole_consumer(node.outputs[0])
    if follower is not None and follower.op_type == "Add" and follower.domain == "":
        other = follower.inputs[1] if follower.inputs[0] is node.outputs[0] else follower.inputs[0]
        constant = lowering.constant(other)
        row = _bias_row(constant, weight.shape[1]) if constant is not None else None
        same = lowering.shape(follower.outputs[0]) == lowering.shape(node.outputs[0])
        if row is not None and same:
            nodes, bias = [node, follower], row
    _add_linear(lowering, nodes, source, weight, bias)


def _add_linear(lowering: Lowering, nodes: list[ir.Node], source: Operand, weight: Array, bias: Array) -> None:
    act, more = next_activation(lowering, nodes[-1].outputs[0], nodes[0])
    nodes = nodes + more
    rows = prod(source.shape[:-1])
    step = LinearStep(
        name=node_name(nodes[0]),
        nodes=[node_name(n) for n in nodes],
        sources=[source],
        output=value_name(nodes[-1].outputs[0]),
        shape=(rows, weight.shape[1]),
        weight=weight,
        bias=bias,
        act=act,
    )
    lowering.add(step, nodes, "a matrix product on the tensor engine")
