"""The ends of detectors: nodes that choose by the data what the model answers, and those that only arrange the choice.

Nothing is left to compute for the device behind a NonMaxSuppression: the host does it on the kernel's results. That
isn't a fallback, as no kernel could be compiled for it, so it needs no ``--fallback``. Where a layer follows (the heads
behind a RoiAlign), the node isn't an end.
"""

from __future__ import annotations

import onnx_ir as ir

from trnrt.planner.lowering.walk import node_name
from trnrt.planner.parts.levels import Flow

CHOOSING = frozenset({"Compress", "MaxRoiPool", "NonMaxSuppression", "NonZero", "RoiAlign", "Unique"})
"""Operators that begin an end: how much they make, or what they read, depends on the data."""

_ARRANGING = """
    Abs Add And ArgMax ArgMin Cast Ceil Clip Compress Concat ConstantOfShape CumSum Div Equal Exp Expand Flatten
    Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Log Max MaxRoiPool Min Mod
    Mul Neg Not NonMaxSuppression NonZero Or Pad Pow Range ReduceMax ReduceMin ReduceSum Reshape RoiAlign Round
    ScatterElements ScatterND Shape Sigmoid Size Slice Softmax Split Sqrt Squeeze Sub Tile TopK Transpose Unique
    Unsqueeze Where Xor
"""
ARRANGING = frozenset(_ARRANGING.split())
"""Operators that may follow: they select, order, scale and convert. None has weights."""


def find_ends(flow: Flow) -> dict[str, str]:
    """The nodes of the graph's ends: their names, each with the reason that the host computes it.

    Empty if there are none, or if one of them is followed by another kind of operator.
    """
    found: dict[ir.Node, str] = {}
    for node in flow.nodes:
        before = (value.producer() for value in flow.reads[node])
        chosen = next((found[producer] for producer in before if producer in found), None)
        if node.op_type in CHOOSING and not node.domain:
            chosen = chosen or node_name(node)
        if chosen is None:
            continue
        if node.domain or node.op_type not in ARRANGING:
            return {}
        found[node] = chosen
    return {
        node_name(node): f"the end of the model, from {chosen} on: the host computes it from the kernel's results"
        for node, chosen in found.items()
    }
