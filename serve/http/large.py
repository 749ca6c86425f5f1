"""The reader's functions for large JSON: to read requests, and to write answers. Arguments and results fit a parcel.

Texts are arrays of bytes, so that they are mapped and not copied. Strings are sent as the protocol's binary data: to
make a million objects of them takes long, and is done where nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.serve.hosting.description import Description
from trnrt.serve.http import tensors
from trnrt.serve.http.columns import feeds_of_v1, outputs_of_v1
from trnrt.serve.http.predicting import feeds_of, instances_of, predictions_of
from trnrt.serve.http.protocol import (
    InferRequest,
    answer_rest,
    dumps,
    json_data,
    output_datatype,
    parse_infer,
    tensor_head,
)

Array = NDArray[Any]
Arrays = Mapping[str, Array]

_SLICE = 1 << 16
"""The elements of an output that are written at once: as numbers of Python they take more memory than the text."""


@dataclass(frozen=True)
class Strings:
    """An array of strings, on its way between processes."""

    raw: Array
    shape: tuple[int, ...]


def pack_strings(arrays: Arrays) -> dict[str, Array | Strings]:
    """The arrays, those of strings as bytes."""
    text = tensors.DATATYPES["BYTES"]
    return {
        name: Strings(_as_array(tensors.to_binary(array, text)), array.shape) if array.dtype.kind in "OUS" else array
        for name, array in arrays.items()
    }


def unpack_strings(packed: Mapping[str, Array | Strings]) -> dict[str, Array]:
    """The arrays again."""
    text = tensors.DATATYPES["BYTES"]
    return {
        name: tensors.from_binary(item.raw.data, item.shape, text) if isinstance(item, Strings) else item
        for name, item in packed.items()
    }


def essence(described: Description) -> Description:
    """The part of a description that these functions use."""
    return Description(
        described.inputs,
        described.outputs,
        labels=described.labels,
        batch=described.batch,
        parameters=described.parameters,
        max_rows=described.max_rows,
        scores=described.scores,
    )


def read_infer(
    body: memoryview, start: int, length: int | None, described: Description, most_elements: int
) -> tuple[InferRequest, dict[str, Array | Strings]]:
    """``parse_infer`` without its feeds, and the feeds with their strings packed."""
    request = parse_infer(body[start:], length, described, most_elements)
    return replace(request, feeds={}), pack_strings(request.feeds)


def read_rows(body: memoryview, start: int, described: Description, most_elements: int) -> dict[str, Array | Strings]:
    """``feeds_of`` a body, with its strings packed."""
    instances = instances_of(body[start:])
    described.check_rows(len(instances) if isinstance(instances, list) else 0)
    return pack_strings(feeds_of(instances, described.inputs, most_elements))


def read_v1(
    body: memoryview, start: int, described: Description, most_elements: int
) -> tuple[dict[str, Array | Strings], bool]:
    """``feeds_of_v1`` a body, with its strings packed."""
    feeds, by_column = feeds_of_v1(body[start:], described, most_elements)
    return pack_strings(feeds), by_column


def write_infer(
    head: Mapping[str, Any],
    request: InferRequest,
    packed: Mapping[str, Array | Strings],
    described: Description,
    parameters: Mapping[str, float | int | str | bool] | None,
) -> tuple[list[Array], int | None]:
    """The parts of an answer, and the length of its JSON if binary data follow, as of ``render_infer``.

    ``head``: the fields before the outputs
    """
    outputs, known = unpack_strings(packed), {meta.name: meta for meta in described.outputs}
    text, blobs = bytearray(dumps(head)[:-1] + b',"outputs":['), []
    for name in request.outputs:
        array, datatype = np.asarray(outputs[name]), output_datatype(known[name])
        about = tensor_head(name, array, datatype)
        if name in request.binary:
            blobs.append(_as_array(tensors.to_binary(array, datatype)))
            text += dumps(about | {"parameters": {"binary_data_size": len(blobs[-1])}})
        else:
            text += dumps(about)[:-1] + b',"data":['
            for part in _slices(array.reshape(-1)):
                text += dumps(json_data(name, part, datatype, request.nan_policy))[1:-1] + b","
            text[-1:] = b"]}" if array.size else b"[]}"
        text += b","
    rest = answer_rest(request, parameters)
    text[-1:] = (b"]" if request.outputs else b"[]") + (b"," + dumps(rest)[1:] if rest else b"}")
    return [_as_array(text), *blobs], len(text) if request.binary else None


def write_predictions(packed: Mapping[str, Array | Strings], described: Description, rows: int) -> Array:
    """``predictions_of`` as JSON."""
    return _as_array(dumps(predictions_of(unpack_strings(packed), described, rows)))


def write_v1(packed: Mapping[str, Array | Strings], described: Description, rows: int, by_column: bool) -> Array:
    """``outputs_of_v1``."""
    return _as_array(outputs_of_v1(unpack_strings(packed), described, rows, by_column))


def _slices(flat: Array) -> Iterator[Array]:
    for start in range(0, len(flat), _SLICE):
        yield flat[start : start + _SLICE]


def _as_array(data: bytes | bytearray | memoryview) -> Array:
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (read_infer, read_rows, read_v1, write_infer, write_predictions, write_v1)
}
"""By name, as jobs have them."""
