"""A model that is served: its description, its state, and its queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from trnrt.errors import DeviceError
from trnrt.serve.hosting.batching import Batcher, ComputeThread, Inference, Limits
from trnrt.serve.hosting.description import NOTHING_KNOWN
from trnrt.serve.hosting.inline import LoopOrThread, measure_batch
from trnrt.serve.hosting.loading import LoadedModel, with_length
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.recovering import Backoff, Failure, failure_of
from trnrt.serve.hosting.shadow import Shadow
from trnrt.serve.http.checking import Checker, check_outputs
from trnrt.serve.http.problems import RETRY_AFTER_S, Problem, error_text
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]
State = Literal["loading", "ready", "recovering", "failed", "unloading", "unloaded"]
BACKOFF = Backoff()
ONLY_VERSION = "1"
"""The only version of every model."""


@dataclass(frozen=True)
class _Engine:
    """The parts of a ready model."""

    loaded: LoadedModel
    thread: ComputeThread
    place: LoopOrThread
    batcher: Batcher
    checker: Checker
    shadow: Shadow

    async def close(self) -> None:
        """Finish the queue, then release everything."""
        await self.batcher.wait_idle()
        # Now, not at the next garbage collection: it occupies the device until then.
        await self.thread.call(self.loaded.close)
        self.thread.stop()
        self.shadow.stop()


class ServedModel:
    """A model of the repository, in any state. ``described`` is set when it is first ready, and cleared by ``unload``.

    If the device fails during a run or a load, the model is ``recovering``: it is loaded again after a pause, and again
    until it answers its golden input. If this process can't use the device any more, the model has failed, and
    ``core_lost`` is set.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        settings: ServeSettings,
        metrics: Metrics,
        core_lost: asyncio.Event | None = None,
    ) -> None:
        self.name, self.version, self.path = name, ONLY_VERSION, path
        self.state: State = "loading"
        self.described = NOTHING_KNOWN
        self.reason: str | None = None
        self._core_lost = core_lost or asyncio.Event()
        self._recovering: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._attempts, self._ready_since, self._again = 0, 0.0, 0.0
        self._settings, self._metrics, self._own_metrics = settings, metrics, metrics.model(name)
        self._engine: _Engine | None = None
        self._changing = asyncio.Lock()
        self._become("loading")

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs (None: all) for these inputs, computed in a batch with other requests.

        Cancelling the waiting task frees its place in the queue. Problem: 400 for inputs that don't fit, 429 if the
        queue is full, 503 if the model is not ready, 504 after ``timeout_s`` (None: the settings'), 500 for our own
        faults.
        """
        engine = self._ready_engine()
        engine.checker.check(feeds)
        loaded = engine.loaded
        check_outputs(loaded.described, outputs)
        limit = self._settings.request_timeout if timeout_s is None else timeout_s
        fitted, rows = loaded.fit(feeds), loaded.rows(feeds)
        with engine.place.expecting(rows):
            answer = await engine.batcher.infer(fitted.arrays, rows, loaded.kind(fitted.arrays), limit)
        inference = with_length(answer, fitted, self._own_metrics)
        engine.shadow.offer(feeds, inference.outputs)
        wanted = {name: inference.outputs[name] for name in outputs} if outputs else inference.outputs
        return replace(inference, outputs=wanted, described=loaded.described)

    def admit(self) -> None:
        """Problem(429) if the queue is full, before the body is parsed."""
        self._ready_engine().batcher.admit()

    def arriving(self) -> AbstractContextManager[None]:
        """A context that spans a request's arrival, until it is queued or has failed.

        While no request is arriving, queued ones do not wait for others.
        """
        return self._engine.batcher.arriving() if self._engine else nullcontext()

    async def load(self) -> str | None:
        """Load the file, or reload it; return why that failed.

        During a reload the old model serves, and stays if the new one does not load.
        """
        async with self._changing:
            recovering = self.state == "recovering"
            self._stop_recovering()
            if self._engine is None:
                self._become("loading")
            made = await self._make_engine()
            if isinstance(made, Failure):
                # A request for it must not end the attempts that were under way.
                self._not_loaded(made, again=recovering and self._recovering is None)
                return made.reason
            old = self._install(made)
        if old is not None:
            await old.close()
        return None

    async def unload(self) -> None:
        """Finish the queue, and release the model."""
        async with self._changing:
            self._stop_recovering()
            engine, self._engine = self._engine, None
            self._become("unloading")
            if engine is not None:
                await engine.close()
            self.described = NOTHING_KNOWN
            self._become("unloaded", "it was unloaded")
            log("info", "model_unloaded", model=self.name)

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or running."""
        if self._engine is not None:
            await self._engine.batcher.wait_idle()

    @property
    def retry_after(self) -> int | None:
        """Seconds after which a client should retry a model that is not ready; None if unknown."""
        if self.state == "recovering":
            return max(RETRY_AFTER_S, math.ceil(self._again - BACKOFF.now()))
        return RETRY_AFTER_S if self.state == "loading" else None

    def _install(self, engine: _Engine) -> _Engine | None:
        """Let a new engine serve; return the old one. The lock is held."""
        self._stop_recovering()
        old, self._engine = self._engine, engine
        described = self.described = engine.loaded.described
        self._ready_since = BACKOFF.now()
        self._become("ready")
        self._own_metrics.set_predictions(described.named_predictions)
        log("info", "model_ready", model=self.name, buckets=described.buckets, alone=described.mixing)
        return old

    def _not_loaded(self, failure: Failure, *, again: bool) -> None:
        """Handle a failed load; an old engine keeps serving. ``again``: it was recovering. The lock is held."""
        first = failure.device and self._engine is None and self._recovering is None
        if first or (again and failure.backend):
            self._recover(failure.reason)
            return
        log("error", "model_failed", model=self.name, reason=failure.reason)
        if self._engine is None and self._recovering is None:
            self._become("failed", failure.reason)
        self._see_core(failure)

    def _drop_engine(self, loaded: LoadedModel, error: DeviceError) -> None:
        """The device failed in a run; all waiting requests have the error."""
        self._own_metrics.device_error()
        log("error", "device_error", model=self.name, usable=error.usable, error=error_text(error))
        engine = self._engine
        if engine is not None and engine.loaded is loaded:  # otherwise its successor serves already
            self._engine = None
            closing = asyncio.create_task(engine.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            if error.usable:
                if BACKOFF.now() - self._ready_since >= BACKOFF.longest_s:
                    self._attempts = 0
                self._recover(error_text(error))
            else:
                self._become("failed", error_text(error))
        self._see_core(failure_of(error))

    def _see_core(self, failure: Failure) -> None:
        if failure.core:
            self._core_lost.set()

    def _recover(self, reason: str) -> None:
        """Become not ready, and load again after a pause."""
        self._attempts += 1
        pause = BACKOFF.pause_s(self._attempts)
        self._again = BACKOFF.now() + pause
        self._become("recovering", f"{reason}; it is loaded again after {pause:g} s, attempt {self._attempts}")
        log("error", "model_recovering", model=self.name, attempt=self._attempts, pause_s=pause, reason=reason)
        self._recovering = asyncio.create_task(self._load_again(pause))

    async def _load_again(self, pause_s: float) -> None:
        await BACKOFF.wait(pause_s)
        async with self._changing:
            made = await self._make_engine()
            if not isinstance(made, Failure):
                self._install(made)
                return
            self._recovering = None
            self._not_loaded(made, again=True)

    def _stop_recovering(self) -> None:
        """End the attempts: the model is ready, loaded or unloaded otherwise. The lock is held: none is under way."""
        task, self._recovering = self._recovering, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _make_engine(self) -> _Engine | Failure:
        thread = ComputeThread(f"compute {self.name}")
        try:
            loaded: LoadedModel = await thread.call(lambda: LoadedModel(self.path, self._settings))
            batch_s = await thread.call(lambda: measure_batch(loaded))
            return self._assemble(loaded, thread, LoopOrThread(self.name, thread, loaded.most_rows, batch_s))
        except Exception as error:
            thread.stop()
            if isinstance(error, DeviceError):
                self._own_metrics.device_error()
            return failure_of(error)
        except asyncio.CancelledError:
            thread.stop()
            raise

    def _assemble(self, loaded: LoadedModel, thread: ComputeThread, place: LoopOrThread) -> _Engine:
        settings = self._settings
        limits = Limits(loaded.most_rows, settings.max_delay_ms / 1e3, settings.max_queue)
        shadow = Shadow(self.name, loaded.session, settings.shadow, self._own_metrics)
        batcher = Batcher(
            self.name, loaded, place, limits, self._metrics, on_lost=lambda error: self._drop_engine(loaded, error)
        )
        checker = Checker(loaded.described, settings.max_tensor_elements)
        return _Engine(loaded, thread, place, batcher, checker, shadow)

    def _ready_engine(self) -> _Engine:
        if self._engine is not None:
            return self._engine
        self._metrics.count_rejection("not_ready")
        why = f": {self.reason}" if self.reason else ""
        raise Problem(503, f"the model {self.name!r} is {self.state}{why}", retry_after=self.retry_after)

    def _become(self, state: State, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self._own_metrics.state(state)
