"""The form for a model's inputs on the page: a picture, fields, or JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trnrt.errors import InputError
from trnrt.inputs.images import ImageOptions, Recipe, recipe
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.vision.recognising import recognise

MOST_FIELDS = 1024
"""A row with more numbers is not filled in by hand."""


def form_of(described: Description) -> dict[str, Any]:
    """The page's form for a model: ``kind`` is "image", "table" or "json"."""
    inputs = described.inputs
    if len(inputs) == 1 and len(inputs[0].shape) == 4:
        try:
            how = recipe(inputs[0].info, described.metadata, ImageOptions())
            return {"kind": "image", **_picture(how), "draws": _draws(described, how)}
        except InputError as error:
            return {"kind": "json", "reason": str(error)}
    columns = [column for tensor in inputs for column in _columns(tensor)]
    if columns and len(columns) <= MOST_FIELDS and all(_is_row(tensor) for tensor in inputs):
        return {"kind": "table", "columns": columns}
    return {"kind": "json", "reason": ""}


def _picture(how: Recipe) -> dict[str, Any]:
    settings = asdict(how)
    return {name: settings[name] for name in ("layout", "color", "height", "width", "scale", "mean", "std")}


def _draws(described: Description, how: Recipe) -> dict[str, Any] | None:
    """The kind of drawing that the outputs give, its rule, and if that is sure; None if nothing is recognised."""
    outputs = [meta.info for meta in described.outputs]
    found = recognise(outputs, described.metadata, described.labels or (), (how.height, how.width))
    return None if found is None else {"kind": found.kind, "rule": found.rule, "sure": found.sure}


def _is_row(tensor: TensorMeta) -> bool:
    """True if a row of this input is a number, or a list of a fixed number of them."""
    return len(tensor.shape) == 1 or (len(tensor.shape) == 2 and tensor.shape[1] > 0)


def _columns(tensor: TensorMeta) -> list[dict[str, Any]]:
    """A field for each number of a row; ``place`` is None if the row is a single number."""
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
