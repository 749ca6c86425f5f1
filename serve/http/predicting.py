"""``POST /predict``: rows as JSON, or pictures, in; classes with their probabilities out.

The protocol's ``infer`` returns raw outputs; this returns their meaning: the class, with the labels that the model
declares. A picture is preprocessed as the model declares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.inputs.decoding import NamedPicture
from trnrt.inputs.fitting import Placement
from trnrt.inputs.images import ImageOptions, Recipe, read_images, recipe
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.preparing import advice_text
from trnrt.serve.http.protocol import RequestError, loads, names_text, output_datatype
from trnrt.serve.http.tensors import Datatype, TensorError, check_shape, datatype_of, from_json, to_json, value_text

Array = NDArray[Any]

TOP = 5
"""The classes of a row that are listed with their probabilities."""
MOST_PIXELS = 1 << 25
"""A picture's pixels; decoding one takes a few bytes for each, however small its file is."""
NOTHING_SAID = ImageOptions()
_SUM_TOLERANCE = 1e-3


# -- in ------------------------------------------------------------------------------------------------------------


def instances_of(body: bytes | memoryview) -> object:
    """The ``instances`` of a body of JSON. RequestError if it has none."""
    given = loads(body)
    if type(given) is not dict or "instances" not in given:
        raise RequestError('the body is no object with instances, which are the rows: {"instances": [ROW, ...]}')
    return given["instances"]


def feeds_of(instances: object, inputs: Sequence[TensorMeta], most_elements: int) -> dict[str, Array]:
    """The inputs in ``instances``, which has one item per row.

    Raises:
        RequestError: names the row, what was expected and what was given
    """
    if type(instances) is not list or not instances:
        raise RequestError(
            f"instances is {'an empty list' if instances == [] else value_text(instances)}; it is a list of rows"
        )
    if len(instances) > most_elements:
        raise RequestError(f"there are {len(instances)} instances; the limit of this server is {most_elements}")
    rows: dict[str, list[Any]] = {meta.name: [] for meta in inputs}
    for place, instance in enumerate(instances):
        for name, value in _values_by_input(instance, place, rows).items():
            rows[name].append(value)
    return {meta.name: _stack_rows(rows[meta.name], meta, most_elements) for meta in inputs}


def _values_by_input(instance: object, place: int, known: Mapping[str, object]) -> dict[str, Any]:
    """A row's values by input; a model with one input needs no names."""
    if isinstance(instance, dict):
        if set(instance) != set(known):
            raise RequestError(
                f"instance {place} has {names_text(list(instance))}; the inputs are {names_text(list(known))}"
            )
        return instance
    if len(known) != 1:
        raise RequestError(
            f"instance {place} is {value_text(instance)}; it is an object with {names_text(list(known))}"
        )
    return dict.fromkeys(known, instance)


def _stack_rows(rows: list[Any], meta: TensorMeta, most_elements: int) -> Array:
    """The rows of one input as one array."""
    datatype = datatype_of(meta.dtype)
    if datatype is None or not meta.shape:
        raise RequestError(f"input {value_text(meta.name)} has no rows; use the protocol's infer for this model")
    with suppress(TensorError):
        return _stack_at_once(rows, meta, datatype, most_elements)
    # Slower: it takes rows that are nested differently, and finds the one that is wrong.
    made: list[Array] = []
    for place, row in enumerate(rows):
        try:
            shape = check_shape([1, *_row_shape(row, meta.shape[1:])], max(1, most_elements // len(rows)))
            made.append(
                from_json([row] if type(row) is list and _depth(row) == len(shape) - 1 else _flat(row), shape, datatype)
            )
            if made[0].shape != made[-1].shape:
                found, first = list(made[-1].shape[1:]), list(made[0].shape[1:])
                raise TensorError(f"it has the shape {found}, and the first one {first}")
        except TensorError as error:
            raise RequestError(f"instance {place}, input {value_text(meta.name)}: {error}") from None
    return np.concatenate(made)


def _stack_at_once(rows: list[Any], meta: TensorMeta, datatype: Datatype, most_elements: int) -> Array:
    """Rows that are all flat, or all nested as the model wants. TensorError for others."""
    shape = check_shape([len(rows), *_row_shape(rows[0], meta.shape[1:])], most_elements)
    is_nested = _depth(rows) == len(shape)
    made = from_json(rows, shape if is_nested else (len(rows), math.prod(shape[1:])), datatype)
    return made.reshape(shape)


def _row_shape(row: object, declared: tuple[int, ...]) -> list[int]:
    """The shape of a row: as declared, or by the row's nesting if that is open."""
    if -1 not in declared:
        return list(declared)
    found: list[int] = []
    while type(row) is list and len(found) < len(declared):
        found.append(len(row))
        row = row[0] if row else None
    if len(found) != len(declared):
        raise TensorError(f"it is nested {len(found)} deep; the model wants {list(declared)}, where -1 is any size")
    return found


def _depth(row: object) -> int:
    depth = 0
    while type(row) is list:
        depth, row = depth + 1, row[0] if row else None
    return depth


def _flat(row: object) -> list[Any]:
    return row if type(row) is list else [row]


@dataclass(frozen=True)
class Sent:
    """A request's inputs; of pictures, also the recipe, and the place of each one in the input."""

    feeds: dict[str, Array]
    how: Recipe | None = None
    placements: Sequence[Placement] = ()


def pictures_of(
    files: Sequence[tuple[str, bytes]],
    described: Description,
    largest: int,
    said: ImageOptions = NOTHING_SAID,
    check: Callable[[], None] | None = None,
) -> Sent:
    """The model's only input, made of pictures as the query says, else as the model declares. Call it on one thread
    alone (``pictures``): a filter that all threads share silences Pillow's warnings, and decoding takes memory.
    ``check``: see ``read_images``.

    Raises:
        RequestError: for a model that takes no pictures, and for a file that is none
    """
    if len(described.inputs) != 1:
        names = names_text([meta.name for meta in described.inputs])
        raise RequestError(f"a picture can't be all of the model's inputs, which are {names}")
    (meta,) = described.inputs
    try:
        how = recipe(meta.info, described.metadata, said)
        pictures = [NamedPicture(name, content) for name, content in files]
        for picture in pictures:
            picture.check_pixels(MOST_PIXELS)
        placements: list[Placement] = []
        array, _ = read_images(pictures, how, largest=largest, placements=placements, check=check)
    except InputError as error:
        raise RequestError(advice_text(error)) from None
    return Sent({meta.name: array}, how, placements)


# -- out -----------------------------------------------------------------------------------------------------------


def predictions_of(outputs: Mapping[str, Array], described: Description, rows: int) -> dict[str, Any]:
    """The ``predictions`` for each row; of a classifier also labels, probabilities and the top classes.

    ``activation`` says what made the probabilities: the model's last operator, or a softmax of the server's. The graph
    decides that; where it does not tell (``Description.scores``), the request's own numbers do.

    Raises:
        TensorError: for an output that JSON can't hold
    """
    metas, labels = described.outputs, described.labels
    kinds = described.scores
    scores = next(
        (meta for meta in metas if _are_scores(outputs[meta.name], meta, labels, rows, kinds.get(meta.name))), None
    )
    if scores is None:
        return {"predictions": outputs_by_row(outputs, metas, rows)}
    kind = kinds.get(scores.name)
    probabilities, by = _probabilities(outputs[scores.name], kind)
    names = list(labels) if labels is not None else [str(k) for k in range(probabilities.shape[1])]
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :TOP]
    width, flat = len(names), to_json(probabilities, output_datatype(scores), None)
    table = [flat[row * width : (row + 1) * width] for row in range(rows)]
    top = [
        [{"label": names[k], "probability": line[k]} for k in ranks]
        for line, ranks in zip(table, order.tolist(), strict=True)
    ]
    return {
        "predictions": [names[ranks[0]] for ranks in order.tolist()],
        "labels": names,
        "probabilities": table,
        "activation": {
            "kind": "sigmoid" if kind == "sigmoid" else "softmax",
            "by": by,
            "known_by": "numbers" if kind is None else "graph",
        },
        "top": top,
    }


def _are_scores(array: Array, meta: TensorMeta, labels: Sequence[str] | None, rows: int, kind: str | None) -> bool:
    """True if an output has a number for each class: as many as labels, or without labels a distribution a row."""
    if meta.dtype not in ("float16", "bfloat16", "float32", "float64") or array.ndim != 2 or len(array) != rows:
        return False
    if labels is not None:
        return bool(array.shape[1] == len(labels))
    return array.shape[1] > 1 and (_is_distribution(array) if kind is None else kind == "softmax")


def _is_distribution(array: Array) -> bool:
    exact = array.astype(np.float64)
    return bool(np.all(exact >= 0)) and np.allclose(exact.sum(axis=1), 1, atol=_SUM_TOLERANCE)


def _probabilities(scores: Array, kind: str | None) -> tuple[Array, str]:
    """The model's probabilities, or the softmax of its scores; and who made them."""
    if kind in ("softmax", "sigmoid") or (kind is None and _is_distribution(scores)):
        return scores, "model"
    exact = scores.astype(np.float64)
    # Infinity less infinity is NaN, which the answer refuses by name.
    with np.errstate(all="ignore"):
        powers = np.exp(exact - exact.max(axis=1, keepdims=True))
        shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares.astype(scores.dtype), "server"


def outputs_by_row(outputs: Mapping[str, Array], metas: Sequence[TensorMeta], rows: int) -> list[Any]:
    """Each row's values: those of the only output, or of all by name.

    Raises:
        TensorError: for an output that JSON can't hold
    """
    columns = {meta.name: _rows(outputs[meta.name], meta, rows) for meta in metas}
    if len(columns) == 1:
        return next(iter(columns.values()))
    return [{name: values[row] for name, values in columns.items()} for row in range(rows)]


def _rows(array: Array, meta: TensorMeta, rows: int) -> list[Any]:
    flat = np.empty(array.size, np.object_)
    try:
        flat[:] = to_json(array, output_datatype(meta), None)
    except TensorError as error:
        raise TensorError(f"output {value_text(meta.name)}: {error}; use the protocol's infer") from None
    nested: list[Any] = flat.reshape(array.shape).tolist()
    if not array.ndim or len(nested) != rows:
        # An output without rows belongs to every row.
        return [nested] * rows
    return nested
