"""Constants that repeat themselves along a dimension, such as position embeddings that an exporter expanded to the
batch: one of the equal parts is kept, as the operator repeats it by itself."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import static_shape

# Operators that broadcast their inputs against each other.
_BROADCASTING = {"Add", "Sub", "Mul", "Div", "And", "Or", "Where", "Equal", "Less", "Greater", "Min", "Max", "Pow"}
# Smaller constants cost nothing.
_LEAST_ELEMENTS = 1024


def shrink_repeated(editor: Editor) -> list[str]:
    """Keep one of the equal parts of constants that element-wise operators read; return notes."""
    notes = []
    for node in editor.graph:
        if node.domain != "" or node.op_type not in _BROADCASTING or (editor.opset < 7 and node.op_type != "Where"):
            continue
        for index, value in enumerate(node.inputs):
            if value is None or value.const_value is None:
                continue
            array = value.const_value.numpy()
            least = _shrink(array, node, index) if array.size >= _LEAST_ELEMENTS else array
            if least.shape != array.shape:
                kept = editor.constant(np.ascontiguousarray(least), f"{value.name}_once")
                editor.set_input(node, index, kept)
                notes.append(f"{node_text(node)} repeats a constant of {least.size} elements, not {array.size}")
    return notes


def _shrink(array: Array, node: ir.Node, index: int) -> Array:
    """The constant with one part along each dimension that another input has, too, and along which its parts are
    equal, bit for bit."""
    others = [static_shape(v) for k, v in enumerate(node.inputs) if k != index and v is not None]
    for axis in range(array.ndim):
        behind = axis - array.ndim
        sizes = [shape[behind] for shape in others if shape is not None and len(shape) >= -behind]
        if array.shape[axis] == 1 or array.shape[axis] not in sizes:
            continue
        first = array.take([0], axis)
        same = array.tobytes() == np.ascontiguousarray(np.broadcast_to(first, array.shape)).tobytes()
        array = first if same else array
    return array
