"""A replica of one model in Ray Serve: Ray's batcher gathers requests, and a session computes them.

Batches follow the rules of ``batching``: only requests of one kind are merged, up to the most rows, and if a batch
fails, its requests run again alone. If the device fails, or the golden input is answered wrongly, the replica ends its
process. Ray starts another one, and the fronts send the unanswered requests to others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ray import serve
from trnrt.errors import BackendError, CoresTakenError, DeviceError, ModelFileError, TrnrtError
from trnrt.neuron.cores import VISIBLE, Lease
from trnrt.serve.hosting.batching import Inference, Member, compute_batch, logged_problem
from trnrt.serve.hosting.contents import digest_of
from trnrt.serve.hosting.description import Description
from trnrt.serve.hosting.devices import lease_for
from trnrt.serve.hosting.loading import LoadedModel, with_length
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.shadow import Shadow
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.http.checking import Checker
from trnrt.serve.http.problems import Problem, error_text
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.ray.messages import Ask, Share, Whereabouts

Outcome = Inference | Problem
LEASE_POLL_S, LEASE_TOLD_S = 0.2, 30.0


class ModelReplica:
    """One model with the session that computes it; Ray calls the methods, all on one event loop."""

    async def __init__(self, share: Share) -> None:  # type: ignore[misc]  # Ray awaits it
        settings = share.settings
        self._logs = start_logging(settings.log_level, None, model=share.name, replica=own_replica())
        log("info", "replica_started", process=os.getpid(), core=os.environ.get(VISIBLE))
        self._metrics = Metrics()
        self._own_metrics = self._metrics.model(share.name)
        self._thread = ComputeThread(f"compute {share.name}")
        try:
            self._loaded: LoadedModel = await self._thread.call(lambda: _load(share))
        except TrnrtError as error:  # as text: Ray shows it to the operator, and some errors don't survive a pickle
            log("error", "model_failed", reason=error_text(error))
            raise RuntimeError(f"the model {share.name!r} can't be loaded: {error_text(error)}") from None
        self._described: Description = replace(self._loaded.described, digest=share.version)
        self._checker = Checker(self._described, settings.max_tensor_elements)
        self._shadow = Shadow(share.name, self._loaded.session, settings.shadow, self._own_metrics)
        self._batched = self._batcher(settings.max_delay_ms / 1e3)
        self._free = asyncio.Event()
        self._free.set()
        self._own_metrics.set_buckets(self._described.buckets)
        self._own_metrics.set_predictions(self._described.named_predictions)
        log("info", "model_ready", buckets=self._described.buckets, alone=self._described.mixing)

    async def infer(self, ask: Ask) -> Outcome:
        """Answer a request. Check it again: the front may have checked it for another version of the model."""
        came = time.perf_counter()
        try:
            self._checker.check(ask.feeds)
            fitted = self._loaded.fit(ask.feeds)
        except Problem as problem:
            return problem
        rows = self._loaded.rows(ask.feeds)
        member = Member(fitted.arrays, rows, self._loaded.kind(fitted.arrays), ask.request, came, ask.trace)
        if not self._loaded.mergeable or rows >= self._loaded.most_rows:
            outcome = (await self._compute_batches([member]))[0]
        else:
            await self._free.wait()
            outcome = await self._batched(member)
        if isinstance(outcome, Problem):
            return outcome
        outcome = with_length(outcome, fitted, self._own_metrics)
        self._shadow.offer(ask.feeds, outcome.outputs)
        return outcome if ask.version == self._described.digest else replace(outcome, described=self._described)

    async def describe(self) -> Description:
        """The model's description."""
        return self._described

    async def page(self) -> tuple[str, bytes]:
        """Return this replica's id and metrics."""
        return own_replica(), self._metrics.render()[0]

    async def where(self) -> Whereabouts:
        """Return this replica's place."""
        return whereabouts()

    async def check_health(self) -> None:
        """Ray calls it regularly, and ends the replica when it raises three times in a row."""
        golden = self._loaded.golden
        try:
            outputs = await self._thread.call(lambda: self._loaded.run(golden.feeds))
            golden.check(outputs)
        except BackendError as error:
            self._end("unhealthy", error_text(error))

    def _batcher(self, delay_s: float) -> Callable[[Member], Coroutine[Any, Any, Outcome]]:
        """Ray's batcher in front of this replica's thread."""

        async def compute(members: list[Member]) -> list[Outcome]:
            return await self._compute_batches(members)

        made: Callable[[Member], Coroutine[Any, Any, Outcome]] = serve.batch(
            max_batch_size=self._loaded.most_rows,
            batch_wait_timeout_s=delay_s,
            batch_size_fn=lambda members: sum(member.rows for member in members),
        )(compute)
        return made

    async def _compute_batches(self, members: Sequence[Member]) -> list[Outcome]:
        """The outcomes in the order of the members; each kind is a batch of its own."""
        kinds: dict[object, list[Member]] = {}
        for member in members:
            kinds.setdefault(member.kind, []).append(member)
        found: dict[Member, Outcome] = {}
        # Requests that come from now on wait in front of the batcher. It would make many small batches of them.
        self._free.clear()
        try:
            for batch in kinds.values():
                outcomes: list[Outcome] = await self._thread.call(partial(self._answers, batch))
                found.update(zip(batch, outcomes, strict=True))
        finally:
            self._free.set()
        return [found[member] for member in members]

    def _answers(self, batch: list[Member]) -> list[Outcome]:
        """On the model's thread: the outcomes of a batch; if it fails, of its requests one by one."""
        try:
            return [*compute_batch(batch, self._loaded, self._own_metrics)]
        except DeviceError as error:
            self._end("device_error", error_text(error))
        except Exception as error:
            if len(batch) == 1:
                return [logged_problem(error, batch[0])]
            log("warning", "batch_failed", requests=len(batch), error=f"{type(error).__name__}: {error}")
        return [self._answers([member])[0] for member in batch]

    def _end(self, event: str, reason: str) -> NoReturn:
        """End the process at once; the fronts send its requests to other replicas."""
        log("error", event, reason=reason, process=os.getpid())
        self._logs.flush()
        os._exit(1)


def own_replica() -> str:
    """Ray's id for the replica of this process."""
    return str(serve.get_replica_context().replica_id.to_full_id_str())


def whereabouts() -> Whereabouts:
    """Return this process's place."""
    return Whereabouts(own_replica(), os.getpid(), socket.gethostname(), os.environ.get(VISIBLE) or None)


def _load(share: Share) -> LoadedModel:
    """The model, from the first of its paths with the deployed version; TrnrtError if there is none."""
    lease_when_free(lambda: lease_for(share.settings))
    path = next((path for path in share.paths if path.is_file() and digest_of(path) == share.version), None)
    if path is None:
        raise ModelFileError(_missing(share.paths), hint="every node that may run a replica needs the very same file")
    return LoadedModel(path, share.settings)


def lease_when_free(lease: Callable[[], Lease | None]) -> Lease | None:
    """Lease the cores that Ray assigns to this process, for its life; wait until no other process holds them.

    Ray reassigns a core before its last process has ended, and does not know of servers outside of Ray. Failing here
    would be final: Ray gives a deployment up after a few starts. BackendError if waiting does not help.
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
