"""How a person may fill in a model's inputs on the page: by a picture, by a form of fields, or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trnrt.errors import InputError
from trnrt.importer import TensorInfo
from trnrt.inputs.images import ImageOptions, Recipe, recipe
from trnrt.serve.hosting.models import TensorMeta
from trnrt.serve.hosting.served import Model

MOST_FIELDS = 1024
"""A row with more numbers is no form that somebody fills in."""


def form_of(model: Model) -> dict[str, Any]:
    """What the page offers for a model: ``kind`` is "image", "table" or "json"."""
    inputs = model.inputs
    if len(inputs) == 1 and len(inputs[0].shape) == 4:
        try:
            return {"kind": "image", **_picture(recipe(_tensor_info(inputs[0]), model.metadata, ImageOptions()))}
        except InputError as error:
            return {"kind": "json", "reason": str(error)}
    columns = [column for tensor in inputs for column in _columns(tensor)]
    if columns and len(columns) <= MOST_FIELDS and all(_is_row(tensor) for tensor in inputs):
        return {"kind": "table", "columns": columns}
    return {"kind": "json", "reason": ""}


def _tensor_info(tensor: TensorMeta) -> TensorInfo:
    return TensorInfo(tensor.name, tensor.dtype, tuple(None if dim < 0 else dim for dim in tensor.shape))


def _picture(how: Recipe) -> dict[str, Any]:
    settings = asdict(how)
    return {name: settings[name] for name in ("layout", "color", "height", "width", "scale", "mean", "std")}


def _is_row(tensor: TensorMeta) -> bool:
    """Whether a row of this input is a number, or a list of a fixed number of them."""
    return len(tensor.shape) == 1 or (len(tensor.shape) == 2 and tensor.shape[1] > 0)


def _columns(tensor: TensorMeta) -> list[dict[str, Any]]:
    """A field for each number of a row; ``place`` is None where the row is the number itself."""
    if not _is_row(tensor):
        return []
    if len(tensor.shape) == 1:
        return [{"input": tensor.name, "place": None, "dtype": tensor.dtype, "title": tensor.name}]
    count = min(tensor.shape[1], MOST_FIELDS + 1)
    titles = [tensor.name] if count == 1 else [f"{tensor.name}[{place}]" for place in range(count)]
    return [
        {"input": tensor.name, "place": place, "dtype": tensor.dtype, "title": title}
        for place, title in enumerate(titles)
    ]
