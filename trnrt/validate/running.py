"""Run a session's whole model in onnxruntime, on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from trnrt.errors import InputError
from trnrt.running.rows import join_rows, pad_rows
from trnrt.session import InferenceSession

Array = NDArray[Any]


def check_rows(session: InferenceSession, feeds: Mapping[str, Array]) -> None:
    """InputError for a batch of 0 rows: comparing nothing would always pass."""
    data = [array for name, array in feeds.items() if np.ndim(array) and name not in session.model.parameters]
    if session.model.batch is not None and any(len(array) == 0 for array in data):
        raise InputError("the batch has 0 rows: there is nothing to compare", hint="give 1 row or more")


def open_onnxruntime(session: InferenceSession, *, threads: int = 0) -> Any:
    """onnxruntime's own session of the same model, on the CPU; with 0 it chooses the threads."""
    return open_model(session.serialized(), threads=threads)


def open_model(model: str | bytes, *, threads: int = 0) -> Any:
    """onnxruntime's session of a file, or of its content."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Else it computes floats of quantised models in 8 bits (MatMulNBits for MatMul: 2 % off).
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(reference: Any, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs of an onnxruntime session, which itself neither takes nor makes numpy arrays of bfloat16."""
    import ml_dtypes
    import onnxruntime

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


def run_onnxruntime(session: InferenceSession, feeds: Mapping[str, Array], *, reference: Any = None) -> list[Array]:
    """The outputs of onnxruntime; a fixed batch is run in slices, as the session does.

    ``reference``: onnxruntime's session from ``open_onnxruntime``, for repeated runs.
    """
    reference = reference or open_onnxruntime(session)
    batch = session.model.batch
    if not isinstance(batch, int):
        return run_session(reference, feeds)
    whole = {n: a for n, a in feeds.items() if n in session.model.parameters or not a.ndim}
    data = {n: a for n, a in feeds.items() if n not in whole}
    rows = next(iter(data.values())).shape[0]
    parts = []
    for start in range(0, rows, batch):
        part = {n: pad_rows(a[start : start + batch], batch) for n, a in data.items()}
        parts.append(run_session(reference, whole | part))
    return [join_rows(column)[:rows] for column in zip(*parts, strict=True)]
