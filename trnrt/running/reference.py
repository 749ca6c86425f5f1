"""Run a whole model with onnxruntime on the CPU, as the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def open_model(model: str | bytes, *, threads: int = 0) -> Any:
    """onnxruntime's session of a file, or of its content."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Otherwise it computes floats of quantised models in 8 bits (MatMulNBits for MatMul: 2 % off).
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(reference: Any, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs of an onnxruntime session, bfloat16 too, which its own ``run`` neither takes nor returns as numpy."""
    import ml_dtypes
    import onnxruntime
    from onnx import TensorProto

    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    is_short = any(info.type == "tensor(bfloat16)" for info in reference.get_outputs())
    if not is_short and all(array.dtype != bfloat16 for array in feeds.values()):
        answer: list[Any] = reference.run(None, dict(feeds))
        return answer
    given = {}
    for name, array in feeds.items():
        whole = np.ascontiguousarray(array)
        if array.dtype == bfloat16:
            bits = whole.view(np.uint16)
            given[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
        else:
            given[name] = onnxruntime.OrtValue.ortvalue_from_numpy(whole)
    made = reference.run_with_ort_values([info.name for info in reference.get_outputs()], given)
    return [_array_of(value, bfloat16) for value in made]


def _array_of(value: Any, bfloat16: np.dtype[Any]) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    content = ctypes.string_at(value.data_ptr(), prod(shape) * bfloat16.itemsize)
    return np.frombuffer(content, bfloat16).reshape(shape)
