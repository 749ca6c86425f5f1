"""Operators that training, masks and positions leave on constants: weights that are standardised, elements that are
replaced, position embeddings that are resized to another size of image.

onnxscript's folder doesn't compute them: they have several outputs, or its reference takes a loop over the elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from trnrt.importer.values import attribute, constant_array, is_used, opset_of, static_shape

Array = npt.NDArray[np.generic]


def compute_constants(node: ir.Node) -> Array | None:
    """The first output of a BatchNormalization, ScatterND or Resize of constants.

    None for other nodes, if another output is used, and if the constants don't fit together.
    """
    compute = _COMPUTED.get(node.op_type) if node.domain == "" else None
    if compute is None or any(is_used(value) for value in node.outputs[1:]):
        return None
    arrays = [array for value in node.inputs if (array := constant_array(value)) is not None]
    given = [value for value in node.inputs if value is not None and value.name]
    return compute(node, arrays) if len(arrays) == len(given) else None


def _normalise(node: ir.Node, arrays: list[Array]) -> Array | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of each channel.

    In training, mean and variance are those of x itself. Computed in float64: onnxruntime's float32 is less exact.
    """
    if opset_of(node) < 9 or len(arrays) != 5 or any(array.dtype != np.float32 for array in arrays):
        return None
    x, *rates = (array.astype(np.float64) for array in arrays)
    if x.ndim < 2 or x.size == 0 or any(rate.shape != x.shape[1:2] for rate in rates):
        return None
    scale, bias, mean, variance = (rate.reshape(-1, *(1,) * (x.ndim - 2)) for rate in rates)
    if attribute(node, "training_mode", 0):
        others = (0, *range(2, x.ndim))
        mean, variance = x.mean(axis=others, keepdims=True), x.var(axis=others, keepdims=True)
    with np.errstate(all="ignore"):
        normalised = (x - mean) / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
        return (normalised * scale + bias).astype(np.float32)


def _scatter(node: ir.Node, arrays: list[Array]) -> Array | None:
    """The data with ``updates`` in the places that ``indices`` name; None if an index is out of bounds or comes twice
    with another value, and for a reduction."""
    if len(arrays) != 3 or attribute(node, "reduction", "none") != "none":
        return None
    data, indices, updates = arrays
    depth = indices.shape[-1] if indices.ndim else 0
    sizes = data.shape[:depth]
    if not 1 <= depth <= data.ndim or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        return None
    if np.any(indices < -np.asarray(sizes)) or np.any(indices >= np.asarray(sizes)):
        return None
    places = tuple(np.moveaxis(indices, -1, 0))
    result = data.copy()
    result[places] = updates
    # Where a place comes twice, ONNX doesn't say which value stays.
    return result if np.array_equal(result[places], updates) else None


def _resize(node: ir.Node, arrays: list[Array]) -> Array | None:
    """Resize by onnxruntime; None for types that trnrt resizes exactly, and if onnxruntime refuses the node."""
    import onnxruntime

    shape = static_shape(node.outputs[0])
    if arrays[0].dtype != np.float32 or shape is None:
        return None
    proto: onnx.NodeProto = ir.to_proto(node)
    names = [value.name for value in node.inputs if value is not None and value.name]
    held = [numpy_helper.from_array(np.ascontiguousarray(a), name) for a, name in zip(arrays, names, strict=True)]
    made = helper.make_tensor_value_info(proto.output[0], onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph([proto], "node", [], [made], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(node))], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result: Array = session.run(None, {})[0]
    except Exception:  # onnxruntime's errors share no base class; the node stays, and its lowering refuses it
        return None
    return result if result.shape == shape else None


_COMPUTED: dict[str, Callable[[ir.Node, list[Array]], Array | None]] = {
    "BatchNormalization": _normalise,
    "Resize": _resize,
    "ScatterND": _scatter,
}
