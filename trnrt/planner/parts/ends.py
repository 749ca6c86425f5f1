"""The ends of detectors: nodes that choose by the data what the model answers, and those that only arrange the choice.

Nothing is left to compute for the device behind a NonMaxSuppression: the host does it on the kernel's results. That
isn't a fallback, as no kernel could be compiled for it, so it needs no ``--fallback``. Where a layer follows (the heads
behind a RoiAlign), the node isn't an end.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from trnrt.importer.values import bodies_of
from trnrt.planner.lowering.walk import node_name
from trnrt.planner.parts.levels import Flow

CHOOSING = frozenset({"Compress", "MaxRoiPool", "NonMaxSuppression", "NonZero", "RoiAlign", "Unique"})
"""Operators that begin an end: how much they make, or what they read, depends on the data."""

_ARRANGING = """
    Abs Add And ArgMax ArgMin Cast Ceil Clip Compress Concat ConstantOfShape CumSum Div Equal Exp Expand Flatten
    Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Log Max MaxRoiPool Min Mod
    Mul Neg Not NonMaxSuppression NonZero Or Pad Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape RoiAlign
    Round ScatterElements ScatterND Shape Sigmoid Size Slice Softmax Split Sqrt Squeeze Sub Tile TopK Transpose Unique
    Unsqueeze Where Xor
"""
ARRANGING = frozenset(_ARRANGING.split())
"""Operators that may follow: they select, order, scale and convert. None has weights. An If of such may follow, too."""


def find_ends(flow: Flow) -> dict[str, str]:
    """The nodes of the graph's ends: their names, each with the reason that the host computes it.

    Empty if there are none, or if one of them is followed by another kind of operator.
    """
    found: dict[ir.Node, str] = {}
    for node in flow.nodes:
        before = (value.producer() for value in flow.reads[node])
        chosen = next((found[producer] for producer in before if producer in found), None)
        if any(one.op_type in CHOOSING and not one.domain for one in _with_branches(node)):
            chosen = chosen or node_name(node)
        if chosen is None:
            continue
        if not _may_follow(node):
            return {}
        found[node] = chosen
    return {
        node_name(node): f"the end of the model, from {chosen} on: the host computes it from the kernel's results"
        for node, chosen in found.items()
    }


def _with_branches(node: ir.Node) -> Iterator[ir.Node]:
    """A node, and those in its branches if it is an If."""
    yield node
    for body in bodies_of(node) if node.op_type == "If" else ():
        for inner in body:
            yield from _with_branches(inner)


def _may_follow(node: ir.Node) -> bool:
    if node.op_type == "If" and not node.domain:
        return all(map(_may_follow, (inner for body in bodies_of(node) for inner in body)))
    return not node.domain and node.op_type in ARRANGING | {"Constant"}
