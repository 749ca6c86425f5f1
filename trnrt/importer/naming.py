"""Names of a model in messages, and unique names for nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnrt.text import one_line, quote

if TYPE_CHECKING:
    import onnx_ir as ir


def root_cause(error: BaseException) -> str:
    """The first error of a chain as text: libraries wrap it into others, which say less."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}")


def node_text(node: ir.Node) -> str:
    """A node in a message: its operator and its quoted name."""
    return f"{one_line(node.op_type)} {quote(node.name)}"


def unique(wanted: str, taken: set[str]) -> str:
    """``wanted``, with a number after it if it is taken; the result is added to ``taken``."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


def name_nodes(graph: ir.Graph) -> None:
    """Give every node of the graph and its subgraphs a unique name: ``op_type_index`` if it has none."""
    taken: set[str] = set()
    unnamed: list[tuple[int, ir.Node]] = []
    for index, node in enumerate(graph.all_nodes()):
        if not node.name or node.name in taken:
            unnamed.append((index, node))
        else:
            taken.add(node.name)
    for index, node in unnamed:
        node.name = unique(f"{node.op_type}_{index}", taken)
