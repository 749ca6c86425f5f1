"""Inputs that are indices, and the number of elements that they may pick from."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from trnrt.importer.values import static_shape

# Operators between an input and a Gather that keep indices: they move them, or change their type.
MOVING = frozenset(
    """ArrayFeatureExtractor Cast Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze""".split()  # noqa: SIM905
)


# Operators whose second input holds indices.
GATHERING = frozenset({"Gather", "GatherElements", "GatherND", "MaxUnpool"})


def index_limits(graph: ir.Graph) -> dict[str, int]:
    """Input of indices -> the size of the smallest dimension from which a Gather picks by them."""
    limits: dict[str, int] = {}
    for node in graph:
        if node.op_type not in GATHERING or node.domain != "" or node.inputs[0] is None:
            continue
        shape = static_shape(node.inputs[0])
        index = _source_value(node.inputs[1])
        if shape and index is not None and index.name is not None and index in graph.inputs:
            size = _least_size(node, shape)
            limits[index.name] = min(size, limits.get(index.name, size))
    return limits


def _least_size(node: ir.Node, shape: tuple[int, ...]) -> int:
    """The elements that each index of a node may pick from, at least. Of an unpooling, the places of its result."""
    if node.op_type == "MaxUnpool":
        return prod(shape)
    return min(shape) if node.op_type == "GatherND" else shape[node.attributes.get_int("axis", 0) % len(shape)]


def _source_value(value: ir.Value | None) -> ir.Value | None:
    """The value that holds the same elements before they were moved."""
    while value is not None and (node := value.producer()) is not None and node.op_type in MOVING:
        value = node.inputs[0]
    return value
