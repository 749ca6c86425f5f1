"""Loading a model's file: compile it for every bucket, and check it against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trnrt.cache.places import is_bundle
from trnrt.errors import InputError, OptionError
from trnrt.importer import ImportedModel, TensorInfo, import_model
from trnrt.nki.machine.timing import Range
from trnrt.planner.sizes import parse_shape
from trnrt.report.top import labels_of, looked_up_labels
from trnrt.running.buckets import cover
from trnrt.running.bundles import Bundle
from trnrt.running.lengths import Fitted, has_sequence, parse_pad
from trnrt.running.rows import count_rows
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.hosting.devices import device_options, more_sessions
from trnrt.serve.hosting.metrics import ModelMetrics
from trnrt.serve.hosting.proving import Prover
from trnrt.serve.hosting.scores import score_kinds
from trnrt.serve.http.problems import problem_of
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings
from trnrt.session import InferenceSession
from trnrt.text import quote
from trnrt.validate.bundling import run_golden
from trnrt.validate.golden import Golden, golden_feeds

Array = NDArray[Any]
MOST_SHAPES = 32
"""The limit of compiled shapes beside the buckets': clients that keep sending new shapes must not fill the memory."""
MOST_SIZES = 1024
"""Numbers of rows whose batches are remembered."""


class LoadedModel:
    """A session, compiled and checked, and the ``described`` model. ``run`` is for one thread at a time.

    ``twins``: more instances of the model, each with a session of its own; a twin is only run and closed.
    """

    golden: Golden
    """The smallest bucket's, for later checks that the model still computes the same."""
    is_static: bool
    """True if the number of independent rows is all that varies in the inputs: every batch is compiled by now."""

    def __init__(self, path: Path, settings: ServeSettings, source: Path | None = None) -> None:
        """``source``: the user's path, if ``path`` is a copy; for the log."""
        self.path, self.source = path, source or path
        self.session = open_session(path, settings)
        bundle = self.session.bundle
        self._golden_beside = path if bundle is None else bundle.model
        self._spare = self.session.with_options(self.session.options)
        self._prepared: set[object] = set()
        self._others: set[object] = set()
        batch, self.parameters = self.session.model.batch, self.session.model.parameters
        self.most_rows = batch if isinstance(batch, int) else self.session.buckets[-1]
        self.slice_rows = 0
        others: list[InferenceSession] = []
        try:
            others += more_sessions(self.session, settings)
            self.described = self._describe(settings)
            self.is_static = self._varies_in_rows_only()
            self._compile(others)
        except BaseException:  # free the device's memory for the next attempt
            for session in others:
                session.close()
            self.close()
            raise
        self.twins = [self._make_twin(session) for session in others]
        self.set_batching(settings.batching)
        if self.described.mixing is None:  # a slice of each core at a time
            self.slice_rows = self.most_rows * self.session.runner.parallel

    def _make_twin(self, session: InferenceSession) -> LoadedModel:
        """Another instance with the same compiled shapes, whose session has compiled them."""
        twin = copy(self)
        twin.session, twin._spare = session, session.with_options(session.options)
        twin._others, twin.twins = set(), []
        return twin

    def set_batching(self, batching: bool) -> None:
        """Allow merging requests into batches, if the model's rows are independent."""
        self.mergeable = batching and self.described.mixing is None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, all of them arrays."""
        session = self.session if self.kind(feeds) in self._prepared else self._other(feeds)
        return run_golden(session, feeds)

    def close(self) -> None:
        """Release the device."""
        self.session.close()
        self._spare.close()

    def fit(self, feeds: Mapping[str, Array]) -> Fitted:
        """The inputs, padded to one of the compiled lengths. Problem(400) if they are longer than all."""
        try:
            return self.session.fit_length(feeds)
        except InputError as error:
            raise problem_of(error) from None

    def kind(self, feeds: Mapping[str, Array]) -> object:
        """A key for requests that fit into one batch: the sizes of a row, and the parameters' values."""
        if self.is_static:
            return ()
        rows_count = self.described.mixing is not None
        return tuple(
            array.tobytes() if name in self.parameters else array.shape if rows_count else array.shape[1:]
            for name, array in sorted(feeds.items())
        )

    def rows(self, feeds: Mapping[str, Array]) -> int:
        """The rows of these inputs; 1 if the model has no batch."""
        return count_rows(self.session.model, feeds)

    def bucket(self, rows: int) -> int:
        """The rows that ``rows`` are padded to."""
        return sum(batch_sizes(rows, self.described.buckets))

    def independent(self, feeds: Mapping[str, Array], rows: int) -> bool:
        """True if no row of such a batch depends on others; for a batch of the buckets' sizes that is known."""
        return self.session.mixing(feeds, rows) is None

    def predicted_us(self, feeds: Mapping[str, Array], rows: int) -> float | None:
        """The device's time for ``rows`` rows, microseconds; None if there is no prediction."""
        length = self.session.fit_length(feeds).size if self.session.lengths is not None else 0
        predictions, total_us = self.described.times(length), 0.0
        for size in batch_sizes(rows, self.described.buckets):
            if (predicted := predictions.get(size)) is None:
                return None
            total_us += predicted.us
        return total_us

    def _varies_in_rows_only(self) -> bool:
        """True if the number of independent rows is all that varies in the inputs."""
        described = self.described
        varying = 0 if described.batch is None else 1
        fixed = all(size >= 0 for meta in described.inputs for size in meta.shape[varying:])
        return fixed and not self.parameters and (described.batch is None or described.mixing is None)

    def _describe(self, settings: ServeSettings) -> Description:
        """Describe the model, as far as known before its first run."""
        model, metadata = self.session.model, dict(self.session.model.metadata)
        mixing = self._why_mixing()
        if isinstance(model.batch, int):
            buckets: tuple[int, ...] = (model.batch,)
        else:  # if rows depend on each other, each number of rows is a kernel of its own
            buckets = self.session.buckets if mixing is None else ()
        return Description(
            inputs=tuple(map(_meta, model.inputs)),
            metadata=metadata,
            labels=labels_of(metadata) or looked_up_labels(model) or None,
            scores=dict(score_kinds(model)),
            buckets=buckets,
            batch=None if mixing is not None and model.apart is not None else model.batch,
            mixing=mixing,
            parameters=model.parameters,
            max_rows=0 if model.batch is None else max(settings.max_rows, self.most_rows),
        )

    def _compile(self, others: Sequence[InferenceSession]) -> None:
        """Compile every bucket of every length in every session, and compare each with onnxruntime."""
        lengths, prover = self.session.lengths, Prover(self.session, self._golden_beside, others)
        bundle = self.session.bundle
        if bundle is not None and not bundle.is_current:
            log("warning", "bundle_of_another_version", bundle=str(self.source), version=bundle.version)
        times: dict[int, dict[int, Range]] = {}
        for length in (0,) if lengths is None else lengths.sizes:
            times[length] = {}
            for rows in self.described.buckets or (1,):
                feeds, predicted = prover.prove(rows, length)
                self._prepared.add(self.kind(feeds))
                if predicted is not None:
                    times[length][rows] = predicted
        self.golden = prover.first
        metas = [_output_meta(info, prover.example[info.name], self.session) for info in self.session.model.outputs]
        longest, by_length = times[max(times)], {} if lengths is None else times
        self.described = replace(self.described, outputs=tuple(metas), predictions=longest, by_length=by_length)

    def _why_mixing(self) -> str | None:
        batch = self.session.model.batch
        if batch is None:
            return "the model has no batch"
        feeds = golden_feeds(self.session, self._golden_beside, batch if isinstance(batch, int) else 2)
        return self.session.mixing(feeds)

    def _other(self, feeds: Mapping[str, Array]) -> InferenceSession:
        """The session for shapes beside the buckets'; it drops its compiled shapes when there are too many."""
        kind = self.kind(feeds)
        if kind not in self._others and len(self._others) >= MOST_SHAPES:
            self._spare.close()
            self._others.clear()
        self._others.add(kind)
        return self._spare


@lru_cache(maxsize=MOST_SIZES)
def batch_sizes(rows: int, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the batches that cover ``rows`` rows; asked for three times a batch, mostly for the same ones."""
    return tuple(part.bucket for part in cover(rows, buckets)) if buckets else (rows,)


def with_length(inference: Inference, fitted: Fitted, metrics: ModelMetrics) -> Inference:
    """The answer to padded inputs, from now on cut back to the request's length; the metrics count its places."""
    if fitted.size:
        metrics.count_places(inference.rows, fitted.length, fitted.size)
        inference.outputs = fitted.cut(inference.outputs)
        inference.length, inference.length_bucket = fitted.length, fitted.size
    return inference


def open_session(path: Path, settings: ServeSettings) -> InferenceSession:
    """The session of a model's file, or of a bundle, with the server's settings."""
    if is_bundle(path):
        return _open_bundle(path, settings)
    model = import_model(path) if settings.shape or settings.lengths else None
    lengths = settings.lengths if model is not None and has_sequence(model) else None
    return InferenceSession(
        path,
        target=settings.target,
        dtype=settings.dtype,
        calibration=settings.calibration,
        narrow=settings.narrow,
        backend=settings.backend,
        fallback=None if settings.fallback == "none" else settings.fallback,
        buckets=settings.bucket_sizes,
        shapes=None if model is None else _shapes(model, settings),
        lengths=lengths or None,
        pads=None if model is None or not lengths else _pads(model, settings),
        max_instructions=settings.max_instructions,
        device=device_options(settings),
    )


def _open_bundle(path: Path, settings: ServeSettings) -> InferenceSession:
    """The session of a bundle, whose options are its own. OptionError for a setting that contradicts it."""
    session = InferenceSession(
        path,
        target=settings.target,
        dtype=settings.dtype if "dtype" in settings.model_fields_set else None,
        backend=settings.backend,
        fallback=None if settings.fallback == "none" else settings.fallback,
        lengths=settings.lengths or None,
        max_instructions=settings.max_instructions,
        device=device_options(settings),
    )
    assert session.bundle is not None
    _check_bundle(session.bundle, session.model, settings)
    return session


def _check_bundle(bundle: Bundle, model: ImportedModel, settings: ServeSettings) -> None:
    """OptionError for those settings that contradict a bundle only if they concern its model."""
    given = settings.model_fields_set
    asked: dict[str, Any] = {"shapes": _shapes(model, settings), "pads": _pads(model, settings)}
    if "narrow" in given:
        asked["narrow"] = settings.narrow
    if isinstance(model.batch, str):
        asked["buckets"] = settings.buckets or None
        if "max_batch" in given and not settings.buckets and settings.max_batch != bundle.buckets[-1]:
            text = f"{quote(str(bundle.directory))} was compiled for {bundle.buckets[-1]} rows at most"
            hint = "leave max_batch out, or compile the model again: trnrt compile MODEL -o DIR --buckets SIZES"
            raise OptionError(f"{text}, not for max_batch = {settings.max_batch}", hint=hint)
    bundle.check_arguments(asked)


def _pads(model: ImportedModel, settings: ServeSettings) -> dict[str, float]:
    """The settings' numbers in padded places, of this model's inputs."""
    names = [info.name for info in model.inputs]
    return {name: value for name, value in map(parse_pad, settings.pad) if name in names}


def _shapes(model: ImportedModel, settings: ServeSettings) -> dict[str, tuple[int, ...]]:
    """The settings' sizes for this model's inputs; sizes without a name are for its only input."""
    given = dict(parse_shape(text) for text in settings.shape)
    varying = {
        info.name for info in model.inputs if any(not isinstance(d, int) and d != model.batch for d in info.shape)
    }
    sole = len(model.inputs) == 1
    return {name: sizes for name, sizes in given.items() if name in varying or (not name and sole and varying)}


def _meta(info: TensorInfo) -> TensorMeta:
    return TensorMeta(info.name, info.dtype, tuple(size if isinstance(size, int) else -1 for size in info.shape))


def _output_meta(info: TensorInfo, example: Array, session: InferenceSession) -> TensorMeta:
    """The file's declaration; if that is a list of maps or has no shape, the shape of ``example``."""
    if not info.dtype.endswith(")") and len(info.shape) == example.ndim:
        return _meta(info)
    varying = {0} if session.model.batch is not None else set()
    varying |= set(() if session.lengths is None else session.lengths.outputs.get(info.name, ()))
    sizes = tuple(-1 if axis in varying else size for axis, size in enumerate(example.shape))
    return TensorMeta(info.name, example.dtype.name, sizes)
