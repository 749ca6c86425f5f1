"""A model's thread, and how it answers the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol


class Jobs(Protocol):
    """Takes a batcher's jobs."""

    def submit(self, job: Callable[[], None], waiting: int = 0) -> None:
        """Run a job after the earlier ones. ``waiting``: the requests that wait behind it."""
        ...


class ComputeThread:
    """One thread that runs jobs in order; a daemon, so that a job that hangs can't keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], waiting: int = 0) -> None:
        """Run a job after the earlier ones."""
        self._jobs.put(job)

    async def call(self, function: Callable[[], Any]) -> Any:
        """Return or raise as the function does. Cancelling the caller does not stop the function."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            try:
                outcome = function()
            except Exception as error:
                outcome = error
            except BaseException as error:  # a library may try to end the process: only this call ends
                outcome = RuntimeError(type_and_text(error))
            post(loop, settle, answer, outcome)

        self.submit(job)
        return await answer

    def stop(self) -> None:
        """End the thread after the submitted jobs."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # free its model and batch while the thread waits


def settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    """Set a result or an exception, unless nobody waits for it any more."""
    if answer.done():
        return
    if isinstance(outcome, StopIteration):  # a future refuses it
        answer.set_exception(RuntimeError(type_and_text(outcome)))
    elif isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    """Call it on the loop, unless the loop is closed: then nobody waits."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def type_and_text(error: BaseException) -> str:
    """An error for the log."""
    return f"{type(error).__name__}: {error}"
