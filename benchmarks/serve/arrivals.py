"""A load generator in its own process, whose requests arrive as a Poisson stream.

``python -m benchmarks.serve.arrivals SPEC FILE``: SPEC is a ``Stream`` as JSON; the ``Seen`` are written to FILE.
"""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serve.hosting import HEADER_LENGTH, request
from benchmarks.serve.waiting import exact_sleeps
from benchmarks.serve.wire import Answer, Connection

Array = NDArray[np.float64]

_POLL_S = 0.001
PATIENCE_S = 10.0
"""The longest wait for the last answers."""


@dataclass(frozen=True)
class Stream:
    """A stream of single rows to a model, ``rate`` per second on average, over keep-alive connections."""

    port: int
    model: str
    shape: tuple[int, ...]
    binary: bool
    rate: float
    count: int
    seed: int
    clients: int = 192

    @property
    def moments(self) -> Array:
        """The times at which requests are due, seconds. (count,)"""
        return np.cumsum(np.random.default_rng(self.seed).exponential(1 / self.rate, self.count))


@dataclass(frozen=True)
class Seen:
    """For each request: when it was due, sent and answered, seconds; the rows of its batch, and the batch's time in ms
    as reported by the server."""

    due: Array
    sent: Array
    answered: Array
    rows: Array
    compute_ms: Array

    def write(self, path: Path) -> None:
        """Write a file for ``read``."""
        np.savez(path, **vars(self))

    @staticmethod
    def read(path: Path) -> Seen:
        """Read the output of ``write``."""
        with np.load(path) as held:
            return Seen(**held)


async def send(stream: Stream) -> Seen:
    """Send all requests; raises RuntimeError for an answer other than 200."""
    loop, free = asyncio.get_running_loop(), list[Connection]()
    content, _ = request(stream.port, stream.model, tuple(stream.shape), binary=stream.binary)
    sent, answered = np.full(stream.count, np.nan), np.full(stream.count, np.nan)
    answers: list[Answer] = []
    order: list[int] = []

    def got(connection: Connection, answer: Answer) -> None:
        assert connection.busy is not None
        answered[connection.busy] = time.monotonic()
        answers.append(answer)
        order.append(connection.busy)
        free.append(connection)

    for _ in range(stream.clients):
        made = await loop.create_connection(lambda: Connection(got, lambda _c: None), "127.0.0.1", stream.port)
        free.append(made[1])
    begin = time.monotonic()
    due = stream.moments + begin
    for index, moment in enumerate(due.tolist()):
        if (early := moment - time.monotonic()) > 0:
            await asyncio.sleep(early)
        while not free:
            await asyncio.sleep(_POLL_S)
        sent[index] = time.monotonic()
        free.pop(0).send(content, index)  # use all connections alike, as many clients would
    end = time.monotonic() + PATIENCE_S
    while len(answers) < stream.count and time.monotonic() < end:
        await asyncio.sleep(_POLL_S)
    for connection in free:
        connection.close()
    if wrong := {answer.status for answer in answers} - {200} or len(answers) < stream.count:
        raise RuntimeError(f"not every request was answered: {len(answers)} of {stream.count}, {wrong}")
    told = [_parameters(answer) for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]
    rows, compute_ms = (np.array([float(one[name]) for one in told]) for name in ("batch_rows", "compute_ms"))
    return Seen(due, sent, answered, rows, compute_ms)


def _parameters(answer: Answer) -> dict[str, Any]:
    """The server's details on how an answer was computed."""
    length = answer.header(HEADER_LENGTH.lower())
    told: dict[str, Any] = json.loads(answer.body if length is None else answer.body[: int(length)])["parameters"]
    return told


def as_json(stream: Stream) -> str:
    """The stream as JSON for ``main``."""
    return json.dumps(asdict(stream))


def main(arguments: list[str]) -> None:
    """Send the stream in the first argument, and write the results to the second."""
    gc.disable()  # the process lives for seconds, and its GC pauses would count as the server's
    exact_sleeps()
    # select() has a resolution of microseconds; epoll, the default of other loops, of milliseconds, in which several
    # requests are due.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(send(Stream(**json.loads(arguments[0])))).write(Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
