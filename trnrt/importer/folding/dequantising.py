"""Weights that a file stores as integers (DequantizeLinear of constants) become ordinary weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from trnrt.importer.values import constant_array

Array = npt.NDArray[np.generic]

_SCALES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_WHOLE = frozenset(
    {
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT16,
        ir.DataType.UINT16,
        ir.DataType.INT32,
    }
)


def dequantise_constants(node: ir.Node) -> Array | None:
    """The result of a DequantizeLinear of constants, of the scale's type: (x - zero point) * scale.

    There is one scale for all elements, for each index of an axis, or for each block along it. None for other nodes,
    and if the constants don't fit together.
    """
    if node.domain not in ("", "com.microsoft") or node.op_type != "DequantizeLinear" or len(node.inputs) not in (2, 3):
        return None
    if node.inputs[0] is None or node.inputs[0].dtype not in _WHOLE or node.attributes.keys() - {"axis", "block_size"}:
        return None
    whole, scale = constant_array(node.inputs[0]), constant_array(node.inputs[1])
    zero = constant_array(node.inputs[2]) if len(node.inputs) == 3 else np.zeros((), np.int32)
    if whole is None or scale is None or zero is None or scale.dtype not in _SCALES:
        return None
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    factors, zeros = (_spread(array, whole.shape, axis, block) for array in (scale, zero.astype(np.int32)))
    if factors is None or zeros is None:
        return None
    # A type of 16 bits rounds the product once.
    floats = (whole.astype(np.int32) - zeros).astype(np.float32) * factors.astype(np.float32)
    return np.asarray(floats, scale.dtype)


def _spread(array: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray | None:
    """A scale or zero point in a shape that broadcasts to ``shape``; None if it doesn't fit."""
    if array.size == 1 and array.ndim <= 1:
        return array.reshape(())
    axis += len(shape) if axis < 0 else 0
    if not 0 <= axis < len(shape):
        return None
    if block == 0:
        along = [1] * len(shape)
        along[axis] = -1
        return array.reshape(along) if array.shape == (shape[axis],) else None
    blocks = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if block < 0 or array.shape != blocks:
        return None
    return np.repeat(array, min(block, shape[axis]), axis)[tuple(slice(size) for size in shape)]
