"""The server beside others, in one run, 1 and 32 clients: a bare application (``benchmarks.serve.bare``), MLServer
(``benchmarks.serve.mlserver_app``), and itself with binary tensors.

All servers run at the same time, and are loaded in turns. Rates depend on what else the machine does, their ratios
less. The CPU time of a request, of a server's own processes, is steadier still, and is given in each note.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import Row
from benchmarks.serve.driving import drive
from benchmarks.serve.ledger import Verdict
from benchmarks.serve.samples import Sample
from benchmarks.serve.servers import Server, children, serving
from trnrt.nki.blas import THREAD_VARIABLES

BESIDE = 0.9  # of the bare application's rate
MERGING = 0.97  # of the rate without merging
MLSERVER = 2.0  # times MLServer's rate
BINARY = 1.5  # times the rate with JSON
BINARY_ROWS = 16
"""Rows of 64 numbers from which on the bar for binary tensors can hold, if the model takes next to no time.

The server needs about 260 microseconds of CPU for a request of any kind, and for a row 14 as JSON and 3.4 as binary
data. With s microseconds a row for the model, n rows gain a factor of 1.5 if n (14 - 3.4) >= 0.5 (260 + n (3.4 + s)):
from 15 rows on without a model, never for s > 17.8. The digits CNN takes about 30 in a large batch.
"""
CLIENTS = (1, 32)
ROWS = (1, 8, 32)
BARE_WORKERS = (1, 2)
THREADS = (None, 1, 2)
_WARM_S = 0.4
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """A server's requests per second and CPU microseconds per request, by turn."""

    rates: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median rate."""
        return median(self.rates)

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, {median(self.cpus):,.0f} us of CPU each"


def cpu_seconds(server: Server) -> float:
    """The CPU time of a server's processes so far, user and system."""
    total = 0
    for pid in (server.process.pid, *children(server.process.pid)):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


@dataclass(frozen=True)
class Turn:
    """A server and what it is asked for; ``how``: fields of the ``Load``."""

    server: Server
    sample: Sample
    how: Mapping[str, Any] = field(default_factory=dict)


def measure_in_turns(turns: Mapping[str, Turn], clients: int, seconds: float, rounds: int) -> dict[str, Measured]:
    """Load each server in turns. RuntimeError if one does not answer every request rightly."""
    found = {name: Measured() for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            before, during = cpu_seconds(turn.server), seconds if number else _WARM_S
            ledger = drive(turn.server, turn.sample, clients=clients, seconds=during, **turn.how)
            used, count = cpu_seconds(turn.server) - before, len(ledger.verdict)
            if not count or ledger.count(Verdict.RIGHT) != count:
                raise RuntimeError(f"{name}: not every request was answered rightly: {ledger.told()}")
            if number:
                found[name].rates.append(ledger.rate)
                found[name].cpus.append(used / count * 1e6)
    return found


@contextmanager
def blas_threads(count: int | None) -> Iterator[None]:
    """Servers started in this context have this number of BLAS threads in their environment; None: no number."""
    before = {name: os.environ.pop(name, None) for name in THREAD_VARIABLES}
    if count is not None:
        os.environ["OPENBLAS_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def measure_beside(sample: Sample, cache: Path, seconds: float, rounds: int) -> list[Row]:
    """The server in every setting beside the bare application with its own best number of workers."""
    rows: list[Row] = []
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for workers in BARE_WORKERS:
            arguments = [str(sample.model), "--workers", str(workers)]
            name = _bare_name(workers)
            servers[name] = stack.enter_context(serving(arguments, cache, module=("benchmarks.serve.bare",)))
        for threads in THREADS:
            for batching in (True, False):
                arguments = [str(sample.model), *([] if batching else ["--no-batching"])]
                with blas_threads(threads):
                    servers[_own_name(threads, batching)] = stack.enter_context(serving(arguments, cache))
        turns = {name: Turn(server, sample) for name, server in servers.items()}
        for clients in CLIENTS:
            rows += _compare(measure_in_turns(turns, clients, seconds, rounds), sample.name, clients)
    return rows


def measure_mlserver(sample: Sample, cache: Path, python: str, seconds: float, rounds: int) -> list[Row]:
    """The server beside MLServer with the same model, run by onnxruntime; ``python``: an interpreter that has both."""
    rows: list[Row] = []
    with ExitStack() as stack:
        theirs = serving([str(sample.model)], cache, module=("benchmarks.serve.mlserver_app",), python=python)
        servers = {
            "MLServer": stack.enter_context(theirs),
            "trnrt": stack.enter_context(serving([str(sample.model)], cache)),
        }
        turns = {name: Turn(server, sample) for name, server in servers.items()}
        for clients in CLIENTS:
            found = measure_in_turns(turns, clients, seconds, rounds)
            ratio, note = found["trnrt"].rate / found["MLServer"].rate, f"{found['trnrt']} against {found['MLServer']}"
            case = f"{_case(sample.name, clients)}, beside MLServer"
            rows.append(Row(case, ratio, "x MLServer", MLSERVER, at_least=True, note=note))
    return rows


def measure_binary(served: Sequence[tuple[Server, Sample, bool]], seconds: float, rounds: int) -> list[Row]:
    """Rows as binary tensors beside the same rows as JSON, with 32 clients. A server with True takes next to no time
    for its model: there the bar is for many rows alone, as with few the requests themselves are what takes long."""
    rows: list[Row] = []
    for server, sample, is_instant in served:
        for count in ROWS:
            turns = {
                kind: Turn(server, sample, {"rows": count, "binary": kind == "binary"}) for kind in ("JSON", "binary")
            }
            found = measure_in_turns(turns, CLIENTS[-1], seconds, rounds)
            ratio, note = found["binary"].rate / found["JSON"].rate, f"{found['binary']} against {found['JSON']}"
            case = f"{_case(sample.name, CLIENTS[-1])}, {count} row{'s' if count > 1 else ''} a request, binary"
            bar = None if is_instant and count < BINARY_ROWS else BINARY
            rows.append(Row(case, ratio, "x JSON", bar, at_least=True, note=note))
    return rows


def _case(model: str, clients: int) -> str:
    return f"{model}, {clients} client{'s' if clients > 1 else ''}"


def _bare_name(workers: int) -> str:
    return f"a bare application, {workers} worker{'s' if workers > 1 else ''}"


def _own_name(threads: int | None, batching: bool) -> str:
    environment = "no OPENBLAS_NUM_THREADS" if threads is None else f"OPENBLAS_NUM_THREADS={threads}"
    return f"{'merging' if batching else '--no-batching'}, {environment}"


def _compare(found: Mapping[str, Measured], model: str, clients: int) -> list[Row]:
    """The rows of a number of clients."""
    case = _case(model, clients)
    best = max(map(_bare_name, BARE_WORKERS), key=lambda name: found[name].rate)
    rows = [Row(f"{case}, {best}", found[best].rate, "requests/s", note=f"its best; {found[best]}")]
    for threads in THREADS:
        merged, single = found[_own_name(threads, True)], found[_own_name(threads, False)]
        for batching, own in ((True, merged), (False, single)):
            name = f"{case}, {_own_name(threads, batching)}"
            rows.append(Row(name, own.rate / found[best].rate, "x bare", BESIDE, at_least=True, note=str(own)))
    merged, single = (found[_own_name(THREADS[0], batching)] for batching in (True, False))
    note = f"{merged} against {single}"
    rows.append(Row(f"{case}, merging", merged.rate / single.rate, "x unmerged", MERGING, at_least=True, note=note))
    return rows
