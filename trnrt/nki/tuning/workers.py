"""Processes that time candidates, each with the kernel's file loaded once.

A candidate that kills its process (memory) is listed with that as its reason, and another process takes the place.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

from trnrt.nki.errors import KernelError, TrnrtError
from trnrt.nki.loading import loading
from trnrt.nki.tuning.timing import Task, Trial, reason_of, time_candidate, values_text

Values = Mapping[str, Any]


def _serve(task: Task, pipe: Connection) -> None:
    """Time what comes through the pipe, until it closes."""
    with (
        Path(os.devnull).open("w") as nowhere,  # what the file prints, the parent has printed
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        contextlib.suppress(EOFError, BrokenPipeError),
        loading(task.script, task.target, nki=task.level, capacity=task.capacity),
    ):
        try:
            launch = task.launch()
        except TrnrtError as error:
            pipe.send(reason_of(error))
            return
        pipe.send("")
        while True:
            pipe.send(time_candidate(launch, pipe.recv()))


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Start processes within: Ctrl-C reaches them, too, but they leave it to the parent, which ends them."""
    if current_thread() is not main_thread():  # only the main thread may change that
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """A process, and the candidate that it has at present."""

    def __init__(self, task: Task) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(task, theirs), daemon=True)
        with _ignoring_interrupts():
            self.process.start()
        theirs.close()
        self.ready = False
        self.values: Values | None = None

    @property
    def busy(self) -> bool:
        """True if the process will send something: it loads the file, or times a candidate."""
        return not self.ready or self.values is not None

    def give(self, values: Values) -> None:
        self.values = values
        self.pipe.send(values)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.pipe.close()


class Workers:
    """Up to ``count`` processes; they start with the first candidate."""

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count
        self._workers: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def time_all(self, candidates: Sequence[Values], deadline: float | None = None) -> Iterator[Trial]:
        """The results of these candidates as they come. At the deadline (of ``monotonic``), those under way are given
        up.

        Raises:
            KernelError: if the file can't be loaded in another process.
        """
        waiting = deque(candidates)
        while waiting or any(worker.values is not None for worker in self._workers):
            while waiting and len(self._workers) < min(self.count, len(candidates)):
                self._workers.append(_Worker(self.task))
            for worker in self._workers:
                if waiting and worker.ready and worker.values is None:
                    worker.give(waiting.popleft())
            left = None if deadline is None else max(0.0, deadline - monotonic())
            ready = wait([worker.pipe for worker in self._workers if worker.busy], left)
            for worker in [worker for worker in self._workers if worker.pipe in ready]:
                yield from self._receive(worker)
            if deadline is not None and monotonic() >= deadline:
                self._give_up()
                return

    def _receive(self, worker: _Worker) -> Iterator[Trial]:
        """The result that a process has sent; if it ended, that as its candidate's reason."""
        try:
            got = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._workers.remove(worker)
            worker.end()
            how = f"the process that timed it ended with {worker.process.exitcode}"
            if worker.values is None:
                raise KernelError(f"{self.task.script} can't be loaded: {how}") from None
            yield Trial(values_text(worker.values), None, how)
            return
        if worker.ready:
            worker.values = None
            yield got
        elif got:
            raise KernelError(got)
        else:
            worker.ready = True

    def _give_up(self) -> None:
        """End the processes that are timing a candidate."""
        for worker in [worker for worker in self._workers if worker.busy]:
            self._workers.remove(worker)
            worker.end()
