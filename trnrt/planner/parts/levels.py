"""Group nodes that run together: levels of the graph that alternate between the device and the CPU.

Even levels run on the device, odd ones on the CPU. A node takes the lowest level of its kind that isn't below any of
its inputs. Values therefore only go up. Each level is one part, so there are no cycles, and no more parts than the
longest chain of changes between device and CPU. Nodes whose results are read only at a later level then move up to it,
so that the results need not leave their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import onnx_ir as ir

from trnrt.planner.lowering.walk import is_static, node_name

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """The outer values that a node reads, including those that its subgraphs capture."""
    yield from (value for value in node.inputs if value is not None)
    inner = list(_subgraphs(node))
    within = {id(value) for graph in inner for value in _graph_values(graph)}
    for graph in inner:
        read = [value for other in graph for value in other.inputs if value is not None]
        yield from (value for value in [*read, *graph.outputs] if id(value) not in within)


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """All graphs inside a node, nested ones too."""
    for attribute in node.attributes.values():
        if attribute.type in _GRAPHS:
            graphs = [attribute.as_graph()] if attribute.type is ir.AttributeType.GRAPH else attribute.as_graphs()
            for graph in graphs:
                yield graph
                for inner in graph:
                    yield from _subgraphs(inner)


def _graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


class Flow:
    """The data flow of a graph: the nodes in order, the values that each reads, and the nodes that read each value."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes = list(graph)
        self.reads = {node: tuple(dict.fromkeys(read_values(node))) for node in self.nodes}
        self.readers: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                self.readers.setdefault(value, []).append(node)
        self.outputs = set(graph.outputs)

    def inputs_of(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """The values that the nodes read and don't make, constants left out."""
        made = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in self.reads[node])
        return [value for value in read if value not in made and value.const_value is None]

    def results_of(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """The values that the nodes make and others read."""
        inside = set(nodes)
        made = (value for node in nodes for value in node.outputs)
        return [value for value in made if not inside.issuperset(self.readers.get(value, ()))]

    def outputs_of(self, nodes: Sequence[ir.Node]) -> list[ir.Value]:
        """The values that the nodes make, and others or the graph's caller read."""
        outside = set(self.results_of(nodes))
        made = (value for node in nodes for value in node.outputs if value.name)
        return [value for value in made if value in outside or value in self.outputs]


def group_nodes(flow: Flow, on_cpu: Callable[[str], bool]) -> list[tuple[bool, list[ir.Node]]]:
    """The parts in order as (on the CPU, nodes in the graph's order); neighbours always differ in kind."""
    levels = _levels(flow, on_cpu)
    _move_up(flow, levels)
    order = {node: number for number, node in enumerate(flow.nodes)}
    parts: list[tuple[bool, list[ir.Node]]] = []
    for level, found in sorted(_by_level(flow.nodes, levels).items()):
        if parts and parts[-1][0] == bool(level % 2):
            parts[-1] = (parts[-1][0], sorted([*parts[-1][1], *found], key=order.__getitem__))
        else:
            parts.append((bool(level % 2), found))
    return parts


def _by_level(nodes: Sequence[ir.Node], levels: dict[ir.Node, int]) -> dict[int, list[ir.Node]]:
    found: dict[int, list[ir.Node]] = {}
    for node in nodes:
        found.setdefault(levels[node], []).append(node)
    return found


def _levels(flow: Flow, on_cpu: Callable[[str], bool]) -> dict[ir.Node, int]:
    levels: dict[ir.Node, int] = {}
    for node in flow.nodes:
        producers = (value.producer() for value in flow.reads[node])
        lowest = max((levels[producer] for producer in producers if producer is not None), default=0)
        levels[node] = lowest + (lowest % 2 != on_cpu(node_name(node)))
    return levels


def _move_up(flow: Flow, levels: dict[ir.Node, int]) -> None:
    """Move each connected group of nodes in a level up to the first level where other nodes read its results."""
    readers = {node: [r for value in node.outputs for r in flow.readers.get(value, ())] for node in flow.nodes}
    for level, nodes in sorted(_by_level(flow.nodes, levels).items(), reverse=True):
        for group in _connected_groups(nodes, readers):
            beyond = [levels[reader] for node in group for reader in readers[node] if reader not in group]
            if beyond:
                # A reader of the other kind is an odd number of levels away: the level below it has this kind.
                first = min(other - (other - level) % 2 for other in beyond)
                levels.update(dict.fromkeys(group, first))


def _connected_groups(nodes: Sequence[ir.Node], readers: dict[ir.Node, list[ir.Node]]) -> list[set[ir.Node]]:
    """The nodes in groups connected by the values that they read."""
    neighbours: dict[ir.Node, set[ir.Node]] = {node: set() for node in nodes}
    for node in nodes:
        for reader in readers[node]:
            if reader in neighbours:
                neighbours[node].add(reader)
                neighbours[reader].add(node)
    groups: list[set[ir.Node]] = []
    left = dict.fromkeys(nodes)
    while left:
        group, found = set(), [next(iter(left))]
        while found:
            node = found.pop()
            if node not in group:
                group.add(node)
                left.pop(node, None)
                found += neighbours[node]
        groups.append(group)
    return groups


def value_bytes(value: ir.Value) -> int | None:
    """Bytes of a value; None if only the run can tell (open shapes, strings)."""
    if not is_static(value) or value.dtype in (None, ir.DataType.STRING) or value.shape is None:
        return None
    return int(prod(d for d in value.shape if isinstance(d, int)) * value.dtype.itemsize)
