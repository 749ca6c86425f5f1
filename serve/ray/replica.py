"""A replica of one model in Ray Serve: Ray's batcher gathers requests, and a session computes them.

The rules of a batch are those of ``batching``: only requests of one kind are merged, up to the most rows, what is
padded is the session's business, and where a batch fails its requests are run again alone. A replica that can't be
trusted any more, because its device failed or its golden input is answered wrongly, ends its process: Ray starts
another one, and the fronts ask others what it has not answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ray import serve
from trnrt.errors import BackendError, CoresTakenError, DeviceError, ModelFileError, TrnrtError
from trnrt.neuron.cores import VISIBLE, Lease
from trnrt.report.top import labels_of, looked_up_labels
from trnrt.serve.hosting.batching import ComputeThread, Feeds, merge, split
from trnrt.serve.hosting.devices import lease_for
from trnrt.serve.hosting.loading import LoadedModel
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.shadow import Shadow
from trnrt.serve.hosting.versions import version_of
from trnrt.serve.http.checking import Checker
from trnrt.serve.http.problems import INTERNAL, Problem, error_text, problem_of
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.ray.messages import Answer, Ask, Description, Refusal, Share, Whereabouts

Outcome = Answer | Refusal
LEASE_POLL_S, LEASE_TOLD_S = 0.2, 30.0


@dataclass(frozen=True, eq=False)
class _Member:
    """A request on its way through the batcher."""

    feeds: Feeds
    rows: int
    kind: object
    request: str
    came: float


class ModelReplica:
    """One model with the session that computes it; Ray calls the methods, all on one event loop."""

    async def __init__(self, share: Share) -> None:  # type: ignore[misc]  # Ray awaits it
        settings = share.settings
        self._name, self._version = share.name, share.version
        self._logs = start_logging(settings.log_level, None, model=share.name, replica=own_replica())
        log("info", "replica_started", process=os.getpid(), core=os.environ.get(VISIBLE))
        self._metrics = Metrics()
        self._thread = ComputeThread(f"compute {share.name}")
        try:
            self._loaded: LoadedModel = await self._thread.call(lambda: _load(share))
        except TrnrtError as error:  # as text: Ray shows it to the operator, and some errors don't survive a pickle
            log("error", "model_failed", reason=error_text(error))
            raise RuntimeError(f"the model {share.name!r} can't be loaded: {error_text(error)}") from None
        self._checker = Checker(self._loaded, settings.max_tensor_elements)
        self._description = _describe_model(self._loaded, share.version)
        self._shadow = None
        if settings.shadow > 0:
            shadowed = self._metrics.model(share.name)
            self._shadow = Shadow(share.name, self._loaded.session, settings.shadow, shadowed)
        self._batched = self._batcher(settings.max_delay_ms / 1e3)
        self._free = asyncio.Event()
        self._free.set()
        for bucket, found in self._loaded.predictions.items():
            self._metrics.model(share.name).set_prediction(bucket, found.us)
        log("info", "model_ready", buckets=self._loaded.buckets, alone=self._loaded.mixing)

    async def infer(self, ask: Ask) -> Outcome:
        """The answer to a request. It is checked again: it may have been checked for another version of the model."""
        came = time.perf_counter()
        try:
            self._checker.check(ask.feeds)
        except Problem as problem:
            return Refusal(problem.status, problem.text)
        rows = self._loaded.rows(ask.feeds)
        member = _Member(ask.feeds, rows, self._loaded.kind(ask.feeds), ask.request, came)
        if not self._loaded.mergeable or rows >= self._loaded.most_rows:
            outcome = (await self._compute_batches([member]))[0]
        else:
            await self._free.wait()
            outcome = await self._batched(member)
        if isinstance(outcome, Refusal):
            return outcome
        if self._shadow is not None:
            self._shadow.offer(ask.feeds, outcome.outputs)
        return outcome if ask.version == self._version else replace(outcome, described=self._description)

    async def describe(self) -> Description:
        """What the model takes and gives."""
        return self._description

    async def page(self) -> tuple[str, bytes]:
        """The metrics of this replica alone, and whose they are."""
        return own_replica(), self._metrics.render()[0]

    async def where(self) -> Whereabouts:
        """Where it runs."""
        return whereabouts()

    async def check_health(self) -> None:
        """Ray calls it again and again; what it raises three times in a row ends the replica."""
        golden = self._loaded.golden
        try:
            outputs = await self._thread.call(lambda: self._loaded.run(golden.feeds))
            golden.check(outputs)
        except BackendError as error:
            self._end("unhealthy", error_text(error))

    def _batcher(self, delay_s: float) -> Callable[[_Member], Coroutine[Any, Any, Outcome]]:
        """Ray's batcher in front of this replica's thread: the most rows at once, the longest wait for them."""

        async def compute(members: list[_Member]) -> list[Outcome]:
            return await self._compute_batches(members)

        made: Callable[[_Member], Coroutine[Any, Any, Outcome]] = serve.batch(
            max_batch_size=self._loaded.most_rows,
            batch_wait_timeout_s=delay_s,
            batch_size_fn=lambda members: sum(member.rows for member in members),
        )(compute)
        return made

    async def _compute_batches(self, members: Sequence[_Member]) -> list[Outcome]:
        """The outcomes in the order of the members, of which each kind is a batch of its own."""
        kinds: dict[object, list[_Member]] = {}
        for member in members:
            kinds.setdefault(member.kind, []).append(member)
        found: dict[_Member, Outcome] = {}
        # Who comes from here on waits in front of the batcher, which would else cut the time of this batch into many
        # small ones.
        self._free.clear()
        try:
            for batch in kinds.values():
                outcomes: list[Outcome] = await self._thread.call(partial(self._answers, batch))
                found.update(zip(batch, outcomes, strict=True))
        finally:
            self._free.set()
        return [found[member] for member in members]

    def _answers(self, batch: list[_Member]) -> list[Outcome]:
        """On the model's thread: the outcomes of a batch; where it fails, of its requests one by one."""
        try:
            return self._run(batch)
        except DeviceError as error:
            self._end("device_error", error_text(error))
        except Exception as error:
            if len(batch) == 1:
                return [_logged_refusal(error, batch[0].request)]
            log("warning", "batch_failed", requests=len(batch), error=f"{type(error).__name__}: {error}")
        return [self._answers([member])[0] for member in batch]

    def _run(self, batch: list[_Member]) -> list[Outcome]:
        loaded = self._loaded
        merged = merge([member.feeds for member in batch], loaded.parameters)
        start = time.perf_counter()
        outputs = loaded.run(merged)
        took = time.perf_counter() - start
        rows = sum(member.rows for member in batch)
        self._metrics.model(self._name).batch(rows, took, loaded.predicted_us(rows))
        bucket, compute_ms = loaded.bucket(rows), took * 1e3
        parts = split(outputs, [member.rows for member in batch])
        return [
            Answer(part, (start - member.came) * 1e3, compute_ms, member.rows, rows, bucket)
            for member, part in zip(batch, parts, strict=True)
        ]

    def _end(self, event: str, reason: str) -> NoReturn:
        """End the process at once; what is under way here is asked for elsewhere."""
        log("error", event, reason=reason, process=os.getpid())
        self._logs.flush()
        os._exit(1)


def own_replica() -> str:
    """Ray's id for the replica of this process."""
    return str(serve.get_replica_context().replica_id.to_full_id_str())


def whereabouts() -> Whereabouts:
    """Where this replica runs."""
    return Whereabouts(own_replica(), os.getpid(), socket.gethostname(), os.environ.get(VISIBLE) or None)


def _load(share: Share) -> LoadedModel:
    """The model, from the first of its paths where it is what was deployed; TrnrtError where there is none."""
    lease_when_free(lambda: lease_for(share.settings))
    path = next((path for path in share.paths if path.is_file() and version_of(path) == share.version), None)
    if path is None:
        raise ModelFileError(_missing(share.paths), hint="every node that may run a replica needs the very same file")
    return LoadedModel(path, share.settings)


def lease_when_free(lease: Callable[[], Lease | None]) -> Lease | None:
    """The cores that Ray shows to this process, held as long as it lives, as soon as nobody else holds them.

    Ray gives a core to the next one before the process that had it has ended, and does not know of servers outside. To
    fail would be final: Ray gives a deployment up after a few starts, and does not come back to it. BackendError where
    waiting does not help.
    """
    told_at = time.monotonic() + LEASE_TOLD_S
    while True:
        try:
            return lease()
        except CoresTakenError as error:
            if time.monotonic() >= told_at:
                log("warning", "waiting_for_cores", reason=str(error), process=os.getpid())
                told_at += LEASE_TOLD_S
            time.sleep(LEASE_POLL_S)


def _missing(paths: Sequence[Path]) -> str:
    there = [path for path in paths if path.is_file()]
    host = socket.gethostname()
    if there:
        return f"{str(there[0])!r} on {host} is not the file that was deployed: it has another content"
    return f"no such file on {host}: {' or '.join(repr(str(path)) for path in paths)}"


def _describe_model(loaded: LoadedModel, version: str) -> Description:
    labels = labels_of(loaded.metadata) or looked_up_labels(loaded.session.model)
    return Description(
        version=version,
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        metadata=loaded.metadata,
        labels=labels or None,
        predictions=loaded.predictions,
        buckets=loaded.buckets,
        batch=loaded.batch,
        mixing=loaded.mixing,
        parameters=loaded.parameters,
    )


def _logged_refusal(error: Exception, request: str) -> Refusal:
    """What the client is told; the log has the rest, under the request's id."""
    problem = problem_of(error) if isinstance(error, TrnrtError) else Problem(500, INTERNAL)
    if problem.status >= 500:
        log("error", "inference_failed", request_id=request, error=f"{type(error).__name__}: {error}")
    return Refusal(problem.status, problem.text)
