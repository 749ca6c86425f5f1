"""Integers that a graph computes from shapes and counts, computed in the order of the graph.

onnxscript's folder computes them, too, but not behind a node that is hidden from it until its input's shape is known. A
chain of such nodes (a Swin transformer shifts its windows by 22 pairs of Slices) took the folder a pass over the whole
graph for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx.reference.ops
import onnx_ir as ir

from trnrt.importer.values import constant_array, opset_of, static_shape
from trnrt.operators.record import COUNTS, record_of

Array = npt.NDArray[Any]

MOST_COUNTS = 64
"""The elements of the largest array: shapes and axes are small, and the folder computes the others."""


def compute_counts(node: ir.Node) -> Array | None:
    """The integers or truth values that a node computes from a shape, or from constants of these kinds.

    None for other nodes, for large arrays, and if ONNX's reference refuses the values: the folder decides about these.
    """
    record = record_of(node)
    if record is None or COUNTS not in record.folds or node.domain != "" or len(node.outputs) != 1:
        return None
    if node.op_type in ("Shape", "Size"):
        shape = static_shape(node.inputs[0]) if node.inputs else None
        return None if shape is None else _measure(node, shape)
    arrays = [constant_array(value) for value in node.inputs]
    small = [array for array in arrays if array is not None and array.size <= MOST_COUNTS and array.dtype.kind in "iub"]
    if not small or len(small) != len(arrays):
        return None
    found = _evaluate(node, small)
    return found if found is not None and found.size <= MOST_COUNTS and found.dtype.kind in "iub" else None


def _measure(node: ir.Node, shape: tuple[int, ...]) -> Array:
    """The result of a Shape or Size of a tensor of this shape."""
    if node.op_type == "Size":
        return np.asarray(np.prod(shape, dtype=np.int64))
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(shape))
    return np.array(shape[start:end], np.int64)


def _evaluate(node: ir.Node, arrays: list[Array]) -> Array | None:
    """The result of ONNX's reference, which raises all sorts of errors for values that don't fit."""
    scalars = (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING)
    if any(attribute.type not in scalars for attribute in node.attributes.values()):
        return None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    try:
        with np.errstate(all="ignore"):
            operator = onnx.reference.ops.load_op("", node.op_type, opset_of(node))
            found = operator.eval(*arrays, **attributes)
    except Exception:
        return None
    return np.asarray(found) if isinstance(found, np.ndarray | np.generic) else None
