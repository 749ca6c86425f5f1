"""Inputs are checked before they can enter a batch, so that a bad one never harms its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from trnrt.inputs.drawing import as_numpy
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.problems import Problem

Array = NDArray[Any]


class Checker:
    """Checks the inputs of every request against a model's description."""

    def __init__(self, described: Description, most_elements: int) -> None:
        self._described, self._most = described, most_elements
        self._dtypes = {meta.name: as_numpy(meta.dtype) for meta in described.inputs}

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Problem(400) unless the inputs fit the model."""
        described = self._described
        if feeds.keys() != self._dtypes.keys():
            raise Problem(400, _names_text(feeds, described.inputs))
        rows: dict[int, str] = {}
        for meta in described.inputs:
            array, is_parameter = feeds[meta.name], meta.name in described.parameters
            self._check_one(array, meta, is_parameter)
            if described.batch is not None and array.ndim and not is_parameter:
                rows[array.shape[0]] = meta.name
        if len(rows) > 1:
            counts = ", ".join(f"{name!r} has {count}" for count, name in rows.items())
            raise Problem(400, f"the inputs have different numbers of rows: {counts}")
        if rows and described.mixing is not None and isinstance(described.batch, int) and described.batch not in rows:
            why = f"{next(iter(rows))} rows for a batch fixed at {described.batch}, whose rows are not independent"
            raise Problem(400, f"{why} ({described.mixing}); give it {described.batch} rows at a time")

    def _check_one(self, array: Array, meta: TensorMeta, is_parameter: bool) -> None:
        """A parameter's dimensions may be 0."""
        if array.dtype != self._dtypes[meta.name] and not (meta.dtype == "str" and array.dtype.kind in "OUS"):
            raise Problem(400, f"input {meta.name!r} is {array.dtype}; the model wants {meta.dtype}")
        if array.size > self._most:
            raise Problem(400, f"input {meta.name!r} has {array.size} elements; the limit is {self._most}")
        if array.ndim != len(meta.shape):
            raise _shape_problem(array, meta, f", of rank {array.ndim}; the model wants {list(meta.shape)}")
        any_rows = isinstance(self._described.batch, int) and not is_parameter
        for axis, (size, declared) in enumerate(zip(array.shape, meta.shape, strict=True)):
            if size == 0 and not is_parameter:
                raise _shape_problem(array, meta, f": dimension {axis} is 0, nothing to run")
            if size != declared and declared >= 0 and not (axis == 0 and any_rows):
                raise _shape_problem(array, meta, f"; the model wants {list(meta.shape)}")
        if array.ndim and not is_parameter:
            self._described.check_rows(array.shape[0])


def check_outputs(described: Description, outputs: Sequence[str] | None) -> None:
    """Problem(400) unless the model has these outputs."""
    for name in outputs or ():
        if name not in described.outputs_by_name:
            names = ", ".join(map(repr, described.outputs_by_name))
            raise Problem(400, f"the model has no output {name!r}; its outputs are {names}")


def _shape_problem(array: Array, meta: TensorMeta, why: str) -> Problem:
    return Problem(400, f"input {meta.name!r} has shape {list(array.shape)}{why}")


def _names_text(feeds: Mapping[str, Array], wanted: Sequence[TensorMeta]) -> str:
    """The error for inputs that are missing or unknown."""
    names = ", ".join(repr(meta.name) for meta in wanted) or "none"
    unknown = [name for name in feeds if name not in {meta.name for meta in wanted}]
    if unknown:
        return f"the model has no input {unknown[0]!r}; its inputs are {names}"
    missing = [f"{meta.name!r} ({meta.dtype}, {list(meta.shape)})" for meta in wanted if meta.name not in feeds]
    return f"missing input: {', '.join(missing)}; given were {', '.join(map(repr, feeds)) or 'none'}"
