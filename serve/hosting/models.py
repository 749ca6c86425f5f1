"""A model that is served: its description, its state, and its queue."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from trnrt.errors import DeviceError
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.catalog import ONLY_VERSION, Pinned
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.description import NOTHING_KNOWN
from trnrt.serve.hosting.inline import LoopOrThread, measure_batch
from trnrt.serve.hosting.instances import Instance, start_instances
from trnrt.serve.hosting.loading import LoadedModel, with_length
from trnrt.serve.hosting.metrics import INSTANCE_STATES, Metrics
from trnrt.serve.hosting.pins import why_changed
from trnrt.serve.hosting.recovering import Backoff, Failure, failure_of
from trnrt.serve.hosting.shadow import Shadow
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.checking import Checker, check_outputs
from trnrt.serve.http.problems import RETRY_AFTER_S, Problem, error_text
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings
from trnrt.serve.settings_models import BY_COMPILING

Array = NDArray[Any]
State = Literal["loading", "ready", "recovering", "failed", "unloading", "unloaded"]
BACKOFF = Backoff()
ARRIVAL_S = 5.0
"""The longest wait of a version that ends for requests that are arriving for it."""
_LOOK_S = 0.01


@dataclass(frozen=True)
class _Engine:
    """The parts of a ready model; ``settings`` are those that it was compiled with, ``loaded`` is the first instance's
    model."""

    loaded: LoadedModel
    settings: ServeSettings
    instances: tuple[Instance, ...]
    place: LoopOrThread
    batcher: Batcher
    checker: Checker
    shadow: Shadow

    async def close(self) -> None:
        """Finish the queue, then release everything."""
        await self.batcher.wait_idle()
        self.shadow.stop()
        for instance, lane in zip(self.instances, self.batcher.lanes.every, strict=True):
            await instance.release(lane)


@dataclass(frozen=True)
class _Prepared:
    """An engine that does not serve yet, its content, and the model's state before."""

    engine: _Engine
    pinned: Pinned
    state: State
    reason: str | None
    recovering: bool


class ServedModel:
    """A version of a model, in any state. ``described`` is set when it is first ready, and cleared by ``unload``.

    If the device fails during a run or a load, the model is ``recovering``: it is loaded again after a pause, and again
    until it answers its golden input. While other instances go on, it is ``ready``, and loaded again beside them. If
    this process can't use the device any more, the model has failed, and ``core_lost`` is set.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        settings: ServeSettings,
        metrics: Metrics,
        core_lost: asyncio.Event | None = None,
        pinned: Pinned | None = None,
    ) -> None:
        """``pinned``: the content to load, which is then ``path``'s; by default whatever is in the file."""
        self.pinned = pinned or Pinned(name, ONLY_VERSION, path, path)
        self.name, self.version = name, self.pinned.version
        self.state: State = "loading"
        self.described = NOTHING_KNOWN
        self.reason: str | None = None
        self._core_lost = core_lost or asyncio.Event()
        self._recovering: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._attempts, self._ready_since, self._again = 0, 0.0, 0.0
        self._settings, self._metrics, self._own_metrics = settings, metrics, metrics.model(name, self.version)
        self._engine: _Engine | None = None
        self._prepared: _Prepared | None = None
        self._changing = asyncio.Lock()
        self._own_metrics.count_instances = self._count_instances
        self._become("loading")

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs (None: all) for these inputs, computed in a batch with other requests.

        Cancelling the waiting task frees its place in the queue. Problem: 400 for inputs that don't fit, 429 if the
        queue is full or the wait too long, 503 if the model is not ready, 504 after ``timeout_s`` (the settings' at
        most), 500 for our own faults.
        """
        engine = self._ready_engine()
        engine.checker.check(feeds)
        loaded = engine.loaded
        check_outputs(loaded.described, outputs)
        most = self._settings.request_timeout
        limit = most if timeout_s is None else min(timeout_s, most)
        fitted, rows = loaded.fit(feeds), loaded.rows(feeds)
        client = current_client.get()
        client.take_rows(rows, self._metrics)
        try:
            with engine.place.expecting(rows):
                inference = await engine.batcher.infer(fitted.arrays, rows, loaded.kind(fitted.arrays), limit)
        except Problem as problem:
            if problem.status == 429:  # the queue refused it: nothing was computed
                client.give_rows_back(rows)
            raise
        with_length(inference, fitted, self._own_metrics)
        engine.shadow.offer(feeds, inference.outputs)
        if outputs:
            inference.outputs = {name: inference.outputs[name] for name in outputs}
        inference.described = loaded.described
        return inference

    @property
    def busy(self) -> str | None:
        """Why a loaded model is not ready: one batch, or one wait, takes longer than a request may."""
        if self._engine is None:
            return None
        batcher = self._engine.batcher
        stuck_s, what = batcher.stuck_s, "one batch computes" if batcher.computing else "a request waits"
        if batcher.computing and len(batcher.lanes) > 1:
            what = f"each of {len(batcher.lanes)} instances computes one batch"
        return f"busy: {what} since {stuck_s:.0f} s" if stuck_s > self._settings.request_timeout else None

    def _count_instances(self) -> dict[str, int]:
        """The number of instances in each state; see ``INSTANCE_STATES``."""
        if self._engine is None:
            return dict.fromkeys(INSTANCE_STATES, 0)
        lanes = self._engine.batcher.lanes
        stuck = lanes.count_stuck(time.perf_counter(), self._settings.request_timeout)
        return {"serving": len(lanes) - stuck, "stuck": stuck, "lost": len(lanes.every) - len(lanes)}

    def admit(self) -> None:
        """Problem(429) if the queue is full or the wait too long, before the body is parsed."""
        self._ready_engine().batcher.admit()

    def arriving(self) -> AbstractContextManager[None]:
        """A context that spans a request's arrival, until it is queued or has failed.

        While no request is arriving, queued ones do not wait for others.
        """
        return self._engine.batcher.arriving() if self._engine else nullcontext()

    @property
    def loaded_settings(self) -> ServeSettings | None:
        """The settings that the serving model was compiled with; None if none serves."""
        return None if self._engine is None else self._engine.settings

    def change_settings(self, settings: ServeSettings) -> bool:
        """Take over new settings, limits at once; True if the model has to be loaded again for the others."""
        before, self._settings = self._settings, settings
        engine = self._engine
        if engine is not None:
            before = engine.settings
            shadow = engine.shadow
            if settings.shadow != shadow.share:
                shadow.stop()
                shadow = Shadow(self.name, engine.loaded.session, settings.shadow, self._own_metrics)
            engine.loaded.set_batching(settings.batching)
            engine.batcher.change_limits(self._limits_of(engine.loaded))
            checker = Checker(engine.loaded.described, settings.max_tensor_elements)
            self._engine = replace(engine, checker=checker, shadow=shadow)
        changed = any(getattr(settings, name) != getattr(before, name) for name in BY_COMPILING)
        return changed and self.state not in ("unloading", "unloaded")

    @property
    def path(self) -> Path:
        """The file that is loaded."""
        return self.pinned.file

    @property
    def digest(self) -> str:
        """The digest of the content; "" if it is not known."""
        return self.pinned.digest

    async def load(self) -> str | None:
        """Load the content, or load it again; return why that failed.

        During a reload the old engine serves, and stays if the new one does not load.
        """
        async with self._changing:
            made = await self._try_load(self.pinned)
            if isinstance(made, str):
                return made
            old = self._install(made.engine)
        if old is not None:
            await old.close()
        return None

    async def prepare(self, pinned: Pinned) -> str | None:
        """Load another content, or the same again, but let it not serve before ``commit``; return why that failed."""
        async with self._changing:
            was_unloaded, reason = self.state == "unloaded", self.reason
            made = await self._try_load(pinned)
            if isinstance(made, str):
                if was_unloaded:  # it stays so: the server must not become unready
                    self._stop_recovering()
                    self._become("unloaded", reason)
                return made
            self._prepared = made
        return None

    async def commit(self) -> Callable[[], Awaitable[None]]:
        """Let what was prepared serve; the result releases what served before."""
        async with self._changing:
            prepared, self._prepared = self._prepared, None
            if prepared is None:  # it was unloaded meanwhile
                return _nothing
            self.pinned = prepared.pinned
            old = self._install(prepared.engine)
        return _nothing if old is None else old.close

    async def abort(self) -> None:
        """Drop what was prepared, if anything was."""
        async with self._changing:
            prepared, self._prepared = self._prepared, None
            if prepared is None:
                return
            if self._recovering is None:
                if prepared.recovering:
                    self._recover(prepared.reason or "")
                elif self._engine is None:
                    self._become(prepared.state, prepared.reason)
        await prepared.engine.close()

    async def unload(self, *, patient: bool = False) -> None:
        """Finish the queue, and release the model. ``patient``: wait first for requests that are arriving for it."""
        end = time.monotonic() + ARRIVAL_S
        while patient and self._engine is not None and self._engine.batcher.is_arriving and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
        async with self._changing:
            self._stop_recovering()
            engine, self._engine = self._engine, None
            prepared, self._prepared = self._prepared, None
            self._become("unloading")
            for one in (engine, prepared.engine if prepared else None):
                if one is not None:
                    await one.close()
            self.described = NOTHING_KNOWN
            self._become("unloaded", "it was unloaded")
            log("info", "model_unloaded", model=self.name, version=self.version)

    async def wait_idle(self) -> None:
        """Wait until every request has its answer."""
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
        self._own_metrics.set_buckets(described.buckets)
        self._own_metrics.set_predictions(described.named_predictions)
        told = {"version": self.version, "digest": self.digest}
        log("info", "model_ready", model=self.name, **told, buckets=described.buckets, alone=described.mixing)
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

    def _lose_instance(self, loaded: LoadedModel, error: DeviceError) -> None:
        """The device failed in a run of an instance. The others go on; after the last one, all waiting requests have
        the error."""
        self._own_metrics.device_error()
        log("error", "device_error", model=self.name, usable=error.usable, error=error_text(error))
        engine = self._engine
        if engine is not None and engine.loaded is loaded:  # otherwise its successor serves already
            if not engine.batcher.lanes:
                self._drop_engine(engine)
            if not error.usable:
                if self._engine is None:
                    self._become("failed", error_text(error))
            elif self._recovering is not None:
                self._show_recovering(error_text(error))
            else:
                if BACKOFF.now() - self._ready_since >= BACKOFF.longest_s:
                    self._attempts = 0
                self._recover(error_text(error))
        self._see_core(failure_of(error))

    def _drop_engine(self, engine: _Engine) -> None:
        self._engine = None
        closing = asyncio.create_task(engine.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _see_core(self, failure: Failure) -> None:
        if failure.core:
            self._core_lost.set()

    def _recover(self, reason: str) -> None:
        """Become not ready, unless other instances go on, and load again after a pause."""
        self._attempts += 1
        pause = BACKOFF.pause_s(self._attempts)
        self._again = BACKOFF.now() + pause
        self._show_recovering(f"{reason}; it is loaded again after {pause:g} s, attempt {self._attempts}")
        log("error", "model_recovering", model=self.name, attempt=self._attempts, pause_s=pause, reason=reason)
        self._recovering = asyncio.create_task(self._load_again(pause))

    def _show_recovering(self, reason: str) -> None:
        if self._engine is None:
            self._become("recovering", reason)
            return
        lanes = self._engine.batcher.lanes
        self._become("ready", f"{len(lanes)} of {len(lanes.every)} instances: {reason}")

    async def _load_again(self, pause_s: float) -> None:
        await BACKOFF.wait(pause_s)
        async with self._changing:
            made = await self._make_engine(self.pinned)
            if isinstance(made, Failure):
                self._recovering = None
                self._not_loaded(made, again=True)
                return
            old = self._install(made)
        if old is not None:
            await old.close()

    def _stop_recovering(self) -> None:
        """End the attempts: the model is ready, loaded or unloaded otherwise. The lock is held: none is under way."""
        task, self._recovering = self._recovering, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _try_load(self, pinned: Pinned) -> _Prepared | str:
        """An engine for a content, or why there is none. The lock is held."""
        state, reason, recovering = self.state, self.reason, self._recovering is not None
        self._stop_recovering()
        if self._engine is None:
            self._become("loading")
        made = await self._make_engine(pinned)
        if isinstance(made, Failure):
            # A request for it must not end the attempts that were under way.
            self._not_loaded(made, again=recovering and self._recovering is None)
            return made.reason
        return _Prepared(made, pinned, state, reason, recovering)

    async def _make_engine(self, pinned: Pinned) -> _Engine | Failure:
        thread, settings = ComputeThread(f"compute {self.name}"), self._settings
        try:
            loaded: LoadedModel | Failure = await thread.call(lambda: _load(pinned, settings))
            if isinstance(loaded, LoadedModel):
                batch_s = None if loaded.twins else await thread.call(partial(measure_batch, loaded))
                place = LoopOrThread(self.name, thread, loaded.most_rows, batch_s)
                return self._assemble(loaded, settings, thread, place)
            thread.stop()
            return loaded
        except Exception as error:
            thread.stop()
            if isinstance(error, DeviceError):
                self._own_metrics.device_error()
            failure = failure_of(error)
            return replace(failure, reason=pinned.name_source(failure.reason))
        except asyncio.CancelledError:
            thread.stop()
            raise

    def _limits_of(self, loaded: LoadedModel) -> Limits:
        settings = self._settings
        waits = settings.max_delay_ms / 1e3, settings.max_wait_ms / 1e3
        return Limits(loaded.most_rows, waits[0], settings.max_queue, loaded.slice_rows, waits[1])

    def _assemble(
        self, loaded: LoadedModel, compiled: ServeSettings, thread: ComputeThread, place: LoopOrThread
    ) -> _Engine:
        settings, limits = self._settings, self._limits_of(loaded)  # they may have changed since ``compiled``
        loaded.set_batching(settings.batching)
        shadow = Shadow(self.name, loaded.session, settings.shadow, self._own_metrics)
        instances = start_instances(self.name, loaded, thread)
        batcher = Batcher(
            self.name,
            loaded,
            place,
            limits,
            self._metrics,
            on_lost=lambda error: self._lose_instance(loaded, error),
            version=self.version,
            others=[(instance.loaded, instance.thread) for instance in instances[1:]],
        )
        checker = Checker(loaded.described, settings.max_tensor_elements)
        return _Engine(loaded, compiled, instances, place, batcher, checker, shadow)

    def _ready_engine(self) -> _Engine:
        if self._engine is not None:
            return self._engine
        self._metrics.count_rejection("not_ready")
        why = f": {self.reason}" if self.reason else ""
        raise Problem(503, f"the model {self.name!r} is {self.state}{why}", retry_after=self.retry_after)

    def _become(self, state: State, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self._own_metrics.state(state)
        self._own_metrics.note_instances()


def _load(pinned: Pinned, settings: ServeSettings) -> LoadedModel | Failure:
    """Load a content, if it is still what was pinned."""
    changed = why_changed(pinned)
    if changed is not None:
        return Failure(changed)
    loaded = LoadedModel(pinned.file, settings, pinned.source)
    loaded.described = replace(loaded.described, digest=pinned.digest)
    return loaded


async def _nothing() -> None:
    """Release nothing."""
