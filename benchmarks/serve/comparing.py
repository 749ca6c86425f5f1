"""``python -m benchmarks.serve.comparing [MINUTES]``: compare the predictions of ``trnrt plan`` with a real worker.

The worker is ``trnrt serve`` with a waiting stand-in for the device (``waiting``); requests come over HTTP from a
generator in another process (``arrivals``). The model gets the same latency, and the host's times as ``hosting``
measures them in the same run. Server and generator have a processor each. A run disturbed by other processes is
repeated, as long as there is time (``quiet``).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.serve import hosting
from benchmarks.serve.arrivals import Seen, Stream, as_json
from benchmarks.serve.hosting import Spent
from benchmarks.serve.quiet import cpu_seconds, undisturbed
from benchmarks.serve.samples import zeros
from benchmarks.serve.servers import Server, serving
from trnrt.capacity.assumptions import DEFAULT_MOST, Host, default_utilisation
from trnrt.capacity.queueing import FINAL_SAMPLES, Worker, play, stream, wait
from trnrt.capacity.workers import Served
from trnrt.planner.parts.crossing import HostLink

Array = NDArray[np.float64]

DEVICE_US = (200.0, 2_000.0, 10_000.0)
SHARES = (0.2, 0.4, 0.6, 0.8)
"""As shares of the rate that the plan predicts for a worker."""
ROUNDS = 5
SECONDS = 2.0
MINUTES = 30.0
_OUTPUTS = 10
_WARM = 0.05
NO_LINK = HostLink(math.inf, 0.0)


@dataclass(frozen=True)
class Point:
    """A latency of the device, a row's shape (small ones are sent as JSON), and a rate."""

    device_us: float
    shape: tuple[int, ...]
    share: float
    rate: float
    worker: Worker

    @property
    def binary(self) -> bool:
        """True if its rows are sent as binary tensors."""
        return self.shape != hosting.SHAPES[0]


@dataclass(frozen=True)
class Figures:
    """Figures of a run: latency in microseconds, requests per batch, and the host's CPU time per request."""

    p50_us: float
    p99_us: float
    batch: float
    cpu_us: float
    rate: float = math.nan


@dataclass(frozen=True)
class Run:
    """A run, and the model's simulation of the same arrivals.

    ``late_us``: the 99th percentile of the generator's delays; ``device_us``: the median time of a batch.
    """

    measured: Figures
    replayed: Figures
    late_us: float
    device_us: float


@dataclass
class Compared:
    """The undisturbed runs of a point, the CPU that others used during each, and the number of discarded runs."""

    point: Point
    runs: list[Run]
    others: list[float]
    thrown_away: int = 0


def served(shape: tuple[int, ...], device_us: float) -> Served:
    """The stand-in as the plan sees it: every bucket takes the same time."""
    size = math.prod(shape) * 4
    return Served({DEFAULT_MOST: device_us}, size, size, 4 * _OUTPUTS, mergeable=True)


def points(host: Host) -> Iterator[Point]:
    """All compared points; the rates depend on the host."""
    for shape in hosting.SHAPES:
        for device_us in DEVICE_US:
            worker = served(shape, device_us).worker(DEFAULT_MOST, 1, host)
            carries = default_utilisation() * worker.saturation
            yield from (Point(device_us, shape, share, share * carries, worker) for share in SHARES)


def planned(point: Point, host: Host) -> Figures:
    """The prediction of ``trnrt plan``."""
    found = wait(point.worker, point.rate, stream(samples=FINAL_SAMPLES))
    cpu = served(point.shape, point.device_us).cpu_us(1, found.batch, host) + found.cold_us
    return Figures(found.p50_us, found.p99_us, found.batch, cpu, point.rate)


def run(server: Server, point: Point, host: Host, seed: int) -> Run:
    """Load the server once."""
    name, count = f"zeros_{math.prod(point.shape)}", max(200, int(point.rate * SECONDS))
    _pin(server.process.pid, 0)
    before = cpu_seconds(server.process.pid)
    seen = _send_stream(Stream(server.port, name, point.shape, point.binary, point.rate, count, seed))
    spent = (cpu_seconds(server.process.pid) - before) / count * 1e6
    span = float(seen.answered.max() - seen.sent[0])
    batch = count / float((1 / seen.rows).sum())
    measured = Figures(*_quantiles((seen.answered - seen.sent) * 1e6), batch, spent, count / span)
    played = play(point.worker, (seen.sent - seen.sent[0]) * 1e6)
    batch = count / played.batches
    cpu = served(point.shape, point.device_us).cpu_us(1, batch, host) + played.cold_us
    replayed = Figures(*_quantiles(played.latencies), batch, cpu, count / span)
    late = float(np.quantile(seen.sent - seen.due, 0.99)) * 1e6
    return Run(measured, replayed, late, float(np.median(seen.compute_ms)) * 1e3)


def _send_stream(content: Stream) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seen.npz"
        command = [sys.executable, "-m", "benchmarks.serve.arrivals", as_json(content), str(file)]
        process = subprocess.Popen(command, cwd=ROOT)
        _pin(process.pid, 1)
        if process.wait():
            raise RuntimeError(f"the load generator ended with {process.returncode}")
        return Seen.read(file)


def _quantiles(latencies: Array) -> tuple[float, float]:
    p50, p99 = np.quantile(latencies[int(len(latencies) * _WARM) :], (0.5, 0.99), method="higher")
    return float(p50), float(p99)


def _pin(pid: int, number: int) -> None:
    """Pin all threads of a process to one processor, if there are enough."""
    known = sorted(os.sched_getaffinity(0))
    if len(known) > 1:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {known[number]})


def compared(host: Host, folder: Path, deadline: float) -> list[Compared]:
    """Run every point ``ROUNDS`` times, in turns, so that a lasting disturbance affects all of them; fewer times if the
    deadline (monotonic seconds) comes first."""
    found = [Compared(point, [], []) for point in points(host)]
    with ExitStack() as stack:
        servers = {
            (shape, device_us): stack.enter_context(_waiting(folder, shape, device_us))
            for shape in hosting.SHAPES
            for device_us in DEVICE_US
        }
        for one in found:  # a server's first requests are slower
            run(servers[one.point.shape, one.point.device_us], replace(one.point, rate=100.0), host, 0)
        for number in range(ROUNDS):
            for one in found:
                if time.monotonic() > deadline:
                    return found
                server = servers[one.point.shape, one.point.device_us]
                took = undisturbed(partial(run, server, one.point, host, number), deadline, server.process.pid)
                one.thrown_away += took.thrown_away
                if took.result is not None:
                    one.runs.append(took.result)
                    one.others.append(took.others)
    return found


def _waiting(folder: Path, shape: tuple[int, ...], device_us: float) -> AbstractContextManager[Server]:
    module = ("benchmarks.serve.waiting", f"{device_us:g}")
    return serving([str(zeros(folder, shape))], folder / "cache", module=module)


HEAD = "device us  row           req/s            p50 ms   p99 ms  batch  cpu us  (least and most p99; noise)"


def lines(one: Compared, host: Host) -> Iterator[str]:
    """The lines for a point: the measurements, the model's figures for the same arrivals (medians, and least and most
    p99), and the plan's prediction."""
    point, runs = one.point, one.runs
    head = f"{point.device_us:9,.0f}  {'x'.join(map(str, point.shape)):9}  {point.rate:8,.0f}  "
    if not runs:
        why = f"never undisturbed; {one.thrown_away} runs thrown away" if one.thrown_away else "no time was left for it"
        yield head + why
        return
    late, others = median(run.late_us for run in runs), median(one.others)
    noise = f"{len(runs)} runs, {one.thrown_away} thrown away; others {others:.2f} CPUs; sent {late:,.0f} us late"
    yield head + _figures_text("measured", [run.measured for run in runs]) + f"; {noise}"
    yield " " * len(head) + _figures_text("replayed", [run.replayed for run in runs])
    yield " " * len(head) + _figures_text("planned", [planned(point, host)])


def _figures_text(name: str, figures: Sequence[Figures]) -> str:
    p50, p99, batch, cpu = (median(getattr(one, f) for one in figures) for f in ("p50_us", "p99_us", "batch", "cpu_us"))
    p99s = [one.p99_us / 1e3 for one in figures]
    spread = f"  {min(p99s):.2f} - {max(p99s):.2f}" if len(p99s) > 1 else ""
    return f"{name:8}  {p50 / 1e3:7.2f}  {p99 / 1e3:7.2f}  {batch:5.2f}  {cpu:6.0f}{spread}"


def _host(deadline: float) -> Host | None:
    """The host's times, each measured undisturbed; None if that was not possible."""

    def take(server: Server, measure: Callable[[], Spent]) -> Spent:
        took = undisturbed(measure, deadline, server.process.pid)
        if took.result is None:
            raise TimeoutError
        return took.result

    try:
        values = hosting.told(list(hosting.measured(take)))
    except TimeoutError:
        return None
    _say([f"host: {', '.join(f'{name} {value:.0f}' for name, value in values.items())}"])
    return Host(**values, link=NO_LINK)


def main(arguments: Sequence[str]) -> int:
    """Measure the host, compare, and print; 1 if others never left the machine alone."""
    deadline = time.monotonic() + 60 * (float(arguments[0]) if arguments else MINUTES)
    host = _host(deadline)
    if host is None:
        _say(["the host's times were not measured: others kept the machine busy"])
        return 1
    with tempfile.TemporaryDirectory() as name:
        found = compared(host, Path(name), deadline)
    _say([HEAD, *(line for one in found for line in lines(one, host))])
    return 0 if all(one.runs for one in found) else 1


def _say(told: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in told)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
