"""Several workers: one port, one page of metrics, actions for all, and a dead one that is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from engines import RELU, save
from serving import ServerProcess, events, fetch, metric, ready_workers, server_process, until, workers

from trnrt.serve.processes.metrics_folders import PREFIX, remove_abandoned


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


def metrics_folders(tmp_path: Path) -> list[Path]:
    """The folders of workers' metrics in a test's own folder for temporary files."""
    return list(tmp_path.glob(f"{PREFIX}*"))


def gauges(tmp_path: Path) -> set[int]:
    """The processes whose gauges the server has."""
    (folder,) = metrics_folders(tmp_path)
    return {int(file.stem.rpartition("_")[2]) for file in folder.glob("gauge_*.db")}


def test_a_dead_worker_is_replaced_and_knows_what_was_unloaded(tmp_path: Path, models: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", "--admin", env=env) as server:
        until(lambda: ready_workers(server, "one") == 2 == ready_workers(server, "two"))
        assert fetch("POST", f"{server.url}/v2/repository/models/two/unload").status_code == 200
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        before = workers(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(events(server, "worker_started")) == 3)
        assert fetch("GET", f"{server.url}/v2/health/live").status_code == 200
        until(lambda: ready_workers(server, "one") == 2)
        assert workers(server)[0] != before[0] and workers(server)[1] == before[1]
        assert gauges(tmp_path) == set(workers(server).values()), "none of the dead worker"
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        assert fetch("POST", f"{server.url}/v2/repository/models/two/load").status_code == 200
        assert ready_workers(server, "two") == 2
        assert metric(server, 'trnrt_resident_bytes{worker="1"}')
        assert server.stop() == 0
    assert metrics_folders(tmp_path) == []
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
    """Their metrics stay, and the next server removes them."""
    env = {"TMPDIR": str(tmp_path)}
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", env=env) as server:
        until(lambda: ready_workers(server, "two") == 2)
        pids = workers(server).values()
        remove_abandoned(tmp_path)
        assert len(metrics_folders(tmp_path)) == 1, "a running server has it"
        server.process.kill()
        server.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)
    assert len(metrics_folders(tmp_path)) == 1
    remove_abandoned(tmp_path)
    assert metrics_folders(tmp_path) == []
