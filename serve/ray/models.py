"""A model whose batches Ray's replicas compute: a front of a Ray Serve application uses it in place of a session.

Ray sends a request to one replica. If that dies before it answers, Ray only reports it. A prediction has no side
effects, so the front asks another replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ray.exceptions import ObjectLostError, RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.catalog import ONLY_VERSION
from trnrt.serve.hosting.description import NOTHING_KNOWN, Description
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.checking import Checker, check_outputs
from trnrt.serve.http.problems import INTERNAL, Problem
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.processes.traces import current_trace
from trnrt.serve.ray.messages import Ask
from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]
ATTEMPTS = 4
"""Replicas that one request may try: it may be the request that kills them."""
PAUSE_S = 0.1
"""The wait grows by this with each attempt: an unreachable node fails at once, every time."""
RETRY_AFTER = {"Retry-After": "1"}
_GONE = (RayActorError, ObjectLostError, ReplicaUnavailableError)
"""The replica died, can't be reached, or took its answer with it."""


class RayModel:
    """A model behind a handle of Ray Serve."""

    reason: str | None = None
    """Ray keeps the reasons: ``serve status`` shows them."""

    def __init__(self, name: str, settings: ServeSettings, metrics: Metrics, source: tuple[Any, str]) -> None:
        self.name, self.version = name, ONLY_VERSION
        self._settings, self._metrics, self._own_metrics = settings, metrics, metrics.model(name)
        self._handle, self._version = source
        self._waiting: set[asyncio.Future[None]] = set()
        self.described = NOTHING_KNOWN
        self._checker: Checker | None = None
        self._own_metrics.state(self.state)

    @property
    def digest(self) -> str:
        """The digest of the content that was deployed."""
        return str(self._version)

    @property
    def state(self) -> str:
        """Ready as soon as a replica has described it: from then on Ray keeps replicas running."""
        return "ready" if self._checker else "loading"

    @property
    def retry_after(self) -> int | None:
        """Seconds after which a client should retry."""
        return None if self._checker else 1

    @property
    def busy(self) -> str | None:
        """Ray checks its replicas, and replaces those that don't answer."""
        return None

    def admit(self) -> None:
        """Ray refuses a request when it is sent."""

    def arriving(self) -> AbstractContextManager[None]:
        """Ray's batcher waits for other requests in any case."""
        return nullcontext()

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs (None: all) for these inputs; it raises as ``ServedModel.infer`` does."""
        self._ready_checker().check(feeds)
        described = self.described
        check_outputs(described, outputs)
        most = self._settings.request_timeout
        limit = most if timeout_s is None else min(timeout_s, most)
        began = time.perf_counter()
        ask = Ask(feeds, described.digest, request_id.get(), current_trace.get().fields)
        with self._count_waiting(), self._count_failures(began):
            try:
                async with asyncio.timeout(limit):
                    answer = await self._answer(ask)
            except TimeoutError:
                self._metrics.count_rejection("timeout")
                raise Problem(504, f"no answer within {limit:g} s, the limit for this request") from None
        if answer.described != NOTHING_KNOWN:
            described = answer.described
            check_outputs(described, outputs)
        total = time.perf_counter() - began
        within = (answer.batch_ms + answer.compute_ms) / 1e3
        self._own_metrics.count_answer(max(0.0, total - answer.compute_ms / 1e3), total)
        wanted = {name: answer.outputs[name] for name in outputs} if outputs else answer.outputs
        return replace(answer, outputs=wanted, queue_ms=max(0.0, total - within) * 1e3, described=described)

    async def load(self) -> str | None:
        """Wait for a replica of this front's version: one of the old version may answer first."""
        while self.described.digest != self._version:
            with suppress(*_GONE):  # an old replica ended while it was asked
                described: Description = await self._handle.describe.remote()
                if described.digest == self._version:
                    self.described = described
                    break
            await asyncio.sleep(PAUSE_S)
        self._checker = Checker(self.described, self._settings.max_tensor_elements)
        self._own_metrics.state(self.state)
        log("info", "model_ready", model=self.name, version=self._version)
        return None

    async def unload(self, *, patient: bool = False) -> None:
        """Ray's replicas stay until their application ends."""

    async def wait_idle(self) -> None:
        """Wait until every request of this front has its answer."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def _answer(self, ask: Ask) -> Inference:
        for attempt in range(1, ATTEMPTS + 1):
            found = await self._ask_replica(ask, attempt)
            if isinstance(found, Problem):
                raise found
            if found is not None:
                return found
            await asyncio.sleep(PAUSE_S * (attempt - 1))
        text = f"{ATTEMPTS} replicas of the model {self.name!r} ended before they answered this request"
        raise Problem(503, text, RETRY_AFTER)

    async def _ask_replica(self, ask: Ask, attempt: int) -> Inference | Problem | None:
        """One replica's answer; None if it ended before."""
        response = self._handle.infer.remote(ask)
        try:
            found: Inference | Problem = await response
        except asyncio.CancelledError:
            response.cancel()  # free its place in the queue
            raise
        except _GONE as error:
            log("warning", "replica_gone", model=self.name, attempt=attempt, error=type(error).__name__)
            return None
        except BackPressureError:
            self._metrics.count_rejection("queue")
            text = f"{self._settings.max_queue} requests wait for the model {self.name!r}, which is the limit"
            raise Problem(429, text, RETRY_AFTER) from None
        except DeploymentUnavailableError:
            self._metrics.count_rejection("not_ready")
            raise Problem(503, f"Ray has no replica of the model {self.name!r}, and none could be started") from None
        except RayError as error:
            log("error", "inference_failed", model=self.name, error=" ".join(str(error).split())[-2000:])
            raise Problem(500, INTERNAL) from None
        return found

    @contextmanager
    def _count_failures(self, began: float) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._own_metrics.count_failure(time.perf_counter() - began)
            raise

    @contextmanager
    def _count_waiting(self) -> Iterator[None]:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self._own_metrics.pending(1)
        try:
            yield
        finally:
            self._own_metrics.pending(-1)
            self._waiting.discard(waiting)
            waiting.set_result(None)

    def _ready_checker(self) -> Checker:
        if self._checker is None:
            self._metrics.count_rejection("not_ready")
            raise Problem(503, f"the model {self.name!r} is {self.state}", RETRY_AFTER)
        return self._checker
