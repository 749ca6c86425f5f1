"""Several workers: one port, one page of metrics, actions for all, and a dead one that is replaced."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import RELU, save
from serving import ServerProcess, server_process

from trnrt.serve.workers import THREADS, thread_shares


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        save(folder, name, RELU)
    return folder


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition is when it holds at last."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end
        time.sleep(0.05)


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    """The log's lines of one event."""
    found = []
    for line in server.log.read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            found.append(json.loads(line))
    return [line for line in found if line["event"] == name]


def workers(server: ServerProcess) -> dict[int, int]:
    """The process of each worker, by number; the last that was started."""
    return {line["number"]: line["pid"] for line in events(server, "worker_started")}


def metric(server: ServerProcess, start: str) -> float | None:
    """A metric's value by what its line begins with."""
    page = httpx.get(f"{server.url}/metrics").text
    return next((float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(start)), None)


def ready_workers(server: ServerProcess, model: str) -> float | None:
    return metric(server, f'trnrt_model_state{{model="{model}",state="ready"}}')


def index(server: ServerProcess) -> dict[str, str]:
    """The models' states, as the worker says that happens to answer."""
    answer = httpx.post(f"{server.url}/v2/repository/index")
    return {model["name"]: model["state"] for model in answer.json()}


def test_a_dead_worker_is_replaced_and_knows_what_was_unloaded(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", "--admin") as server:
        until(lambda: ready_workers(server, "one") == 2 == ready_workers(server, "two"))
        assert httpx.post(f"{server.url}/v2/repository/models/two/unload").status_code == 200
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        before = workers(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(events(server, "worker_started")) == 3)
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        until(lambda: ready_workers(server, "one") == 2)
        assert workers(server)[0] != before[0] and workers(server)[1] == before[1]
        assert {index(server)["two"] for _ in range(10)} == {"UNAVAILABLE"}
        assert httpx.post(f"{server.url}/v2/repository/models/two/load").status_code == 200
        assert ready_workers(server, "two") == 2
        assert metric(server, 'trnrt_resident_bytes{worker="1"}')
        assert server.stop() == 0
    ended = events(server, "worker_ended")
    assert [line["code"] for line in ended] == [-signal.SIGKILL, 0, 0]


def test_an_action_that_fails_says_why_and_one_added_later_reaches_all(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2", "--admin") as server:
        until(lambda: ready_workers(server, "two") == 2)
        (models / "three.onnx").write_bytes(b"nonsense")
        failed = httpx.post(f"{server.url}/v2/repository/models/three/load")
        assert failed.status_code == 400 and "three" in failed.json()["error"]
        save(models, "three", RELU)
        assert httpx.post(f"{server.url}/v2/repository/models/three/load").status_code == 200
        assert ready_workers(server, "three") == 2
        assert {index(server)["three"] for _ in range(10)} == {"READY"}


def test_when_the_supervisor_is_killed_its_workers_go_too(tmp_path: Path, models: Path) -> None:
    with server_process(tmp_path, "--model-dir", str(models), "--workers", "2") as server:
        until(lambda: ready_workers(server, "two") == 2)
        pids = workers(server).values()
        server.process.kill()
        server.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)


def test_each_worker_gets_its_share_of_the_cpus_unless_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    assert thread_shares(3) == dict.fromkeys(THREADS, "2")
    assert thread_shares(100) == dict.fromkeys(THREADS, "1")
    monkeypatch.setenv(THREADS[0], "7")
    assert THREADS[0] not in thread_shares(3)
