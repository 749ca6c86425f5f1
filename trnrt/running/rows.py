"""A batch's rows: count them, pad them to a bucket, join them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnrt.errors import OptionError
from trnrt.importer import ImportedModel
from trnrt.inputs.drawing import Array
from trnrt.running.buckets import Slice


def count_rows(model: ImportedModel, arrays: Mapping[str, Array]) -> int:
    """The rows of these inputs; 1 for a model without a batch."""
    if model.batch is None:
        return 1
    return next((a.shape[0] for name, a in arrays.items() if a.ndim and name not in model.parameters), 1)


def take_slice(model: ImportedModel, arrays: Mapping[str, Array], part: Slice) -> dict[str, Array]:
    """The inputs of one slice, padded to its bucket with copies of the last row."""
    return {
        name: array
        if name in model.parameters or not array.ndim
        else pad_rows(array[part.start : part.start + part.rows], part.bucket)
        for name, array in arrays.items()
    }


def join_slices(slices: Sequence[Slice], outputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The outputs of all slices by name, without padding."""
    parts = [
        {name: output[: part.rows] for name, output in made.items()} for part, made in zip(slices, outputs, strict=True)
    ]
    return {name: join_rows([part[name] for part in parts]) for name in parts[0]}


def join_rows(parts: Sequence[Any]) -> Any:
    """Join an output's rows of several slices; a list has one item per row. OptionError if rows differ in shape."""
    if len(parts) == 1:
        return parts[0]  # it may be a scalar
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    different = next((part.shape for part in parts if part.shape[1:] != parts[0].shape[1:]), None)
    if different is not None:  # no InputError, which would say that a row is bad
        raise OptionError(
            f"an output has the shape {parts[0].shape} for some rows and {different} for others: "
            "they don't make one array",
            hint="the shape depends on the data: run the rows in batches of the model's own size",
        )
    return np.concatenate(parts)


def as_matrix(output: Any) -> Array:
    """An output as an array; a list of dicts (ZipMap) becomes one row of values per dict."""
    if isinstance(output, list):
        return np.array([list(row.values()) for row in output], np.float32)
    return np.asarray(output)


def pad_rows(array: Array, rows: int) -> Array:
    """An array with copies of its last row up to ``rows`` rows."""
    missing = rows - array.shape[0]
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
