"""A batch of requests: merge their rows, compute them, and split the outputs; or compute one request slice by slice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import TrnrtError
from trnrt.running.rows import join_rows
from trnrt.serve.hosting.description import NOTHING_KNOWN, Description
from trnrt.serve.hosting.metrics import ModelMetrics
from trnrt.serve.hosting.threads import type_and_text
from trnrt.serve.http.problems import INTERNAL, Problem, problem_of
from trnrt.serve.processes.logs import log

Array = NDArray[Any]
Feeds = Mapping[str, Array]


@dataclass(slots=True)
class Inference:
    """An answer, and its time: waiting for the model, waiting for the batch, and computing it. It belongs to one
    request alone.

    ``described``: the model that computed it, which may have been replaced when the answer is written.
    ``length``, ``length_bucket``: of its sequences, before and after padding; 0 for a model without lengths.
    """

    outputs: dict[str, Array]
    queue_ms: float
    batch_ms: float
    compute_ms: float
    rows: int
    batch_rows: int
    bucket: int
    described: Description = NOTHING_KNOWN
    length: int = 0
    length_bucket: int = 0


class Runnable(Protocol):
    """Computes batches, on one thread."""

    mergeable: bool
    parameters: tuple[str, ...]

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The outputs by name; each has the rows of the feeds."""
        ...

    def bucket(self, rows: int) -> int:
        """The rows that a batch of ``rows`` is padded to."""
        ...

    def predicted_us(self, feeds: Feeds, rows: int) -> float | None:
        """The time of a batch on the device, microseconds."""
        ...

    def independent(self, feeds: Feeds, rows: int) -> bool:
        """True if ``rows`` rows can be computed in slices. Asked only for more rows than ``Limits.slice_rows``."""
        ...


@dataclass(eq=False)
class Member:
    """A request in the queue or in a batch. Requests of one ``kind`` fit into one batch.

    ``request``, ``trace``: its ids in the log
    """

    feeds: Feeds
    rows: int
    kind: object
    request: str
    queued: float
    trace: Mapping[str, str]


def compute_batch(
    batch: Sequence[Member], runnable: Runnable, metrics: ModelMetrics, free_since: float = 0.0
) -> list[Inference]:
    """Run requests of one kind as one batch. ``free_since``: when the model's thread became free."""
    rows = [member.rows for member in batch]
    merged = _merge([member.feeds for member in batch], runnable.parameters)
    total = sum(rows)
    start = time.perf_counter()
    outputs, took, bucket = _run(runnable, metrics, merged, total)
    found = []
    for member, part in zip(batch, _split(outputs, rows), strict=True):
        busy = max(0.0, free_since - member.queued)
        gathering = start - member.queued - busy
        found.append(Inference(part, busy * 1e3, gathering * 1e3, took * 1e3, member.rows, total, bucket))
    return found


@dataclass(eq=False)
class Slicing:
    """The progress of a request that is computed in slices of ``unit`` rows, with other batches between them.

    The numbers are those of a single run, which cuts the rows at the same places (``trnrt.running.buckets.divide``).
    ``left``: the slices that the queue still counts.
    """

    unit: int
    left: int
    done: int = 0
    compute_s: float = 0.0
    gathering_s: float = 0.0
    parts: list[dict[str, Array]] = field(default_factory=list)

    def compute_next(
        self, member: Member, runnable: Runnable, metrics: ModelMetrics, free_since: float
    ) -> list[Inference]:
        """Run the next slice; the answer comes with the last one."""
        if not self.done:
            if not runnable.independent(member.feeds, member.rows):
                self.unit = member.rows
            self.gathering_s = time.perf_counter() - max(free_since, member.queued)
        rows = min(self.unit, member.rows - self.done)
        feeds = _take_rows(member.feeds, runnable.parameters, self.done, rows)
        outputs, took, _ = _run(runnable, metrics, feeds, rows)
        self.done += rows
        self.compute_s += took
        self.parts.append(outputs)
        return [self._answer(member, runnable)] if self.done >= member.rows else []

    def _answer(self, member: Member, runnable: Runnable) -> Inference:
        outputs = {name: join_rows([part[name] for part in self.parts]) for name in self.parts[0]}
        waited = time.perf_counter() - member.queued - self.compute_s - self.gathering_s
        times = (waited * 1e3, self.gathering_s * 1e3, self.compute_s * 1e3)
        return Inference(outputs, *times, member.rows, member.rows, runnable.bucket(member.rows))


def _run(runnable: Runnable, metrics: ModelMetrics, feeds: Feeds, rows: int) -> tuple[dict[str, Array], float, int]:
    """The outputs, the seconds that they took, and the rows that they were padded to."""
    start = time.perf_counter()
    outputs = runnable.run(feeds)
    took = time.perf_counter() - start
    bucket = runnable.bucket(rows)
    metrics.batch(rows, took, runnable.predicted_us(feeds, rows), bucket)
    return outputs, took, bucket


def _merge(batch: Sequence[Feeds], parameters: tuple[str, ...]) -> Feeds:
    """The rows of all requests of a batch; parameters are the same in all."""
    first = batch[0]
    if len(batch) == 1:
        return first
    return {
        name: array if name in parameters or not array.ndim else np.concatenate([feeds[name] for feeds in batch])
        for name, array in first.items()
    }


def _take_rows(feeds: Feeds, parameters: tuple[str, ...], start: int, rows: int) -> Feeds:
    """Some rows of a request, not copied; parameters are the same in all."""
    return {
        name: array if name in parameters or not array.ndim else array[start : start + rows]
        for name, array in feeds.items()
    }


def _split(outputs: dict[str, Array], counts: Sequence[int]) -> list[dict[str, Array]]:
    """Each request's rows of each output. Copied, as a small answer must not keep a large batch in memory."""
    if len(counts) == 1:
        return [outputs]
    rows = sum(counts)
    for name, output in outputs.items():
        if output.shape[:1] != (rows,):
            raise RuntimeError(f"output {name!r} has shape {output.shape} for a batch of {rows} rows")
    parts, start = [], 0
    for count in counts:
        parts.append({name: output[start : start + count].copy() for name, output in outputs.items()})
        start += count
    return parts


def logged_problem(error: BaseException, member: Member) -> Problem:
    """The client's error; the log has the details, under the request's ids."""
    problem = problem_of(error) if isinstance(error, TrnrtError) else Problem(500, INTERNAL)
    if problem.status >= 500:
        log("error", "inference_failed", request_id=member.request, error=type_and_text(error), **member.trace)
    return problem
