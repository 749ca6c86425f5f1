"""The server with more requests than it can answer, stopped meanwhile, and without one of its workers.

Each request is answered once, with its own numbers or with a rejection that says why; how fast is for
``python -m benchmarks.serve``, whose generator and ledger these tests use, on smaller loads.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from engines import PATIENCE_S

pytest.importorskip("fastapi")

from benchmarks.serve import cases, samples
from benchmarks.serve.driving import drive, loading, watching_memory
from benchmarks.serve.ledger import Ledger, Verdict
from benchmarks.serve.samples import Sample
from benchmarks.serve.servers import Server, serving

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes through /proc")

started = partial(serving, ready_s=PATIENCE_S, stop_s=PATIENCE_S)


def status(server: Server, path: str) -> int:
    """That of a GET; the load generator may need both CPUs for a while."""
    return server.get(path, PATIENCE_S)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("under_load")


@pytest.fixture(scope="module")
def digits(folder: Path) -> Sample:
    return samples.digits(folder)


def nothing_is_wrong(ledger: Ledger) -> None:
    """Every request has one answer, its own."""
    assert (ledger.duplicated, ledger.unasked) == (0, 0)
    assert ledger.count(Verdict.RIGHT, Verdict.REJECTED) == len(ledger.sent), ledger.told()


@pytest.mark.parametrize("limit", ["--max-queue=8", "--max-concurrency=16"])
def test_overload_is_told(limit: str, digits: Sample, folder: Path) -> None:
    """By the model's queue (429) or the server's own limit (503): those that were taken get the right answers."""
    with started([str(digits.model), limit], folder / "cache") as server, watching_memory(server) as seen:
        ledger = drive(server, digits, clients=128, requests=3000, rate=20_000.0)
        assert status(server, "/v2/health/ready") == 200
    nothing_is_wrong(ledger)
    assert ledger.count(Verdict.RIGHT) > 100
    assert ledger.count(Verdict.REJECTED) > 100
    assert set(ledger.status[ledger.verdict == Verdict.REJECTED].tolist()) == {429 if "queue" in limit else 503}
    assert cases.growth(ledger, seen) < cases.GROWTH_MB * 1e6


def test_a_shutdown_answers_what_was_sent_before(digits: Sample, folder: Path) -> None:
    with started([str(digits.model)], folder / "cache") as server:
        ledger, moment, code = cases.terminate_loaded(server, digits)
    assert code == 0
    assert cases.in_flight(ledger, moment) > 0
    nothing_is_wrong(ledger.before(moment))
    # Later ones were answered, too, or their connection was closed before the server read them.
    later = ledger.since(moment)
    assert later.count(Verdict.RIGHT, Verdict.REJECTED, Verdict.CUT) == len(later.sent), later.told()


def test_a_killed_worker_takes_only_its_own_requests_along(digits: Sample, folder: Path) -> None:
    with started([str(digits.model), "--workers", "2"], folder / "cache") as server:
        before = set(server.workers())
        assert len(before) == 2
        ledger, moment, held = cases.kill_worker(server, digits, seconds=2.5)
        replaced(server, before)
        assert status(server, "/v2/health/ready") == 200
        nothing_is_wrong(drive(server, digits, clients=8, requests=200))
    failed = cases.failures(ledger)
    assert failed == ledger.count(Verdict.CUT), ledger.told()
    # One on each of its connections; that may be the next one, where the last answer was read after its death.
    assert 0 < failed <= min(held, cases.in_flight(ledger, moment)), ledger.told()
    cut = ledger.sent[ledger.verdict == Verdict.CUT]
    during, after = int((ledger.sent >= cut.min()).sum()), int((ledger.sent > cut.max()).sum())
    assert after > during / 2, f"one failed after {during - after} of {during} requests"


def replaced(server: Server, before: set[int], seconds: float = 120.0) -> None:
    """Wait until there are two workers again, and the new one has its model; all the time, clients are answered."""
    deadline = time.monotonic() + seconds
    while len(set(server.workers())) < 2 or set(server.workers()) == before or loaded(server) < 3:
        assert time.monotonic() < deadline, f"no new worker within {seconds:g} s\n{server.tail()}"
        assert status(server, "/v2/models/digits_cnn/ready") == 200
        time.sleep(0.02)


def loaded(server: Server) -> int:
    """How many workers have said that they loaded their models."""
    return server.log.read_text(encoding="utf-8").count('"event":"models_loaded"')


def test_ready_speaks_for_every_worker(digits: Sample, folder: Path) -> None:
    """They don't load at the same pace, and nobody can choose which one answers."""
    with started([str(digits.model), "--workers", "2"], folder / "cache") as server:
        assert {status(server, "/v2/models/digits_cnn/ready") for _ in range(40)} == {200}


def test_a_client_that_goes_away_leaves_no_work_behind(digits: Sample, folder: Path) -> None:
    """Many connections that end in the middle of an answer: the next client finds room."""
    with started([str(digits.model), "--max-concurrency=64"], folder / "cache") as server:
        for _ in range(3):
            with loading(server, digits, clients=48, seconds=20.0) as driver:
                time.sleep(0.2)
                driver.process.kill()
        nothing_is_wrong(lone := drive(server, digits, clients=8, requests=200))
        assert lone.count(Verdict.RIGHT) == 200
