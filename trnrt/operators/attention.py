"""Attention as one step: the product of queries and keys, its scale and mask, the softmax, and the product with the
values, found in the graph by what the nodes compute, whoever wrote them.

The step reads queries, keys and values as rows, heads side by side, as the projections before write them, and writes
its result so, for the projection behind it. Nodes that only move elements between are views.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trnrt.kernels.attention import MAX_HEAD, MAX_KEYS, MAX_VALUE_SIZE, attention_tile_bytes
from trnrt.kernels.attention_operands import READABLE_HEADS
from trnrt.operators.attention_graph import Found, Heads, find_all
from trnrt.operators.attention_masks import find_ends, read_masks
from trnrt.operators.record import Group, finds_groups
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Rows:
    """Heads of ``width`` columns side by side, from column ``first`` on, in rows of the stored tensor ``root`` (rows,
    columns); or heads apart, (items, heads, rows, width)."""

    root: str
    shape: Shape
    first: int
    width: int

    def count(self, items: int) -> int:
        """The rows of an item."""
        return self.shape[2] if len(self.shape) == 4 else self.shape[0] // items


@dataclass(kw_only=True)
class AttentionStep(Step):
    """softmax(scale * q @ k.T + masks) @ v of ``items``, each with ``heads`` side by side in the rows of ``places``, or
    apart; ``shared`` heads of q use one of k and v. ``ends``: the keys that each 128 queries see."""

    places: tuple[_Rows, _Rows, _Rows]
    items: int
    heads: int
    shared: int
    scale: float
    empty_is_zero: bool
    masks: tuple[int, ...]  # the positions of their sources
    mask_shapes: tuple[Shape, ...]
    ends: tuple[int, ...]

    def _positions(self) -> list[int]:
        """The source of queries, keys and values."""
        values = [source.value for source in self.sources]
        return [values.index(place.root) for place in self.places]

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[position].value)
        roles = [role for role, source in enumerate(self._positions()) if source == position]
        if position in self.masks or not all(self._is_readable(role, stored) for role in roles):
            return (Layout.HBM,)
        keys = self.places[1].count(self.items)
        return (Layout.ROWS if roles == [2] and keys % PARTITIONS == 0 else Layout.FEATURES, Layout.HBM)

    def _is_readable(self, role: int, stored: Shape) -> bool:
        """True if queries, keys or values can be read in the ``features`` layout: heads on whole partitions, those of
        queries on the same ones as their keys."""
        place = self.places[role]
        fits = stored == place.shape and len(stored) == 2 and place.first % PARTITIONS == 0
        on_same = self.shared == 1 or place.width == PARTITIONS
        return fits and (role == 2 or (place.width in READABLE_HEADS and on_same))

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.HBM)

    def hbm_view(self, position: int | None) -> Shape:
        if position is None:
            return self.shape
        if position in self.masks:
            return self.mask_shapes[self.masks.index(position)]
        return self.places[self._positions().index(position)].shape

    def multiplied_sources(self) -> list[Operand]:
        return [source for position, source in enumerate(self.sources) if position not in self.masks]

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        q, k, v = self.places
        queries, keys = (place.count(self.items) for place in (q, k))
        brought = sum(tensors.layout(place.root) is Layout.HBM for place in self.places)
        masks = [shape[1] for shape in self.mask_shapes]
        added = sum(masks) + max(masks) if len(masks) > 1 else sum(masks)
        return attention_tile_bytes((queries, keys, self.heads, max(q.width, v.width)), 4, added, brought)

    def call(self, tensors: Tensors) -> Call:
        parts = [SourceName(position) for position in self._positions()]
        masks = [SourceName(position) for position in self.masks]
        q, _, v = self.places
        firsts = tuple(place.first for place in self.places)
        args = (*parts, masks[0] if masks else None, self.items, self.heads, q.width, v.width)
        options: dict[str, Any] = {"scale": self.scale} if self.scale != 1.0 else {}
        options |= {"empty_is_zero": True} if self.empty_is_zero else {}
        options |= {"firsts": firsts} if any(firsts) else {}
        options |= {"by_rows": True} if tensors.layout(self.places[2].root) is Layout.ROWS else {}
        options |= {"shared": self.shared} if self.shared != 1 else {}
        options |= {"ends": self.ends} if self.ends else {}
        options |= {"more": masks[1]} if len(masks) > 1 else {}
        return Call("attention", "attend", args, options)


@finds_groups
def find_attentions(lowering: Lowering) -> list[Group]:
    """The attentions of a graph, each of nodes that nothing else reads."""
    return [Group(found.nodes, partial(_add_attention, found=found)) for found in find_all(lowering)]


def _add_attention(lowering: Lowering, found: Found) -> bool:
    """Append the step of one attention; False if it is beyond the kernel's limits, or a mask has another form."""
    views = _view_all(lowering, found)
    if views is None:
        return False
    (items, heads, queries, width), (keys, size) = views[0].shape, views[2].shape[2:]
    fits = width <= MAX_HEAD and keys <= MAX_KEYS and size <= MAX_VALUE_SIZE
    masks = read_masks(lowering, found.terms, (items, heads, queries, keys)) if fits else None
    if masks is None:
        return False
    q, k, v = (_read_rows(lowering, view) for view in views)
    operands = [Operand(place.root, place.shape) for place in (q, k, v)]
    added = [mask.place(lowering, node_name(found.nodes[-1])) for mask in masks]
    sources = list(dict.fromkeys([*operands, *added]))
    made = found.nodes[-1].outputs[0]
    step = AttentionStep(
        name=node_name(found.nodes[-1]),
        sources=sources,
        output=lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(items * queries, heads * size),
        places=(q, k, v),
        items=items,
        heads=heads,
        shared=found.k.shared,
        scale=found.scale,
        empty_is_zero=found.empty_is_zero,
        masks=tuple(sources.index(one) for one in added),
        mask_shapes=tuple(mask.shape for mask in masks),
        ends=find_ends(masks, queries),
    )
    why = "attention: scores, softmax and the weighted values in one step, without HBM between"
    lowering.add(step, list(found.nodes), why, together=True)
    whole = View.whole(step.output, (items, queries, heads, size)).permute((0, 2, 1, 3))
    given = lowering.shape(made)
    view = whole.reshape(given)
    if view is None:  # items and heads are joined in one axis
        view = View.whole(lowering.operand_of(whole).value, given)
    lowering.set_view(made, view)
    return True


def _view_all(lowering: Lowering, found: Found) -> tuple[View, View, View] | None:
    """Queries, keys and values (items, heads, rows, columns); None if their sizes do not fit each other.

    Where items and heads are joined in one axis, another operand may say how many there are; else all are items."""
    q, k, v = (_view_heads(lowering, heads) for heads in (found.q, found.k, found.v))
    shared = found.k.shared
    if found.v.shared != shared or found.q.shared != 1:
        return None
    split = next((view.shape[:2] for view in (k, v) if len(view.shape) == 4), (q.shape[0], 1))
    items, heads = q.shape[:2] if len(q.shape) == 4 else (split[0], split[1] * shared)
    if heads % shared or any(len(view.shape) == 3 and view.shape[0] != items * heads for view in (q, k, v)):
        return None
    q, k, v = (_split_heads(view, items, heads) for view in (q, k, v))
    k = k.permute((0, 1, 3, 2))
    fit = k.shape == (items, heads // shared, v.shape[2], q.shape[3]) and q.shape[:2] == (items, heads)
    return (q, k, v) if fit and v.shape[:2] == k.shape[:2] else None


def _view_heads(lowering: Lowering, heads: Heads) -> View:
    """An operand of a product: (items, heads, rows, columns), or (items * heads, rows, columns)."""
    view = lowering.view_of(heads.value)
    view = view.permute(heads.order) if heads.order else view
    if heads.shared > 1:
        view = view.slice(2, 0, 1).permute((2, 0, 1, 3, 4))
        view = replace(view, shape=view.shape[1:], strides=view.strides[1:])
    axes = tuple(range(len(view.shape)))
    return view.permute((*axes[:-2], axes[-1], axes[-2])) if heads.turned else view


def _split_heads(view: View, items: int, heads: int) -> View:
    """A view with items and heads apart."""
    if len(view.shape) == 4:
        return view
    apart = view.reshape((items, heads, *view.shape[1:]))
    assert apart is not None, "an axis can always be split"
    return apart


def _read_rows(lowering: Lowering, view: View) -> _Rows:
    """A view (items, heads, rows, width) as rows of a stored tensor; if it has another order, heads apart, copied if
    need be."""
    items, heads, rows, width = view.shape
    row = view.strides[2] if rows > 1 else view.strides[0] if items > 1 else view.size
    expected = (rows * row, width, row, 1)
    follows = all(n == 1 or s == wanted for n, s, wanted in zip(view.shape, view.strides, expected, strict=True))
    if follows and row > 0 and items * rows * row == view.size and view.offset + heads * width <= row:
        return _Rows(view.root, (items * rows, row), view.offset, width)
    return _Rows(lowering.operand_of(view).value, view.shape, 0, width)
