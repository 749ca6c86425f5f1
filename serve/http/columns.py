"""Version 1's columns: each input and each output as a whole, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.predicting import feeds_of, outputs_by_row
from trnrt.serve.http.protocol import RequestError, dumps, loads, names_text, output_datatype
from trnrt.serve.http.tensors import TensorError, check_shape, datatype_of, from_json, to_json, value_text

Array = NDArray[Any]
_FORMS = '{"instances": [a row, ...]} or {"inputs": {the name of an input: its rows}}'


def feeds_of_v1(body: bytes | memoryview, described: Description, most_elements: int) -> tuple[dict[str, Array], bool]:
    """The inputs in a body of version 1, and whether they came as columns.

    Raises:
        RequestError: names the place, what was expected and what was given
        Problem: 413 for too many rows
    """
    given = loads(body)
    if type(given) is not dict or ("instances" in given) == ("inputs" in given):
        found = f"has {names_text(sorted(given))}" if type(given) is dict else f"is {value_text(given)}"
        raise RequestError(f"the body {found}; it is {_FORMS}")
    if "signature_name" in given:
        raise RequestError("the body has a signature_name; an ONNX model has no signatures, leave it out")
    if isinstance(given.get("inputs"), dict):
        return feeds_of_columns(given["inputs"], described.inputs, most_elements), True
    if described.batch is None:
        raise RequestError("the inputs of this model have no rows; send them as inputs, by name, instead")
    rows = given["instances"] if "instances" in given else given["inputs"]
    described.check_rows(len(rows) if isinstance(rows, list) else 0)
    return feeds_of(rows, described.inputs, most_elements), False


def outputs_of_v1(outputs: Mapping[str, Array], described: Description, rows: int, by_column: bool) -> bytes:
    """The answer of version 1 as JSON. TensorError for an output that JSON can't hold."""
    metas = described.outputs
    found = columns_of(outputs, metas) if by_column else outputs_by_row(outputs, metas, rows)
    return dumps({"outputs" if by_column else "predictions": found})


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
