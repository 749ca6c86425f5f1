"""Notes on what folding did to a graph, from its nodes before and after."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.folding.idle import COPYING
from trnrt.importer.naming import node_text
from trnrt.text import list_text

# Nodes that folding drops because they change nothing, if it does not compute them.
_IDLE = COPYING | {"Concat", "Dropout", "Identity", "Transpose"}
# Their results are known once shapes are.
_OF_SHAPES = frozenset({"Shape", "Size"})

_WORDS = {"constant": "computed beforehand", "idle": "removed, as it changes nothing", "other": "simplified away"}


class Snapshot:
    """The nodes of a graph at one moment."""

    def __init__(self, graph: ir.Graph) -> None:
        constant: set[ir.Node] = set()
        self._nodes: list[tuple[ir.Node, str, str]] = []
        for node in graph:
            if _is_constant(node, constant):
                constant.add(node)
            kind = "constant" if node in constant else "idle" if node.op_type in _IDLE else "other"
            if node.op_type != "Constant":
                self._nodes.append((node, node_text(node), kind))

    def changes(self, graph: ir.Graph) -> list[str]:
        """Notes on the nodes that are gone since then, and why."""
        there = set(graph)
        gone: dict[str, list[str]] = {"constant": [], "idle": [], "other": []}
        for node, title, kind in self._nodes:
            if node not in there:
                gone[kind].append(title)
        return [f"{_WORDS[kind]}: {list_text(titles)}" for kind, titles in gone.items() if titles]


def _is_constant(node: ir.Node, constant: set[ir.Node]) -> bool:
    if node.domain == "" and node.op_type in _OF_SHAPES:
        return True
    return all(value is None or value.const_value is not None or value.producer() in constant for value in node.inputs)
