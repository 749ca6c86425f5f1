"""Operators that training and masks leave on constants: weights that are standardised, elements that are replaced.

onnxscript's folder doesn't compute them: they have several outputs, or its reference takes a loop over the elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from trnrt.importer.values import attribute, constant_array, is_used, opset_of

Array = npt.NDArray[np.generic]


def compute_constants(node: ir.Node) -> Array | None:
    """The first output of a BatchNormalization or ScatterND of constants.

    None for other nodes, if another output is used, and if the constants don't fit together.
    """
    compute = _COMPUTED.get(node.op_type) if node.domain == "" else None
    if compute is None or any(is_used(value) for value in node.outputs[1:]):
        return None
    arrays = [array for value in node.inputs if (array := constant_array(value)) is not None]
    return compute(node, arrays) if len(arrays) == len(node.inputs) else None


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


_COMPUTED: dict[str, Callable[[ir.Node, list[Array]], Array | None]] = {
    "BatchNormalization": _normalise,
    "ScatterND": _scatter,
}
