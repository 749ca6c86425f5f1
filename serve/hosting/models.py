"""A model that is served: what it takes and gives, whether it is ready, and its queue."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from trnrt.errors import DeviceError
from trnrt.nki.machine.timing import Range
from trnrt.report.top import labels_of, looked_up_labels
from trnrt.serve.hosting.batching import Batcher, ComputeThread, Inference, Limits
from trnrt.serve.hosting.loading import LoadedModel, TensorMeta
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.recovering import Backoff, Failure, failure_of
from trnrt.serve.hosting.shadow import Shadow
from trnrt.serve.http.checking import Checker
from trnrt.serve.http.problems import RETRY_AFTER_S, Problem, error_text
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

__all__ = ["Inference", "ServedModel", "State", "TensorMeta"]

Array = NDArray[Any]
State = Literal["loading", "ready", "recovering", "failed", "unloading", "unloaded"]
BACKOFF = Backoff()


@dataclass(frozen=True)
class _Engine:
    """What a ready model runs on."""

    loaded: LoadedModel
    thread: ComputeThread
    batcher: Batcher
    checker: Checker
    shadow: Shadow | None
    labels: list[str] | None

    async def close(self) -> None:
        """Finish what is queued, then let everything go."""
        await self.batcher.wait_idle()
        # Here, not when somebody collects garbage: until then it has its place on the device.
        await self.thread.call(self.loaded.close)
        self.thread.stop()
        if self.shadow is not None:
            self.shadow.stop()


class ServedModel:
    """A model of the repository, in whatever state. What it takes and gives is known from when it was ready first until
    it is unloaded: an answer that is on its way when the device fails is still to be written.

    When the device fails under it, or while it is loaded, it is not ready any more, ``recovering``: it is loaded again
    after a pause, until it answers its golden input, for as long as it takes. Where this process can't use the device
    again, it has failed, and ``core_lost`` is set.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        settings: ServeSettings,
        metrics: Metrics,
        core_lost: asyncio.Event | None = None,
    ) -> None:
        self.name, self.path, self._of = name, path, self
        self.state: State = "unloaded"
        self.reason: str | None = None
        self._core_lost = core_lost or asyncio.Event()
        self._recovering: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._attempts, self._ready_since, self._again = 0, 0.0, 0.0
        self._settings, self._metrics, self._own_metrics = settings, metrics, metrics.model(name)
        self._engine: _Engine | None = None
        self._known: _Engine | None = None
        self._changing = asyncio.Lock()
        self._become("loading")

    def view(self) -> ServedModel:
        """The model for one request: after ``infer`` it is described as what computed the answer, reloaded or not."""
        return copy.copy(self)

    @property
    def inputs(self) -> tuple[TensorMeta, ...]:
        """The inputs in the model's order; none before the model is ready."""
        return self._known.loaded.inputs if self._known else ()

    @property
    def outputs(self) -> tuple[TensorMeta, ...]:
        """The outputs in the model's order; none before the model is ready."""
        return self._known.loaded.outputs if self._known else ()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own: labels, image.layout, ..."""
        return self._known.loaded.metadata if self._known else {}

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes, if the file has them."""
        return self._known.labels if self._known else None

    @property
    def predictions(self) -> dict[int, Range]:
        """What a batch takes on the device, by bucket; empty where there is no prediction."""
        return self._known.loaded.predictions if self._known else {}

    @property
    def buckets(self) -> tuple[int, ...]:
        """The rows that the model is compiled for; none where that depends on what comes."""
        return self._known.loaded.buckets if self._known else ()

    @property
    def has_batch(self) -> bool:
        """Whether dimension 0 of its inputs counts rows."""
        return self._known is not None and self._known.loaded.session.model.batch is not None

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Problem(400) unless these inputs fit the model; to be called before anything is queued."""
        self._ready_engine().checker.check(feeds)

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs (all where None) for these inputs, computed together with others that wait.

        Cancelling the task that waits frees its place. Problem: 400 for inputs that don't fit, 429 where the queue is
        full, 503 where the model is not ready, 504 after ``timeout_s`` (the settings' where None), 500 for our own
        faults.
        """
        engine = self._ready_engine()
        if self._of is not self:
            self._known = engine
        engine.checker.check(feeds)
        loaded = engine.loaded
        known = [meta.name for meta in loaded.outputs]
        if unknown := [name for name in outputs or () if name not in known]:
            names = ", ".join(map(repr, known))
            raise Problem(400, f"the model has no output {unknown[0]!r}; its outputs are {names}")
        limit = self._settings.request_timeout if timeout_s is None else timeout_s
        inference = await engine.batcher.infer(feeds, loaded.rows(feeds), loaded.kind(feeds), limit)
        if engine.shadow is not None:
            engine.shadow.offer(feeds, inference.outputs)
        return inference if not outputs else replace(inference, outputs={n: inference.outputs[n] for n in outputs})

    def admit(self) -> None:
        """Problem(429) where the queue is full: a body that will be refused need not be read as a tensor."""
        self._ready_engine().batcher.admit()

    def arriving(self) -> AbstractContextManager[None]:
        """Entered when a request for this model is on its way, left when it is queued or failed.

        Where nothing is on its way, a request that waits need not wait for company.
        """
        return self._of._engine.batcher.arriving() if self._of._engine else _nothing()

    async def load(self) -> str | None:
        """Load the file, or load it anew; why it does not load, None if it does.

        While a ready model is loaded anew, the old one serves, and goes on if the new one does not load.
        """
        async with self._changing:
            recovering = self.state == "recovering"
            self._stop_recovering()
            if self._engine is None:
                self._become("loading")
            made = await self._make_engine()
            if isinstance(made, Failure):
                if recovering and self._recovering is None and made.backend and not made.core:
                    self._recover(made.reason)  # asking for it must not end the attempts that were under way
                else:
                    self._not_loaded(made)
                return made.reason
            old = self._install(made)
        if old is not None:
            await old.close()
        return None

    async def unload(self) -> None:
        """Finish the queue, and let the model go."""
        async with self._changing:
            self._stop_recovering()
            engine, self._engine = self._engine, None
            self._become("unloading")
            if engine is not None:
                await engine.close()
            self._known = None
            self._become("unloaded", "it was unloaded")
            log("info", "model_unloaded", model=self.name)

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or computed."""
        if self._engine is not None:
            await self._engine.batcher.wait_idle()

    @property
    def retry_after(self) -> int | None:
        """Seconds until it is worth asking again for a model that is not ready; None where nobody knows."""
        if self.state == "recovering":
            return max(RETRY_AFTER_S, math.ceil(self._again - BACKOFF.now()))
        return RETRY_AFTER_S if self.state == "loading" else None

    def _install(self, engine: _Engine) -> _Engine | None:
        """Let a new engine serve; the one that did. The lock is held."""
        self._stop_recovering()
        old, self._engine, self._known = self._engine, engine, engine
        self._ready_since = BACKOFF.now()
        self._become("ready")
        for bucket, found in engine.loaded.predictions.items():
            self._own_metrics.set_prediction(bucket, found.us)
        log("info", "model_ready", model=self.name, buckets=engine.loaded.buckets, alone=engine.loaded.mixing)
        return old

    def _not_loaded(self, failure: Failure) -> None:
        """The first attempt failed, or one that was asked for; an old engine goes on serving. The lock is held."""
        if failure.device and self._engine is None and self._recovering is None:
            self._recover(failure.reason)
            return
        log("error", "model_failed", model=self.name, reason=failure.reason)
        if self._engine is None and self._recovering is None:
            self._become("failed", failure.reason)
        self._see_core(failure)

    def _drop_engine(self, loaded: LoadedModel, error: DeviceError) -> None:
        """The device failed in a run; everybody who waited was told."""
        self._own_metrics.device_error()
        log("error", "device_error", model=self.name, usable=error.usable, error=error_text(error))
        engine = self._engine
        if engine is not None and engine.loaded is loaded:  # else its successor serves already
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
        """Not ready from now on; it is loaded again after a pause."""
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
            if made.backend and not made.core:
                self._recover(made.reason)
            else:
                self._not_loaded(made)

    def _stop_recovering(self) -> None:
        """Somebody else decides about the model, or it is ready. The lock is held: no other attempt is under way."""
        task, self._recovering = self._recovering, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _make_engine(self) -> _Engine | Failure:
        thread = ComputeThread(f"compute {self.name}")
        try:
            loaded: LoadedModel = await thread.call(lambda: LoadedModel(self.path, self._settings))
            return self._assemble(loaded, thread)
        except Exception as error:
            thread.stop()
            if isinstance(error, DeviceError):
                self._own_metrics.device_error()
            return failure_of(error)
        except asyncio.CancelledError:
            thread.stop()
            raise

    def _assemble(self, loaded: LoadedModel, thread: ComputeThread) -> _Engine:
        settings = self._settings
        limits = Limits(loaded.most_rows, settings.max_delay_ms / 1e3, settings.max_queue)
        shadow = None
        if settings.shadow > 0:
            shadow = Shadow(self.name, loaded.session, settings.shadow, self._own_metrics)
        labels = labels_of(loaded.metadata) or looked_up_labels(loaded.session.model)
        batcher = Batcher(
            self.name, loaded, thread, limits, self._metrics, on_lost=lambda error: self._drop_engine(loaded, error)
        )
        checker = Checker(loaded, settings.max_tensor_elements)
        return _Engine(loaded, thread, batcher, checker, shadow, labels or None)

    def _ready_engine(self) -> _Engine:
        if self._of._engine is not None:
            return self._of._engine
        self._metrics.count_rejection("not_ready")
        now = self._of
        why = f": {now.reason}" if now.reason else ""
        raise Problem(503, f"the model {self.name!r} is {now.state}{why}", retry_after=now.retry_after)

    def _become(self, state: State, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self._own_metrics.state(state)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
