"""The form for a model's inputs on the page: a picture, fields, or a tensor for each input."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trnrt.errors import InputError, OptionError
from trnrt.inputs.images import ImageOptions, Recipe, recipe
from trnrt.report.top import choose_output
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.tensors import datatype_of
from trnrt.vision.recognising import recognise

MOST_FIELDS = 1024
"""A row with more numbers is not filled in by hand."""
MOST_FIELDS_OF_SEVERAL = 24
"""The same for several inputs: rows of ids and masks are easier to edit as a list for each input."""
ASSUMED = ImageOptions(scale=1 / 255)
"""The page's proposal for a model that declares no scale: most exports take values of 0 to 1, or these normalised."""


def form_of(described: Description) -> dict[str, Any]:
    """The page's form for a model: ``kind`` is "image", "table" or "json".

    ``tensors``: what the inputs are in the protocol, as any model takes JSON, too. ``rows``: true if ``/predict`` takes
    its rows; false if only the protocol's infer takes its tensors.
    """
    return {**_kind_of(described), "rows": described.batch is not None, "tensors": _tensors(described.inputs)}


def _kind_of(described: Description) -> dict[str, Any]:
    """The form's kind, and its own parts."""
    inputs = described.inputs
    if len(inputs) == 1 and len(inputs[0].shape) == 4:
        return _image_form(inputs[0], described)
    columns = [column for tensor in inputs for column in _columns(tensor)]
    most = MOST_FIELDS if len(inputs) == 1 else MOST_FIELDS_OF_SEVERAL
    if described.batch is not None and 0 < len(columns) <= most and all(_is_row(tensor) for tensor in inputs):
        return {"kind": "table", "columns": columns}
    return {"kind": "json", "reason": ""}


def _tensors(inputs: tuple[TensorMeta, ...]) -> list[dict[str, Any]]:
    """The inputs with the protocol's datatypes; None for one that it has not."""
    datatypes = [datatype_of(tensor.dtype) for tensor in inputs]
    return [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "datatype": found and found.name}
        for tensor, found in zip(inputs, datatypes, strict=True)
    ]


def _image_form(wanted: TensorMeta, described: Description) -> dict[str, Any]:
    """The form for a picture; ``missing`` says why the page must propose a scale, if it must."""
    missing = None
    for said in (ImageOptions(), ASSUMED):
        try:
            how = recipe(wanted.info, described.metadata, said)
        except InputError as error:
            missing = missing or str(error)
        else:
            reading = {"draws": _draws(described, how), "classes": _classes_output(described)}
            return {"kind": "image", **_picture(how), "missing": missing, **reading}
    return {"kind": "json", "reason": missing}


def _picture(how: Recipe) -> dict[str, Any]:
    settings = asdict(how)
    return {name: settings[name] for name in ("layout", "color", "height", "width", "scale", "mean", "std", "fit")}


def _draws(described: Description, how: Recipe) -> dict[str, Any] | None:
    """The kind of drawing that the outputs give, its rule, and if that is sure; None if nothing is recognised."""
    outputs = [meta.info for meta in described.outputs]
    found = recognise(outputs, described.metadata, described.labels or (), (how.height, how.width))
    return None if found is None else {"kind": found.kind, "rule": found.rule, "sure": found.sure}


def _classes_output(described: Description) -> str | None:
    """The output with a number for each class, by the rule of ``trnrt run --top``; None if there is none."""
    try:
        return choose_output([meta.info for meta in described.outputs], described.metadata, False)
    except OptionError:
        return None


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
