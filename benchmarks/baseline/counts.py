"""The size of a network: its parameters, and the multiplications of its products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx

from benchmarks.baseline.building import PARAMETER
from benchmarks.models.bounds import outline

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Counts:
    """``parameters``: the trained ones, without running means and variances. ``multiplications``: those of convolutions
    and matrix products, for one image."""

    parameters: int
    multiplications: int


def counts_of(model: onnx.ModelProto) -> Counts:
    """The counts of a model whose parameters have the names that ``Builder`` gives them."""
    named = [tensor for tensor in model.graph.initializer if tensor.name.startswith(PARAMETER)]
    shapes = _shapes(model)
    return Counts(
        sum(prod(tensor.dims) for tensor in named), sum(_multiplications(node, shapes) for node in model.graph.node)
    )


def _shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The shape of every value, with 1 for an open batch."""
    bare = outline(model).bare
    for value in (*bare.graph.input, *bare.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_value = 1
    graph = onnx.shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    return found | {one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim) for one in values}


def _multiplications(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """Elements of the result times the terms of each; for a transposed convolution, elements of the input times the
    results that each is added to."""
    if node.op_type == "Conv":  # weights (O, C / groups, kernel)
        return prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":  # weights (C, O / groups, kernel)
        return prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        return prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return 0
