"""The queue of a model: requests become batches, and batches answers.

A model has one thread, which merges requests into a batch, computes it and splits the outputs. Meanwhile the next batch
gathers. If it is full by then, the thread takes it at once, as an event loop that is busy refusing requests must not
delay it. Otherwise the loop decides: if the thread is free, a batch starts at once, unless it could still grow. It can
while it has room, requests for the model are on their way (``arriving``), and its first request has not waited for the
whole delay.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import DeviceError, TrnrtError
from trnrt.serve.hosting.description import NOTHING_KNOWN, Description
from trnrt.serve.hosting.metrics import Metrics, ModelMetrics
from trnrt.serve.http.problems import INTERNAL, Problem, problem_of
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.processes.traces import current_trace

if TYPE_CHECKING:
    from trnrt.serve.hosting.inline import Jobs

Array = NDArray[Any]
Feeds = Mapping[str, Array]
_REMEMBERED = 0.9
"""The weight of the known pace when a batch measures a new one."""


@dataclass(frozen=True)
class Inference:
    """An answer, and its time: waiting for the model, waiting for the batch, and computing it.

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


@dataclass(frozen=True)
class Limits:
    """The most rows of a batch, the longest wait for others in seconds, and the longest queue in requests."""

    rows: int
    delay_s: float
    queue: int


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


@dataclass(eq=False)
class _Waiting(Member):
    answer: asyncio.Future[Inference]
    taken: float = 0.0


class ComputeThread:
    """One thread that runs jobs in order; a daemon, so that a job that hangs can't keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after the earlier ones."""
        self._jobs.put(job)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return or raise as the function does. Cancelling the caller does not stop the function."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            try:
                outcome = function()
            except Exception as error:
                outcome = error
            except BaseException as error:  # a library may try to end the process: only this call ends
                outcome = RuntimeError(_error_text(error))
            _post(loop, _settle, answer, outcome)

        self.submit(job)
        return await answer

    def stop(self) -> None:
        """End the thread after the submitted jobs."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # free its model and batch while the thread waits


_Answers = list[tuple[_Waiting, Inference | Exception]]


class Batcher:
    """The queue of one model. Call all public methods on the event loop; ``_lock`` guards the queue alone.

    ``on_lost`` is called, on the loop, when the device failed. Every waiting request has the error by then; no more
    requests may come.
    """

    def __init__(
        self,
        name: str,
        runnable: Runnable,
        thread: Jobs,
        limits: Limits,
        metrics: Metrics,
        on_lost: Callable[[DeviceError], None] | None = None,
        version: str = "1",
    ) -> None:
        self._name, self._runnable, self._thread, self._limits = name, runnable, thread, limits
        self._all_metrics, self._metrics, self._on_lost = metrics, metrics.model(name, version), on_lost
        self._loop = asyncio.get_running_loop()
        self._queue: dict[int, _Waiting] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._computing = False
        self._free_since = time.perf_counter()
        self._arriving = 0
        self._considering = False
        self._timer: asyncio.TimerHandle | None = None
        self._row_s = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def is_arriving(self) -> bool:
        """True while requests for the model are arriving."""
        return self._arriving > 0

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """See ``ServedModel.arriving``."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1
            if not self._arriving:
                self._consider_soon()

    async def infer(self, feeds: Feeds, rows: int, kind: object, timeout_s: float) -> Inference:
        """Queue checked inputs and wait for their outputs. Problem 429 for a full queue, 504 after the timeout."""
        self.admit()
        self._number += 1
        number = self._number
        ids = request_id.get(), time.perf_counter(), current_trace.get().fields
        member = _Waiting(feeds, rows, kind, *ids, self._loop.create_future())
        with self._lock:
            self._queue[number] = member
        self._metrics.pending(1)
        self._idle.clear()
        self._consider_soon()
        timer = self._loop.call_later(timeout_s, self._expire, member.answer, timeout_s)
        try:
            inference = await member.answer
        except BaseException:
            self._metrics.count_failure(time.perf_counter() - member.queued)
            raise
        finally:  # answered, timed out or cancelled: if still queued, it leaves the queue
            timer.cancel()
            with self._lock:
                gone = self._queue.pop(number, None) is not None
            if gone:
                self._leave(1)
        self._metrics.count_answer(member.taken - member.queued, time.perf_counter() - member.queued)
        return inference

    def admit(self) -> None:
        """Problem 429 if the queue is full."""
        if len(self._queue) >= self._limits.queue:
            self._all_metrics.count_rejection("queue")
            text = f"{len(self._queue)} requests wait for the model {self._name!r}, which is the limit"
            raise Problem(429, text, retry_after=self.retry_after())

    def retry_after(self) -> int:
        """Seconds until the queue is probably empty, at least 1."""
        with self._lock:
            rows = sum(member.rows for member in self._queue.values())
        return max(1, math.ceil(rows * self._row_s))

    def change_limits(self, limits: Limits) -> None:
        """Set other limits; requests that wait already stay."""
        self._limits = limits

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or running."""
        await self._idle.wait()

    def _expire(self, answer: asyncio.Future[Inference], timeout_s: float) -> None:
        if not answer.done():
            self._all_metrics.count_rejection("timeout")
            answer.set_exception(Problem(504, f"no answer within {timeout_s:g} s, the server's limit for a request"))

    def _consider_soon(self) -> None:
        # Not at once: requests of the same network poll get into the queue first.
        if not (self._considering or self._computing) and self._queue:
            self._considering = True
            self._loop.call_soon(self._consider)

    def _consider(self) -> None:
        """Send the next batch to the thread, if there is one and it need not wait."""
        self._considering = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._computing or not self._queue:
            return
        with self._lock:
            chosen, full = self._choose()
            first = self._queue[chosen[0]]
            left = first.queued + self._limits.delay_s - time.perf_counter()
            if not full and self._arriving and left > 0:
                self._timer = self._loop.call_later(left, self._consider)
                return
            self._computing = True
            batch = self._take(chosen)
        free_since = self._free_since
        self._thread.submit(lambda: self._compute(batch, free_since))

    def _choose(self) -> tuple[list[int], bool]:
        """The numbers of the next batch, the oldest request first, and whether it has no room for another."""
        numbers = iter(self._queue.items())
        oldest, first = next(numbers)
        chosen, rows = [oldest], first.rows
        if not self._runnable.mergeable:
            return chosen, True
        for number, member in numbers:
            if rows >= self._limits.rows:
                break
            if member.kind != first.kind:
                continue
            if rows + member.rows > self._limits.rows:
                return chosen, True
            chosen.append(number)
            rows += member.rows
        return chosen, rows >= self._limits.rows

    def _take(self, chosen: list[int]) -> list[_Waiting]:
        """Remove these requests from the queue; the lock is held."""
        batch = [self._queue.pop(number) for number in chosen]
        now = time.perf_counter()
        for member in batch:
            member.taken = now
        self._metrics.pending(-len(batch))
        return batch

    def _next_full(self) -> list[_Waiting]:
        """On the model's thread: the next batch, if the queue holds a full one."""
        with self._lock:
            if not self._queue:
                return []
            chosen, full = self._choose()
            return self._take(chosen) if full else []

    def _leave(self, count: int) -> None:
        self._metrics.pending(-count)
        if not (self._queue or self._computing):
            self._idle.set()

    def _compute(self, batch: list[_Waiting], free_since: float) -> None:
        """On the model's thread: compute a batch, then others that are full by then, and deliver the answers."""
        lost: DeviceError | None = None
        while batch:
            try:
                answers, lost = self._answers(batch, free_since)
            except BaseException as error:  # no request may wait forever
                answers = [(member, logged_problem(error, member)) for member in batch]
            free_since = time.perf_counter()
            batch = self._next_full() if lost is None else []
            _post(self._loop, self._deliver, answers, bool(batch), lost)

    def _answers(self, batch: list[_Waiting], free_since: float) -> tuple[_Answers, DeviceError | None]:
        """Each request's answer. If a batch fails, its requests run alone, to find the guilty one.

        If the device failed, no request is guilty: all of them get its error, which is also returned.
        """
        try:
            return list(zip(batch, self._run(batch, free_since), strict=True)), None
        except Exception as error:
            if len(batch) == 1 or isinstance(error, DeviceError):
                lost = error if isinstance(error, DeviceError) else None
                return [(member, logged_problem(error, member)) for member in batch], lost
            log("warning", "batch_failed", model=self._name, requests=len(batch), error=_error_text(error))
        answers: _Answers = []
        alone = [member for member in batch if not member.answer.done()]
        for position, member in enumerate(alone):
            made, lost = self._answers([member], free_since)
            answers += made
            if lost is not None:
                return answers + [(m, logged_problem(lost, m)) for m in alone[position + 1 :]], lost
        return answers, None

    def _run(self, batch: list[_Waiting], free_since: float) -> list[Inference]:
        found = compute_batch(batch, self._runnable, self._metrics, free_since)
        row_s = found[0].compute_ms / 1e3 / found[0].batch_rows
        self._row_s = row_s if not self._row_s else _REMEMBERED * self._row_s + (1 - _REMEMBERED) * row_s
        return found

    def _deliver(self, answers: _Answers, computing: bool, lost: DeviceError | None) -> None:
        self._computing = computing
        self._free_since = time.perf_counter()
        if lost is not None:
            answers = answers + self._abandon_queue(lost)
        for member, answer in answers:
            if lost is not None and not member.answer.done():
                self._all_metrics.count_rejection("device")
            _settle(member.answer, answer)
        if lost is not None and self._on_lost is not None:
            self._on_lost(lost)
        if self._queue:
            self._consider_soon()
        elif not computing:
            self._idle.set()

    def _abandon_queue(self, lost: DeviceError) -> _Answers:
        """The device's error for all requests in the queue."""
        with self._lock:
            waiting = list(self._queue.values())
            self._queue.clear()
        self._metrics.pending(-len(waiting))
        return [(member, logged_problem(lost, member)) for member in waiting]


def compute_batch(
    batch: Sequence[Member], runnable: Runnable, metrics: ModelMetrics, free_since: float = 0.0
) -> list[Inference]:
    """Run requests of one kind as one batch. ``free_since``: when the model's thread became free."""
    rows = [member.rows for member in batch]
    merged = _merge([member.feeds for member in batch], runnable.parameters)
    start = time.perf_counter()
    outputs = runnable.run(merged)
    took = time.perf_counter() - start
    total = sum(rows)
    bucket = runnable.bucket(total)
    metrics.batch(total, took, runnable.predicted_us(merged, total), bucket)
    found = []
    for member, part in zip(batch, _split(outputs, rows), strict=True):
        busy = max(0.0, free_since - member.queued)
        gathering = start - member.queued - busy
        found.append(Inference(part, busy * 1e3, gathering * 1e3, took * 1e3, member.rows, total, bucket))
    return found


def _merge(batch: Sequence[Feeds], parameters: tuple[str, ...]) -> Feeds:
    """The rows of all requests of a batch; parameters are the same in all."""
    first = batch[0]
    if len(batch) == 1:
        return first
    return {
        name: array if name in parameters or not array.ndim else np.concatenate([feeds[name] for feeds in batch])
        for name, array in first.items()
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
        log("error", "inference_failed", request_id=member.request, error=_error_text(error), **member.trace)
    return problem


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    """Set a result or an exception, unless nobody waits for it any more."""
    if answer.done():
        return
    if isinstance(outcome, StopIteration):  # a future refuses it
        answer.set_exception(RuntimeError(_error_text(outcome)))
    elif isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    """Call it on the loop, unless the loop is closed: then nobody waits."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
