"""A worker's reader, a process for large JSON: started when first needed, replaced when it dies, hangs or grows.

One job runs at a time; others wait, in the order in which they came. A job whose request ends, by its deadline or its
client, takes the reader with it: nothing else stops Python's parser.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from typing import Any

from trnrt.serve.processes.logs import log
from trnrt.serve.processes.parcels import MemoryFile, pack, unpack
from trnrt.serve.processes.reader import LEAVES, STARTED

IDLE_S = 60.0
"""A reader without jobs ends after this time, to give its memory back."""
START_S = 30.0
"""A process that has not started after this time never will."""
MEMORY_BASE, MEMORY_FACTOR = 128 << 20, 32
"""The bytes that a reader may take: a base, and so many for each byte of the largest JSON. A list or object of Python
takes up to 30 times its text; a column of numbers as [[1],[2]] 24 times, other numbers at most 10 times."""
_PROGRAM = "from trnrt.serve.processes.reader import main; main()"
_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ReaderLost(RuntimeError):
    """The reader died during a job, or did not start."""


class Reader:
    """A worker's end. Use it on the event loop."""

    def __init__(self, largest_json: int) -> None:
        self._largest_json, self.memory = largest_json, _memory_for(largest_json)
        self._started_with = 0
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._dying: list[subprocess.Popen[bytes]] = []
        self._due: float | None = None
        """The moment until which a process must have started; None if it has."""
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process; None if none runs."""
        return None if self._process is None else self._process.pid

    def allow(self, largest_json: int) -> None:
        """Set the largest JSON; a process with another limit is replaced before the next job."""
        if largest_json != self._largest_json:
            self._largest_json, self.memory = largest_json, _memory_for(largest_json)

    async def run(self, function: str, *arguments: object, body: MemoryFile | None = None) -> Any:
        """The result of one of ``large.FUNCTIONS``; ``body``: a file that it gets, mapped, before the arguments.

        Raises:
            RequestError, TensorError: the function's
            MemoryError: it took more than ``memory``
            ReaderLost: the process died
        """
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            parcel = await asyncio.to_thread(pack, (function, arguments))
            answer = await self._ask([parcel] if body is None else [parcel, body])
            if self._process is not None:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.retire)
        result = await asyncio.to_thread(unpack, answer)
        if isinstance(result, Exception):
            raise result
        return result

    async def _ask(self, files: list[MemoryFile]) -> MemoryFile:
        """Do the job of these files; the file with the result."""
        connection = await self._connect()
        done = False
        try:
            socket.send_fds(connection, [b"j"], [file.number for file in files])
            await _wait_readable(connection)
            message, answers, _, _ = socket.recv_fds(connection, 1, 1)
            done = bool(answers) and message != LEAVES
        except OSError as error:
            raise ReaderLost(f"the process that reads large JSON died: {error}") from None
        finally:
            if not done:
                self.retire()
        if not answers:
            raise ReaderLost("the process that reads large JSON died")
        return MemoryFile(answers[0])

    async def _connect(self) -> socket.socket:
        """The socket of a process that has started. A job that is cancelled meanwhile leaves it to the next one."""
        if self._started_with != self.memory:
            self.retire()
        connection = self._socket or self._start()
        if self._due is None:
            return connection
        timeout = max(0.0, self._due - time.monotonic())
        try:
            await asyncio.wait_for(_wait_readable(connection), timeout)
            started = connection.recv(1) == STARTED
        except (TimeoutError, OSError):
            started = False
        if not started:
            self.retire()
            raise ReaderLost("the process that reads large JSON did not start")
        self._due = None
        return connection

    def _start(self) -> socket.socket:
        self._dying = [process for process in self._dying if process.poll() is None]
        self._started_with = self.memory
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(self.memory)]
        with theirs:
            self._socket = ours
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**os.environ, **_THREADS}
            )
        self._due = time.monotonic() + START_S
        log("info", "reader_started", pid=self._process.pid)
        return ours

    def retire(self) -> None:
        """End the process; the next job starts another."""
        if self._idle is not None:
            self._idle.cancel()
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._dying.append(self._process)
        self._process = self._socket = self._idle = None

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self.retire()
        for process in self._dying:
            process.wait()
        self._dying.clear()

    def __del__(self) -> None:
        self.close()


def _memory_for(largest_json: int) -> int:
    return MEMORY_BASE + MEMORY_FACTOR * largest_json


async def _wait_readable(connection: socket.socket) -> None:
    """Wait until the socket can be read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection.fileno())
