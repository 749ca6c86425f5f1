"""Forms that trnrt runs and onnxruntime doesn't, written as others: recurrent layers with the batch first."""

from __future__ import annotations

import onnx
from onnx import helper

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# Inputs that a layout changes, and the orders of the outputs' axes that it makes of the other's.
_SEQUENCES, _STATES = 0, (5, 6)
_ORDERS = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])


def spell_layouts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, each recurrent layer of layout 1 as one of layout 0 with Transposes around it."""
    if not any(map(is_batch_first, model.graph.node)):
        return model
    made = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [part for node in made.graph.node for part in (_spell(node) if is_batch_first(node) else [node])]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def is_batch_first(node: onnx.NodeProto) -> bool:
    """Whether a node is a recurrent layer of layout 1."""
    return node.op_type in RECURRENT and any(a.name == "layout" and a.i == 1 for a in node.attribute)


def _spell(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    del inner.attribute[:]
    inner.attribute.extend(a for a in node.attribute if a.name != "layout")
    nodes = []
    for place in (_SEQUENCES, *_STATES):
        if place < len(inner.input) and inner.input[place]:
            name = f"{node.name}_in{place}"
            nodes.append(helper.make_node("Transpose", [inner.input[place]], [name], perm=[1, 0, 2]))
            inner.input[place] = name
    nodes.append(inner)
    for place, order in zip(range(len(inner.output)), _ORDERS, strict=False):
        if inner.output[place]:
            name = f"{node.name}_out{place}"
            nodes.append(helper.make_node("Transpose", [name], [inner.output[place]], perm=order))
            inner.output[place] = name
    return nodes
