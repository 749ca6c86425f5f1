"""A model whose batches Ray's replicas compute: what the front of a Ray Serve application asks in place of a session.

Ray sends a request to one replica. Where that one dies before it has answered, Ray says so and leaves it at that; a
prediction has no side effects, so it is asked for again, of another replica.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ray.exceptions import ObjectLostError, RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.loading import TensorMeta
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.checking import Checker
from trnrt.serve.http.problems import INTERNAL, Problem
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.ray.messages import Answer, Ask, Description, Refusal
from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]
ATTEMPTS = 4
"""Replicas that one request may be the end of: it may be the request that kills them."""
PAUSE_S = 0.1
"""How much longer each further attempt waits: a node that can't be reached fails at once, again and again."""
RETRY_AFTER = {"Retry-After": "1"}
_GONE = (RayActorError, ObjectLostError, ReplicaUnavailableError)
"""The replica died, can't be reached, or took its answer with it."""


class RayModel:
    """A model behind a handle of Ray Serve. What a request sees is a ``view`` of it, which is that request's alone."""

    def __init__(
        self, name: str, path: Path, settings: ServeSettings, metrics: Metrics, source: tuple[Any, str]
    ) -> None:
        self.name, self.path = name, path
        self._settings, self._metrics, self._own_metrics = settings, metrics, metrics.model(name)
        self._handle, self._version = source
        self._waiting: set[asyncio.Future[None]] = set()
        self._described: Description | None = None
        self._checker: Checker | None = None
        self._own_metrics.state(self.state)

    def view(self) -> RayModel:
        """The model for one request: after ``infer`` it is described as the replica describes it that answered."""
        return copy.copy(self)

    @property
    def state(self) -> str:
        """Ready as soon as a replica has described it: from then on Ray sees to it that there are replicas."""
        return "ready" if self._described else "loading"

    @property
    def reason(self) -> str | None:
        """Ray keeps the reasons: ``serve status`` tells them."""
        return None

    @property
    def retry_after(self) -> int | None:
        """Seconds until it is worth asking again."""
        return None if self._described else 1

    @property
    def inputs(self) -> tuple[TensorMeta, ...]:
        """As of ``ServedModel``."""
        return self._described.inputs if self._described else ()

    @property
    def outputs(self) -> tuple[TensorMeta, ...]:
        """As of ``ServedModel``."""
        return self._described.outputs if self._described else ()

    @property
    def metadata(self) -> dict[str, str]:
        """As of ``ServedModel``."""
        return self._described.metadata if self._described else {}

    @property
    def labels(self) -> list[str] | None:
        """As of ``ServedModel``."""
        return self._described.labels if self._described else None

    @property
    def predictions(self) -> dict[int, Range]:
        """As of ``ServedModel``."""
        return self._described.predictions if self._described else {}

    @property
    def buckets(self) -> tuple[int, ...]:
        """As of ``ServedModel``."""
        return self._described.buckets if self._described else ()

    @property
    def has_batch(self) -> bool:
        """As of ``ServedModel``."""
        return self._described is not None and self._described.batch is not None

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Problem(400) unless these inputs fit the model."""
        self._ready()[1].check(feeds)

    def admit(self) -> None:
        """Ray refuses what is too much when it is sent."""

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Ray's batcher waits for others whether they are on their way or not."""
        yield

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs (all where None) for these inputs; see ``ServedModel.infer`` for what is raised."""
        described, checker = self._ready()
        checker.check(feeds)
        self._check_outputs(outputs)
        limit = self._settings.request_timeout if timeout_s is None else timeout_s
        began = time.perf_counter()
        with self._count_waiting():
            try:
                async with asyncio.timeout(limit):
                    answer = await self._answer(Ask(feeds, described.version, request_id.get()))
            except TimeoutError:
                self._metrics.count_rejection("timeout")
                raise Problem(504, f"no answer within {limit:g} s, the server's limit for a request") from None
        if answer.described is not None:
            self._described = answer.described
            self._check_outputs(outputs)
        total = time.perf_counter() - began
        within = (answer.batch_ms + answer.compute_ms) / 1e3
        self._own_metrics.count_answer(max(0.0, total - answer.compute_ms / 1e3), total)
        return Inference(
            outputs={name: answer.outputs[name] for name in outputs} if outputs else answer.outputs,
            queue_ms=max(0.0, total - within) * 1e3,
            batch_ms=answer.batch_ms,
            compute_ms=answer.compute_ms,
            rows=answer.rows,
            batch_rows=answer.batch_rows,
            bucket=answer.bucket,
        )

    async def load(self) -> str | None:
        """Wait for a replica of the version that was deployed with this front: one of the old may answer before."""
        while True:
            try:
                described: Description = await self._handle.describe.remote()
            except _GONE:
                described = None  # type: ignore[assignment] # an old replica that goes while it is asked
            if described is not None and described.version == self._version:
                break
            await asyncio.sleep(PAUSE_S)
        self._described, self._checker = described, Checker(described, self._settings.max_tensor_elements)
        self._own_metrics.state(self.state)
        log("info", "model_ready", model=self.name, version=self._version)
        return None

    async def unload(self) -> None:
        """Ray's replicas stay until their application goes."""

    async def wait_idle(self) -> None:
        """Wait until every request of this front has its answer."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def _answer(self, ask: Ask) -> Answer:
        for attempt in range(1, ATTEMPTS + 1):
            found = await self._ask_replica(ask, attempt)
            if isinstance(found, Refusal):
                raise found.problem
            if found is not None:
                return found
            await asyncio.sleep(PAUSE_S * (attempt - 1))
        told = f"{ATTEMPTS} replicas of the model {self.name!r} ended before they answered this request"
        raise Problem(503, told, RETRY_AFTER)

    async def _ask_replica(self, ask: Ask, attempt: int) -> Answer | Refusal | None:
        """What one replica says; None where it went before it said anything."""
        response = self._handle.infer.remote(ask)
        try:
            found: Answer | Refusal = await response
        except asyncio.CancelledError:
            response.cancel()  # it frees its place
            raise
        except _GONE as error:
            log("warning", "replica_gone", model=self.name, attempt=attempt, error=type(error).__name__)
            return None
        except BackPressureError:
            self._metrics.count_rejection("queue")
            told = f"{self._settings.max_queue} requests wait for the model {self.name!r}, which is the limit"
            raise Problem(429, told, RETRY_AFTER) from None
        except DeploymentUnavailableError:
            self._metrics.count_rejection("not_ready")
            raise Problem(503, f"Ray has no replica of the model {self.name!r}, and none could be started") from None
        except RayError as error:
            log("error", "inference_failed", model=self.name, error=" ".join(str(error).split())[-2000:])
            raise Problem(500, INTERNAL) from None
        return found

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

    def _check_outputs(self, outputs: Sequence[str] | None) -> None:
        known = [meta.name for meta in self.outputs]
        if unknown := [name for name in outputs or () if name not in known]:
            names = ", ".join(map(repr, known))
            raise Problem(400, f"the model has no output {unknown[0]!r}; its outputs are {names}")

    def _ready(self) -> tuple[Description, Checker]:
        if self._described is None or self._checker is None:
            self._metrics.count_rejection("not_ready")
            raise Problem(503, f"the model {self.name!r} is {self.state}", RETRY_AFTER)
        return self._described, self._checker
