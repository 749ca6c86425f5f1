"""Several workers share one socket, and a supervisor keeps them running.

The supervisor opens the socket, so that waiting connections survive the death of any worker, and starts each worker as
a process. It loads no model and answers no request. It replaces a worker that ends; the successor loads the same
content of the same models, from the copies that were made when they were loaded.

It makes one change of the models after the other (see ``links``). A worker that ends while it prepares a change fails
it for all.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from trnrt.errors import TrnrtError
from trnrt.serve.hosting.catalog import Catalog, Change
from trnrt.serve.hosting.changes import Phase
from trnrt.serve.hosting.pins import Store
from trnrt.serve.http.problems import error_text
from trnrt.serve.processes.links import SUPERVISED, Share
from trnrt.serve.processes.logs import Log, log, start_logging
from trnrt.serve.processes.metrics_folders import metrics_folder
from trnrt.serve.processes.rereading import read_changes, with_tables
from trnrt.serve.processes.summary import SummaryRow
from trnrt.serve.settings import MULTIPROC, ServeSettings

YOUNG_S = 5.0
"""A worker that serves for less than this is probably broken: its successors wait longer and longer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
MARGIN_S = 5.0
"""A worker that needs this long beyond the drain timeout is killed."""


@dataclass(eq=False)
class _Child:
    """A worker's process, our end of its pipe, and when its models were loaded."""

    number: int
    process: SpawnProcess
    connection: Connection
    loaded: float | None = None


@dataclass(eq=False)
class _Ask:
    """A worker's change under its token, the phase that it is in, the workers that still have to do that, and the
    failures."""

    asker: _Child
    token: int
    change: Change
    phase: Phase = "prepare"
    waiting: set[_Child] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    unneeded: set[Path] = field(default_factory=set)


class Supervisor:
    """Keeps the workers running until a signal. ``on_loaded`` is called once, with the first worker's models."""

    def __init__(
        self,
        settings: ServeSettings,
        catalog: Catalog,
        store: Store,
        listener: socket.socket,
        on_loaded: Callable[[list[SummaryRow]], None],
        grpc_address: str | None = None,
    ) -> None:
        self._settings, self._catalog, self._store, self._listener = settings, catalog, store, listener
        self._on_loaded, self._grpc_address = on_loaded, grpc_address
        self._children: dict[int, _Child] = {}
        self._due = dict.fromkeys(range(settings.workers), 0.0)
        self._pauses: dict[int, float] = {}
        self._reported = self._open = False
        self._asks: deque[_Ask] = deque()
        """The first one is being made."""
        self._token = 0
        self._signals = self._reloads = 0
        self._end: float | None = None
        self._clean = True

    def run(self) -> int:
        """Return 0 if every worker ended well after a signal, 1 if one had to be killed or left requests."""
        logs = start_logging(self._settings.log_level, worker="supervisor")
        # Before there is anything to clean up: the handlers so far exit at once.
        awake, wake = self._watch_signals()
        with awake, wake, metrics_folder() as folder:
            os.environ[MULTIPROC] = folder
            try:
                self._supervise(awake)
            finally:
                self._finish(logs)
        return 0 if self._clean else 1

    def _watch_signals(self) -> tuple[socket.socket, socket.socket]:
        """Count signals from now on; each makes the first socket readable."""
        awake, wake = socket.socketpair()
        awake.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count_signal)
        if self._settings.config is not None:
            signal.signal(signal.SIGHUP, self._count_reload)
        return awake, wake

    def _supervise(self, awake: socket.socket) -> None:
        while self._end is None or self._children:
            self._spawn_due()
            children = list(self._children.values())
            handles = [handle for child in children for handle in (child.connection, child.process.sentinel)]
            found = wait([awake, *handles], self._pause())
            if awake in found:
                with suppress(BlockingIOError):
                    awake.recv(4096)
            for child in children:
                if child.connection in found:
                    self._read(child)
                if child.process.sentinel in found:
                    self._bury(child)
            if self._reloads and self._end is None:
                self._reload()
            self._obey()

    def _reload(self) -> None:
        """Read the settings again, once for all workers; a successor has them, too."""
        self._reloads = 0
        read = read_changes(self._settings, [one.name for one in self._catalog.pinned.values()])
        if read is not None:
            self._settings = read
            for child in self._children.values():
                self._send(child, ("settings", read))

    def _count_reload(self, number: int, _frame: Any) -> None:
        self._reloads += 1

    def _count_signal(self, number: int, _frame: Any) -> None:
        self._signals += 1

    def _pause(self) -> float | None:
        """Seconds until the next planned action; None if there is none."""
        moments = list(self._due.values()) if self._end is None else [self._end]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _spawn_due(self) -> None:
        if self._end is not None:
            return
        for number, moment in list(self._due.items()):
            if moment <= time.monotonic():
                del self._due[number]
                self._spawn(number)

    def _spawn(self, number: int) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        share = Share(self._settings, self._catalog, self._store.folder, number, self._open, theirs, self._grpc_address)
        process = context.Process(target=work, args=(share, self._listener), name=f"trnrt-worker-{number}")
        process.start()
        theirs.close()
        child = self._children[number] = _Child(number, process, ours)
        if self._asks and self._asks[0].phase == "prepare":  # it has the catalog from before
            self._do(self._asks[0], [child])
        log("info", "worker_started", number=number, pid=process.pid)

    def _bury(self, child: _Child) -> None:
        """A worker ended: plan its successor, and stop waiting for it."""
        from trnrt.serve.hosting.metrics import mark_worker_dead

        child.process.join()
        child.connection.close()
        del self._children[child.number]
        mark_worker_dead(child.process.pid or 0)
        if self._asks:
            self._settle(child, "a worker ended while it loaded it" if self._asks[0].phase == "prepare" else None)
        code = child.process.exitcode
        log("info" if code == 0 else "error", "worker_ended", number=child.number, pid=child.process.pid, code=code)
        if self._end is not None:
            self._clean = self._clean and code == 0
            return
        served_s = None if child.loaded is None else time.monotonic() - child.loaded
        pause = successor_pause(served_s, self._pauses.get(child.number, 0.0))
        self._pauses[child.number] = pause
        self._due[child.number] = time.monotonic() + pause

    def _read(self, child: _Child) -> None:
        try:
            kind, *details = child.connection.recv()
        except (EOFError, OSError):  # it ended: its sentinel reports that
            return
        if kind == "loaded":
            child.loaded = time.monotonic()
            if not self._open:
                self._note_loaded(child, *details)
        elif kind == "reloaded":  # a successor should load what this worker could not as it was
            self._settings = with_tables(self._settings, *details)
        elif kind == "ask":
            self._ask(child, *details)
        else:
            token, failure = details
            if token == self._token:
                self._settle(child, failure)

    def _note_loaded(self, child: _Child, rows: list[SummaryRow]) -> None:
        """Tell all workers when each has loaded its models. A successor loads before it listens."""
        if not self._reported:
            self._on_loaded(rows)
            self._reported = True
        if len(self._children) == self._settings.workers and all(one.loaded for one in self._children.values()):
            self._open = True
            for one in self._children.values():
                self._send(one, ("open",))

    def _ask(self, asker: _Child, token: int, change: Change) -> None:
        self._asks.append(_Ask(asker, token, change))
        if len(self._asks) == 1:
            self._begin(self._asks[0])

    def _begin(self, ask: _Ask) -> None:
        """Begin a phase on all workers."""
        self._token += 1
        self._do(ask, list(self._children.values()))

    def _do(self, ask: _Ask, children: list[_Child]) -> None:
        ask.waiting |= set(children)
        for child in children:
            self._send(child, ("do", self._token, ask.phase, ask.change))

    def _settle(self, child: _Child, failure: str | None) -> None:
        """A worker has done its part of the first change, or ended."""
        ask = self._asks[0] if self._asks else None
        if ask is None or child not in ask.waiting:
            return
        ask.waiting.remove(child)
        if failure is not None:
            ask.failures.append(failure)
        if ask.waiting:
            return
        if ask.phase == "prepare":
            self._decide(ask)
        else:
            self._finish_ask(ask)

    def _decide(self, ask: _Ask) -> None:
        """All workers have prepared the change, or failed. From here on, successors begin with the decision."""
        ask.phase = "abort" if ask.failures else "commit"
        if ask.failures:
            ask.unneeded = {one.folder for one in ask.change.load if one.folder is not None}
        else:
            before, self._catalog = self._catalog, self._catalog.apply(ask.change)
            ask.unneeded = before.copies() - self._catalog.copies()
        if self._children:
            self._begin(ask)
        else:
            self._finish_ask(ask)

    def _finish_ask(self, ask: _Ask) -> None:
        """All workers have committed or aborted: answer, and begin the next change."""
        self._store.discard(ask.unneeded)
        self._asks.popleft()
        self._send(ask.asker, ("answer", ask.token, next(iter(ask.failures), None)))
        if self._asks:
            self._begin(self._asks[0])

    def _obey(self) -> None:
        """Pass signals on, and kill the workers that take too long."""
        for _ in range(self._signals):
            if self._end is None:
                self._end = time.monotonic() + self._settings.drain_timeout + MARGIN_S
                self._listener.close()
            for child in self._children.values():
                self._send(child, ("stop",))
        self._signals = 0
        if self._end is not None and time.monotonic() >= self._end:
            for child in self._children.values():
                log("error", "worker_killed", number=child.number, pid=child.process.pid)
                child.process.kill()
            self._clean = False
            self._end = time.monotonic() + MARGIN_S

    def _send(self, child: _Child, message: tuple[Any, ...]) -> None:
        with suppress(OSError):  # it ended: its sentinel reports that
            child.connection.send(message)

    def _finish(self, logs: Log) -> None:
        for child in self._children.values():  # none, unless the supervisor itself failed
            child.process.kill()
        signal.set_wakeup_fd(-1)
        logs.close()


def successor_pause(served_s: float | None, last_s: float) -> float:
    """Seconds until an ended worker is replaced: 0 if it had served for a while, else twice ``last_s``.

    ``served_s``: since its models were loaded; None if they never were, as finding a broken device may take minutes.
    """
    if served_s is not None and served_s >= YOUNG_S:
        return 0.0
    return min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * last_s))


def work(share: Share, listener: socket.socket) -> None:
    """The main function of a worker's process; exit code 2 if it can't begin."""
    for number in SUPERVISED if share.settings.config is not None else SUPERVISED[:1]:
        signal.signal(number, signal.SIG_IGN)  # until the worker handles it
    from trnrt.serve.processes.worker import leave, run_worker

    try:
        code = run_worker(share, listener)
    except TrnrtError as error:  # no core is free: another process still has it
        logs = start_logging(share.settings.log_level, worker=share.number)
        log("error", "worker_failed", reason=error_text(error))
        logs.close()
        code = error.exit_code
    leave(code)
