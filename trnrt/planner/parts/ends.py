"""The ends of detectors: nodes that choose by the data what the model answers, and those that only arrange the choice.

Nothing is left to compute for the device behind a NonMaxSuppression: the host does it on the kernel's results. That
isn't a fallback, as no kernel could be compiled for it, so it needs no ``--fallback``. Where a layer follows (the heads
behind a RoiAlign), the node isn't an end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from trnrt.importer.values import bodies_of
from trnrt.planner.lowering.walk import node_name
from trnrt.planner.parts.levels import Flow, value_bytes

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

_PICK_AND_COMPARE = """
    And Equal Flatten Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Not Or Reshape
    Slice Split Squeeze Transpose Unsqueeze Xor
"""
_PICKING = frozenset(_PICK_AND_COMPARE.split())
"""Operators whose results are the same on the host, bit for bit: they select, order and compare."""

_TENSOR_BYTES = 2**16
"""The cost of a tensor that leaves the device, beside its bytes: its DMA transfer takes 2 us to start. In
that time the link to the host (``host_link`` of a target) carries 64 KB."""


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
    wide = _widen_ends(flow, found)
    computes = any(node not in wide and node.op_type not in _PICKING for node in flow.nodes)
    return {
        node_name(node): f"the end of the model, from {chosen} on: the host computes it from the kernel's results"
        for node, chosen in (wide if computes else found).items()
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


def _widen_ends(flow: Flow, narrow: dict[ir.Node, str]) -> dict[ir.Node, str]:
    """The ends, and the nodes before them that only pick and compare, where less leaves the device then.

    A detector picks each class's scores, and compares them with a threshold: the host does it on all scores at once.
    """
    ends, crossing, before = narrow, _crossing_bytes(flow, narrow), -1
    while len(ends) > before:
        before = len(ends)
        for chosen in _group_by_source(flow, ends):
            if (fewer := _crossing_bytes(flow, ends | chosen)) < crossing:
                ends, crossing = ends | chosen, fewer
    return ends


def _group_by_source(flow: Flow, ends: dict[ir.Node, str]) -> list[dict[ir.Node, str]]:
    """The nodes that pick for the ends alone, with where these begin, in groups that read the same value."""
    groups: dict[ir.Value, dict[ir.Node, str]] = {}
    for node in flow.nodes:
        if node in ends or node.domain or node.op_type not in _PICKING:
            continue
        readers = [reader for value in node.outputs for reader in flow.readers.get(value, ())]
        if readers and all(reader in ends for reader in readers):
            for value in flow.inputs_of([node]):
                groups.setdefault(value, {})[node] = ends[readers[0]]
    return list(groups.values())


def _crossing_bytes(flow: Flow, ends: Collection[ir.Node]) -> int:
    """The bytes that leave the device for the ends, with ``_TENSOR_BYTES`` for each tensor."""
    crossing = [value for value in flow.inputs_of([*ends]) if value.producer() is not None]
    return sum(_TENSOR_BYTES + (value_bytes(value) or 0) for value in crossing)
