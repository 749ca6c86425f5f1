"""A worker: serves its models on a socket, and answers all accepted requests before it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import uvicorn
import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnrt.nki.blas import keep_one_blas_thread
from trnrt.serve.hosting.devices import lease_for
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.processes.links import Link, Share
from trnrt.serve.processes.listening import BACKLOG
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.processes.summary import SummaryRow, summary_rows

OnLoaded = Callable[[list[SummaryRow]], None]
LINGER_S = 0.3
"""How long new requests still get an answer, 503, after a shutdown began, so that no client finds the port closed."""
SAMPLE_S = 5.0
SWITCH_S = 0.0005
"""The longest time that a thread keeps the interpreter while another waits for it. With Python's own 5 ms, an event
loop that is busy refusing requests delays a model's thread at each step of a batch."""
KEEP_ALIVE_S = 75
_CLOSE = (b"connection", b"close")


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield


class Doorkeeper:
    """Counts the requests that are being answered; closes connections when the server shuts down."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.pending_requests = 0
        """Requests that came before ``leave`` and are not answered yet."""
        self._leaving = False
        self._empty = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            if self._leaving and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            await send(message)

        if self._leaving:  # answered too, but ``leave`` does not wait for it
            await self._app(scope, receive, sender)
            return
        self.pending_requests += 1
        try:
            await self._app(scope, receive, sender)
        finally:
            self.pending_requests -= 1
            self._set_empty()

    async def leave(self) -> None:
        """Let every answer close its connection from now on; wait until all earlier requests are answered."""
        self._leaving = True
        self._set_empty()
        await self._empty.wait()

    def _set_empty(self) -> None:
        if self._leaving and not self.pending_requests:
            self._empty.set()


class Worker:
    """A repository and the server around it. ``stop`` may be called at any time; a second call does not wait."""

    def __init__(self, repository: Repository, on_loaded: OnLoaded) -> None:
        self.settings, self.repository, self.on_loaded = repository.settings, repository, on_loaded
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Begin the shutdown; the second time, end it."""
        (self._hurrying if self._stopping.is_set() else self._stopping).set()

    async def run(self, listener: socket.socket, *, load_first: bool = False) -> int:
        """Serve until ``stop``. Return 0 if every accepted request was answered within the drain timeout, else 1.

        ``load_first``: load the models before listening, as other workers serve meanwhile. If this process can't use
        its core any more, it ends by itself, with 1, so that another takes its place.
        """
        lost = self.repository.core_lost
        keeper = Doorkeeper(make_app(self.repository))
        config = uvicorn.Config(
            keeper,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            proxy_headers=False,
        )
        server = _Server(config)
        loading = asyncio.create_task(self._load())
        helpers = [loading, asyncio.create_task(self._sample())]
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, lost)]
        try:
            if load_first:
                await asyncio.wait([loading, *ends], return_when=asyncio.FIRST_COMPLETED)
                if lost.is_set():
                    return self._core_lost()
            serving = asyncio.create_task(server.serve([listener]))
            await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():  # it ends by itself only if it fails
                serving.result()
            if not lost.is_set():
                return await self._leave(keeper, server, serving)
            self._core_lost()
            if self.settings.workers > 1:  # the others take the connections that wait
                for door in getattr(server, "servers", ()):  # there are none before it has begun
                    door.close()
            await self._leave(keeper, server, serving)
            return 1
        finally:
            for task in [*ends, *helpers]:
                task.cancel()

    def _core_lost(self) -> int:
        log("error", "core_lost", told="this process can't use its NeuronCore again: it ends, and frees it")
        return 1

    async def _leave(self, keeper: Doorkeeper, server: _Server, serving: asyncio.Task[None]) -> int:
        """Become not ready, answer the accepted requests, close."""
        end = time.monotonic() + self.settings.drain_timeout
        self.repository.admission.draining = True
        log("info", "draining", accepted=keeper.pending_requests)
        leaving = asyncio.create_task(self._empty(keeper))
        drained = await self._wait_until(leaving, end)
        if not drained:
            log("error", "drain_timeout", unanswered=keeper.pending_requests, seconds=self.settings.drain_timeout)
            leaving.cancel()
            server.force_exit = True
        server.should_exit = True
        if not await self._wait_until(serving, max(end, time.monotonic() + 1.0)):
            server.force_exit = True
            with suppress(asyncio.CancelledError):
                await serving
        log("info", "stopped", clean=drained)
        return 0 if drained else 1

    async def _empty(self, keeper: Doorkeeper) -> None:
        await asyncio.gather(keeper.leave(), self.repository.drain(), asyncio.sleep(LINGER_S))

    async def _wait_until(self, task: asyncio.Task[None], end: float) -> bool:
        """True if the task is done by then; a second ``stop`` ends the wait, too."""
        hurrying = asyncio.create_task(self._hurrying.wait())
        waited = [task, hurrying]
        await asyncio.wait(waited, timeout=max(0.0, end - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        return task.done()

    async def _load(self) -> None:
        await self.repository.start()
        self.on_loaded(summary_rows(self.repository))

    async def _sample(self) -> None:
        while True:
            self.repository.metrics.sample()
            await asyncio.sleep(SAMPLE_S)


def run_worker(share: Share, listener: socket.socket, on_loaded: OnLoaded = lambda _rows: None) -> int:
    """Serve in this process until a signal or the supervisor stops it; the exit code.

    ``on_loaded``: for a single worker; others tell their supervisor.
    """
    named = {} if share.connection is None else {"worker": share.number}
    logs = start_logging(share.settings.log_level, None, **named)
    sys.setswitchinterval(SWITCH_S)
    keep_one_blas_thread()
    try:
        lease_for(share.settings)  # held until the process ends, as the runtime in it keeps the cores that long
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(share, listener, on_loaded))
    finally:
        logs.close()


def leave(code: int) -> NoReturn:
    """End the process at once: a model's thread may still compute, and would crash while the interpreter shuts down."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _serve(share: Share, listener: socket.socket, on_loaded: OnLoaded) -> int:
    repository = Repository(share.settings, Metrics(share.number), files=share.files, unloaded=share.unloaded)
    worker = Worker(repository, on_loaded)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    if share.connection is None:
        loop.add_signal_handler(signal.SIGINT, worker.stop)
    else:
        # Ctrl-C reaches every process of a terminal; the supervisor passes it on. A handler, as subprocesses would
        # inherit SIG_IGN.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        repository.others_loading = not share.succeeds

        def note_others_loaded() -> None:
            repository.others_loading = False

        link = Link(share.connection, repository.act, worker.stop, note_others_loaded)
        worker.on_loaded, repository.broadcast = link.send_loaded, link.broadcast
    return await worker.run(listener, load_first=share.succeeds)
