"""Routes: what a session knows of inputs like those of an earlier run, so that later runs need not find it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnrt.backends import Array
from trnrt.importer import ImportedModel
from trnrt.running.buckets import Slice
from trnrt.running.results import RunResult
from trnrt.running.rows import take_slice

Signature = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
MOST_ROUTES = 256
"""The limit of a session's routes: a model's inputs may have any shape."""


def signature(feeds: Mapping[str, Any]) -> Signature | None:
    """The names, dtypes and shapes of the inputs; None unless all are plain arrays."""
    for array in feeds.values():
        if type(array) is not np.ndarray:
            return None
    return tuple([(name, array.dtype, array.shape) for name, array in feeds.items()])


@dataclass(frozen=True)
class Route:
    """One slice for inputs that were checked, and its program. ``result`` describes each run of it."""

    model: ImportedModel
    part: Slice
    result: RunResult

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """The outputs by name."""
        (program,), part = self.result.programs, self.part
        if part.rows == part.bucket:
            return program.run(arrays)
        return {name: made[: part.rows] for name, made in program.run(take_slice(self.model, arrays, part)).items()}


class Routes:
    """A session's routes by signature; none for a model whose inputs' values matter, too."""

    def __init__(self, model: ImportedModel) -> None:
        self._model, self._known = model, dict[Signature, Route]()

    def find(self, feeds: Mapping[str, Any]) -> Route | None:
        """The route of an earlier run with such inputs."""
        key = signature(feeds) if self._known else None
        return None if key is None else self._known.get(key)

    def add(self, feeds: Mapping[str, Any], part: Slice, result: RunResult) -> None:
        """Keep the route of inputs that have run as this one slice."""
        key = None if self._model.parameters else signature(feeds)
        if key is not None and len(result.programs) == 1 and len(self._known) < MOST_ROUTES:
            self._known[key] = Route(self._model, part, replace(result, cache_notes=()))

    def clear(self) -> None:
        """Forget all: their programs are closed."""
        self._known.clear()
