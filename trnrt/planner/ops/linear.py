"""Gemm and MatMul with constant weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.kernels.linear import MAX_FEATURES
from trnrt.planner import weights
from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.ops.elementwise import add_sum
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
    """Y = alpha * A @ B + beta * C with B constant; a C that is no row of numbers is added in a step of its own."""
    if attribute(node, "transA", 0):
        raise Blocked("transA=1", "transpose the input before the Gemm, or export the model without transA")
    weight = _constant_matrix(lowering, node.inputs[1], "B")
    weight = (weight.T if attribute(node, "transB", 0) else weight) * np.float32(attribute(node, "alpha", 1.0))
    weight = np.ascontiguousarray(weight)
    source, added = lowering.operand(node.inputs[0]), node.inputs[2] if len(node.inputs) > 2 else None
    if added is None:
        _add_linear(lowering, [node], source, weight, np.zeros(weight.shape[1], np.float32))
        return
    beta = attribute(node, "beta", 1.0)
    constant = lowering.constant(added)
    row = _bias_row(constant, weight.shape[1]) if constant is not None else None
    if row is not None:
        _add_linear(lowering, [node], source, weight, row * np.float32(beta))
    elif constant is not None:
        _add_linear_and_sum(lowering, node, source, weight, [], constant.astype(np.float32) * np.float32(beta))
    elif beta == 1.0:
        _add_linear_and_sum(lowering, node, source, weight, [lowering.operand(added)], None)
    else:
        raise Blocked(f"C is computed and beta={beta}", "multiply C before the Gemm, and leave beta at 1")


@lowers("MatMul")
def lower_matmul(lowering: Lowering, node: ir.Node) -> None:
    """A @ B with B a constant matrix; a following Add of a constant row becomes the bias."""
    weight = _constant_matrix(lowering, node.inputs[1], "the right side")
    source = lowering.operand(node.inputs[0])
    bias, adding = _following_bias(lowering, node, weight.shape[1])
    _add_linear(lowering, [node, *adding], source, weight, bias)


def _following_bias(lowering: Lowering, node: ir.Node, outputs: int) -> tuple[Array, list[ir.Node]]:
    """The bias that an Add after ``node`` brings, and that Add; a note says why one was left out."""
    product = node.outputs[0]
    follower, why_not = lowering.sole_consumer(product)
    for reader, _ in product.uses():
        row = _added_row(lowering, reader, product, outputs)
        if row is None:
            continue
        if follower is not None:
            return row, [follower]
        lowering.notes.append(
            f"Add {node_name(reader)!r} is not fused into MatMul {node_name(node)!r} as its bias: {why_not}"
        )
    return np.zeros(outputs, np.float32), []


def _added_row(lowering: Lowering, node: ir.Node, product: ir.Value, outputs: int) -> Array | None:
    """What ``node`` adds to ``product``, if that is a constant of one number an output."""
    if node.op_type != "Add" or node.domain != "":
        return None
    other = node.inputs[1] if node.inputs[0] is product else node.inputs[0]
    constant = lowering.constant(other)
    if constant is None or lowering.shape(node.outputs[0]) != lowering.shape(product):
        return None
    return _bias_row(constant, outputs)


def _add_linear(lowering: Lowering, nodes: list[ir.Node], source: Operand, weight: Array, bias: Array) -> None:
    act, more = next_activation(lowering, nodes[-1].outputs[0], nodes[0])
    nodes = nodes + more
    step = _linear_step(nodes, source, value_name(nodes[-1].outputs[0]), weight, bias, act)
    lowering.add(step, nodes, "a matrix product on the tensor engine")


def _add_linear_and_sum(
    lowering: Lowering, node: ir.Node, source: Operand, weight: Array, terms: list[Operand], constant: Array | None
) -> None:
    """The product of a Gemm, and to it what the linear kernels can't add."""
    product = lowering.spare_name(f"{value_name(node.outputs[0])}.product")
    step = _linear_step([node], source, product, weight, np.zeros(weight.shape[1], np.float32), "none")
    lowering.add(step, [node], "")
    name = lowering.spare_name(f"{node_name(node)}.sum")
    add_sum(lowering, node, name, [Operand(product, step.shape), *terms], constant, "")
    why = f"a matrix product on the tensor engine; C is no row of numbers: step {name} adds it"
    lowering.report(node, "core", why, step=step.name)


def _linear_step(
    nodes: list[ir.Node], source: Operand, output: str, weight: Array, bias: Array, act: str
) -> LinearStep:
    if weight.shape[0] > MAX_FEATURES:
        raise Blocked(f"rows of {weight.shape[0]} features; the kernel holds {MAX_FEATURES}")
    return LinearStep(
        name=node_name(nodes[0]),
        nodes=[node_name(n) for n in nodes],
        sources=[source],
        output=output,
        shape=(prod(source.shape[:-1]), weight.shape[1]),
        weight=weight,
        bias=bias,
        act=act,
    )
