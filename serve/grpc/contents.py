"""A tensor's typed contents (fp32_contents and the others), to and from numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.serve.http.tensors import Datatype, TensorError, encode_strings, value_text

Array = NDArray[Any]

CHUNK = 1 << 16
"""Elements that are converted at once, a few milliseconds: other threads run between chunks."""

_FIELDS: dict[str, tuple[str, Any]] = {
    "BOOL": ("bool_contents", np.bool_),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", np.int32)),
    "INT64": ("int64_contents", np.int64),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", np.uint32)),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
    "BYTES": ("bytes_contents", np.object_),
}
"""The field of each datatype, and numpy's dtype for what it holds. FP16 and BF16 have none."""


def has_contents(datatype: Datatype) -> bool:
    """True if the protocol has typed contents for it."""
    return datatype.name in _FIELDS


def from_contents(contents: Any, shape: tuple[int, ...], datatype: Datatype) -> Array:
    """The tensor in an InferTensorContents. TensorError unless it has the elements of ``shape``, in the right field."""
    if datatype.name not in _FIELDS:
        raise TensorError(f"{datatype.name} has no typed contents; send it in raw_input_contents")
    name, dtype = _FIELDS[datatype.name]
    for field, _ in contents.ListFields():
        if field.name != name:
            raise TensorError(f"it has {field.name}; the elements of {datatype.name} are in {name}")
    values, elements = getattr(contents, name), math.prod(shape)
    if len(values) != elements:
        raise TensorError(f"its {name} have {len(values)} elements; shape {list(shape)} has {elements}")
    array = np.empty(elements, dtype)
    for start in range(0, elements, CHUNK):
        chunk = values[start : start + CHUNK]
        array[start : start + CHUNK] = _texts(chunk, start) if datatype.kind == "str" else chunk
    return _narrow(array, datatype).reshape(shape)


def to_contents(array: Array, datatype: Datatype, contents: Any) -> None:
    """Write a tensor's elements into an InferTensorContents."""
    values = getattr(contents, _FIELDS[datatype.name][0])
    flat = array.reshape(-1)
    for start in range(0, len(flat), CHUNK):
        chunk = flat[start : start + CHUNK]
        values.extend(encode_strings(chunk) if datatype.kind == "str" else chunk.tolist())


def _texts(chunk: list[bytes], start: int) -> list[str]:
    """Decode strings of UTF-8. ``start``: the first one's number in its tensor, for the error."""
    texts = []
    for place, item in enumerate(chunk, start):
        try:
            texts.append(item.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TensorError(f"string {place} of its bytes_contents is no UTF-8: {error.reason}") from None
    return texts


def _narrow(array: Array, datatype: Datatype) -> Array:
    """The same numbers in the datatype's own width. TensorError for one that it can't hold."""
    if array.dtype == datatype.dtype:
        return array
    limits = np.iinfo(datatype.dtype)
    wrong = (array < limits.min) | (array > limits.max)
    if wrong.any():
        place = int(wrong.argmax())
        held = f"{datatype.name} holds {limits.min} to {limits.max}"
        raise TensorError(f"element {place} of its contents is {value_text(int(array[place]))}; {held}")
    return array.astype(datatype.dtype)
