"""Split products of whole numbers whose sums could leave the range in which float32 is exact.

Each part sums some of the terms, and stays below 2^24. Two exact parts are added with one rounding, like integers that
become float32 at the end. More parts are cut in two first, high * 2^12 + low with low within 2^11: all the highs and
all the lows add up to so little that their sums are exact, and only the last addition rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, shape_of
from trnrt.importer.values import attribute, constant_array, input_at, static_shape
from trnrt.importer.wholes import EXACT_SUM, Wholes, find_wholes, product_limits, term_limits

_STEP = np.float32(2.0**12)
# Cuts at multiples of it, where parts are as long: kernels take features and channels in blocks of 128.
_BLOCK = 128


def split_long_sums(editor: Editor) -> list[str]:
    """Split every product of whole numbers whose partial sums may reach 2^24; return notes on what was done."""
    wholes = find_wholes(editor.graph)
    long = {name for name, size in wholes.sums.items() if size >= EXACT_SUM}
    nodes = [node for node in editor.graph if node.name in long]
    return [note for node in nodes if (note := _split(editor, node, wholes))]


def _split(editor: Editor, node: ir.Node, wholes: Wholes) -> str | None:
    axes = _summed_axes(node)
    cuts = _find_cuts(node, axes, wholes) if axes is not None else None
    if axes is None or cuts is None:
        return None
    parts = [_insert_part(editor, node, axes, first, end) for first, end in pairwise(cuts)]
    note = f"{node_text(node)} made {len(parts)} products: float32 might not represent its sums exactly"
    editor.bypass(node, _add_exactly(_Inserter(editor, node), parts))
    return note


def _summed_axes(node: ir.Node) -> tuple[int, int] | None:
    """The axes of the data and of the weights that a product sums over; None if it can't be split along them."""
    data, weights = (static_shape(value) for value in node.inputs[:2])
    if data is None or weights is None or static_shape(node.outputs[0]) is None:
        return None
    if node.op_type == "Conv":
        return (1, 1) if attribute(node, "group", 1) == 1 else None
    if min(len(data), len(weights)) < 2 or attribute(node, "transA", 0):
        return None
    return len(data) - 1, len(weights) - (1 if attribute(node, "transB", 0) else 2)


def _find_cuts(node: ir.Node, axes: tuple[int, int], wholes: Wholes) -> list[int] | None:
    """The first index of each part, and the end: as few equal parts as stay below 2^24; None if none do."""
    data, factors = (wholes.limits_of(value) for value in node.inputs[:2])
    bias, weights = wholes.limits_of(input_at(node, 2)), constant_array(node.inputs[1])
    assert data is not None and factors is not None
    if weights is None:
        count, one = shape_of(_value(node, 1))[axes[1]], product_limits(data, factors)
        falls, rises = np.full((1, count), one.low), np.full((1, count), one.high)
    else:
        falls, rises = term_limits(data, _terms(node, weights, axes[1]))
        count = falls.shape[1]
    below, above = (np.concatenate([np.zeros((len(one), 1)), one.cumsum(1)], 1) for one in (-falls, rises))
    first = bias.size if bias is not None else 0.0
    largest_index = max(float(np.diff(sums).max()) for sums in (below, above))
    if largest_index + first >= EXACT_SUM:
        return None
    total = max(float(sums[:, -1].max()) for sums in (below, above))
    for parts in range(max(2, int(total // EXACT_SUM)), count + 1):
        cuts = _cut_evenly(count, parts)
        largest = [
            max(float((sums[:, end] - sums[:, start]).max()) for sums in (below, above))
            for start, end in pairwise(cuts)
        ]
        if max(largest[0] + first, *largest) < EXACT_SUM:
            return cuts
    return None


def _terms(node: ir.Node, weights: Array, axis: int) -> Array:
    """Constant weights as (outputs, indices of the summed axis, terms of each)."""
    if node.op_type == "Conv":
        return weights.reshape(*weights.shape[:2], -1)
    return np.moveaxis(weights, axis, -1).reshape(-1, weights.shape[axis], 1)


def _cut_evenly(count: int, parts: int) -> list[int]:
    each = -(-count // parts)
    if each > _BLOCK and -(-count // (whole := -(-each // _BLOCK) * _BLOCK)) == parts:
        each = whole
    return [*range(0, count, each), count]


def _value(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None
    return value


class _Inserter:
    """Inserts nodes before one that they replace."""

    def __init__(self, editor: Editor, node: ir.Node) -> None:
        self.editor, self.node = editor, node
        self.name = node.outputs[0].name or ""

    def insert(
        self, operator: str, inputs: Sequence[ir.Value | None], shape: Sequence[int], **attributes: object
    ) -> ir.Value:
        """The result of a new node."""
        made = self.editor.result(f"{self.name}_part", ir.DataType.FLOAT, shape)
        name = self.editor.node_name(f"{self.node.name}_part")
        self.editor.graph.insert_before(self.node, ir.node(operator, inputs, attributes, outputs=[made], name=name))
        return made

    def combine(self, operator: str, left: ir.Value, right: ir.Value | np.float32) -> ir.Value:
        """The result of an operator on each element of a part."""
        if not isinstance(right, ir.Value):
            right = self.editor.constant(np.asarray(right), f"{self.name}_step")
        return self.insert(operator, [left, right], shape_of(left))

    def slice(self, value: ir.Value, axis: int, first: int, end: int) -> ir.Value:
        """The indices of an axis from ``first`` to ``end``."""
        array = constant_array(value)
        if array is not None:
            return self.editor.constant(np.take(array, range(first, end), axis), f"{value.name}_part")
        limits = [
            self.editor.constant(np.array([number], np.int64), f"{self.name}_limit") for number in (first, end, axis)
        ]
        shape = list(shape_of(value))
        shape[axis] = end - first
        return self.insert("Slice", [value, *limits], shape)


def _insert_part(editor: Editor, node: ir.Node, axes: tuple[int, int], first: int, end: int) -> ir.Value:
    """The product of some indices of the summed axes; the first one has the bias."""
    inserter = _Inserter(editor, node)
    operands = [inserter.slice(_value(node, place), axis, first, end) for place, axis in enumerate(axes)]
    attributes = {name: given.value for name, given in node.attributes.items()}
    bias = [input_at(node, 2)] if first == 0 and input_at(node, 2) is not None else []
    return inserter.insert(node.op_type, [*operands, *bias], shape_of(node.outputs[0]), **attributes)


def _add_exactly(inserter: _Inserter, parts: list[ir.Value]) -> ir.Value:
    """The sum of the parts, rounded once."""
    if len(parts) == 2:
        return inserter.combine("Add", *parts)
    highs = [_apply_round(inserter, inserter.combine("Mul", part, 1 / _STEP)) for part in parts]
    lows = [
        inserter.combine("Sub", part, inserter.combine("Mul", high, _STEP))
        for part, high in zip(parts, highs, strict=True)
    ]
    high, low = (_add_all(inserter.combine, values) for values in (highs, lows))
    return inserter.combine("Add", inserter.combine("Mul", high, _STEP), low)


def _apply_round(inserter: _Inserter, value: ir.Value) -> ir.Value:
    return inserter.insert("Round", [value], shape_of(value))


def _add_all(combine: Callable[[str, ir.Value, ir.Value], ir.Value], values: list[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        total = combine("Add", total, value)
    return total
