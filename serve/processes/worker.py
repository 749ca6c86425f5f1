"""A worker: serves its models on a socket, and answers all accepted requests before it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

import uvicorn
import uvloop
from starlette.types import ASGIApp

from trnrt.nki.blas import keep_one_blas_thread
from trnrt.serve.hosting.devices import lease_for
from trnrt.serve.hosting.metrics import MOST_BUFFERED, Metrics
from trnrt.serve.hosting.pins import Store
from trnrt.serve.hosting.reloading import Reloader
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.connection import connection_class
from trnrt.serve.http.connections import Connections, raise_file_limit
from trnrt.serve.processes.links import SUPERVISED, Link, Share
from trnrt.serve.processes.listening import BACKLOG
from trnrt.serve.processes.logs import log, start_logging
from trnrt.serve.processes.metrics_folders import hold_folder
from trnrt.serve.processes.spans import start_tracing
from trnrt.serve.processes.summary import SummaryRow, summary_rows
from trnrt.serve.settings import MULTIPROC, ServeSettings

if TYPE_CHECKING:
    from trnrt.serve.grpc.server import GrpcServer

OnLoaded = Callable[[list[SummaryRow]], None]
LINGER_S = 0.3
"""How long new requests still get an answer, 503, after a shutdown began, so that no client finds the port closed."""
SAMPLE_S = 5.0
FLUSH_S = 0.1
"""The requests of this time are missing in the metrics of a worker that is killed, and in pages of other workers."""
SWITCH_S = 0.0005
"""The longest time that a thread keeps the interpreter while another waits for it. With Python's own 5 ms, an event
loop that is busy refusing requests delays a model's thread at each step of a batch."""


class _Helpers(ThreadPoolExecutor):
    """The event loop's own threads. The end of the loop does not wait for what they still do: nobody wants it."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing more."""
        super().shutdown(wait=False, cancel_futures=True)


def make_loop() -> asyncio.AbstractEventLoop:
    """A worker's event loop."""
    loop = uvloop.new_event_loop()
    loop.set_default_executor(_Helpers(thread_name_prefix="helper"))
    return loop


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield


def server_config(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    """The HTTP server's configuration; its own limits are those of ``connections``."""
    return uvicorn.Config(
        app,
        http=connection_class(connections),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        proxy_headers=False,
    )


class Worker:
    """A repository and the server around it. ``stop`` may be called at any time; a second call does not wait."""

    def __init__(self, repository: Repository, on_loaded: OnLoaded, calls: GrpcServer | None = None) -> None:
        self.repository, self.on_loaded = repository, on_loaded
        self._calls = calls
        self._stopping, self._hurrying = asyncio.Event(), asyncio.Event()

    @property
    def settings(self) -> ServeSettings:
        """The repository's, which a reload changes."""
        return self.repository.settings

    def stop(self) -> None:
        """Begin the shutdown; the second time, end it."""
        (self._hurrying if self._stopping.is_set() else self._stopping).set()

    async def run(self, listener: socket.socket, *, load_first: bool = False) -> int:
        """Serve until ``stop``. Return 0 if every accepted request was answered within the drain timeout, else 1.

        ``load_first``: load the models before listening, as other workers serve meanwhile. If this process can't use
        its core any more, it ends by itself, with 1, so that another takes its place.
        """
        lost = self.repository.core_lost
        raise_file_limit()
        connections = Connections(self.settings, self.repository.metrics)
        server = _Server(server_config(make_app(self.repository), connections))
        loading = asyncio.create_task(self._load())
        helpers = [loading, asyncio.create_task(self._sample())]
        ends = [asyncio.create_task(event.wait()) for event in (self._stopping, lost)]
        try:
            if load_first:
                await asyncio.wait([loading, *ends], return_when=asyncio.FIRST_COMPLETED)
                if lost.is_set():
                    return self._core_lost()
            if self._calls is not None:
                await self._calls.start()
            serving = asyncio.create_task(server.serve([listener]))
            await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():  # it ends by itself only if it fails
                serving.result()
            if not lost.is_set():
                return await self._leave(connections, server, serving)
            self._core_lost()
            if self.settings.workers > 1:  # the others take the connections that wait
                for door in getattr(server, "servers", ()):  # there are none before it has begun
                    door.close()
            await self._leave(connections, server, serving)
            return 1
        finally:
            for task in [*ends, *helpers]:
                task.cancel()
            self.repository.metrics.flush()  # other workers show what this one has counted

    def _core_lost(self) -> int:
        log("error", "core_lost", told="this process can't use its NeuronCore again: it ends, and frees it")
        return 1

    async def _leave(self, connections: Connections, server: _Server, serving: asyncio.Task[None]) -> int:
        """Become not ready, answer the accepted requests, close."""
        end = time.monotonic() + self.settings.drain_timeout
        self.repository.admission.draining = True
        log("info", "draining", accepted=connections.pending + self._pending_calls())
        leaving = asyncio.create_task(self._empty(connections))
        drained = await self._wait_until(leaving, end)
        if not drained:
            unanswered = connections.pending + self._pending_calls()
            log("error", "drain_timeout", unanswered=unanswered, seconds=self.settings.drain_timeout)
            leaving.cancel()
            server.force_exit = True
        server.should_exit = True
        if self._calls is not None:
            await self._calls.stop(at_once=not drained)
        if not await self._wait_until(serving, max(end, time.monotonic() + 1.0)):
            server.force_exit = True
            with suppress(asyncio.CancelledError):
                await serving
        log("info", "stopped", clean=drained)
        return 0 if drained else 1

    async def _empty(self, connections: Connections) -> None:
        calls = [] if self._calls is None else [self._calls.leave()]
        await asyncio.gather(connections.empty(), *calls, self.repository.drain(), asyncio.sleep(LINGER_S))

    def _pending_calls(self) -> int:
        return 0 if self._calls is None else self._calls.pending_calls

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
        metrics, turns = self.repository.metrics, round(SAMPLE_S / FLUSH_S)
        for turn in itertools.count():
            (metrics.flush if turn % turns else metrics.sample)()
            await asyncio.sleep(FLUSH_S)


def run_worker(
    share: Share,
    listener: socket.socket,
    on_loaded: OnLoaded = lambda _rows: None,
    reserved: socket.socket | None = None,
) -> int:
    """Serve in this process until a signal or the supervisor stops it; the exit code.

    ``on_loaded``: for a single worker; others tell their supervisor. ``reserved``: a single worker's port for gRPC.
    """
    named = {} if share.connection is None else {"worker": share.number}
    logs = start_logging(share.settings.log_level, None, **named)
    held = None if share.connection is None else hold_folder(os.environ.get(MULTIPROC, ""))
    sys.setswitchinterval(SWITCH_S)
    keep_one_blas_thread()
    spans = start_tracing(share.settings)
    try:
        lease_for(share.settings)  # held until the process ends, as the runtime in it keeps the cores that long
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(_serve(share, listener, on_loaded, reserved))
    finally:
        if spans is not None:
            spans.close()
        logs.close()
        if held is not None:
            held.close()


def leave(code: int) -> NoReturn:
    """End the process at once: a model's thread may still compute, and would crash while the interpreter shuts down."""
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


async def _serve(
    share: Share, listener: socket.socket, on_loaded: OnLoaded, reserved: socket.socket | None = None
) -> int:
    metrics, store = Metrics(share.number, MOST_BUFFERED), Store(share.store)
    repository = Repository(share.settings, metrics, catalog=share.catalog, store=store)
    worker = Worker(repository, on_loaded, _make_calls(share, repository, reserved))
    loop, reloader = asyncio.get_running_loop(), Reloader(repository)
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    if share.connection is None:
        loop.add_signal_handler(signal.SIGINT, worker.stop)
        if share.settings.config is not None:
            loop.add_signal_handler(signal.SIGHUP, reloader.reload_soon)
    else:
        # Ctrl-C reaches every process of a terminal; the supervisor passes it on. A handler, as subprocesses would
        # inherit SIG_IGN.
        for number in SUPERVISED if share.settings.config is not None else SUPERVISED[:1]:
            loop.add_signal_handler(number, lambda: None)
        repository.others_loading = not share.succeeds

        def note_others_loaded() -> None:
            repository.others_loading = False

        link = Link(share.connection, repository.act, worker.stop, note_others_loaded, reloader.apply)
        worker.on_loaded, repository.broadcast = link.send_loaded, link.broadcast
    return await worker.run(listener, load_first=share.succeeds)


def _make_calls(share: Share, repository: Repository, reserved: socket.socket | None) -> GrpcServer | None:
    """The server for gRPC, bound to its port; None without --grpc-port, and then its packages are not imported."""
    if share.grpc_address is None:
        return None
    from trnrt.serve.grpc.server import GrpcServer

    if reserved is not None:  # a single worker shares its port with nobody
        reserved.close()
    return GrpcServer(repository, share.grpc_address, shared=reserved is None)
