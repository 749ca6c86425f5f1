"""GatherND and GatherElements whose constant indices are a grid, as Slice, Transpose, Reshape, Expand and Gather.

PyTorch's exporter writes ``x[rows, columns]`` so, with the indices of all rows: attention masks of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, shape_of
from trnrt.importer.values import constant_array, static_shape


@dataclass(frozen=True)
class _Range:
    """Consecutive places in a dimension, from ``first`` on, along dimension ``axis`` of the grid; -1: one place."""

    axis: int
    first: int
    count: int


def spread_gathers(editor: Editor) -> list[str]:
    """Replace each GatherND and GatherElements that has a grid of constant indices."""
    notes = []
    for node in list(editor.graph):
        if node.domain != "" or node.op_type not in ("GatherElements", "GatherND"):
            continue
        note = node_text(node)
        rewrite = _spread_nd if node.op_type == "GatherND" else _spread_elements
        if rewrite(editor, node):
            notes.append(f"{note} takes a grid of elements by constant indices: made plain moves")
    return notes


def _spread_elements(editor: Editor, node: ir.Node) -> bool:
    """GatherElements whose indices are the same across the other dimensions, which are whole, is a Gather."""
    shape, indices = static_shape(node.inputs[0]), constant_array(node.inputs[1])
    if shape is None or (indices is not None and indices.size == 0):
        return False
    if indices is None:
        return _spread_table(editor, node, shape)
    axis = node.attributes.get_int("axis", 0) % len(shape)
    others = [d for d in range(len(shape)) if d != axis]
    first = indices[tuple(slice(None) if d == axis else slice(0, 1) for d in range(indices.ndim))]
    if any(indices.shape[d] != shape[d] for d in others) or not (indices == first).all():
        return False
    picked = editor.constant(first.reshape(-1), f"{node.outputs[0].name}_indices")
    _replace(editor, node, ir.node("Gather", [node.inputs[0], picked], {"axis": axis}))
    return True


def _spread_table(editor: Editor, node: ir.Node, shape: Sequence[int]) -> bool:
    """GatherElements from a constant that is the same across the other dimensions is a look-up in one line of it."""
    table, indices = constant_array(node.inputs[0]), node.inputs[1]
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if table is None or indices is None or not table.size:
        return False
    lines = np.moveaxis(table, axis, 0).reshape(shape[axis], -1)
    # NaN is not itself: then nothing is rewritten.
    if not (lines == lines[:, :1]).all():
        return False
    if (lines == lines[:1]).all() and static_shape(indices) is not None:
        one = np.broadcast_to(table.reshape(-1)[:1].reshape([1] * len(shape)), shape_of(indices))
        editor.bypass(node, editor.constant(one, f"{node.outputs[0].name}_alike"))
        return True
    line = editor.constant(np.ascontiguousarray(lines[:, 0]), f"{node.outputs[0].name}_line")
    _replace(editor, node, ir.node("Gather", [line, indices], {"axis": 0}))
    return True


def _spread_nd(editor: Editor, node: ir.Node) -> bool:
    """GatherND of a grid: each index depends on one dimension of the indices, and counts along it."""
    data, shape, indices = node.inputs[0], static_shape(node.inputs[0]), constant_array(node.inputs[1])
    if (
        data is None
        or shape is None
        or indices is None
        or indices.size == 0
        or node.attributes.get_int("batch_dims", 0) != 0
    ):
        return False
    grid, depth = indices.shape[:-1], indices.shape[-1]
    sizes = np.array(shape[:depth], np.int64)
    if np.any(indices < -sizes) or np.any(indices >= sizes):
        return False
    ranges = _find_ranges(indices % sizes, grid, shape)
    if ranges is None:
        return False
    value = _cut(editor, node, data, ranges)
    value = _order(editor, node, value, ranges)
    rest = shape[depth:]
    used = {found.axis for found in ranges}
    spread = (*(size if d in used else 1 for d, size in enumerate(grid)), *rest)
    made = editor.reshape(node, value, spread, f"{node.outputs[0].name}_grid", _name(editor, node))
    target = editor.constant(np.array((*grid, *rest), np.int64), f"{made.name}_whole")
    _replace(editor, node, ir.node("Expand", [made, target]))
    return True


def _find_ranges(indices: Array, grid: Sequence[int], shape: Sequence[int]) -> list[_Range] | None:
    """A range for each coordinate; None if one isn't a range, or two count along the same dimension of the grid."""
    found: list[_Range] = []
    for k in range(indices.shape[-1]):
        places = indices[..., k]
        first = int(places.reshape(-1)[0])
        axes = [d for d, size in enumerate(grid) if size > 1 and np.any(np.diff(places, axis=d))]
        if len(axes) > 1:
            return None
        if axes:
            steps = np.arange(grid[axes[0]]).reshape([-1 if d == axes[0] else 1 for d in range(len(grid))])
            if not (places == first + steps).all():
                return None
        found.append(_Range(axes[0] if axes else -1, first, grid[axes[0]] if axes else 1))
    counting = [one.axis for one in found if one.axis >= 0]
    if len(set(counting)) < len(counting):
        return None
    # A dimension of size 1 counts along one of size 1, so that a batch of one row is written like a larger one.
    free = [d for d, size in enumerate(grid) if size == 1]
    for k, one in enumerate(found):
        if one.axis < 0 and shape[k] == 1 and free:
            found[k] = _Range(free.pop(0), 0, 1)
    return found


def _cut(editor: Editor, node: ir.Node, value: ir.Value, ranges: Sequence[_Range]) -> ir.Value:
    """The ranges of the first dimensions, by a Slice unless all of them are whole."""
    shape = shape_of(value)
    cut = [k for k, one in enumerate(ranges) if (one.first, one.count) != (0, shape[k])]
    if not cut:
        return value
    name = node.outputs[0].name or ""
    bounds = ([ranges[k].first for k in cut], [ranges[k].first + ranges[k].count for k in cut], cut)
    given = [editor.constant(np.array(numbers, np.int64), f"{name}_range") for numbers in bounds]
    sizes = [ranges[k].count if k < len(ranges) else size for k, size in enumerate(shape)]
    made = editor.result(f"{name}_cut", value.dtype, sizes)
    editor.graph.insert_before(node, ir.node("Slice", [value, *given], outputs=[made], name=_name(editor, node)))
    return made


def _order(editor: Editor, node: ir.Node, value: ir.Value, ranges: Sequence[_Range]) -> ir.Value:
    """The dimensions in the order of the grid's; those of one place come first."""
    shape = shape_of(value)
    order = [*sorted(range(len(ranges)), key=lambda k: ranges[k].axis), *range(len(ranges), len(shape))]
    if order == list(range(len(shape))):
        return value
    made = editor.result(f"{node.outputs[0].name}_turned", value.dtype, [shape[d] for d in order])
    turn = ir.node("Transpose", [value], {"perm": order}, outputs=[made], name=_name(editor, node))
    editor.graph.insert_before(node, turn)
    return made


def _name(editor: Editor, node: ir.Node) -> str:
    return editor.node_name(f"{node.name}_move")


def _replace(editor: Editor, node: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of another, with its name and its output's type."""
    made = node.outputs[0]
    new.name = node.name
    new.outputs[0].name = editor.spare_name(f"{made.name}_moved")
    new.outputs[0].type, new.outputs[0].shape = made.type, made.shape
    editor.graph.insert_before(node, new)
    editor.bypass(node, new.outputs[0])
