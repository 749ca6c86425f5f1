"""Sequences whose elements are known when the model is read: what takes them, takes the elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.naming import node_text
from trnrt.importer.values import constant_array, input_at, static_shape

Elements = list[ir.Value]


def spread_sequences(writer: Writer) -> list[str]:
    """Replace each node that makes a tensor from a sequence of known elements."""
    notes = []
    known: dict[ir.Value, Elements | None] = {}
    for node in list(writer.model.graph):
        if node.domain:
            continue
        writer.node = node
        if (grow := _GROWING.get(node.op_type)) is not None:
            known[node.outputs[0]] = grow(writer, node, known)
        elements = known.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
        if elements is None or (take := _TAKING.get(node.op_type)) is None:
            continue
        note = node_text(node)
        value = take(writer, node, elements)
        if value is not None:
            writer.finish(value)
            notes.append(f"{note} has a sequence of {len(elements)}: made plain operators")
    return notes


# -- the elements of a sequence --------------------------------------------------------------------------


def _construct(_writer: Writer, node: ir.Node, _known: dict[ir.Value, Elements | None]) -> Elements | None:
    return [value for value in node.inputs if value is not None]


def _insert(_writer: Writer, node: ir.Node, known: dict[ir.Value, Elements | None]) -> Elements | None:
    sequence, value = node.inputs[:2]
    elements = known.get(sequence) if sequence is not None else None
    place = _position(node, 2, default=None if elements is None else len(elements))
    if elements is None or value is None or place is None or not -len(elements) <= place <= len(elements):
        return None
    place = place + len(elements) if place < 0 else place
    return [*elements[:place], value, *elements[place:]]


def _erase(_writer: Writer, node: ir.Node, known: dict[ir.Value, Elements | None]) -> Elements | None:
    elements = known.get(node.inputs[0]) if node.inputs[0] is not None else None
    place = _position(node, 1, default=-1)
    if elements is None or place is None or not -len(elements) <= place < len(elements):
        return None
    place %= len(elements)
    return elements[:place] + elements[place + 1 :]


def _copy(_writer: Writer, node: ir.Node, known: dict[ir.Value, Elements | None]) -> Elements | None:
    return known.get(node.inputs[0]) if node.inputs[0] is not None else None


def _split(writer: Writer, node: ir.Node, _known: dict[ir.Value, Elements | None]) -> Elements | None:
    """SplitToSequence, as a Slice for each part. Without ``split``, parts have one element along the axis."""
    source, shape = node.inputs[0], static_shape(node.inputs[0])
    split = input_at(node, 1)
    given = constant_array(split)
    if source is None or shape is None or (split is not None and given is None) or writer.opset < 13:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    sizes = _part_sizes(shape[axis], given)
    keeps = given is not None or node.attributes.get_int("keepdims", 1) != 0
    if sizes is None:
        return None
    parts = writer.split(source, sizes, axis)
    return parts if keeps else [writer.squeeze(part, axis) for part in parts]


def _part_sizes(size: int, given: np.ndarray | None) -> list[int] | None:
    """The sizes of the parts of a dimension: ``given`` as one size or all of them."""
    if given is not None and given.ndim == 1:
        return given.tolist() if given.sum() == size and (given > 0).all() else None
    each = 1 if given is None else int(given)
    if each < 1 or size > each * _MOST_PARTS:
        return None
    return [min(each, size - start) for start in range(0, size, each)]


_MOST_PARTS = 1024

_GROWING: dict[str, Callable[[Writer, ir.Node, dict[ir.Value, Elements | None]], Elements | None]] = {
    "SequenceEmpty": _construct,
    "SequenceConstruct": _construct,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SplitToSequence": _split,
    "Identity": _copy,
}


# -- tensors from a sequence -----------------------------------------------------------------------------


def _element_at(_writer: Writer, node: ir.Node, elements: Elements) -> ir.Value | None:
    place = _position(node, 1, default=None)
    return elements[place] if place is not None and -len(elements) <= place < len(elements) else None


def _length(writer: Writer, node: ir.Node, elements: Elements) -> ir.Value:
    return writer.constant(np.array(len(elements), np.int64), str(node.outputs[0].name))


def _concat(writer: Writer, node: ir.Node, elements: Elements) -> ir.Value | None:
    axis = node.attributes.get_int("axis")
    if not elements or writer.opset < 13:
        return None
    if node.attributes.get_int("new_axis", 0):
        elements = [writer.unsqueeze(value, axis) for value in elements]
    return writer.apply("Concat", *elements, axis=axis)


_TAKING: dict[str, Callable[[Writer, ir.Node, Elements], ir.Value | None]] = {
    "SequenceAt": _element_at,
    "SequenceLength": _length,
    "ConcatFromSequence": _concat,
}


def _position(node: ir.Node, index: int, default: int | None) -> int | None:
    """The constant place in a sequence that an input gives; ``default`` if it is left out, None if it is computed."""
    value = input_at(node, index)
    array = constant_array(value)
    if value is None:
        return default
    return None if array is None else int(array.reshape(-1)[0])
