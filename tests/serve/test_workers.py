"""Several workers: one port, one page of metrics, actions for all, and a dead one that is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from engines import RELU, save
from serving import ServerProcess, events, fetch, metric, ready_workers, server_process, until, workers


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        save(folder, name, RELU)
    return folder


def index(server: ServerProcess) -> dict[str, str]:
    """The models' states, as the worker says that happens to answer."""
    answer = fetch("POST", f"{server.url}/v2/repository/index")
    return {model["name"]: model["state"] for model in answer.json()}


def test_a_dead_worker_is_replaced_and_knows_what_was_unloaded(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", "--admin") as server:
        until(lambda: ready_workers(server, "one") == 2 == ready_workers(server, "two"))
        assert fetch("POST", f"{server.url}/v2/repository/models/two/unload").status_code == 200
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        before = workers(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(events(server, "worker_started")) == 3)
        assert fetch("GET", f"{server.url}/v2/health/live").status_code == 200
        until(lambda: ready_workers(server, "one") == 2)
        assert workers(server)[0] != before[0] and workers(server)[1] == before[1]
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        assert fetch("POST", f"{server.url}/v2/repository/models/two/load").status_code == 200
        assert ready_workers(server, "two") == 2
        assert metric(server, 'trnrt_resident_bytes{worker="1"}')
        assert server.stop() == 0
    ended = events(server, "worker_ended")
    assert [line["code"] for line in ended] == [-signal.SIGKILL, 0, 0]


def test_an_action_that_fails_says_why_and_one_added_later_reaches_all(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", "--admin") as server:
        until(lambda: ready_workers(server, "two") == 2)
        (models / "three.onnx").write_bytes(b"nonsense")
        failed = fetch("POST", f"{server.url}/v2/repository/models/three/load")
        assert failed.status_code == 400 and "three" in failed.json()["error"]
        save(models, "three", RELU)
        assert fetch("POST", f"{server.url}/v2/repository/models/three/load").status_code == 200
        assert ready_workers(server, "three") == 2
        assert {index(server)["three"] for _ in range(10)} == {"READY"}


def test_when_the_supervisor_is_killed_its_workers_go_too(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2") as server:
        until(lambda: ready_workers(server, "two") == 2)
        pids = workers(server).values()
        server.process.kill()
        server.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)
