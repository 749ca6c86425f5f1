"""The batcher of a model: requests become batches, and batches answers.

A model has one thread, which merges requests into a batch, computes it and splits the outputs. Meanwhile the next batch
gathers. If it is full by then, the thread takes it at once, as an event loop that is busy refusing requests must not
delay it. Otherwise the loop decides: if the thread is free, a batch starts at once, unless it could still grow. It can
while it has room, requests for the model are on their way (``arriving``), and its first request has not waited for the
whole delay. With several instances (``lanes``) each has a thread, and all take their batches from the one queue.

A request with many rows is computed in slices (``waiting``). Between two of them the thread looks if anybody still
wants the answer, and lets others pass. Nothing stops a batch that computes: its time is what others wait at most.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence

from trnrt.errors import DeviceError
from trnrt.serve.hosting.batching import Feeds, Inference, Runnable, compute_batch, logged_problem
from trnrt.serve.hosting.lanes import Lane, Lanes
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.threads import Jobs, post, settle, type_and_text
from trnrt.serve.hosting.waiting import Limits, Pace, Queue, Waiting
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.processes.traces import current_trace

_Answers = list[tuple[Waiting, Inference | Exception]]


class Arrivals:
    """A context that spans each request's arrival. ``on_none`` is called when the last one has ended."""

    def __init__(self, on_none: Callable[[], None]) -> None:
        self.count, self._on_none = 0, on_none

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_error: object) -> None:
        self.count -= 1
        if not self.count:
            self._on_none()


class Batcher:
    """The queue of one model. Call all public methods on the event loop; ``_lock`` guards the queue and the pace.

    ``others``: more instances of the model, each with its thread. ``on_lost`` is called, on the loop, when an
    instance's device failed; its batch has the error, and it computes no more. If it was the last one, every waiting
    request has the error by then, and no more requests may come.
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
        others: Sequence[tuple[Runnable, Jobs]] = (),
    ) -> None:
        self.name, self._runnable, self._limits = name, runnable, limits
        self._all_metrics, self._metrics, self._on_lost = metrics, metrics.model(name, version), on_lost
        self._loop, self._loops_thread = asyncio.get_running_loop(), threading.get_ident()
        self._queue = Queue(limits, runnable.mergeable)
        self._pace = Pace(runnable.bucket(limits.rows) if runnable.mergeable else 0)
        self._lock = threading.Lock()
        self.lanes = Lanes([(runnable, thread), *others], time.perf_counter())
        self._arrivals = Arrivals(self._consider_soon)
        self._considering = False
        self._is_quiet = self._on_loop = False
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: dict[Waiting, None] = {}
        self._expires = math.inf
        self._expiry: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def computing(self) -> bool:
        """True while every instance has a batch, even if nobody wants its answers any more."""
        return not self.lanes.idle

    @property
    def stuck_s(self) -> float:
        """For how long every instance has had its batch, or the oldest request has waited, whichever is longer."""
        now = time.perf_counter()
        with self._lock:
            oldest = self._queue.oldest
        return now - min(self.lanes.all_busy_since(now), oldest.queued if oldest else now)

    @property
    def is_arriving(self) -> bool:
        """True while requests for the model are arriving."""
        return self._arrivals.count > 0

    def arriving(self) -> Arrivals:
        """See ``ServedModel.arriving``."""
        return self._arrivals

    async def infer(self, feeds: Feeds, rows: int, kind: object, timeout_s: float) -> Inference:
        """Queue checked inputs and wait for their outputs.

        Problem 429 for a full queue or a long wait, 504 after the timeout.
        """
        self.admit(rows)
        now = time.perf_counter()
        answer: asyncio.Future[Inference] = self._loop.create_future()
        ids = request_id.get(), now, current_trace.get().fields
        member = Waiting(feeds, rows, kind, *ids, answer, now + timeout_s)
        with self._lock:
            self._queue.put(member)
        self._metrics.pending(1)
        self._unanswered[member] = None
        self._idle.clear()
        if member.deadline < self._expires:
            self._expire_at(member.deadline)
        try:
            self._consider_new()
            inference = await answer
        except BaseException:
            self._metrics.count_failure(time.perf_counter() - now)
            raise
        finally:  # answered, timed out or cancelled: if still queued, it leaves the queue
            if not member.taken or member.slicing is not None:
                self._withdraw(member)
            del self._unanswered[member]
            if not self._unanswered:
                self._idle.set()
        self._metrics.count_answer(member.taken - now, time.perf_counter() - now)
        return inference

    def admit(self, rows: int = 1) -> None:
        """Problem 429 if the queue is full, or a request would wait too long.

        A first batch may always wait, whatever a batch takes.
        """
        queue, limits = self._queue, self._limits
        waiting = len(queue)
        if waiting >= limits.queue:
            self._all_metrics.count_rejection("queue")
            text = f"{waiting} requests wait for the model {self.name!r}, which is the limit"
            raise Problem(429, text, retry_after=self.retry_after())
        if waiting < queue.fill and not queue.slices:
            return
        ahead = queue.slices if queue.is_large(rows) else queue.batches_ahead
        if ahead and (wait_s := self._wait_s(rows)) > limits.wait_s:
            self._all_metrics.count_rejection("wait")
            text = f"the model {self.name!r} could begin with it in about {wait_s:.2g} s"
            text += f"; requests wait for {limits.wait_s:g} s at most (--max-wait-ms)"
            raise Problem(429, text, retry_after=max(1, math.ceil(wait_s - limits.wait_s)))

    def retry_after(self) -> int:
        """Seconds until the queue is probably empty, at least 1."""
        return max(1, math.ceil(self._wait_s(1)))

    def change_limits(self, limits: Limits) -> None:
        """Set other limits, and take over if requests may be merged; requests that wait already stay."""
        self._limits = limits
        with self._lock:
            self._queue.mergeable = self._runnable.mergeable

    async def wait_idle(self) -> None:
        """Wait until every request has its answer. A thread may still compute what nobody waits for."""
        await self._idle.wait()
        if self._expiry is not None and not self._unanswered:  # it holds the model
            self._expiry.cancel()
            self._expires = math.inf

    def _wait_s(self, rows: int) -> float:
        """The estimated time until a new request's batch would start."""
        queue = self._queue
        batches, slices = queue.batches_ahead, queue.slices
        if queue.is_large(rows):
            turns = slices + min(batches, slices + 1)
        else:
            turns = batches + min(slices, batches + 1)
        return self.lanes.start_after(turns, self._pace.batch_s, time.perf_counter())

    def _withdraw(self, member: Waiting) -> None:
        with self._lock:
            gone = self._queue.remove(member)
        if gone:
            self._metrics.pending(-1)
            self._metrics.drop(member.rows_left)

    def _expire_at(self, moment: float) -> None:
        """Look at the deadlines then; one timer for all requests costs less than one for each."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires = moment
        self._expiry = self._loop.call_later(moment - time.perf_counter(), self._expire)

    def _expire(self) -> None:
        """Refuse the requests whose time is over."""
        now, self._expires = time.perf_counter(), math.inf
        waiting = [member for member in self._unanswered if not member.answer.done()]
        for member in waiting:
            if member.deadline <= now:
                self._all_metrics.count_rejection("timeout")
                limit = f"{member.deadline - member.queued:g} s, the limit for this request"
                member.answer.set_exception(Problem(504, f"no answer within {limit}"))
        later = [member.deadline for member in waiting if member.deadline > now]
        if later:
            self._expire_at(min(later))

    def _consider_new(self) -> None:
        """Let the loop compute a new request at once if no other may join it, or none came beside the last one.

        That saves two turns of the loop. It has one before the next such batch.
        """
        is_free = self._on_loop and self.lanes.idle and not self._considering
        if not is_free or (self._queue.mergeable and not self._is_quiet):
            self._consider_soon()
            return
        self._consider()
        self._considering = True
        self._loop.call_soon(self._look_behind)

    def _look_behind(self) -> None:
        """After a batch that was computed at once: others that came in the same turn would have joined it."""
        is_quiet = not self._queue
        self._consider()
        self._is_quiet = is_quiet

    def _consider_soon(self) -> None:
        # Not at once: requests of the same network poll get into the queue first.
        if not self._considering and self.lanes.idle and self._queue:
            self._considering = True
            self._loop.call_soon(self._consider)

    def _consider(self) -> None:
        """Send the next batch to a free thread, if there is one and it need not wait."""
        self._considering = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        idle = self.lanes.idle
        if not idle:
            return
        with self._lock:
            chosen, full = self._queue.choose()
            now = time.perf_counter()
            if not full and chosen and self._arrivals.count:
                left = chosen[0].queued + self._limits.delay_s - now
                if left > 0:
                    self._timer = self._loop.call_later(left, self._consider)
                    return
            batch = self._take(chosen, now)
        if batch:
            self._is_quiet = len(batch) == 1 and not self._queue
            lane = idle.pop()
            lane.computing = True
            lane.jobs.submit(lambda: self._compute(lane, batch), len(self._queue))
            if idle:
                self._consider_soon()

    def _take(self, chosen: list[Waiting], now: float, *, whole: bool = False) -> list[Waiting]:
        """Remove these requests from the queue, or the next ones, if no one wants their answers; the lock is held.

        ``whole``: take only batches that need not wait for others.
        """
        while chosen:
            batch, dropped = self._queue.take(chosen, now)
            self._metrics.pending(-len(chosen))
            if dropped:
                self._metrics.drop(dropped)
            if batch:
                return batch
            chosen, full = self._queue.choose()
            if whole and not full:
                break
        return []

    def _continue(self, member: Waiting, is_answered: bool) -> None:
        """On the model's thread, after a slice: queue the request for the next one, if its answer is still wanted."""
        rows = member.rows_left
        with self._lock:
            if is_answered or member.answer.done():
                self._queue.forget(member)
            else:
                self._queue.put(member)
                self._metrics.pending(1)
                return
        if rows:
            self._metrics.drop(rows)

    def _take_next(self, now: float) -> list[Waiting]:
        """On the model's thread: the next batch, if it need not wait for others."""
        with self._lock:
            chosen, full = self._queue.choose()
            return self._take(chosen, now, whole=True) if full else []

    def _compute(self, lane: Lane, batch: list[Waiting]) -> None:
        """On the lane's thread: compute a batch, then others that are full by then, and deliver the answers.

        On the loop it is one batch: the loop must have its turns.
        """
        lost: DeviceError | None = None
        free_since = lane.free_since
        while batch:
            try:
                answers, lost = self._answers(lane, batch, free_since)
            except BaseException as error:  # no request may wait forever
                answers = [(member, logged_problem(error, member)) for member in batch]
            lane.began = 0.0
            free_since = time.perf_counter()
            if batch[0].slicing is not None:
                self._continue(batch[0], bool(answers))
            self._on_loop = threading.get_ident() == self._loops_thread
            if self._on_loop:
                self._deliver(lane, answers, False, lost)
                return
            batch = self._take_next(free_since) if lost is None else []
            post(self._loop, self._deliver, lane, answers, bool(batch), lost)

    def _answers(self, lane: Lane, batch: list[Waiting], free_since: float) -> tuple[_Answers, DeviceError | None]:
        """Each request's answer. If a batch fails, its requests run alone, to find the guilty one.

        If the device failed, no request is guilty: all of them get its error, which is also returned.
        """
        try:
            return list(zip(batch, self._run(lane, batch, free_since), strict=False)), None
        except Exception as error:
            if len(batch) == 1 or isinstance(error, DeviceError):
                lost = error if isinstance(error, DeviceError) else None
                return [(member, logged_problem(error, member)) for member in batch], lost
            log("warning", "batch_failed", model=self.name, requests=len(batch), error=type_and_text(error))
        answers: _Answers = []
        alone = [member for member in batch if not member.answer.done()]
        for position, member in enumerate(alone):
            made, lost = self._answers(lane, [member], free_since)
            answers += made
            if lost is not None:
                return answers + [(m, logged_problem(lost, m)) for m in alone[position + 1 :]], lost
        return answers, None

    def _run(self, lane: Lane, batch: list[Waiting], free_since: float) -> list[Inference]:
        """The answers to a batch; none to a slice that is not the last one."""
        lane.began = began = time.perf_counter()
        first, runnable = batch[0], lane.runnable
        if first.slicing is None:
            found = compute_batch(batch, runnable, self._metrics, free_since)
            bucket = found[0].bucket
        else:
            done = first.slicing.done
            found = first.slicing.compute_next(first, runnable, self._metrics, free_since)
            bucket = runnable.bucket(first.slicing.done - done)
        with self._lock:
            self._pace.measure(bucket, time.perf_counter() - began)
        return found

    def _deliver(self, lane: Lane, answers: _Answers, computing: bool, lost: DeviceError | None) -> None:
        if lost is not None:
            self.lanes.lose(lane)
            if not self.lanes:
                answers = answers + self._abandon_queue(lost)
        elif not computing:
            self.lanes.release(lane, time.perf_counter())
        for member, answer in answers:
            if lost is not None and not member.answer.done():
                self._all_metrics.count_rejection("device")
            settle(member.answer, answer)
        if lost is not None and self._on_lost is not None:
            self._on_lost(lost)
        self._consider_soon()

    def _abandon_queue(self, lost: DeviceError) -> _Answers:
        """The device's error for all requests in the queue."""
        with self._lock:
            waiting = self._queue.clear()
        self._metrics.pending(-len(waiting))
        return [(member, logged_problem(lost, member)) for member in waiting]
