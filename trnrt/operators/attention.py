"""Attention as one step: the product of queries and keys, its scale and mask, the softmax, and the product with the
values, found in the graph by what the nodes compute, whoever wrote them.

The step reads queries, keys and values as rows, heads side by side, as the projections before write them, and writes
its result so, for the projection behind it. Nodes that only move elements between are views.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import maker
from trnrt.importer.values import static_shape
from trnrt.kernels.attention import MAX_HEAD, MAX_KEYS, MAX_VALUE_SIZE, attention_tile_bytes
from trnrt.kernels.attention_operands import READABLE_HEADS
from trnrt.operators.record import Group, finds_groups
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, attribute, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Found:
    """What the nodes of one attention compute: softmax(scale * q @ k + mask) @ v, all of four dimensions, k transposed.

    ``empty_is_zero``: a row of which every key is masked gives 0, not NaN.
    """

    nodes: tuple[ir.Node, ...]
    q: ir.Value
    k: ir.Value
    v: ir.Value
    mask: ir.Value | None
    scale: float
    empty_is_zero: bool


@dataclass(frozen=True)
class _Rows:
    """Heads of ``width`` columns side by side, from column ``first`` on, in rows of the stored tensor ``root`` (rows,
    columns)."""

    root: str
    shape: tuple[int, int]
    first: int
    width: int


@dataclass(kw_only=True)
class AttentionStep(Step):
    """softmax(scale * q @ k.T + mask) @ v of ``items``, each with ``heads`` side by side in the rows of ``places``."""

    places: tuple[_Rows, _Rows, _Rows]
    items: int
    heads: int
    scale: float
    empty_is_zero: bool
    mask: int | None  # the position of its source
    mask_shape: Shape = ()

    def _positions(self) -> list[int]:
        """The source of queries, keys and values."""
        values = [source.value for source in self.sources]
        return [values.index(place.root) for place in self.places]

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[position].value)
        roles = [role for role, source in enumerate(self._positions()) if source == position]
        if position == self.mask or not all(self._is_readable(role, stored) for role in roles):
            return (Layout.HBM,)
        keys = self.places[1].shape[0] // self.items
        return (Layout.ROWS if roles == [2] and keys % PARTITIONS == 0 else Layout.FEATURES, Layout.HBM)

    def _is_readable(self, role: int, stored: Shape) -> bool:
        """True if queries, keys or values can be read in the ``features`` layout: heads on whole partitions."""
        place = self.places[role]
        fits = stored == place.shape and place.first % PARTITIONS == 0
        return fits and (role == 2 or place.width in READABLE_HEADS)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.HBM)

    def hbm_view(self, position: int | None) -> Shape:
        if position is None:
            return self.shape
        if position == self.mask:
            return self.mask_shape
        return self.places[self._positions().index(position)].shape

    def multiplied_sources(self) -> list[Operand]:
        return [source for position, source in enumerate(self.sources) if position != self.mask]

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        q, k, v = self.places
        queries, keys = (place.shape[0] // self.items for place in (q, k))
        brought = sum(tensors.layout(place.root) is Layout.HBM for place in self.places)
        masks = self.mask_shape[1] if self.mask_shape else 0
        return attention_tile_bytes((queries, keys, self.heads, max(q.width, v.width)), 4, masks, brought)

    def call(self, tensors: Tensors) -> Call:
        parts = [SourceName(position) for position in self._positions()]
        mask = None if self.mask is None else SourceName(self.mask)
        q, _, v = self.places
        firsts = tuple(place.first for place in self.places)
        args = (*parts, mask, self.items, self.heads, q.width, v.width)
        options: dict[str, Any] = {"scale": self.scale} if self.scale != 1.0 else {}
        options |= {"empty_is_zero": True} if self.empty_is_zero else {}
        options |= {"firsts": firsts} if any(firsts) else {}
        options |= {"by_rows": True} if tensors.layout(self.places[2].root) is Layout.ROWS else {}
        return Call("attention", "attend", args, options)


@finds_groups
def find_attentions(lowering: Lowering) -> list[Group]:
    """The attentions of a graph, each of nodes that nothing else reads."""
    found = []
    places = {node: number for number, node in enumerate(lowering.graph)}
    for node in lowering.graph:
        match = _match(lowering, node) if node.op_type == "Softmax" and node.domain == "" else None
        if match is not None:
            nodes = tuple(sorted(match.nodes, key=places.__getitem__))
            found.append(Group(nodes, partial(_add_attention, found=replace(match, nodes=nodes))))
    return found


def _match(lowering: Lowering, softmax: ir.Node) -> _Found | None:
    """The attention around a softmax, if there is one."""
    shape = static_shape(softmax.outputs[0])
    if shape is None or len(shape) != 4 or attribute(softmax, "axis", -1 if lowering.opset >= 13 else 1) not in (-1, 3):
        return None
    mask, nodes = None, [softmax]
    value, scale = softmax.inputs[0], 1.0
    adding = maker(value, "Add")
    if adding is not None and maker(value, "Add") is adding:
        scaled = [_product_under(given) for given in adding.inputs]
        side = next((side for side, product in enumerate(scaled) if product is not None), None)
        if side is None or static_shape(adding.outputs[0]) != static_shape(adding.inputs[side]):
            return None
        value, mask = adding.inputs[side], adding.inputs[1 - side]
        nodes.append(adding)
    value, scale = _strip_scale(lowering, value, nodes)
    product = maker(value, "MatMul")
    if product is None:
        return None
    nodes.append(product)
    q, q_scale = _strip_scale(lowering, product.inputs[0], nodes)
    k, k_scale = _strip_scale(lowering, product.inputs[1], nodes)
    weighted, empty_is_zero = _find_weighted(lowering, softmax, nodes)
    if weighted is None or q is None or k is None or weighted.inputs[1] is None:
        return None
    inner = {made for node in nodes if node is not weighted for made in node.outputs}
    read = {reader for made in inner for reader, _ in made.uses()}
    fused = {node_name(node) for node in nodes if node is not product}
    if any(made.is_graph_output() for made in inner) or not read <= set(nodes) or fused & set(lowering.no_fuse):
        return None
    scale = scale * q_scale * k_scale
    return _Found(tuple(nodes), q, k, weighted.inputs[1], mask, scale, empty_is_zero)


def _product_under(value: ir.Value | None) -> ir.Node | None:
    """The product of computed matrices that a value is, but for a scale."""
    node = maker(value, "MatMul", "Mul", "Div")
    while node is not None and node.op_type != "MatMul":
        computed = [given for given in node.inputs if given is not None and given.const_value is None]
        node = maker(computed[0], "MatMul", "Mul", "Div") if len(computed) == 1 else None
    if node is None or any(given is None or given.const_value is not None for given in node.inputs):
        return None
    return node


def _strip_scale(lowering: Lowering, value: ir.Value | None, nodes: list[ir.Node]) -> tuple[ir.Value | None, float]:
    """(what a value is a multiple of, the factor), past the Mul and Div of one positive number that only this attention
    reads; they are added to ``nodes``."""
    scale = 1.0
    while (node := maker(value, "Mul", "Div")) is not None and value is not None and len(value.uses()) == 1:
        constants = [lowering.constant(given) for given in node.inputs]
        side = 0 if constants[1] is not None else 1
        factor = constants[1 - side]
        if factor is None or factor.size != 1 or (node.op_type == "Div" and side == 1):
            break
        number = float(factor.reshape(()))
        if not 0 < number < np.inf or static_shape(node.inputs[side]) != static_shape(value):
            break
        nodes.append(node)
        scale = scale / number if node.op_type == "Div" else scale * number
        value = node.inputs[side]
    return value, scale


def _find_weighted(lowering: Lowering, softmax: ir.Node, nodes: list[ir.Node]) -> tuple[ir.Node | None, bool]:
    """The product of a softmax with values, past a Where that replaces NaN by 0, and whether there is one.

    The nodes are added to ``nodes``."""
    value, empty_is_zero = softmax.outputs[0], False
    readers = list(dict.fromkeys(node for node, _ in value.uses()))
    testing = next((node for node in readers if node.op_type == "IsNaN" and node.domain == ""), None)
    choosing = next((node for node in readers if node.op_type == "Where" and node.domain == ""), None)
    if testing is not None and choosing is not None and len(readers) == 2:
        zero = lowering.constant(choosing.inputs[1])
        if (
            choosing.inputs[0] is not testing.outputs[0]
            or choosing.inputs[2] is not value
            or zero is None
            or zero.any()
        ):
            return None, False
        nodes += [testing, choosing]
        value, empty_is_zero = choosing.outputs[0], True
        readers = list(dict.fromkeys(node for node, _ in value.uses()))
    weighted = readers[0] if len(readers) == 1 else None
    if weighted is None or weighted.op_type != "MatMul" or weighted.domain != "" or weighted.inputs[0] is not value:
        return None, False
    nodes.append(weighted)
    return weighted, empty_is_zero


def _add_attention(lowering: Lowering, found: _Found) -> bool:
    """Append the step of one attention; False if a tensor isn't rows of heads, or is beyond the kernel's limits."""
    items, heads, queries, width = lowering.shape(found.q)
    keys, size = lowering.shape(found.v)[2:]
    sizes = lowering.shape(found.k) == (items, heads, width, keys) and lowering.shape(found.v)[:2] == (items, heads)
    if not sizes or width > MAX_HEAD or keys > MAX_KEYS or size > MAX_VALUE_SIZE:
        return False
    turned = lowering.view_of(found.k).permute((0, 1, 3, 2))
    places = [_read_rows(view) for view in (lowering.view_of(found.q), turned, lowering.view_of(found.v))]
    q, k, v = places
    mask = None if found.mask is None else _mask_view(lowering, found.mask)
    if q is None or k is None or v is None or (mask is not None and mask.shape[3] != keys):
        return False
    operands = [Operand(place.root, place.shape) for place in (q, k, v)]
    added = None if mask is None else lowering.operand_of(mask)
    sources = list(dict.fromkeys([*operands, *([] if added is None else [added])]))
    made = found.nodes[-1].outputs[0]
    step = AttentionStep(
        name=node_name(found.nodes[-1]),
        sources=sources,
        output=lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(items * queries, heads * size),
        places=(q, k, v),
        items=items,
        heads=heads,
        scale=found.scale,
        empty_is_zero=found.empty_is_zero,
        mask=None if added is None else sources.index(added),
        mask_shape=() if mask is None else mask.shape,
    )
    why = "attention: scores, softmax and the weighted values in one step, without HBM between"
    lowering.add(step, list(found.nodes), why, together=True)
    lowering.set_view(made, View.whole(step.output, (items, queries, heads, size)).permute((0, 2, 1, 3)))
    return True


def _read_rows(view: View) -> _Rows | None:
    """A view (items, heads, rows, width) as rows of a stored tensor; None if it has another order."""
    items, heads, rows, width = view.shape
    row = view.strides[2] if rows > 1 else view.strides[0] if items > 1 else view.size
    if row <= 0 or items * rows * row != view.size or view.offset + heads * width > row:
        return None
    expected = (rows * row, width, row, 1)
    for count, stride, wanted in zip(view.shape, view.strides, expected, strict=True):
        if count > 1 and stride != wanted:
            return None
    return _Rows(view.root, (items * rows, row), view.offset, width)


def _mask_view(lowering: Lowering, mask: ir.Value) -> View | None:
    """What is added to the scores (items or 1, heads or 1, queries or 1, keys); None if that is zero."""
    constant = lowering.constant(mask)
    if constant is not None and not constant.any():
        return None
    view = lowering.view_of(mask)
    more = 4 - len(view.shape)
    view = replace(view, shape=(1,) * more + view.shape, strides=(0,) * more + view.strides)
    for axis in range(3):
        if view.strides[axis] == 0 and view.shape[axis] > 1:
            view = view.slice(axis, 0, 1, 1)
    return view
