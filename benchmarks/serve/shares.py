"""The share table: where the CPU time of a request goes, by part of the server.

A server in this process answers a client in a thread of its own, over socket pairs. The functions where a part begins
are wrapped in clocks of the event loop's thread: the time of a part is that of its functions without the parts that
they call. A coroutine's time is that of its steps, so any number of requests may be under way.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from uvicorn.server import ServerState

from benchmarks import ROOT
from benchmarks.measuring import Row
from benchmarks.serve.load import Load, Requests
from benchmarks.serve.samples import Sample
from benchmarks.serve.wire import take

if TYPE_CHECKING:
    from trnrt.serve.hosting.repository import Repository

CLIENTS = (1, 32)
OTHER = "event loop"
_WARM = 320
_READINGS = 1_000
_CLOSING_S = 0.05  # until the server has seen that its client has gone


@dataclass
class Clocks:
    """Nanoseconds by part, of one thread. A part runs until it ends or another begins inside it.

    ``cost``: of reading the clock, a call of the system; it is taken off. Nothing else of the wrappers is.
    """

    now: Callable[[], int] = time.thread_time_ns
    spent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    running: list[str] = field(default_factory=lambda: [OTHER])
    since: int = 0
    cost: int = 0

    def reset(self) -> None:
        """Begin to measure; call it on the thread."""
        read = [self.now() for _ in range(_READINGS)]
        self.cost = (read[-1] - read[0]) // (len(read) - 1)
        self.spent.clear()
        self.since = self.now()

    def _turn(self) -> None:
        now = self.now()
        self.spent[self.running[-1]] += now - self.since - self.cost
        self.since = now

    def stop(self) -> None:
        """Count the time since the last change; call it on the thread."""
        self._turn()

    def begin(self, part: str) -> None:
        """A part begins."""
        self._turn()
        self.running.append(part)

    def end(self) -> None:
        """It ends."""
        self._turn()
        self.running.pop()

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is the part's."""
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def add_steps(*arguments: Any, **named: Any) -> Any:
                return await _Steps(self, part, function(*arguments, **named))

            return add_steps

        @wraps(function)
        def add_clock(*arguments: Any, **named: Any) -> Any:
            self.begin(part)
            try:
                return function(*arguments, **named)
            finally:
                self.end()

        return add_clock


@dataclass
class _Steps:
    """Awaits a coroutine, and clocks each of its steps."""

    clocks: Clocks
    part: str
    work: Coroutine[Any, Any, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        while True:
            self.clocks.begin(self.part)
            try:
                waited = self.work.send(None) if thrown is None else self.work.throw(thrown)
            except StopIteration as end:
                return end.value
            finally:
                self.clocks.end()
            try:  # a task sends None, or throws
                yield waited
                thrown = None
            except BaseException as error:
                thrown = error


def parts() -> dict[str, list[tuple[Any, str]]]:
    """The functions where each part begins."""
    from trnrt.serve.hosting import batcher, metrics, models
    from trnrt.serve.http import connection, converting, exchange, limits, line
    from trnrt.session import InferenceSession

    counted = ("pending", "batch", "count_answer")
    batched = ("infer", "_consider", "_compute", "_deliver")
    return {
        "HTTP": [(connection.Connection, "data_received"), (exchange.Exchange, "run"), (exchange.Exchange, "send")],
        "sending": [(line.Line, "write")],
        "layers": [(limits.Tracked, "__call__")],
        "JSON": [(converting.Converter, "read_infer"), (converting.Converter, "write_infer")],
        "log": [(limits, "log")],
        "metrics": [(metrics.Metrics, "request"), *((metrics.ModelMetrics, name) for name in counted)],
        "batching": [(models.ServedModel, "infer"), *((batcher.Batcher, name) for name in batched)],
        "session": [(InferenceSession, "run")],
    }


@contextmanager
def add_clock(clocks: Clocks) -> Iterator[None]:
    """The server's functions are wrapped in clocks."""
    with ExitStack() as stack:
        for part, places in parts().items():
            for owner, name in places:
                original = getattr(owner, name)
                setattr(owner, name, clocks.wrap(part, original))
                stack.callback(setattr, owner, name, original)
        yield


class _Client:
    """Sends requests on sockets, one at a time on each."""

    def __init__(self, ends: Sequence[socket.socket], requests: Requests) -> None:
        self._ends, self._requests, self._sent = ends, requests, 0

    def converse(self, count: int) -> int:
        """Send ``count`` requests or a few more; the CPU nanoseconds of this thread. RuntimeError unless all are
        answered with 200."""
        began, until = time.thread_time_ns(), self._sent + count
        while self._sent < until:
            for end in self._ends:
                end.sendall(self._requests(self._sent))
                self._sent += 1
            for end in self._ends:
                _receive(end)
        return time.thread_time_ns() - began


def _receive(end: socket.socket) -> None:
    answer, held = None, b""
    while answer is None:
        if not (data := end.recv(1 << 16)):
            raise RuntimeError("the server closed the connection")
        answer, held = take(held + data)
    if answer.status != 200:
        raise RuntimeError(f"the server answered with {answer.status}: {answer.body[:200]!r}")


@dataclass(frozen=True)
class Share:
    """CPU microseconds of a request: in all, without clocks; and by part, with them. The log's thread is in both."""

    total_us: float
    by_part: dict[str, float]


async def measure(sample: Sample, clients: int, count: int) -> Share:
    """The CPU time of a request of one row, of ``count``, with this many clients at a time."""
    from trnrt.serve.hosting.metrics import MOST_BUFFERED, Metrics
    from trnrt.serve.hosting.pins import Store
    from trnrt.serve.hosting.policies import chosen_sources, pin_sources
    from trnrt.serve.hosting.repository import Repository
    from trnrt.serve.processes.logs import start_logging
    from trnrt.serve.settings import ServeSettings

    settings, store = ServeSettings(models=[sample.model]), Store.make()
    with Path(os.devnull).open("w", encoding="utf-8") as sink:
        logs = start_logging("info", sink)
        try:
            repository = Repository(
                settings,
                Metrics(buffered=MOST_BUFFERED),
                catalog=pin_sources(*chosen_sources(settings), store),
                store=store,
            )
            await repository.start()
            plain = sum((await _spend(repository, sample, clients, count)).values())
            found = await _spend(repository, sample, clients, count, with_clocks=True)
            await repository.drain()
        finally:
            logs.close()
            store.close()
    return Share(plain, found)


async def _spend(
    repository: Repository, sample: Sample, clients: int, count: int, *, with_clocks: bool = False
) -> dict[str, float]:
    """CPU microseconds of a request by part; without clocks there are only two, the loop's thread and the log's."""
    from trnrt.serve.http.app import make_app
    from trnrt.serve.http.connection import Connection
    from trnrt.serve.http.connections import Connections

    requests = Requests(Load(0, sample.name, sample.input, sample.output, str(sample.examples)))
    clocks, loop = Clocks(), asyncio.get_running_loop()
    with add_clock(clocks) if with_clocks else nullcontext():
        app, connections = make_app(repository), Connections(repository.settings, repository.metrics)
        pairs = [socket.socketpair() for _ in range(clients)]
        for own, _ in pairs:
            await loop.create_connection(lambda: Connection(app, ServerState(), connections), sock=own)
        client = _Client([end for _, end in pairs], requests)
        await asyncio.to_thread(client.converse, min(_WARM, count))
        clocks.reset()
        before, theirs = time.process_time_ns(), time.thread_time_ns()
        spent_by_client = await asyncio.to_thread(client.converse, count)
        clocks.stop()
        own_ns = time.thread_time_ns() - theirs
        log_ns = time.process_time_ns() - before - own_ns - spent_by_client
        for _, end in pairs:
            end.close()
        await asyncio.sleep(_CLOSING_S)
    found = dict(clocks.spent) if with_clocks else {OTHER: own_ns}
    found["log"] = found.get("log", 0) + log_ns
    return {part: ns / count / 1e3 for part, ns in found.items()}


def measure_shares(sample: Sample, cache: Path, requests: int) -> list[Row]:
    """The share table, measured in a process of its own, with 1 client and 32."""
    rows: list[Row] = []
    for clients in CLIENTS:
        told = json.dumps([str(sample.model), sample.input, sample.output, str(sample.examples), clients, requests])
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TRNRT_")}
        environment |= {"TRNRT_CACHE": str(cache)}
        command = [sys.executable, "-m", "benchmarks.serve.shares", told]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
        share = Share(**json.loads(done.stdout))
        case = f"{sample.name}, {clients} client{'s' if clients > 1 else ''}, CPU of a request"
        whole = sum(share.by_part.values())
        rows.append(Row(case, share.total_us, "us", note=f"in process; {whole:,.0f} with the clocks of the parts"))
        for part, spent in sorted(share.by_part.items(), key=lambda item: -item[1]):
            rows.append(Row(f"{case}, {part}", spent, "us", note=f"{100 * spent / whole:.0f} %"))
    return rows


def main(arguments: list[str]) -> None:
    """Measure what the argument asks for, as JSON; print the result as JSON."""
    from trnrt.nki.blas import keep_one_blas_thread

    model, taken, given, examples, clients, requests = json.loads(arguments[0])
    keep_one_blas_thread()
    sample = Sample(Path(model), taken, given, Path(examples))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        share = runner.run(measure(sample, clients, requests))
    sys.stdout.write(json.dumps(asdict(share)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
