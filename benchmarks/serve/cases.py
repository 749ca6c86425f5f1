"""The cases of a server: throughput, added latency, memory, and the clients' view of overload, shutdown and a crash.

A case is a function from ``Bench`` to rows. The load generator, the server and its probes share the machine's cores, so
a client on another machine would see higher figures.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Row, in_turns
from benchmarks.serve import samples
from benchmarks.serve.beside import measure_beside, measure_binary, measure_mlserver
from benchmarks.serve.driving import drive, loading, probe, watching_memory
from benchmarks.serve.ledger import Ledger, Verdict, quantile
from benchmarks.serve.samples import Sample
from benchmarks.serve.servers import Server, serving, sockets
from benchmarks.serve.shares import measure_shares
from trnrt.errors import OptionError
from trnrt.session import InferenceSession

CLIENTS = 64
THROUGHPUT = 60.0  # % of the smaller of two rates: the session's and the instant model's
MERGED = 4.0  # x the same server without merging
SLOW_ROW_MS = 5.0
ADDED_MS = (3.0, 10.0)  # the median, and the 99th percentile
IDLE_MB = 400.0
PROBE_MS = 50.0
GROWTH_MB = 16.0
GOES_ON_S = 1.0

INSTANT = ("benchmarks.serve.instant",)
_DONE = (Verdict.RIGHT, Verdict.REJECTED)
_SETTLED_S = 0.3  # until 64 new connections have sent their first requests
_PATIENCE_MS = 10_000  # 64 clients wait longer for unmerged slow rows than a server lets them by default
_DYING_S = 0.1  # until a killed process and its connections are gone


@dataclass(frozen=True)
class Effort:
    """The duration of a load, and the number of measurements. The bars hold for the sizes given here."""

    seconds: float = 3.0
    rounds: int = 3
    flood: int = 20_000
    connections: int = 1024
    stops: int = 3
    shared: int = 6_400


QUICK = Effort(seconds=1.0, rounds=1, flood=4_000, stops=1, shared=1_600)


@dataclass(frozen=True)
class Bench:
    """The folder of models, examples and compiled kernels during the benchmark.

    ``mlserver``: an interpreter that has mlserver and onnxruntime; None to leave the comparison out.
    """

    folder: Path
    effort: Effort
    mlserver: str | None = None

    @property
    def cache(self) -> Path:
        """The folder of compiled models, for all servers."""
        return self.folder / "cache"

    def session(self, sample: Sample, rows: int, repeats: int = 60) -> float:
        """Median seconds of a session in this process for a batch of ``rows``."""
        session = InferenceSession(sample.model, backend="simulator", cache_dir=self.cache)
        with np.load(sample.examples) as held:
            feeds = {sample.input: held["rows"][:rows]}
        return median(in_turns([lambda: session.run(None, feeds)], repeats)[0])


def usual(bench: Bench) -> list[Row]:
    """A server with two small models: idle, with one client, with 64, and overloaded."""
    digits, other = samples.digits(bench.folder), samples.digits(bench.folder, "digits_ffnn")
    still = samples.instant(bench.folder)
    with ExitStack() as stack:
        server = stack.enter_context(serving([str(digits.model), str(other.model)], bench.cache))
        time.sleep(0.5)
        rows = [Row("idle memory, two models", server.resident() / 1e6, "MB", IDLE_MB, note="resident")]
        rows += _measure_overhead(bench, server, digits)
        instant = stack.enter_context(serving([str(still.model)], bench.cache, module=INSTANT))
        best, told = _throughput(bench, (server, digits), (instant, still))
        rows += told
        rows += _measure_probes(bench, server, digits)
        return rows + flood(server, digits, bench.effort.flood, 2 * best, bench.effort.connections)


def _measure_overhead(bench: Bench, server: Server, sample: Sample) -> list[Row]:
    """A lone client's latency beyond the session's own time."""
    drive(server, sample, clients=1, seconds=0.5)
    ledger = drive(server, sample, clients=1, seconds=bench.effort.seconds)
    _require_right(ledger)
    own = bench.session(sample, 1)
    note = f"beyond the session's own {own * 1e3:.2f} ms; {ledger.rate:,.0f} requests/s"
    added = {f"p{share * 100:g}": (quantile(ledger.latencies, share) - own) * 1e3 for share in (0.5, 0.99)}
    return [
        Row(f"added latency, 1 client, {name}", value, "ms", bar, note=note)
        for (name, value), bar in zip(added.items(), ADDED_MS, strict=True)
    ]


def _throughput(bench: Bench, served: tuple[Server, Sample], still: tuple[Server, Sample]) -> tuple[float, list[Row]]:
    """Requests per second, and their share of a session's rate, or that of a server without one."""
    ours, instant = _rates(bench, served, still)
    own = CLIENTS / bench.session(served[1], CLIENTS)
    name = f"{served[1].name}, {CLIENTS} clients"
    note = f"{ours:,.0f}/s; {instant:,.0f}/s with a model that returns at once; a session in process {own:,.0f} rows/s"
    return ours, [
        Row(f"{name}, throughput", ours, "requests/s", note="one row each, JSON"),
        Row(f"{name}, of what is possible", 100 * ours / min(instant, own), "%", THROUGHPUT, at_least=True, note=note),
    ]


def _rates(bench: Bench, *served: tuple[Server, Sample]) -> list[float]:
    """The median requests per second of each server, loaded in turns."""
    rates: list[list[float]] = [[] for _ in served]
    for server, sample in served:
        drive(server, sample, clients=CLIENTS, seconds=0.5)
    for _ in range(bench.effort.rounds):
        for taken, (server, sample) in zip(rates, served, strict=True):
            ledger = drive(server, sample, clients=CLIENTS, seconds=bench.effort.seconds)
            _require_right(ledger)
            taken.append(ledger.rate)
    return [median(taken) for taken in rates]


def _require_right(ledger: Ledger) -> None:
    """Raise RuntimeError unless every request of a sustainable load got the right answer."""
    if ledger.count(Verdict.RIGHT) != len(ledger.verdict) or not len(ledger.verdict):
        raise RuntimeError(f"not every request was answered: {ledger.told()}")


def _measure_probes(bench: Bench, server: Server, sample: Sample) -> list[Row]:
    """The latency of health and metrics, each on a new connection, while 64 clients keep the server busy."""
    with loading(server, sample, clients=CLIENTS, seconds=bench.effort.seconds + 1) as driver:
        time.sleep(_SETTLED_S)
        taken = probe(server, bench.effort.seconds)
        _require_right(driver.ledger())
    return [
        Row(
            f"{path} under full load, worst",
            max(times) * 1e3,
            "ms",
            PROBE_MS,
            note=f"of {len(times)}, median {median(times) * 1e3:.1f} ms",
        )
        for path, times in taken.items()
    ]


def flood(server: Server, sample: Sample, requests: int, rate: float, connections: int) -> list[Row]:
    """More requests than the server can answer, at a steady rate."""
    with watching_memory(server) as seen:
        ledger = drive(server, sample, clients=connections, requests=requests, rate=rate)
    case = f"{requests:,} requests at {rate:,.0f}/s"
    lost = ledger.count(Verdict.LOST, Verdict.CUT, Verdict.WRONG_ID) + ledger.duplicated + ledger.unasked
    wrong = ledger.count(Verdict.WRONG_NUMBERS, Verdict.UNREADABLE)
    return [
        Row(f"{case}, wrong answers", wrong, "answers", 0, note=ledger.told()),
        Row(f"{case}, lost or doubled ids", lost, "ids", 0, note=f"{ledger.refused} connections refused"),
        Row(f"{case}, other errors than 429 and 503", ledger.count(Verdict.ERROR), "answers", 0),
        Row(f"{case}, rejected", ledger.count(Verdict.REJECTED), "answers", note=f"answered {ledger.rate:,.0f}/s"),
        Row(f"{case}, memory", growth(ledger, seen) / 1e6, "MB", GROWTH_MB, note="grown over the second half"),
    ]


def growth(ledger: Ledger, seen: list[tuple[float, int]]) -> float:
    """The growth of memory from the middle request to the end, in bytes; the median of the samples near each."""
    middle = float(ledger.sent[len(ledger.sent) // 2])
    before = [size for moment, size in seen if moment <= middle][-5:]
    after = [size for _, size in seen][-5:]
    return median(after) - median(before or after)


def merging(bench: Bench) -> list[Row]:
    """The gain from merging requests, for a model that takes 5 ms per row."""
    deep = samples.deep(bench.folder)
    own = bench.session(deep, 1, repeats=20)
    with ExitStack() as stack:
        patient = [str(deep.model), "--max-wait-ms", f"{_PATIENCE_MS}"]
        merged = stack.enter_context(serving(patient, bench.cache))
        single = stack.enter_context(serving([*patient, "--no-batching"], bench.cache))
        ours, theirs = _rates(bench, (merged, deep), (single, deep))
    note = f"{ours:,.0f} requests/s against {theirs:,.0f} with --no-batching, {CLIENTS} clients"
    return [
        Row("a row of the slow model", own * 1e3, "ms", SLOW_ROW_MS, at_least=True, note="a session in process"),
        Row("the slow model, merged", ours / theirs, "x unmerged", MERGED, at_least=True, note=note),
    ]


def beside_bare(bench: Bench) -> list[Row]:
    """The digits CNN beside an application without batches, limits, metrics and log."""
    return measure_beside(samples.digits(bench.folder), bench.cache, bench.effort.seconds, bench.effort.rounds)


def beside_mlserver(bench: Bench) -> list[Row]:
    """The digits CNN beside MLServer, if there is one."""
    if bench.mlserver is None:
        return []
    effort = bench.effort
    return measure_mlserver(samples.digits(bench.folder), bench.cache, bench.mlserver, effort.seconds, effort.rounds)


def binary_tensors(bench: Bench) -> list[Row]:
    """Binary tensors beside JSON: for the digits CNN, and for the server alone, with a model that returns at once."""
    digits, still = samples.digits(bench.folder), samples.instant(bench.folder)
    with ExitStack() as stack:
        server = stack.enter_context(serving([str(digits.model)], bench.cache))
        instant = stack.enter_context(serving([str(still.model)], bench.cache, module=INSTANT))
        served = ((server, digits, False), (instant, still, True))
        return measure_binary(served, bench.effort.seconds, bench.effort.rounds)


def share_table(bench: Bench) -> list[Row]:
    """The parts of the CPU time of a request, for the digits CNN."""
    return measure_shares(samples.digits(bench.folder), bench.cache, bench.effort.shared)


def measure_shutdown(bench: Bench) -> list[Row]:
    """SIGTERM while 64 clients wait for answers, several times."""
    digits = samples.digits(bench.folder)
    unanswered, codes, told = 0, [], []
    for _ in range(bench.effort.stops):
        with serving([str(digits.model)], bench.cache) as server:
            ledger, moment, code = terminate_loaded(server, digits)
        unanswered += len(ledger.before(moment).verdict) - ledger.before(moment).count(*_DONE)
        codes.append(code)
        told.append(ledger.since(moment).told() or "none")
    case = f"SIGTERM under load, {bench.effort.stops} times"
    return [
        Row(f"{case}, sent before and not answered", unanswered, "requests", 0, note=f"sent after: {'; '.join(told)}"),
        Row(f"{case}, exit code", max(codes, key=abs), "", 0),
    ]


def terminate_loaded(server: Server, sample: Sample, after_s: float = 0.7) -> tuple[Ledger, float, int]:
    """Load a server, and stop it meanwhile; returns the fate of the requests, the moment of the signal, its exit
    code."""
    with loading(server, sample, clients=CLIENTS, seconds=30.0, patience_s=5.0) as driver:
        time.sleep(after_s)
        moment = time.monotonic()
        code = server.stop()
        return driver.ledger(), moment, code


def measure_worker_loss(bench: Bench) -> list[Row]:
    """kill -9 of one worker of two while 64 clients wait for answers."""
    digits = samples.digits(bench.folder)
    with serving([str(digits.model), "--workers", "2"], bench.cache) as server:
        ledger, moment, _ = kill_worker(server, digits, seconds=bench.effort.seconds + 1)
    failed = failures(ledger)
    flying = in_flight(ledger, moment)
    later = failures(ledger.since(moment + _DYING_S))
    case = "kill -9 of one worker of two"
    return [
        Row(f"{case}, failed requests", failed, "requests", flying, note=f"{flying} were in flight; {ledger.told()}"),
        Row(f"{case}, failed of those sent after", later, "requests", 0, note=f"{_DYING_S:g} s after"),
        Row(f"{case}, longest time without an answer", silence(ledger, moment), "s", GOES_ON_S, note="of any client"),
    ]


def kill_worker(server: Server, sample: Sample, seconds: float, after_s: float = 0.7) -> tuple[Ledger, float, int]:
    """Load a server with several workers, and kill the one with the most connections.

    Returns the requests' outcomes, the time of the kill, and the worker's open sockets: its connections and a few more.
    """
    with loading(server, sample, clients=CLIENTS, seconds=seconds) as driver:
        time.sleep(after_s)
        held, victim = max((sockets(worker), worker) for worker in server.workers())
        moment = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return driver.ledger(), moment, held


def failures(ledger: Ledger) -> int:
    """Requests without a right answer, including refused ones where the server should have room."""
    return len(ledger.verdict) - ledger.count(Verdict.RIGHT)


def in_flight(ledger: Ledger, moment: float) -> int:
    """Requests sent before this moment, and answered later or never."""
    return int(((ledger.sent < moment) & ~(ledger.answered < moment)).sum())


def silence(ledger: Ledger, moment: float) -> float:
    """The longest time in which no client got a right answer, from this moment to the last request."""
    right = np.sort(ledger.answered[(ledger.verdict == Verdict.RIGHT) & (ledger.answered >= moment)])
    moments: list[float] = [moment, *right.tolist(), float(ledger.sent.max())]
    return max(after - before for before, after in pairwise(moments))


def require() -> None:
    """Raise OptionError if the server, or a tool to inspect it, is missing."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise OptionError("the server is not installed", hint="pip install 'trnrt[serve]'")
    if not Path("/proc/self/status").exists():
        raise OptionError("processes are looked at through /proc, which this system does not have", hint="use Linux")


Case = Callable[[Bench], list[Row]]
CASES: dict[str, Case] = {
    "two small models": usual,
    "a slow model": merging,
    "a bare application": beside_bare,
    "MLServer": beside_mlserver,
    "binary tensors": binary_tensors,
    "the shares of a request": share_table,
    "a shutdown under load": measure_shutdown,
    "the loss of a worker": measure_worker_loss,
}


def measure(name: str, folder: Path, *, quick: bool, mlserver: str | None = None) -> list[Row]:
    """The rows of a case; ``folder`` is reused by the next one."""
    return CASES[name](Bench(folder, QUICK if quick else Effort(), mlserver))
