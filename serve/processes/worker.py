"""A worker: it serves its models on a socket, and goes without leaving anybody waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import uvicorn
import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnrt.serve.hosting.devices import lease_for
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.processes.links import Link
from trnrt.serve.processes.listening import BACKLOG
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.processes.summary import SummaryRow, summary_rows
from trnrt.serve.settings import ServeSettings

OnLoaded = Callable[[list[SummaryRow]], None]
LINGER_S = 0.3
"""How long new requests are still answered, with 503, after a server began to go: nobody shall meet a closed door."""
SAMPLE_S = 5.0
SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while another waits for it. With Python's own 5 ms a loop that is busy with
refusing requests keeps a model's thread waiting at each of a batch's steps."""
KEEP_ALIVE_S = 75
_CLOSE = (b"connection", b"close")


class _Server(uvicorn.Server):
    """uvicorn's server, without its own idea of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the worker's."""
        yield


class Doorkeeper:
    """Knows the requests that are being answered; says goodbye to connections when the server goes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._inside = 0
        self._leaving = False
        self._empty = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._leaving:  # it is answered, too, but nobody waits for that
            await self._app(scope, receive, _closing(send))
            return
        self._inside += 1
        try:
            await self._app(scope, receive, self._sender(send))
        finally:
            self._inside -= 1
            self._see()

    @property
    def pending_requests(self) -> int:
        """Requests that came before ``leave`` and are not answered yet."""
        return self._inside

    async def leave(self) -> None:
        """From here on every answer closes its connection; wait until those who came before are answered."""
        self._leaving = True
        self._see()
        await self._empty.wait()

    def _see(self) -> None:
        if self._leaving and not self._inside:
            self._empty.set()

    def _sender(self, send: Send) -> Send:
        async def sender(message: Message) -> None:
            if self._leaving and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            await send(message)

        return sender


class Worker:
    """A repository and the server around it. ``stop`` may be called at any time, a second time in earnest."""

    def __init__(self, settings: ServeSettings, repository: Repository, on_loaded: OnLoaded) -> None:
        self.settings, self.repository, self._on_loaded = settings, repository, on_loaded
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        """Begin to go; the second time, go."""
        (self._hurrying if self._stopping.is_set() else self._stopping).set()

    async def run(self, listener: socket.socket, *, load_first: bool = False) -> int:
        """Serve until ``stop``: 0 if everything that was accepted was answered within the drain timeout, else 1.

        ``load_first``: others serve meanwhile, and it must not take requests from them that it can't answer yet. Where
        this process can't use its core again it goes by itself, with 1, so that another takes its place.
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
            if serving.done():  # it does not end by itself, unless it fails
                serving.result()
            if not lost.is_set():
                return await self._leave(keeper, server, serving)
            self._core_lost()
            if self.settings.workers > 1:  # what waits at the door is for the others
                _close_door(server)
            await self._leave(keeper, server, serving)
            return 1
        finally:
            for task in [*ends, *helpers]:
                task.cancel()

    def _core_lost(self) -> int:
        log("error", "core_lost", told="this process can't use its NeuronCore again: it ends, and frees it")
        return 1

    async def _leave(self, keeper: Doorkeeper, server: _Server, serving: asyncio.Task[None]) -> int:
        """Say not ready, answer what was accepted, close."""
        end = time.monotonic() + self.settings.drain_timeout
        self.repository.draining = True
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
        """Whether the task is done by then; a second ``stop`` ends the waiting, too."""
        hurrying = asyncio.create_task(self._hurrying.wait())
        waited = [task, hurrying]
        await asyncio.wait(waited, timeout=max(0.0, end - time.monotonic()), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        return task.done()

    async def _load(self) -> None:
        await self.repository.start()
        self._on_loaded(summary_rows(self.repository))

    async def _sample(self) -> None:
        while True:
            self.repository.metrics.sample()
            await asyncio.sleep(SAMPLE_S)


@dataclass(frozen=True)
class Share:
    """What a worker is given; ``link`` is None where it is the only one, and it ``succeeds`` one that ended."""

    settings: ServeSettings
    files: dict[str, Path]
    unloaded: frozenset[str] = frozenset()
    number: int = 0
    succeeds: bool = False
    link: Link | None = None


def run_worker(share: Share, listener: socket.socket, on_loaded: OnLoaded) -> int:
    """Serve a share of the requests in this process until a signal or the supervisor says to stop; the exit code."""
    named = {} if share.link is None else {"worker": share.number}
    logs = start_logging(share.settings.log_level, None, **named)
    sys.setswitchinterval(SWITCH_S)
    try:
        lease_for(share.settings)  # until the process ends: so long the runtime in it keeps the cores
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(share, listener, on_loaded))
    finally:
        logs.close()


def leave(code: int) -> NoReturn:
    """End the process at once: a model's thread may still compute, and must not see the interpreter taken apart."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _serve(share: Share, listener: socket.socket, on_loaded: OnLoaded) -> int:
    link = share.link
    repository = Repository(
        share.settings,
        Metrics(share.number),
        files=share.files,
        unloaded=share.unloaded,
        broadcast=None if link is None else link.broadcast,
    )
    worker = Worker(share.settings, repository, on_loaded if link is None else link.send_loaded)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    # Ctrl-C reaches every process of a terminal; where there is a supervisor, it says what to do about it.
    loop.add_signal_handler(signal.SIGINT, worker.stop if link is None else _ignore)
    if link is not None:
        repository.others_loading = not share.succeeds

        def note_others_loaded() -> None:
            repository.others_loading = False

        link.attach(loop, repository.act, worker.stop, note_others_loaded)
    return await worker.run(listener, load_first=share.succeeds)


def _close_door(server: uvicorn.Server) -> None:
    """Take up no more connections; those that are open are served."""
    for door in getattr(server, "servers", ()):  # there are none before it has begun
        door.close()


def _ignore() -> None:
    """A signal that somebody else answers."""


def _closing(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    return sender
