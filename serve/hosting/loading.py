"""A model's file, loaded: compiled for every bucket, checked against onnxruntime, and ready to run on one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trnrt.importer import TensorInfo, import_model
from trnrt.nki.machine.timing import Range
from trnrt.planner.sizes import parse_shape
from trnrt.running.buckets import DEFAULT_BUCKETS, cover
from trnrt.running.rows import as_matrix, count_rows
from trnrt.serve.hosting.devices import device_options
from trnrt.serve.hosting.golden import Golden, golden_feeds, make_golden
from trnrt.serve.settings import ServeSettings
from trnrt.session import InferenceSession
from trnrt.validate import Noise, open_onnxruntime

Array = NDArray[Any]
MOST_SHAPES = 32
"""Shapes beside those of the buckets that stay compiled; a client who sends ever new ones must not fill the memory."""


@dataclass(frozen=True)
class TensorMeta:
    """An input or output: ``dtype`` is numpy's name for it ("str" for strings), -1 a dimension that varies."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class LoadedModel:
    """A session with what the server needs to know of it. ``run`` is for one thread at a time.

    ``buckets`` are the rows it was compiled for, () for a model without a batch or with rows that depend on each other:
    these are compiled for what comes. ``mixing`` says why rows of different requests can't be put together, None if
    they can. ``predictions`` have the device's time by bucket (or for 1 row), where there is a prediction.
    """

    golden: Golden
    """That of the smallest bucket, for whoever wants to see again that the model computes what it did."""

    def __init__(self, path: Path, settings: ServeSettings) -> None:
        self.path = path
        self.session = open_session(path, settings)
        model = self.session.model
        self.inputs = tuple(_meta(info) for info in model.inputs)
        self.parameters, self.batch = model.parameters, model.batch
        self.metadata = dict(model.metadata)
        self.buckets = _buckets(model.batch, settings)
        self.predictions: dict[int, Range] = {}
        self._prepared: set[object] = set()
        self._others: set[object] = set()
        self._spare = self.session.with_options(self.session.options)
        try:
            self._compile(settings)
        except BaseException:  # what was put on the device already must not be in the way of the next attempt
            self.close()
            raise
        self.mergeable = settings.batching and self.mixing is None
        self.most_rows = model.batch if isinstance(model.batch, int) else settings.max_batch

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, all of them arrays."""
        session = self.session if self.kind(feeds) in self._prepared else self._other(feeds)
        return _run(session, feeds)

    def close(self) -> None:
        """Give back its place on the device."""
        self.session.close()
        self._spare.close()

    def kind(self, feeds: Mapping[str, Array]) -> object:
        """What requests must have in common to be one batch: sizes of a row, and the parameters' values."""
        if self._is_static:
            return ()
        rows_count = self.mixing is not None
        return tuple(
            array.tobytes() if name in self.parameters else array.shape if rows_count else array.shape[1:]
            for name, array in sorted(feeds.items())
        )

    def rows(self, feeds: Mapping[str, Array]) -> int:
        """The rows of these inputs; 1 where the model has no batch."""
        return count_rows(self.session.model, feeds)

    def bucket(self, rows: int) -> int:
        """The rows that so many are padded to."""
        return sum(part.bucket for part in cover(rows, self.buckets)) if self.buckets else rows

    def predicted_us(self, rows: int) -> float | None:
        """What so many rows take on the device, microseconds; None where it is not known."""
        if not self.buckets:
            return self.predictions[rows].us if rows in self.predictions else None
        known = [self.predictions.get(part.bucket) for part in cover(rows, self.buckets)]
        times = [found.us for found in known if found is not None]
        return sum(times) if len(times) == len(known) else None

    @property
    def _is_static(self) -> bool:
        """Whether all that varies in the inputs is the number of independent rows."""
        batch = self.session.model.batch
        varying = 0 if batch is None else 1
        fixed = all(size >= 0 for meta in self.inputs for size in meta.shape[varying:])
        return fixed and not self.parameters and (batch is None or self.mixing is None)

    def _compile(self, settings: ServeSettings) -> None:
        """Every bucket, each compared with onnxruntime."""
        model = self.session.model
        self.mixing = self._why_mixing()
        if self.mixing is not None and isinstance(model.batch, str):  # then any number of rows is a kernel of its own
            self.buckets = ()
        reference, noise = open_onnxruntime(self.session), Noise(self.session)
        first: dict[str, Array] = {}
        for rows in self.buckets or (1,):
            first = self._prepare(rows, reference, noise)
        self.outputs = tuple(_output_meta(info, first[info.name], model.batch) for info in model.outputs)

    def _why_mixing(self) -> str | None:
        batch = self.session.model.batch
        if batch is None:
            return "the model has no batch"
        feeds = golden_feeds(self.session, self.path, batch if isinstance(batch, int) else 2)
        return self.session.mixing(feeds)

    def _prepare(self, rows: int, reference: Any, noise: Noise) -> dict[str, Array]:
        """Compile a bucket, and compare what it gives with onnxruntime."""
        golden = make_golden(self.session, reference, golden_feeds(self.session, self.path, rows), noise)
        outputs = _run(self.session, golden.feeds)
        golden.check(outputs)
        if not self._prepared:
            self.golden = golden
        self._prepared.add(self.kind(golden.feeds))
        if (predicted := self.session.last_run.predicted) is not None:
            self.predictions[rows] = predicted
        return outputs

    def _other(self, feeds: Mapping[str, Array]) -> InferenceSession:
        """The session for shapes that were not prepared; when it has compiled many, a new one takes its place."""
        kind = self.kind(feeds)
        if kind not in self._others and len(self._others) >= MOST_SHAPES:
            self._spare.close()
            self._others.clear()
        self._others.add(kind)
        return self._spare


def open_session(path: Path, settings: ServeSettings) -> InferenceSession:
    """The session of a model's file as the server's settings want it."""
    return InferenceSession(
        path,
        target=settings.target,
        dtype=settings.dtype,
        backend=settings.backend,
        fallback=None if settings.fallback == "none" else settings.fallback,
        buckets=_bucket_sizes(settings),
        shapes=_shapes(path, settings),
        device=device_options(settings),
    )


def _shapes(path: Path, settings: ServeSettings) -> dict[str, tuple[int, ...]]:
    """Of the sizes that the settings name, those for inputs of this model; without a name, for its only input."""
    given = dict(parse_shape(text) for text in settings.shape)
    if not given:
        return {}
    model = import_model(path)
    varying = {
        info.name for info in model.inputs if any(not isinstance(d, int) and d != model.batch for d in info.shape)
    }
    sole = len(model.inputs) == 1
    return {name: sizes for name, sizes in given.items() if name in varying or (not name and sole and varying)}


def _run(session: InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [info.name for info in session.model.outputs]
    return dict(zip(names, map(as_matrix, session.run(None, feeds)), strict=True))


def _bucket_sizes(settings: ServeSettings) -> tuple[int, ...]:
    return (*(size for size in DEFAULT_BUCKETS if size < settings.max_batch), settings.max_batch)


def _buckets(batch: int | str | None, settings: ServeSettings) -> tuple[int, ...]:
    if batch is None:
        return ()
    return (batch,) if isinstance(batch, int) else _bucket_sizes(settings)


def _meta(info: TensorInfo) -> TensorMeta:
    return TensorMeta(info.name, info.dtype, tuple(size if isinstance(size, int) else -1 for size in info.shape))


def _output_meta(info: TensorInfo, example: Array, batch: int | str | None) -> TensorMeta:
    """What the file declares; where that is a list of maps, or says nothing of the shape, as the golden output is."""
    if not info.dtype.endswith(")") and len(info.shape) == example.ndim:
        return _meta(info)
    sizes = example.shape if batch is None else (-1, *example.shape[1:])
    return TensorMeta(info.name, example.dtype.name, sizes)
