"""Writing at constant indices (ScatterND, ScatterElements, Scatter) as moves: parts of the data and of the updates side
by side, along one axis after the other where the places are a box, else row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import attribute, constant_array, static_shape

_SCATTERS = ("Scatter", "ScatterElements", "ScatterND")
_REDUCTIONS = {"add": "Add", "max": "Max", "min": "Min", "mul": "Mul"}
# Pieces that are put side by side by a Concat; more are picked by a Gather, which copies all elements first.
_MOST_PIECES = 16
# Updates of one place that are combined one after the other.
_MOST_ROUNDS = 8


def write_scatters(editor: Editor) -> list[str]:
    """Rewrite every scatter of known shapes and constant indices; return notes on what was done."""
    if editor.opset < 10:  # Slice takes its ranges as inputs
        return []
    return [note for node in list(editor.graph) if (note := _write(editor, node))]


def _write(editor: Editor, node: ir.Node) -> str | None:
    if node.domain != "" or node.op_type not in _SCATTERS or len(node.inputs) != 3:
        return None
    data, _, updates = node.inputs
    indices = constant_array(node.inputs[1])
    shape, given = static_shape(data), static_shape(updates)
    if indices is None or data is None or updates is None or shape is None or given is None or not indices.size:
        return None
    places = _places_of_rows(indices, shape) if node.op_type == "ScatterND" else _places(node, indices, shape)
    mover, reduction = _Mover(editor, node), attribute(node, "reduction", "none")
    if places is None:
        return None
    made = _write_rounds(mover, data, updates, places, reduction)
    if made is None:
        return None
    editor.bypass(node, made)
    return f"{node_text(node)} written as moves, as its indices are constant"


def _places_of_rows(indices: Array, shape: Sequence[int]) -> Array | None:
    """The indices of ScatterND as (K, depth), none negative; None if one is out of bounds."""
    depth = indices.shape[-1]
    sizes = np.asarray(shape[:depth], np.int64)
    if not 1 <= depth <= len(shape) or np.any(indices < -sizes) or np.any(indices >= sizes):
        return None
    found: Array = (indices.astype(np.int64) % sizes).reshape(-1, depth)
    return found


def _places(node: ir.Node, indices: Array, shape: Sequence[int]) -> Array | None:
    """The places of ScatterElements as (K, rank); None if one is out of bounds."""
    axis = attribute(node, "axis", 0) % max(len(shape), 1)
    size = shape[axis] if shape else 0
    if indices.ndim != len(shape) or np.any(indices < -size) or np.any(indices >= size):
        return None
    if any(many > length for d, (many, length) in enumerate(zip(indices.shape, shape, strict=True)) if d != axis):
        return None
    grid = np.indices(indices.shape)
    grid[axis] = indices % size
    found: Array = grid.reshape(len(shape), -1).T
    return found


def _write_rounds(mover: _Mover, data: ir.Value, updates: ir.Value, places: Array, reduction: str) -> ir.Value | None:
    """The data after all updates. Those of one place come in rounds; None if there are too many, or if it is open which
    of them stays."""
    shape = static_shape(data) or ()
    depth = places.shape[1]
    rounds = _number_repeats(np.ravel_multi_index(tuple(places.T), tuple(shape[:depth])))
    last = int(rounds.max())
    if reduction not in ("none", *_REDUCTIONS) or last >= _MOST_ROUNDS or (last and reduction == "none"):
        return None
    rest = tuple(shape[depth:])
    if last == 0:
        return _write_once(mover, data, updates, places, reduction)
    rows = mover.reshape(updates, (len(places), *rest))
    for number in range(last + 1):
        chosen = np.flatnonzero(rounds == number)
        data = _write_once(mover, data, mover.take(rows, chosen, 0), places[chosen], reduction)
    return data


def _number_repeats(keys: Array) -> Array:
    """How often each key came before."""
    order = np.argsort(keys, kind="stable")
    new = np.r_[True, np.diff(keys[order]) != 0]
    starts = np.maximum.accumulate(np.where(new, np.arange(len(keys)), 0))
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.arange(len(keys)) - starts
    return numbers


def _write_once(mover: _Mover, data: ir.Value, updates: ir.Value, places: Array, reduction: str) -> ir.Value:
    """The data with updates at places that are all different."""
    shape = static_shape(data) or ()
    depth = places.shape[1]
    rest = tuple(shape[depth:])
    lines = [np.unique(column) for column in places.T]
    grid = np.stack([axis.reshape(-1) for axis in np.meshgrid(*lines, indexing="ij")], 1)
    if np.array_equal(grid, places):
        box = mover.reshape(updates, (*(len(line) for line in lines), *rest))
        return mover.write_box(data, box, lines, 0, reduction)
    rows = np.ravel_multi_index(tuple(places.T), tuple(shape[:depth]))
    flat = mover.reshape(data, (prod(shape[:depth]), *rest))
    made = mover.write_box(flat, mover.reshape(updates, (len(places), *rest)), [rows], 0, reduction)
    return mover.reshape(made, tuple(shape))


class _Mover:
    """Adds moves before a node."""

    def __init__(self, editor: Editor, node: ir.Node) -> None:
        self.editor, self.node = editor, node

    def _apply(self, operator: str, inputs: list[ir.Value], shape: Sequence[int], **attributes: int) -> ir.Value:
        made = self.editor.result(f"{self.node.outputs[0].name}_{operator.lower()}", inputs[0].dtype, shape)
        name = self.editor.node_name(f"{self.node.name}_{operator.lower()}")
        self.editor.graph.insert_before(self.node, ir.node(operator, inputs, attributes, outputs=[made], name=name))
        return made

    def _constant(self, array: Array) -> ir.Value:
        return self.editor.constant(array, f"{self.node.outputs[0].name}_places")

    def reshape(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """The same elements in another shape."""
        if static_shape(value) == shape:
            return value
        return self._apply("Reshape", [value, self._constant(np.array(shape, np.int64))], shape)

    def take(self, value: ir.Value, places: Array, axis: int) -> ir.Value:
        """Elements along an axis."""
        shape = list(static_shape(value) or ())
        if np.array_equal(places, np.arange(shape[axis])):
            return value
        shape[axis] = len(places)
        first, last = int(places[0]), int(places[-1])
        if np.array_equal(places, np.arange(first, last + 1)):
            limits = (self._constant(np.array([number], np.int64)) for number in (first, last + 1, axis))
            return self._apply("Slice", [value, *limits], shape)
        return self._apply("Gather", [value, self._constant(places.astype(np.int64))], shape, axis=axis)

    def write_box(self, data: ir.Value, box: ir.Value, lines: Sequence[Array], axis: int, reduction: str) -> ir.Value:
        """The data with a box of updates, at ``lines[k]`` along axis k; the axes before ``axis`` are written whole."""
        if axis == len(lines):
            if reduction == "none":
                return box
            return self._apply(_REDUCTIONS[reduction], [data, box], static_shape(box) or ())
        inner = self.write_box(self.take(data, lines[axis], axis), box, lines, axis + 1, reduction)
        return self._replace(data, inner, lines[axis], axis)

    def _replace(self, data: ir.Value, updates: ir.Value, places: Array, axis: int) -> ir.Value:
        """The data with other elements at places along an axis."""
        shape = static_shape(data) or ()
        sources = np.arange(shape[axis])
        sources[places] = shape[axis] + np.arange(len(places))
        if (sources >= shape[axis]).all():
            return self.take(updates, sources - shape[axis], axis)
        cuts = np.flatnonzero(np.r_[True, (np.diff(sources) != 1) | (sources[1:] == shape[axis]), True])
        if len(cuts) > _MOST_PIECES + 1:
            both = list(shape)
            both[axis] += len(places)
            return self.take(self._apply("Concat", [data, updates], both, axis=axis), sources, axis)
        pieces = []
        for start, stop in pairwise(cuts):
            piece = sources[start:stop]
            is_new = piece[0] >= shape[axis]
            pieces.append(self.take(updates if is_new else data, piece - shape[axis] * is_new, axis))
        return self._apply("Concat", pieces, shape, axis=axis)
