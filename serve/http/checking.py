"""Inputs are checked before they can enter a batch, so that a bad one never harms its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from trnrt.inputs.drawing import as_numpy
from trnrt.serve.hosting.loading import TensorMeta
from trnrt.serve.http.problems import Problem

Array = NDArray[Any]


@dataclass(frozen=True)
class _Wanted:
    """One input: its dtype, and for each dimension the size or -1. A parameter's dimensions may be 0."""

    meta: TensorMeta
    dtype: Any
    is_parameter: bool


class Takes(Protocol):
    """What a model takes: see ``LoadedModel``."""

    @property
    def inputs(self) -> tuple[TensorMeta, ...]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def mixing(self) -> str | None: ...
    @property
    def batch(self) -> int | str | None: ...


class Checker:
    """What a model takes; made once, as every request passes it."""

    def __init__(self, loaded: Takes, most_elements: int) -> None:
        batch = loaded.batch
        self._has_batch = batch is not None
        self._exact = batch if isinstance(batch, int) and loaded.mixing is not None else None
        self._mixing = loaded.mixing
        self._most = most_elements
        self._wanted = {
            meta.name: _Wanted(meta, as_numpy(meta.dtype), meta.name in loaded.parameters) for meta in loaded.inputs
        }
        self._any_rows = isinstance(batch, int)

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Problem(400) unless the inputs fit the model."""
        if feeds.keys() != self._wanted.keys():
            raise Problem(400, _names_told(feeds, [wanted.meta for wanted in self._wanted.values()]))
        rows: dict[int, str] = {}
        for name, wanted in self._wanted.items():
            array = feeds[name]
            self._check_one(array, wanted)
            if self._has_batch and array.ndim and not wanted.is_parameter:
                rows[array.shape[0]] = name
        if len(rows) > 1:
            told = ", ".join(f"{name!r} has {count}" for count, name in rows.items())
            raise Problem(400, f"the inputs have different numbers of rows: {told}")
        if self._exact is not None and rows and self._exact not in rows:
            told = f"{next(iter(rows))} rows for a batch fixed at {self._exact}, whose rows are not independent"
            raise Problem(400, f"{told} ({self._mixing}); give it {self._exact} rows at a time")

    def _check_one(self, array: Array, wanted: _Wanted) -> None:
        meta = wanted.meta
        if array.dtype != wanted.dtype and not (meta.dtype == "str" and array.dtype.kind in "OUS"):
            raise Problem(400, f"input {meta.name!r} is {array.dtype}; the model wants {meta.dtype}")
        if array.size > self._most:
            raise Problem(400, f"input {meta.name!r} has {array.size} elements; the limit is {self._most}")
        if array.ndim != len(meta.shape):
            told = f"input {meta.name!r} has shape {list(array.shape)}, of rank {array.ndim}"
            raise Problem(400, f"{told}; the model wants {list(meta.shape)}")
        for axis, (size, declared) in enumerate(zip(array.shape, meta.shape, strict=True)):
            if size == 0 and not wanted.is_parameter:
                raise Problem(
                    400, f"input {meta.name!r} has shape {list(array.shape)}: dimension {axis} is 0, nothing to run"
                )
            free = declared < 0 or (axis == 0 and self._any_rows and not wanted.is_parameter)
            if size != declared and not free:
                raise Problem(
                    400, f"input {meta.name!r} has shape {list(array.shape)}; the model wants {list(meta.shape)}"
                )


def _names_told(feeds: Mapping[str, Array], wanted: Sequence[TensorMeta]) -> str:
    """Which inputs are missing or too many."""
    names = ", ".join(repr(meta.name) for meta in wanted) or "none"
    unknown = [name for name in feeds if name not in {meta.name for meta in wanted}]
    if unknown:
        return f"the model has no input {unknown[0]!r}; its inputs are {names}"
    missing = [f"{meta.name!r} ({meta.dtype}, {list(meta.shape)})" for meta in wanted if meta.name not in feeds]
    return f"missing input: {', '.join(missing)}; given were {', '.join(map(repr, feeds)) or 'none'}"
