"""Version 1's columns: each input and each output as a whole, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.protocol import RequestError, names_text, output_datatype
from trnrt.serve.http.tensors import TensorError, check_shape, datatype_of, from_json, to_json, value_text

Array = NDArray[Any]


def feeds_of_columns(given: Mapping[str, Any], inputs: Sequence[TensorMeta], most_elements: int) -> dict[str, Array]:
    """The inputs by name; each is nested as its shape says.

    Raises:
        RequestError: names the input, what was expected and what was given
    """
    wanted = [meta.name for meta in inputs]
    if set(given) != set(wanted):
        raise RequestError(f"inputs has {names_text(list(given))}; the model's inputs are {names_text(wanted)}")
    feeds = {}
    for meta in inputs:
        datatype = datatype_of(meta.dtype)
        try:
            if datatype is None:
                raise TensorError(f"it is {meta.dtype}, for which the protocol has no datatype")
            shape = check_shape(_shape_of(given[meta.name], len(meta.shape)), most_elements)
            values = given[meta.name] if shape else [given[meta.name]]
            feeds[meta.name] = from_json(values, shape, datatype)
        except TensorError as error:
            raise RequestError(f"input {value_text(meta.name)}: {error}") from None
    return feeds


def _shape_of(value: object, rank: int) -> list[int]:
    """The shape by the first list at each depth. TensorError unless it has ``rank`` dimensions."""
    shape: list[int] = []
    while type(value) is list and len(shape) < rank:
        shape.append(len(value))
        value = value[0] if value else None
    if len(shape) != rank or type(value) is list:
        depth = f"more than {rank}" if type(value) is list else str(len(shape))
        raise TensorError(f"it is nested {depth} deep; the model wants {rank}")
    return shape


def columns_of(outputs: Mapping[str, Array], metas: Sequence[TensorMeta]) -> Any:
    """The only output, or all by name.

    Raises:
        TensorError: for an output that JSON can't hold
    """
    columns = {meta.name: _nest_values(outputs[meta.name], meta) for meta in metas}
    return next(iter(columns.values())) if len(columns) == 1 else columns


def _nest_values(array: Array, meta: TensorMeta) -> Any:
    flat = np.empty(array.size, np.object_)
    try:
        flat[:] = to_json(array, output_datatype(meta), None)
    except TensorError as error:
        raise TensorError(f"output {value_text(meta.name)}: {error}; use the protocol's infer") from None
    return flat.reshape(array.shape).tolist()
