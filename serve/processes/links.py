"""What workers and their supervisor say to each other, over one pipe for each worker.

A worker asks for an action (load, unload) for all; the supervisor tells each to do it, collects what came of it and
answers. Messages are tuples that begin with what they are.

    worker -> supervisor    ("loaded", rows)  ("ask", token, action, name)  ("done", token, failure)
    supervisor -> worker    ("do", token, action, name)  ("answer", token, failure)  ("open",)  ("stop",)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.summary import SummaryRow

Act = Callable[[Any, str], Coroutine[Any, Any, str | None]]


class Link:
    """A worker's end. Where the other end is gone, the worker is told to stop: nobody would restart or stop it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._token = 0

    def attach(
        self, loop: asyncio.AbstractEventLoop, act: Act, stop: Callable[[], None], opened: Callable[[], None]
    ) -> None:
        """From here on do what the supervisor says; ``opened`` is called when every worker has loaded its models."""
        self._loop, self._act, self._stop, self._opened = loop, act, stop, opened
        loop.add_reader(self._connection.fileno(), self._receive)

    def send_loaded(self, rows: list[SummaryRow]) -> None:
        """Every model was loaded, or found to be not loadable."""
        self._send(("loaded", rows))

    async def broadcast(self, action: str, name: str) -> str | None:
        """Have it done on all workers; why it failed on one of them, None if it did not."""
        self._token += 1
        token, answer = self._token, self._loop.create_future()
        self._answers[token] = answer
        try:
            self._send(("ask", token, action, name))
            result: str | None = await answer
            return result
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
            task = self._loop.create_task(self._do(*details))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
        except OSError:  # the supervisor is gone; _receive sees to that
            return
