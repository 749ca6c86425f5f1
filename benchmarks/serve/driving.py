"""Start the load generator against a server, and inspect the server while it runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.serve.ledger import Ledger
from benchmarks.serve.load import Load, as_json
from benchmarks.serve.samples import Sample
from benchmarks.serve.servers import Server, end

PROBED = ("/v2/health/live", "/v2/health/ready", "/metrics")
_SAMPLE_S = 0.02


@dataclass(frozen=True)
class Driver:
    """A running load generator."""

    process: subprocess.Popen[bytes]
    load: Load
    file: Path

    def ledger(self) -> Ledger:
        """The outcome of its requests, once it is done."""
        limit = self.load.seconds + 2 * self.load.patience_s + 30
        if self.process.wait(limit):
            raise RuntimeError(f"the load generator ended with {self.process.returncode}")
        return Ledger.read(self.file)


@contextmanager
def loading(server: Server, sample: Sample, **how: Any) -> Iterator[Driver]:
    """A running load generator in its own process; ``how`` are fields of its ``Load``."""
    load = Load(server.port, sample.name, sample.input, sample.output, str(sample.examples), **how)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.npz"
        command = [sys.executable, "-m", "benchmarks.serve.load", as_json(load), str(file)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()  # empty if it failed, which ``ledger`` reports
            yield Driver(process, load, file)
        finally:
            end(process)
            if process.stdout is not None:
                process.stdout.close()


def drive(server: Server, sample: Sample, **how: Any) -> Ledger:
    """Send a load, and wait until it is done."""
    with loading(server, sample, **how) as driver:
        return driver.ledger()


@contextmanager
def watching_memory(server: Server) -> Iterator[list[tuple[float, int]]]:
    """(moment, bytes of the server's memory), sampled while the context lasts."""
    seen: list[tuple[float, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            seen.append((time.monotonic(), server.resident()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def probe(server: Server, seconds: float) -> dict[str, list[float]]:
    """Seconds per answer of each of ``PROBED``, asked in turn for ``seconds``, each on its own connection."""
    taken: dict[str, list[float]] = {path: [] for path in PROBED}
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        for path in PROBED:
            start = time.monotonic()
            status, _ = server.get(path)
            taken[path].append(time.monotonic() - start)
            if status != 200:
                raise RuntimeError(f"{path} answered {status} under load")
            time.sleep(_SAMPLE_S)
    return taken
