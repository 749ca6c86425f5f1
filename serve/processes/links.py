"""The messages between workers and their supervisor, over one pipe for each worker.

A worker asks for a change on all. The supervisor lets each prepare it; if all could, it lets each commit it, and else
abort it. Then it answers with the failure. Messages are tuples that begin with their kind; a phase is "prepare",
"commit" or "abort".

    worker -> supervisor    ("loaded", rows)  ("ask", token, change)  ("done", token, failure)
                            ("reloaded", tables)
    supervisor -> worker    ("do", token, phase, change)  ("answer", token, failure)  ("open",)  ("stop",)
                            ("settings", settings)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trnrt.serve.hosting.catalog import Catalog, Change
from trnrt.serve.hosting.changes import Phase
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.rereading import Tables
from trnrt.serve.processes.summary import SummaryRow
from trnrt.serve.settings import ServeSettings

SUPERVISED = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to every process, and that the supervisor obeys alone."""

Act = Callable[[Phase, Change], Coroutine[Any, Any, str | None]]
Renew = Callable[[ServeSettings], Coroutine[Any, Any, Tables]]


@dataclass(frozen=True)
class Share:
    """A worker's arguments. ``connection`` leads to the supervisor; None for a single worker.

    ``catalog``: what to serve; ``store``: the folder for copies of other files.
    ``succeeds``: the other workers serve already, as it replaces one that ended. ``grpc_address``: where to serve gRPC.
    """

    settings: ServeSettings
    catalog: Catalog
    store: Path
    number: int = 0
    succeeds: bool = False
    connection: Connection | None = None
    grpc_address: str | None = None


class Link:
    """A worker's end of the pipe, made on the event loop. If the supervisor is gone, the worker stops.

    ``opened`` is called when every worker has loaded its models, ``renew`` with settings that were read again.
    """

    def __init__(
        self,
        connection: Connection,
        act: Act,
        stop: Callable[[], None],
        opened: Callable[[], None],
        renew: Renew,
    ) -> None:
        self._connection, self._act, self._stop, self._opened = connection, act, stop, opened
        self._renew = renew
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._receive)

    def send_loaded(self, rows: list[SummaryRow]) -> None:
        """Report that every model is loaded or has failed."""
        self._send(("loaded", rows))

    async def broadcast(self, change: Change) -> str | None:
        """Make a change on all workers, or on none; return why it failed on one of them."""
        self._token += 1
        token = self._token
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._answers[token] = answer
        try:
            self._send(("ask", token, change))
            return await answer
        finally:
            del self._answers[token]

    def _receive(self) -> None:
        try:
            kind, *details = self._connection.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._connection.fileno())
            log("error", "supervisor_lost")
            self._stop()
            return
        if kind == "stop":
            self._stop()
        elif kind == "open":
            self._opened()
        elif kind == "answer":
            token, failure = details
            waiting = self._answers.get(token)
            if waiting is not None and not waiting.done():
                waiting.set_result(failure)
        else:
            work = self._renew_settings(*details) if kind == "settings" else self._do(*details)
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _renew_settings(self, settings: ServeSettings) -> None:
        self._send(("reloaded", await self._renew(settings)))

    async def _do(self, token: int, phase: Phase, change: Change) -> None:
        failure: str | None = "the worker stopped"
        try:
            failure = await self._act(phase, change)
        except Exception as error:  # the other workers wait for this one
            failure = f"{type(error).__name__}: {error}"
            log("error", "change_failed", phase=phase, model=change.name, error=failure)
        finally:
            self._send(("done", token, failure))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError:  # the supervisor is gone: _receive stops the worker
            return
