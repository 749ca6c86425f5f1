"""Gather by indices that were brought into 0..n-1 before it: it counts from the end by itself.

Keras 3 writes ``where(ids < 0, ids + n, ids)`` before the look-up of an embedding. For a Gather from ``n`` elements
this changes nothing, but nothing is known of the range of its result. Without it the ids are the model's own input,
whose range is checked when the model runs. Ids below -n, which onnxruntime counts from the end twice, are refused.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, maker
from trnrt.importer.values import constant_array, static_shape


def unwrap_indices(editor: Editor) -> list[str]:
    """Let each Gather read the indices before they were wrapped; return notes on what was done."""
    notes = []
    for node in list(editor.graph):
        if maker(node.outputs[0], "Gather") is None or len(node.inputs) < 2:
            continue
        shape = static_shape(node.inputs[0])
        given, indices = node.inputs[1], None
        if shape and given is not None:
            indices = _find_plain(given, shape[node.attributes.get_int("axis", 0)])
        if indices is not None and given is not None and static_shape(indices) == static_shape(given):
            editor.set_input(node, 1, indices)
            notes.append(f"{node_text(node)} counts from the end itself: the sum before it is left out")
    return notes


def _find_plain(value: ir.Value, size: int) -> ir.Value | None:
    """x of ``where(x < 0, x + size, x)``, or of the sum of products that tf2onnx writes for it; else None."""
    chosen = _read_choice(value)
    if chosen is None:
        return None
    condition, where_negative, plain = chosen
    less, added = maker(condition, "Less"), maker(where_negative, "Add")
    if less is None or added is None or not _is_number(less.inputs[1], 0):
        return None
    others = [other for other in added.inputs if other is not plain]
    is_same = plain in (less.inputs[0], _strip_cast(less.inputs[0]))
    if not is_same or len(others) != 1 or not _is_number(others[0], size):
        return None
    return plain


def _read_choice(value: ir.Value) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None] | None:
    """The condition of a choice, and the tensors where it holds and elsewhere."""
    where = maker(value, "Where")
    if where is not None:
        return where.inputs[0], where.inputs[1], where.inputs[2]
    total = maker(value, "Add")
    products = [] if total is None else [maker(x, "Mul") for x in total.inputs]
    pairs = [pair for product in products if product is not None for pair in (_read_mask(product),) if pair is not None]
    if len(pairs) != 2:
        return None
    for (condition, first), (other, second) in (pairs, pairs[::-1]):
        negation = maker(other, "Not")
        if negation is not None and negation.inputs[0] is condition:
            return condition, first, second
    return None


def _read_mask(product: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The condition and the tensor of ``cast(condition) * tensor``."""
    first, second = product.inputs
    for mask, tensor in ((first, second), (second, first)):
        condition = _strip_cast(mask)
        if condition is not None and tensor is not None and condition.dtype == ir.DataType.BOOL:
            return condition, tensor
    return None


def _strip_cast(value: ir.Value | None) -> ir.Value | None:
    cast = maker(value, "Cast")
    return value if cast is None else cast.inputs[0]


def _is_number(value: ir.Value | None, number: int) -> bool:
    array = constant_array(value)
    return array is not None and array.size == 1 and bool(np.all(array == number))
