"""The load generator: a process of its own that sends rows to a server, and records the outcomes.

``python -m benchmarks.serve.load SPEC FILE``: SPEC is a ``Load`` as JSON. A line on stdout says that all connections
are made and the load begins. The ledger is written to FILE when the load is over.

Without a rate, each client sends its next request after the last answer. With a rate, requests are sent when they are
due, on any free connection; if none is free, they wait for one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serve.ledger import HEADER_LENGTH, Expected, Ledger, Verdict, duplicates, id_of, judge
from benchmarks.serve.wire import Answer, Connection

_TICK_S = 0.001
_POLL_S = 0.01

Array = NDArray[Any]


@dataclass(frozen=True)
class Load:
    """The requests to send. ``examples``: an .npz file with ``rows`` and the ``expected`` output of each.

    Each has ``rows`` consecutive rows of them, as JSON or, with ``binary``, as a binary tensor, which is then also
    asked for.
    It ends after ``seconds`` or ``requests``, whichever comes first, or when no connection can be made any more.
    """

    port: int
    model: str
    input: str
    output: str
    examples: str
    clients: int = 64
    seconds: float = 60.0
    requests: int = 1_000_000
    rate: float | None = None
    patience_s: float = 15.0
    rows: int = 1
    binary: bool = False


class Requests:
    """The bytes of each request, without its id, which is inserted on sending. ValueError if there are too few rows."""

    def __init__(self, load: Load) -> None:
        with np.load(load.examples) as held:
            rows, numbers = held["rows"], held["expected"].astype(np.float64)
        starts = range(0, len(rows) - load.rows + 1, load.rows)
        if not starts:
            raise ValueError(f"{load.examples} has {len(rows)} rows, fewer than the {load.rows} of a request")
        self.expected = [Expected(load.model, load.output, numbers[start : start + load.rows]) for start in starts]
        self._parts = [_request(load, rows[start : start + load.rows]) for start in starts]

    def __call__(self, index: int) -> bytes:
        """The bytes of a load's ``index``-th request."""
        before, between, after = self._parts[index % len(self._parts)]
        name = id_of(index).encode()
        return b"".join((before, name, between, name, after))

    def expected_answer(self, index: int) -> Expected:
        """The expected answer to it."""
        return self.expected[index % len(self.expected)]


def _request(load: Load, rows: Array) -> tuple[bytes, bytes, bytes]:
    """A request's bytes, cut at the two places of its id."""
    tensor: dict[str, Any] = {"name": load.input, "shape": rows.shape, "datatype": "FP32"}
    given, asked, media_type = b"", "", "application/json"
    if load.binary:
        given = rows.astype("<f4").tobytes()
        tensor["parameters"] = {"binary_data_size": len(given)}
        asked, media_type = ',"parameters":{"binary_data_output":true}', "application/octet-stream"
    else:
        tensor["data"] = rows.ravel().tolist()
    begin, end = '{"id":"', f'","inputs":{json.dumps([tensor], separators=(",", ":"))}{asked}}}'
    length = len(begin) + len(id_of(0)) + len(end)
    lines = [
        f"POST /v2/models/{load.model}/infer HTTP/1.1",
        f"Host: 127.0.0.1:{load.port}",
        f"Content-Type: {media_type}",
        f"Content-Length: {length + len(given)}",
        *([f"{HEADER_LENGTH}: {length}"] if load.binary else []),
        "X-Request-Id: ",
    ]
    return "\r\n".join(lines).encode(), f"\r\n\r\n{begin}".encode(), end.encode() + given


class Generator:
    """Sends a load, and keeps every answer to be judged afterwards."""

    def __init__(self, load: Load, requests: Requests) -> None:
        self._load, self._requests = load, requests
        self._sent: list[float] = []
        self._answers: list[tuple[float, Answer] | None] = []
        self._cut: set[int] = set()
        self._late: list[Answer] = []
        self._refused = 0
        self._free: list[Connection] = []
        self._open: set[Connection] = set()
        self._waiting = 0
        self._end, self._over = 0.0, False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, begun: Callable[[], None]) -> None:
        """Make the connections, report that it has ``begun``, and send the load."""
        await asyncio.gather(*(self._connect(number) for number in range(self._load.clients)))
        if not self._open:
            raise ConnectionError(f"nobody listens on port {self._load.port}")
        begun()
        self._end = time.monotonic() + self._load.seconds
        if self._load.rate is None:
            for connection in list(self._free):
                self._next(connection)
        else:
            await self._send_paced(self._load.rate)
        deadline = self._end + self._load.patience_s
        while (self._waiting or self._tasks or self._more()) and time.monotonic() < deadline:
            if not self._open and not self._tasks:
                break  # the server no longer listens
            await asyncio.sleep(_POLL_S)
        self._end, self._over = 0.0, True
        for connection in list(self._open):
            connection.close()

    def ledger(self) -> Ledger:
        """The outcome of every request."""
        count = len(self._sent)
        answered, status = np.full(count, np.nan), np.zeros(count, np.int16)
        verdict = np.full(count, Verdict.LOST, np.int8)
        ids: list[str | None] = [answer.header("x-request-id") for answer in self._late]
        for index, held in enumerate(self._answers):
            if held is None:
                verdict[index] = Verdict.CUT if index in self._cut else Verdict.LOST
                continue
            answered[index], answer = held
            status[index] = answer.status
            verdict[index] = judge(answer, id_of(index), self._requests.expected_answer(index))
            ids.append(answer.header("x-request-id"))
        sent = np.asarray(self._sent)
        return Ledger(sent, answered, status, verdict, duplicates(ids), len(self._late), self._refused)

    def _more(self) -> bool:
        return len(self._sent) < self._load.requests and time.monotonic() < self._end

    async def _send_paced(self, rate: float) -> None:
        start = time.monotonic()
        while self._more():
            due = min(int((time.monotonic() - start) * rate) + 1, self._load.requests)
            while self._free and len(self._sent) < due:
                self._send(self._free.pop())
            await asyncio.sleep(_TICK_S)

    async def _connect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(
                lambda: Connection(self._take_answer, self._lose_connection, number), "127.0.0.1", self._load.port
            )
        except OSError:
            self._refused += 1
            return
        self._open.add(made)
        self._next(made) if self._end and self._load.rate is None else self._free.append(made)

    def _next(self, connection: Connection) -> None:
        if self._more() and connection.open:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        index = len(self._sent)
        self._answers.append(None)
        self._waiting += 1
        request = self._requests(index)
        self._sent.append(time.monotonic())
        connection.send(request, index)

    def _take_answer(self, connection: Connection, answer: Answer) -> None:
        index = connection.busy
        if index is None:
            self._late.append(answer)
            return
        self._answers[index] = (time.monotonic(), answer)
        connection.busy = None
        self._waiting -= 1
        if b"onnection: close" in answer.head:
            return  # it is about to be closed; another connection takes over
        if self._load.rate is None:
            self._next(connection)
        else:
            self._free.append(connection)

    def _lose_connection(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._over:
            return  # this side ended it
        if connection in self._free:
            self._free.remove(connection)
        if connection.busy is not None:
            self._cut.add(connection.busy)
            self._waiting -= 1
        if self._more():
            self._spawn(self._connect(connection.number))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main(arguments: list[str]) -> None:
    """Send the load in the first argument, and write its ledger to the second."""
    load = Load(**json.loads(arguments[0]))
    generator = Generator(load, Requests(load))

    def announce_start() -> None:
        sys.stdout.write("begun\n")
        sys.stdout.flush()

    gc.disable()  # the process lives for seconds, and its GC pauses would count as the server's
    _run(generator.run(announce_start))
    generator.ledger().write(Path(arguments[1]))


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def as_json(load: Load) -> str:
    """The load as JSON for ``main``."""
    return json.dumps(asdict(load))


if __name__ == "__main__":
    main(sys.argv[1:])
