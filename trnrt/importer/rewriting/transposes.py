"""Cancel Transposes that exporters put around operators of another layout, by moving them past nodes that allow it.

A *region* is a set of nodes that can also work on tensors in another order of axes. Turning it changes which Transposes
are needed at its edges; it is turned if that leaves fewer elements to move. Only data moves: every number stays the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text, unique
from trnrt.importer.rewriting.editing import Editor, maker, shape_of
from trnrt.importer.rewriting.orders import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    NodeOrders,
    Order,
    compose_orders,
    inverse,
    is_kept,
    moves_nothing,
    stored_shape,
)
from trnrt.importer.values import is_resolved, is_used, named_outputs, static_shape
from trnrt.operators.record import record_of
from trnrt.text import list_text

# Nodes to look at for all regions of a graph together: a limit for hostile graphs.
_MOST_LOOKS = 200_000
_SEEN = "trnrt.turn_after_norms"

Cost = tuple[int, int]


def cancel_transposes(editor: Editor) -> list[str]:
    """Turn regions as long as that saves something; return notes on what was done."""
    notes: list[str] = []
    looks = _MOST_LOOKS
    for node in list(editor.graph):
        if node.op_type != "Transpose" or node.domain != "" or node.graph is None or looks <= 0:
            continue
        if _is_behind_norm(node):
            continue
        for is_wide in (True, False):
            region = _Region(node, is_wide, looks)
            looks = region.looks
            if region.nodes and region.gains():
                notes += _turn(editor, region)
                break
    return notes


def turn_after_norms(editor: Editor) -> list[str]:
    """Turn regions behind a LayerNormalization of transposed images, as long as that saves something; return notes.

    It normalises channels where they lie: its kernel reads and writes images channels first, so that the Transposes
    around it move nothing. The region behind it starts with a Transpose that undoes the one behind it. Each
    LayerNormalization is looked at once, as other rules may turn the region back.
    """
    notes: list[str] = []
    looks = _MOST_LOOKS
    for norm in [node for node in editor.graph if _reads_transposed_images(node)]:
        made = norm.outputs[0]
        uses = [(node, index) for node, index in made.uses() if not _turns_to(node, CHANNELS_FIRST)]
        if not uses or made.is_graph_output() or looks <= 0 or _SEEN in norm.meta:
            continue
        norm.meta[_SEEN] = True
        shape = shape_of(made)
        stored = stored_shape(shape, CHANNELS_LAST)
        first = _insert_transpose(editor, made, CHANNELS_FIRST, stored, f"{made.name}_turned")
        last = _insert_transpose(editor, first, CHANNELS_LAST, shape, f"{made.name}_back")
        for node, index in uses:
            node.replace_input_with(index, last)
        seed = last.producer()
        assert seed is not None
        for is_wide in (True, False):
            region = _Region(seed, is_wide, looks)
            looks = region.looks
            if region.nodes and region.gains():
                notes += _turn(editor, region)
                break
        else:
            for node, index in uses:
                node.replace_input_with(index, made)
            for value in (last, first):
                editor.remove(value.producer())  # type: ignore[arg-type]
    return notes


def _reads_transposed_images(node: ir.Node) -> bool:
    """True if a node normalises the channels of images that a Transpose put last."""
    before = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if before is None or not _turns_to(before, CHANNELS_LAST) or maker(node.outputs[0], "LayerNormalization") is None:
        return False
    return not any(map(is_used, node.outputs[1:])) and node.attributes.get_int("axis", -1) in (-1, 3)


def _is_behind_norm(node: ir.Node) -> bool:
    """True for the Transpose behind a LayerNormalization that writes channels first: it moves nothing."""
    norm = node.inputs[0].producer() if node.inputs[0] is not None else None
    return norm is not None and _turns_to(node, CHANNELS_FIRST) and _reads_transposed_images(norm)


def _turns_to(node: ir.Node, order: Order) -> bool:
    """True if a node is a Transpose by ``order``."""
    return node.op_type == "Transpose" and node.domain == "" and order_of(node) == order


def merge_transposes(editor: Editor) -> list[str]:
    """Merge consecutive Transposes; return notes on what was done."""
    notes = []
    for node in list(editor.graph):
        before = maker(node.inputs[0], "Transpose") if node.op_type == "Transpose" and node.domain == "" else None
        if before is None:
            continue
        first, second = order_of(before), order_of(node)
        if first is None or second is None:
            continue
        notes.append(f"{node_text(node)} merged with {node_text(before)}")
        node.attributes["perm"] = ir.AttrInt64s("perm", compose_orders(first, second))
        node.replace_input_with(0, before.inputs[0])
        if not is_used(before.outputs[0]):
            editor.remove(before)
    return notes


def order_of(node: ir.Node) -> Order | None:
    """The order of a Transpose, if its shape is known."""
    shape = static_shape(node.inputs[0])
    if shape is None or node.outputs[0].dtype is None:
        return None
    axes = range(len(shape))
    return tuple(int(axis) for axis in node.attributes.get_ints("perm", list(reversed(axes))))


def node_orders(node: ir.Node, order: Order) -> NodeOrders | None:
    """The node's orders if its main input is stored in ``order``; None if it can't use that."""
    record = record_of(node)
    if record is None or not all(map(is_resolved, named_outputs(node))):
        return None
    return record.order(node, order)


@dataclass
class _Region:
    """The region around the result of the Transpose ``seed``. A wide one grows towards the inputs, too."""

    seed: ir.Node
    is_wide: bool
    looks: int
    nodes: dict[ir.Node, NodeOrders] = field(default_factory=dict)
    orders: dict[ir.Value, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = order_of(self.seed)
        if order is None or is_kept(order):
            return
        self.orders[self.seed.outputs[0]] = order
        queue = [self.seed.outputs[0]]
        while queue and self.looks > 0:
            value = queue.pop()
            if is_kept(self.orders[value]):
                continue
            for node, index in value.uses():
                queue += self._absorb(node, value, index)
            before = value.producer()
            if self.is_wide and before is not None:
                queue += self._absorb(before, value, None)

    def _absorb(self, node: ir.Node, value: ir.Value, index: int | None) -> list[ir.Value]:
        """Add the node if it can work with the value's order; return the values that this adds."""
        self.looks -= 1
        order = self.orders[value]
        if node in self.nodes or node.op_type == "Transpose":
            return []
        found = node_orders(node, order)
        if found is None:
            return []
        if order != (found.outputs[node.outputs.index(value)] if index is None else found.inputs[index]):
            return []
        new: dict[ir.Value, Order] = {}
        pairs = [*zip(node.inputs, found.inputs, strict=False), *zip(node.outputs, found.outputs, strict=True)]
        for other, needed in pairs:
            if other is None or needed is None or other.const_value is not None:
                continue
            if len(static_shape(other) or ()) != len(needed) or self.orders.get(other, needed) != needed:
                return []
            if other not in self.orders:
                new[other] = needed
        self.nodes[node] = found
        self.orders |= new
        return [v for v in new if self.is_wide or v in node.outputs or maker(v, "Transpose") is not None]

    def edges(self) -> Iterator[ir.Value]:
        """Values from outside the region."""
        for value in self.orders:
            if value.producer() not in self.nodes and any(node in self.nodes for node, _ in value.uses()):
                yield value

    def reordered_values(self) -> Iterator[ir.Value]:
        """Values from inside the region that change their order."""
        for value, order in self.orders.items():
            if value.producer() in self.nodes and not is_kept(order):
                yield value

    def outside_uses(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """The uses of the value outside the region."""
        return [(node, index) for node, index in value.uses() if node not in self.nodes]

    def source(self, value: ir.Value) -> tuple[ir.Value, Order]:
        """The value to transpose, and the order, for an edge in the region's order.

        If a Transpose makes the edge, take its source, unless the source is inside, where orders change.
        """
        order = inverse(self.orders[value])
        node = maker(value, "Transpose")
        before = None if node is None else order_of(node)
        if node is None or before is None or node.inputs[0] is None or node.inputs[0].producer() in self.nodes:
            return value, order
        return node.inputs[0], compose_orders(before, order)

    def gains(self) -> bool:
        """True if turning the region moves fewer elements."""
        now, then = [0, 0], [0, 0]
        for value in self.edges():
            source, order = self.source(value)
            _add(then, stored_shape(shape_of(value), self.orders[value]), order)
            if source is not value and not self.outside_uses(value) and not value.is_graph_output():
                _add(now, shape_of(value), order_of(value.producer()) or ())  # type: ignore[arg-type]
        for value in self.reordered_values():
            readers = [node for node, _ in self.outside_uses(value)]
            turning = [node for node in readers if maker(node.outputs[0], "Transpose") is node and order_of(node)]
            for node in turning:
                perm = order_of(node) or ()
                _add(now, shape_of(node.outputs[0]), perm)
                _add(then, shape_of(node.outputs[0]), compose_orders(self.orders[value], perm))
            if len(turning) < len(readers) or value.is_graph_output():
                _add(then, shape_of(value), self.orders[value])
        return tuple(then) < tuple(now)


def _add(cost: list[int], shape: tuple[int, ...], order: Order) -> None:
    """Count a Transpose that makes ``shape``: first elements moved, then nodes."""
    if not is_kept(order):
        cost[0] += 0 if moves_nothing(shape, order) else int(np.prod(shape, dtype=object))
        cost[1] += 1


# -- turning -----------------------------------------------------------------------------------------


def _turn(editor: Editor, region: _Region) -> list[str]:
    made = list(region.reordered_values())
    # Collect all before replacing any: one edge may be another one transposed, and replace it.
    edges = {value: [(node, i) for node, i in value.uses() if node in region.nodes] for value in region.edges()}
    gone: list[ir.Node] = []
    for value, uses in edges.items():
        _replace_edge(editor, region, value, uses, gone)
    for node, found in region.nodes.items():
        _turn_constants(editor, node, found)
        if found.edit is not None:
            found.edit(editor)
    for value in made:
        _restore(editor, region, value)
    past = list_text((node_text(node) for node in region.nodes), 4)
    removed = [node for node in gone if node.graph is not None and not is_used(node.outputs[0])]
    notes = [f"{node_text(node)} moved past {past}, and merged or cancelled there" for node in removed]
    for node in removed:
        editor.remove(node)
    return notes or [f"Transposes around {past} moved to where they move less"]


def _replace_edge(
    editor: Editor, region: _Region, value: ir.Value, uses: list[tuple[ir.Node, int]], gone: list[ir.Node]
) -> None:
    """Let the region read a value from outside in the region's order."""
    source, order = region.source(value)
    before = value.producer()
    if source is not value and before is not None:
        gone.append(before)
    if not is_kept(order):
        shape = stored_shape(shape_of(value), region.orders[value])
        source = _insert_transpose(editor, source, order, shape, f"{value.name}_turned")
    for node, index in uses:
        node.replace_input_with(index, source)


def _insert_transpose(editor: Editor, source: ir.Value, order: Order, shape: tuple[int, ...], like: str) -> ir.Value:
    made = editor.result(like, source.dtype, shape)
    name = editor.node_name(f"{like}_transpose")
    node = ir.node("Transpose", [source], {"perm": list(order)}, outputs=[made], name=name)
    before = source.producer()
    if before is None:
        editor.graph.insert_before(editor.graph[0], node)
    else:
        editor.graph.insert_after(before, node)
    return made


def _turn_constants(editor: Editor, node: ir.Node, found: NodeOrders) -> None:
    for index, (value, order) in enumerate(zip(tuple(node.inputs), found.inputs, strict=False)):
        if value is None or order is None or value.const_value is None:
            continue
        array = value.const_value.numpy()
        full = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
        editor.set_input(node, index, editor.constant(full.transpose(inverse(order)), f"{value.name}_turned"))


def _restore(editor: Editor, region: _Region, value: ir.Value) -> None:
    """Transpose a value that is now made in another order for its readers outside."""
    order, shape = region.orders[value], shape_of(value)
    value.shape = ir.Shape(stored_shape(shape, order))
    others: list[tuple[ir.Node, int]] = []
    for node, index in region.outside_uses(value):
        perm = order_of(node) if maker(node.outputs[0], "Transpose") is node else None
        if perm is None:
            others.append((node, index))
        else:
            node.attributes["perm"] = ir.AttrInt64s("perm", compose_orders(order, perm))
    if not others and not value.is_graph_output():
        return
    name = value.name or ""
    if value.is_graph_output():
        value.name = unique(f"{name}_turned", editor.taken)
        editor.taken.discard(name)
    made = _insert_transpose(editor, value, order, shape, name if value.is_graph_output() else f"{name}_back")
    for node, index in others:
        node.replace_input_with(index, made)
    for index, output in enumerate(editor.graph.outputs):
        if output is value:
            editor.graph.outputs[index] = made
