"""The server beside a bare application: what is compared with what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from benchmarks.serve import beside, cases
from benchmarks.serve.beside import BARE_WORKERS, THREADS, Measured, Turn, _bare_name, _compare, _own_name, blas_threads
from benchmarks.serve.samples import Sample
from benchmarks.serve.servers import Server


def found(own: float, merged: float, bare: tuple[float, float]) -> dict[str, Measured]:
    rates = {_bare_name(workers): rate for workers, rate in zip(BARE_WORKERS, bare, strict=True)}
    rates |= {_own_name(threads, False): own for threads in THREADS}
    rates |= {_own_name(threads, True): merged for threads in THREADS}
    return {name: Measured([rate], [100.0]) for name, rate in rates.items()}


def test_the_bar_is_the_bare_application_at_its_best() -> None:
    rows = _compare(found(900.0, 1800.0, (1000.0, 2000.0)), "m", 32)
    assert "2 workers" in rows[0].case and rows[0].value == 2000.0
    shares = {row.case.partition(", ")[2]: row for row in rows if row.unit == "x bare"}
    assert len(shares) == 2 * len(THREADS)
    for name, row in shares.items():
        assert row.value == (0.45 if "no-batching" in name else 0.9)
        assert row.passed == ("no-batching" not in name)
    assert rows[-1].unit == "x unmerged" and rows[-1].value == 2.0


def test_servers_begin_with_the_threads_of_their_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with blas_threads(None):
        assert "OPENBLAS_NUM_THREADS" not in os.environ
    with blas_threads(2):
        assert os.environ["OPENBLAS_NUM_THREADS"] == "2"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7" and "OMP_NUM_THREADS" not in os.environ


def test_binary_tensors_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []

    def measure(turns: dict[str, Turn], clients: int, seconds: float, rounds: int) -> dict[str, Measured]:
        asked.extend((name, turn.how) for name, turn in turns.items())
        return {"JSON": Measured([100.0], [2.0]), "binary": Measured([140.0], [1.0])}

    monkeypatch.setattr(beside, "measure_in_turns", measure)
    server, sample = cast(Server, None), Sample(Path("m.onnx"), "x", "y", Path("m.npz"))
    rows = beside.measure_binary([(server, sample, False), (server, sample, True)], 1.0, 1)
    assert [row.passed for row in rows] == [False] * len(beside.ROWS) + [None] * (len(beside.ROWS) - 1) + [False]
    assert rows[-1].value == 1.4 and "32 rows" in rows[-1].case
    assert asked[:2] == [("JSON", {"rows": 1, "binary": False}), ("binary", {"rows": 1, "binary": True})]


def test_without_mlserver_nothing_is_compared_with_it(tmp_path: Path) -> None:
    assert cases.beside_mlserver(cases.Bench(tmp_path, cases.QUICK)) == []
