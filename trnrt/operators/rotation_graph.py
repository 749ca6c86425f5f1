"""Rotary positions in the graph: the nodes that compute x * cosines + (x with its elements exchanged) * sines.

Exporters exchange the halves of a head, or neighbours, by slices that are concatenated again. Which element goes where
is found by following the elements' numbers through these nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import maker
from trnrt.importer.values import slice_ranges, static_shape
from trnrt.operators.movement import integers
from trnrt.planner.lowering.blocked import Blocked
from trnrt.planner.lowering.walk import Lowering, attribute, node_name
from trnrt.planner.plan import Array

# Nodes one after the other between x and its elements exchanged: a slice, a new axis, a concatenation, a reshape; and
# one that negates.
_LONGEST = 5


@dataclass(frozen=True)
class Rotation:
    """``source`` * cosines + exchanged * sines, where element i of a head is exchanged for element ``order[i]``.

    ``nodes`` compute it, the last one gives the result. ``axis``: that of the tokens, 1 or 2 of 4; the other one is the
    heads'. ``cosines``, ``sines``: (tokens, elements)."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    axis: int
    order: Array
    cosines: Array
    sines: Array


@dataclass(frozen=True)
class _Moved:
    """The elements of a value by their number in x, from 1 on, negative if they are negated; ``nodes`` move them."""

    numbers: Array
    nodes: tuple[ir.Node, ...] = ()


def find_rotations(lowering: Lowering) -> list[Rotation]:
    """The rotations of a graph by constant tables, each of nodes that nothing else reads."""
    places = {node: number for number, node in enumerate(lowering.graph)}
    found = []
    for node in lowering.graph:
        match = _match_sum(lowering, node) if node.op_type == "Add" and node.domain == "" else None
        match = None if match is None else _with_other_tokens(match)
        if match is None or not _is_closed(lowering, match):
            continue
        nodes = tuple(sorted(match.nodes, key=places.__getitem__))
        found.append(Rotation(nodes, match.source, match.axis, match.order, match.cosines, match.sines))
    return found


def _is_closed(lowering: Lowering, found: Rotation) -> bool:
    """True if nothing else reads what the nodes but the last one make, and they may be one step."""
    inner = [made for node in found.nodes[:-1] for made in node.outputs]
    read = {reader for made in inner for reader, _ in made.uses()}
    apart = {node_name(node) for node in found.nodes} & set(lowering.no_fuse)
    return not apart and read <= set(found.nodes) and not any(made.is_graph_output() for made in inner)


def _match_sum(lowering: Lowering, node: ir.Node) -> Rotation | None:
    """The rotation whose sum is ``node``."""
    products = [maker(value, "Mul") for value in node.inputs]
    shape = static_shape(node.outputs[0])
    if shape is None or len(shape) != 4:
        return None
    for first, second in (products, products[::-1]):
        straight, turned = _read_product(lowering, first), _read_product(lowering, second)
        if first is None or second is None or straight is None or turned is None or first is second:
            continue
        (x, cosines), (exchanged, sines) = straight, turned
        if not static_shape(x) == static_shape(exchanged) == shape:
            continue
        moved = _follow(lowering, exchanged, x, _LONGEST)
        order = None if moved is None or not moved.nodes else _read_order(moved.numbers)
        axis = _find_tokens((cosines, sines))
        if moved is None or order is None or axis is None:
            continue
        sizes = (1, *(shape[d] if d == axis else 1 for d in (1, 2)), shape[3])
        tables = [np.broadcast_to(table, sizes).reshape(shape[axis], shape[3]) for table in (cosines, sines)]
        signs = np.sign(moved.numbers[0, 0, 0])
        return Rotation((*moved.nodes, first, second, node), x, axis, order, tables[0], tables[1] * signs)
    return None


def _read_product(lowering: Lowering, node: ir.Node | None) -> tuple[ir.Value, Array] | None:
    """(value, constant of 4 dimensions) of a product."""
    if node is None:
        return None
    for side in (0, 1):
        value, constant = node.inputs[side], lowering.constant(node.inputs[1 - side])
        if value is not None and constant is not None and value.const_value is None and constant.ndim <= 4:
            return value, constant.reshape((1,) * (4 - constant.ndim) + constant.shape)
    return None


def _find_tokens(tables: tuple[Array, Array]) -> int | None:
    """The axis, 1 or 2, along which tables differ; None if they do along both, or from item to item."""
    varied = {axis for table in tables for axis in (0, 1, 2) if table.shape[axis] != 1}
    return varied.pop() if len(varied) == 1 and 0 not in varied else None


def _read_order(numbers: Array) -> Array | None:
    """The element of its head that each element is exchanged for; None if it comes from another head."""
    places = np.abs(numbers) - 1
    width = numbers.shape[-1]
    order = places.reshape(-1, width)[0]
    firsts = np.arange(numbers.size // width).reshape(*numbers.shape[:-1], 1) * width
    alike = np.array_equal(places, firsts + order) and np.array_equal(np.sort(order), np.arange(width))
    signs = np.sign(numbers)
    return order if alike and np.array_equal(signs, np.broadcast_to(signs[:1, :1, :1], signs.shape)) else None


def _follow(lowering: Lowering, value: ir.Value | None, source: ir.Value, steps: int) -> _Moved | None:
    """The elements of a value that nodes made of those of ``source``; None if others are among them."""
    if value is source:
        shape = static_shape(source)
        assert shape is not None
        return _Moved(np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape))
    node = maker(value, "Slice", "Split", "Concat", "Neg", "Reshape", "Unsqueeze", "Squeeze")
    shape = static_shape(value)
    if node is None or value is None or shape is None or not steps:
        return None
    given = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    parts = list(_follow_each(lowering, given, source, steps - 1))
    if len(parts) < len(given):
        return None
    numbers = _move(lowering, node, value, shape, [part.numbers for part in parts])
    if numbers is None:
        return None
    nodes = dict.fromkeys(one for part in parts for one in part.nodes)
    return _Moved(numbers, (*nodes, node))


def _follow_each(
    lowering: Lowering, values: Sequence[ir.Value | None], source: ir.Value, steps: int
) -> Iterator[_Moved]:
    """The elements of each value, up to the first value that has others."""
    for value in values:
        part = _follow(lowering, value, source, steps)
        if part is None:
            return
        yield part


def _move(
    lowering: Lowering, node: ir.Node, value: ir.Value, shape: tuple[int, ...], parts: list[Array]
) -> Array | None:
    """Do to numbers what a node does to elements."""
    numbers = parts[0]
    if node.op_type == "Concat":
        return np.concatenate(parts, attribute(node, "axis", 0))
    if node.op_type == "Neg":
        return -numbers
    if node.op_type == "Split":
        axis = attribute(node, "axis", 0)
        sizes = [(static_shape(made) or shape)[axis] for made in node.outputs]
        return np.split(numbers, np.cumsum(sizes)[:-1], axis)[node.outputs.index(value)]
    if node.op_type == "Slice":
        try:
            ranges = list(slice_ranges(node, numbers.ndim, partial(integers, lowering, node)))
        except Blocked:
            return None
        for axis, start, end, step in ranges:
            numbers = numbers[(slice(None),) * axis + (slice(start, end, step),)]
    return numbers.reshape(shape) if numbers.size == np.prod(shape) else None


def _with_other_tokens(found: Rotation) -> Rotation | None:
    """The rotation with the tokens that are split off before it and joined again behind it, if there are any."""
    splitting, made = maker(found.source, "Split"), found.nodes[-1].outputs[0]
    readers = {node for node, _ in made.uses()}
    joining = readers.pop() if len(readers) == 1 else None
    if splitting is None or joining is None or joining.op_type != "Concat" or joining.domain != "":
        return found
    kept = [made if value is found.source else value for value in splitting.outputs]
    axes = {attribute(node, "axis", 0) % 4 for node in (splitting, joining)}
    source, shape = splitting.inputs[0], static_shape(splitting.inputs[0])
    if list(joining.inputs) != kept or axes != {found.axis} or source is None or shape is None:
        return found
    sizes = [(static_shape(value) or (0,) * 4)[found.axis] for value in splitting.outputs]
    first = sum(sizes[: splitting.outputs.index(found.source)])
    rows = slice(first, first + len(found.cosines))
    cosines, sines = (
        np.ones((shape[found.axis], shape[3]), np.float32),
        np.zeros((shape[found.axis], shape[3]), np.float32),
    )
    cosines[rows], sines[rows] = found.cosines, found.sines
    nodes = (splitting, *found.nodes, joining)
    return Rotation(nodes, source, found.axis, found.order, cosines, sines)
