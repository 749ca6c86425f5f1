"""Sort attributes that name axes: before opset 11 ONNX's shape inference needs rising order; onnxruntime takes any."""

from __future__ import annotations

import onnx_ir as ir

# Operator -> lists that are parallel to its axes.
_SORTED = {"Squeeze": (), "Slice": ("starts", "ends")}


def sort_axes(graph: ir.Graph) -> None:
    """Write the axes of Squeeze and Slice in rising order, and their ranges in the same order."""
    for node in graph.all_nodes():
        if node.domain == "" and node.op_type in _SORTED and "axes" in node.attributes:
            _sort(node, ("axes", *_SORTED[node.op_type]))


def _sort(node: ir.Node, names: tuple[str, ...]) -> None:
    lists = [list(node.attributes.get_ints(name, ())) for name in names]
    if len({len(values) for values in lists}) != 1:
        return  # it contradicts itself, and is refused later
    rows = sorted(zip(*lists, strict=True))
    for name, values in zip(names, zip(*rows, strict=True), strict=False):
        node.attributes.add(ir.AttrInt64s(name, values))
