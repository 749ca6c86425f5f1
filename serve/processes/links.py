"""The messages between workers and their supervisor, over one pipe for each worker.

A worker asks for an action (load, unload) on all; the supervisor sends it to each, collects the failures and answers.
Messages are tuples that begin with their kind.

    worker -> supervisor    ("loaded", rows)  ("ask", token, action, name)  ("done", token, failure)
                            ("reloaded", tables)
    supervisor -> worker    ("do", token, action, name)  ("answer", token, failure)  ("open",)  ("stop",)
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

from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.rereading import Tables
from trnrt.serve.processes.summary import SummaryRow
from trnrt.serve.settings import ServeSettings

SUPERVISED = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to every process, and that the supervisor obeys alone."""

Act = Callable[[Any, str], Coroutine[Any, Any, str | None]]
Change = Callable[[ServeSettings], Coroutine[Any, Any, Tables]]


@dataclass(frozen=True)
class Share:
    """A worker's arguments. ``connection`` leads to the supervisor; None for a single worker.

    ``succeeds``: the other workers serve already, as it replaces one that ended.
    """

    settings: ServeSettings
    files: dict[str, Path]
    unloaded: frozenset[str] = frozenset()
    number: int = 0
    succeeds: bool = False
    connection: Connection | None = None


class Link:
    """A worker's end of the pipe, made on the event loop. If the supervisor is gone, the worker stops.

    ``opened`` is called when every worker has loaded its models, ``change`` with settings that were read again.
    """

    def __init__(
        self,
        connection: Connection,
        act: Act,
        stop: Callable[[], None],
        opened: Callable[[], None],
        change: Change,
    ) -> None:
        self._connection, self._act, self._stop, self._opened = connection, act, stop, opened
        self._change = change
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._receive)

    def send_loaded(self, rows: list[SummaryRow]) -> None:
        """Report that every model is loaded or has failed."""
        self._send(("loaded", rows))

    async def broadcast(self, action: str, name: str) -> str | None:
        """Do it on all workers; return why it failed on one of them."""
        self._token += 1
        token = self._token
        answer: asyncio.Future[str | None] = self._loop.create_future()
        self._answers[token] = answer
        try:
            self._send(("ask", token, action, name))
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
            work = self._change_settings(*details) if kind == "settings" else self._do(*details)
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _change_settings(self, settings: ServeSettings) -> None:
        self._send(("reloaded", await self._change(settings)))

    async def _do(self, token: int, action: str, name: str) -> None:
        failure: str | None = "the worker stopped"
        try:
            failure = await self._act(action, name)
        except Problem as problem:
            failure = problem.text
        finally:
            self._send(("done", token, failure))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError:  # the supervisor is gone: _receive stops the worker
            return
