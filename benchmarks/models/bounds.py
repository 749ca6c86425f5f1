"""The hardware's least time for a model: to load its weights once over DMA, or for its products on the tensor
engine."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from benchmarks.documented import Bound, Rates, bound
from trnrt.nki.machine.dtypes import as_dtype

Shape = tuple[int, ...]

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_KEPT = 64
"""Constants with at most this many elements stay in an outline: shapes, axes and the like, which determine other
shapes."""


@dataclass(frozen=True)
class Work:
    """The least work of a model for one batch: multiplications of its products, and elements to move.

    ``weights`` are those of the products (Conv, ConvTranspose, Gemm, MatMul), with their biases; others may be folded
    into them.
    """

    multiplications: int
    weights: int
    inputs: int
    outputs: int

    def bound(self, target: str, dtype: str, at: Rates | None = None) -> Bound:
        """The time to move every operand once ``at`` these rates (by default the highest that are documented), and that
        of the products at the peak.

        A program's fixed cost is not included.
        """
        moved = (self.weights + self.inputs + self.outputs) * as_dtype(dtype).itemsize
        return bound(target, dtype, 2.0 * self.multiplications, moved, at)


@dataclass(frozen=True)
class Outline:
    """A model without its large constants: in ``bare`` they are inputs of the same shapes, listed in ``weights``.

    All other shapes follow from it, and it is cheap to copy.
    """

    bare: onnx.ModelProto
    weights: frozenset[str]


def outline(model: onnx.ModelProto) -> Outline:
    """The outline of a model."""
    graph = model.graph
    kept = [tensor for tensor in graph.initializer if prod(tensor.dims) <= _KEPT]
    large = [tensor for tensor in graph.initializer if prod(tensor.dims) > _KEPT]
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large]
    bare = helper.make_graph(graph.node, graph.name, inputs, graph.output, kept)
    made = helper.make_model(bare, opset_imports=model.opset_import, ir_version=max(model.ir_version, 4))
    return Outline(made, frozenset(tensor.name for tensor in large))


@dataclass(frozen=True)
class Product:
    """A product of a model: its multiplications, results and weights (elements), and the numbers of the products that
    it depends on."""

    multiplications: int
    results: int
    weights: int
    needs: frozenset[int]


def infer_shapes(outlined: Outline, batch: int) -> onnx.GraphProto:
    """The outline's graph with all shapes for ``batch`` rows, which replace an input's open size."""
    fed = onnx.ModelProto()
    fed.CopyFrom(outlined.bare)
    for value in fed.graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_value = batch
    for value in fed.graph.output:
        for size in value.type.tensor_type.shape.dim:
            size.ClearField("dim_param")  # inference finds the number
    return onnx.shape_inference.infer_shapes(fed, strict_mode=True, data_prop=True).graph


def list_products(outlined: Outline, batch: int) -> list[Product]:
    """The products for ``batch`` rows, in the graph's order. Raises KeyError if a shape doesn't follow from the
    inputs' shapes."""
    graph = infer_shapes(outlined, batch)
    shapes, fixed = _shapes(graph), _constants(graph, outlined.weights)
    found: list[Product] = []
    needs: dict[str, frozenset[int]] = {}
    for node in graph.node:
        before = frozenset[int]().union(*(needs.get(name, frozenset()) for name in node.input))
        after = before
        if node.op_type in _PRODUCTS:
            weights = sum(prod(shapes[name]) for name in set(node.input) & fixed)
            results = prod(shapes[node.output[0]])
            found.append(Product(_multiplications(node, shapes), results, weights, before))
            after = before | {len(found) - 1}
        needs |= dict.fromkeys(node.output, after)
    return found


def work_of(outlined: Outline, batch: int) -> Work:
    """The work for ``batch`` rows. Raises KeyError if a shape doesn't follow from the inputs' shapes."""
    graph = infer_shapes(outlined, batch)
    shapes = _shapes(graph)
    fixed = _constants(graph, outlined.weights)
    products = [node for node in graph.node if node.op_type in _PRODUCTS]
    return Work(
        multiplications=sum(_multiplications(node, shapes) for node in products),
        weights=sum(prod(shapes[name]) for name in {name for node in products for name in node.input} & fixed),
        inputs=sum(prod(shapes[value.name]) for value in graph.input if value.name not in fixed),
        outputs=sum(prod(shapes[value.name]) for value in graph.output),
    )


def _shapes(graph: onnx.GraphProto) -> dict[str, Shape]:
    """The known shapes, by value name."""
    found: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if all(size.HasField("dim_value") for size in dims):
            found[value.name] = tuple(size.dim_value for size in dims)
    return found


def _constants(graph: onnx.GraphProto, weights: frozenset[str]) -> set[str]:
    """The values that depend on no input."""
    fixed = {tensor.name for tensor in graph.initializer} | weights
    for node in graph.node:
        if all(name in fixed for name in node.input if name):
            fixed |= set(node.output)
    return fixed - {""}  # the name of an absent optional input or output


def _multiplications(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """The multiplications of one product: elements of the result times the terms of each; for a transposed convolution
    elements of the input times the results that each is added to."""
    result, right = shapes[node.output[0]], shapes[node.input[1]]
    if node.op_type == "Conv":  # weights (O, C / groups, kernel)
        return prod(result) * prod(right[1:])
    left = shapes[node.input[0]]
    if node.op_type == "ConvTranspose":  # weights (C, O / groups, kernel)
        return prod(left) * prod(right[1:])
    flipped = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return prod(result) * left[0 if flipped else -1]
