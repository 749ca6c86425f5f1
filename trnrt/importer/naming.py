"""How messages show a model's names, and unique names for nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

_LONGEST_SHOWN = 120


def quote(name: str | None) -> str:
    """``name`` in quotes on one line: a model's names are data, and may contain anything."""
    return repr(_shorten(name or ""))


def one_line(text: str) -> str:
    """Text from a library, which may contain a model's names, as one line of an error message."""
    words = " ".join(text.split())
    return _shorten("".join(c if c.isprintable() else repr(c)[1:-1] for c in words), 400)


def root_cause(error: BaseException) -> str:
    """The first error of a chain as text: libraries wrap it into others, which say less."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}")


def list_text(names: Iterable[str], most: int = 8) -> str:
    """The names, comma-separated; of a long list, the first few and how many more there are."""
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def node_text(node: ir.Node) -> str:
    """How messages name a node: its operator and its quoted name."""
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


def _shorten(text: str, longest: int = _LONGEST_SHOWN) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
