"""Shapes and types that ONNX's inference leaves open in some opsets, though the inputs determine them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import constant_array, input_at, opset_of, static_shape

Kind = tuple[ir.DataType, tuple[int, ...]]


def _comparison_kind(node: ir.Node) -> Kind | None:
    """A truth for each pair of elements, after broadcasting. Before opset 16, ONNX defines them as functions."""
    shapes = [static_shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    try:
        return (ir.DataType.BOOL, np.broadcast_shapes(*known)) if len(known) == len(shapes) else None
    except ValueError:  # onnx's own error is clearer
        return None


def _slice_kind(node: ir.Node) -> Kind | None:
    """Before opset 10 ranges are attributes, and may begin before the first element."""
    source = node.inputs[0]
    shape = static_shape(source)
    starts, ends = (node.attributes.get_ints(name, ()) for name in ("starts", "ends"))
    axes = node.attributes.get_ints("axes", range(len(starts)))
    if source is None or source.dtype is None or shape is None or not len(starts) == len(ends) == len(axes) > 0:
        return None
    if not all(-len(shape) <= axis < len(shape) for axis in axes):
        return None
    sizes = list(shape)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        sizes[axis] = len(range(*slice(start, end).indices(shape[axis])))
    return source.dtype, tuple(sizes)


def _normalization_kind(node: ir.Node) -> Kind | None:
    """onnxruntime writes LayerNormalization before opset 17, and has SimplifiedLayerNormalization in any."""
    source = node.inputs[0]
    shape = static_shape(source)
    if node.op_type == "LayerNormalization" and opset_of(node) >= 17:
        return None
    return None if source is None or source.dtype is None or shape is None else (source.dtype, shape)


def _unpooling_kind(node: ir.Node) -> Kind | None:
    """A MaxUnpool with an output_shape has that shape."""
    source, wanted = node.inputs[0], constant_array(input_at(node, 2))
    return None if source is None or source.dtype is None or wanted is None else (source.dtype, tuple(map(int, wanted)))


AMENDED: dict[str, Callable[[ir.Node], Kind | None]] = {
    "GreaterOrEqual": _comparison_kind,
    "LayerNormalization": _normalization_kind,
    "LessOrEqual": _comparison_kind,
    "MaxUnpool": _unpooling_kind,
    "SimplifiedLayerNormalization": _normalization_kind,
    "Slice": _slice_kind,
}
