"""Split products of whole numbers whose sums could leave the range in which float32 is exact.

Each part sums some of the terms, and stays below 2^24. Two exact parts are added with one rounding, like integers that
become float32 at the end. More parts are cut in two first, high * 2^12 + low with low within 2^11: all the highs and
all the lows add up to so little that their sums are exact, and only the last addition rounds. Each operator before it
is exact, on whichever engine it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, is_private, shape_of
from trnrt.importer.values import attribute, constant_array, input_at, static_shape
from trnrt.importer.wholes import EXACT_SUM, Wholes, find_wholes, product_limits, product_terms, term_limits

_STEP = np.float32(2.0**12)
# Cuts at multiples of it, where parts are as long: kernels take features and channels in blocks of 128.
_BLOCK = 128


@dataclass(frozen=True)
class _Cuts:
    """The first index of each part, and the end: of the axis ``data`` of a product's data, and of ``weights`` of its
    weights. Without axes, of the terms of each output (ConvTranspose: of the channels of each group): a part has 0 for
    all other weights, and reads all data."""

    ends: list[int]
    axes: tuple[int, int] | None


def split_long_sums(editor: Editor) -> list[str]:
    """Split every product of whole numbers whose partial sums may reach 2^24; return notes on what was done."""
    wholes = find_wholes(editor.graph)
    long = {name for name, size in wholes.sums.items() if size >= EXACT_SUM}
    nodes = [node for node in editor.graph if node.name in long]
    return [note for node in nodes if (note := _split(editor, node, wholes))]


def _split(editor: Editor, node: ir.Node, wholes: Wholes) -> str | None:
    cuts = _find_cuts(node, wholes)
    if cuts is None:
        return None
    parts = [_insert_part(editor, node, cuts.axes, first, end) for first, end in pairwise(cuts.ends)]
    note = f"{node_text(node)} made {len(parts)} products: float32 might not represent its sums exactly"
    addition, addend = _following_addend(node, wholes)
    made = _add_exactly(_Inserter(editor, addition or node), parts, addend)
    if addition is not None:
        editor.bypass(addition, made)
        editor.remove(node)
    else:
        editor.bypass(node, made)
    return note


def _following_addend(node: ir.Node, wholes: Wholes) -> tuple[ir.Node | None, Array | None]:
    """The addition of whole constants behind a product, which must not round apart from its sums, and the constants."""
    made = node.outputs[0]
    reader = next((reader for reader, _ in made.uses()), None)
    if not is_private(made) or reader is None or reader.domain or reader.op_type != "Add":
        return None, None
    other = reader.inputs[1] if reader.inputs[0] is made else reader.inputs[0]
    array = constant_array(other)
    if array is None or wholes.limits_of(other) is None or static_shape(reader.outputs[0]) != static_shape(made):
        return None, None
    return reader, array


def _summed_axes(node: ir.Node) -> tuple[int, int] | None:
    """The axes of the data and of the weights that a product sums over; None if groups sum over parts of them."""
    if node.op_type in ("Conv", "ConvTranspose"):
        return (1, int(node.op_type == "Conv")) if attribute(node, "group", 1) == 1 else None
    data, weights = (len(shape_of(_value(node, place))) for place in (0, 1))
    turned = attribute(node, "transA", 0), attribute(node, "transB", 0)
    return 0 if turned[0] else data - 1, weights - 1 if turned[1] else max(weights - 2, 0)


def _find_cuts(node: ir.Node, wholes: Wholes) -> _Cuts | None:
    """As few equal parts as stay below 2^24; None if none do, or shapes aren't known."""
    if any(static_shape(value) is None for value in (*node.inputs[:2], node.outputs[0])):
        return None
    data, factors = (wholes.limits_of(value) for value in node.inputs[:2])
    bias, weights, axes = wholes.limits_of(input_at(node, 2)), constant_array(node.inputs[1]), _summed_axes(node)
    assert data is not None and factors is not None
    first = bias.size if bias is not None else 0.0
    if weights is None:
        if axes is None:
            return None
        one, count = product_limits(data, factors), shape_of(_value(node, 1))[axes[1]]
        taps = int(np.prod(shape_of(_value(node, 1))[2:])) if node.op_type in ("Conv", "ConvTranspose") else 1
        ends = _find_ends(np.full((1, count), one.low * taps), np.full((1, count), one.high * taps), first)
        return None if ends is None else _Cuts(ends, axes)
    terms = product_terms(node, weights)
    ends = _find_ends(*term_limits(data, terms), first) if axes is not None else None
    if ends is not None:
        return _Cuts(ends, axes)
    if node.op_type == "Conv":
        terms = terms.reshape(len(terms), -1, 1)
    ends = _find_ends(*term_limits(data, terms), first)
    return None if ends is None else _Cuts(ends, None)


def _find_ends(falls: Array, rises: Array, first: float) -> list[int] | None:
    """The ends of the parts, from how far each index can lower and raise each output (outputs, indices). The first
    part also has a bias of up to ``first``."""
    count = falls.shape[1]
    below, above = (np.concatenate([np.zeros((len(one), 1)), one.cumsum(1)], 1) for one in (-falls, rises))
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

    def combine(self, operator: str, left: ir.Value, right: ir.Value | Array | np.float32) -> ir.Value:
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


def _insert_part(editor: Editor, node: ir.Node, axes: tuple[int, int] | None, first: int, end: int) -> ir.Value:
    """The product of some indices of the summed axes, or of some terms; the first one has the bias."""
    inserter = _Inserter(editor, node)
    if axes is None:
        operands = [_value(node, 0), _keep_terms(editor, node, first, end)]
    else:
        operands = [inserter.slice(_value(node, place), axis, first, end) for place, axis in enumerate(axes)]
    attributes = {name: given.value for name, given in node.attributes.items()}
    bias = [input_at(node, 2)] if first == 0 and input_at(node, 2) is not None else []
    return inserter.insert(node.op_type, [*operands, *bias], shape_of(node.outputs[0]), **attributes)


def _keep_terms(editor: Editor, node: ir.Node, first: int, end: int) -> ir.Value:
    """A convolution's weights, 0 but for the terms from ``first`` to ``end``, as ``_Cuts`` has them."""
    value = _value(node, 1)
    weights = constant_array(value)
    assert weights is not None
    if node.op_type == "ConvTranspose":
        apart = weights.reshape(groups := attribute(node, "group", 1), len(weights) // groups, -1)
    else:
        apart = weights.reshape(len(weights), -1, 1)
    kept = np.zeros_like(apart)
    kept[:, first:end] = apart[:, first:end]
    return editor.constant(kept.reshape(weights.shape), f"{value.name}_part")


def _add_exactly(inserter: _Inserter, parts: list[ir.Value], addend: Array | None) -> ir.Value:
    """The sum of the parts, and of whole constants if there are any, rounded once."""
    if len(parts) == 2 and addend is None:
        return inserter.combine("Add", *parts)
    highs = [_apply_round(inserter, inserter.combine("Mul", part, 1 / _STEP)) for part in parts]
    lows = [
        inserter.combine("Sub", part, inserter.combine("Mul", high, _STEP))
        for part, high in zip(parts, highs, strict=True)
    ]
    high, low = (_add_all(inserter.combine, values) for values in (highs, lows))
    if addend is not None:
        above = np.rint(addend.astype(np.float32) / _STEP)
        high, low = inserter.combine("Add", high, above), inserter.combine("Add", low, addend - above * _STEP)
    return inserter.combine("Add", inserter.combine("Mul", high, _STEP), low)


def _apply_round(inserter: _Inserter, value: ir.Value) -> ir.Value:
    return inserter.insert("Round", [value], shape_of(value))


def _add_all(combine: Callable[[str, ir.Value, ir.Value], ir.Value], values: list[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        total = combine("Add", total, value)
    return total
