"""Several workers: one port, one page of metrics, actions for all, and a dead one that is replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from engines import RELU, save
from serving import ServerProcess, events, fetch, metric, ready_workers, server_process, until, workers

from trnrt.serve.hosting.catalog import Catalog, Change, Pinned
from trnrt.serve.hosting.files import Source
from trnrt.serve.hosting.pins import Store
from trnrt.serve.processes.metrics_folders import PREFIX, remove_abandoned
from trnrt.serve.processes.workers import Supervisor, _Child
from trnrt.serve.settings import MULTIPROC, ServeSettings

NEG = RELU.replace("Relu", "Neg")
INFER = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1, -1, -1, -1]}]}


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


def answers(server: ServerProcess, model: str = "one", count: int = 12) -> set[str]:
    """The different answers to ``count`` requests; each has a connection of its own, which any worker may take."""
    found = [fetch("POST", f"{server.url}/v2/models/{model}/infer", json=INFER) for _ in range(count)]
    return {{0.0: "relu", 1.0: "neg"}[answer.json()["outputs"][0]["data"][0]] for answer in found}


def replace_worker(server: ServerProcess, model: str = "one") -> None:
    """Kill one of two workers, and wait until its successor serves."""
    before = workers(server)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: workers(server)[0] != before[0] and ready_workers(server, model) == 2)


def test_a_successor_serves_the_content_that_the_others_serve(tmp_path: Path, models: Path) -> None:
    """Whatever lies in the folder by then; a changed file is served by all as soon as it is loaded, or by none."""
    cache = {"TRNRT_CACHE": str(tmp_path / "cache")}
    files = ("--model-dir", str(models), "--workers", "2", "--admin", "--max-batch", "1")
    with server_process(tmp_path, *files, env=cache) as server:
        until(lambda: ready_workers(server, "one") == 2)
        save(models, "one", NEG)
        replace_worker(server)
        assert answers(server) == {"relu"}, "the file changed, and nobody loaded it"
        (models / "one.onnx").write_bytes(b"half a mod")
        failed = fetch("POST", f"{server.url}/v2/repository/models/one/load")
        assert failed.status_code == 400 and "ONNX" in failed.json()["error"]
        replace_worker(server)
        assert answers(server) == {"relu"}
        save(models, "one", NEG)
        assert fetch("POST", f"{server.url}/v2/repository/models/one/load").status_code == 200
        assert answers(server) == {"neg"}, "all workers at once"
        (models / "one.onnx").unlink()
        replace_worker(server)
        assert answers(server) == {"neg"}
        assert len(list((tmp_path / "cache" / "serving").glob("*/*/*.onnx"))) == 2
        assert server.stop() == 0
    assert [file.name for file in (tmp_path / "cache" / "serving").iterdir()] == ["lock"]


def test_versions_and_canaries_are_the_same_on_all_workers(tmp_path: Path) -> None:
    for number, graph in (("1", RELU), ("2", NEG)):
        (tmp_path / "models" / "one" / number).mkdir(parents=True)
        save(tmp_path / "models" / "one" / number, "model", graph)
    files = ("--model-dir", str(tmp_path / "models"), "--workers", "2", "--admin", "--max-batch", "1")
    with server_process(tmp_path, *files, "--canary", "2=100%") as server:
        until(lambda: ready_workers(server, "one") == 2)
        assert answers(server) == {"neg"}
        back = fetch("POST", f"{server.url}/v2/repository/models/one/canary", json={"version": "2", "share": 0})
        assert back.status_code == 200
        assert answers(server) == {"relu"}
        replace_worker(server)
        assert answers(server) == {"relu"} and answers(server, "one@2") == {"neg"}
        assert fetch("POST", f"{server.url}/v2/repository/models/one@1/unload").status_code == 200
        assert answers(server) == {"neg"}
        assert server.stop() == 0


class Recording:
    """Our end of a worker's pipe."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        """Keep it."""
        self.sent.append(message)

    def close(self) -> None:
        """The worker has ended."""


def supervisor_of(tmp_path: Path, count: int) -> tuple[Supervisor, list[Any], Pinned]:
    """A supervisor of workers that only listen, their pipes, and the only model that it serves."""
    path = save(tmp_path, "one", RELU)
    store = Store.make()
    pinned = store.pin(Source("one", "1", path))
    listener: Any = None
    supervisor = Supervisor(ServeSettings(workers=count), Catalog({"one": pinned}), store, listener, lambda _rows: None)
    pipes: list[Any] = [Recording() for _ in range(count)]
    process: Any = None
    supervisor._children = {number: _Child(number, process, pipe) for number, pipe in enumerate(pipes)}
    return supervisor, pipes, pinned


def test_a_change_is_made_by_all_workers_or_by_none(tmp_path: Path) -> None:
    supervisor, pipes, old = supervisor_of(tmp_path, 2)
    first, second = supervisor._children.values()
    new, other = (supervisor._store.pin(Source("one", "1", save(tmp_path, "one", NEG))) for _ in range(2))
    changes = [Change("one", load=(new,)), Change("one", load=(other,))]
    for token, change in enumerate(changes):
        supervisor._ask(first, token, change)
    assert [pipe.sent for pipe in pipes] == [[("do", 1, "prepare", changes[0])]] * 2, "one change after the other"
    supervisor._settle(first, None)
    supervisor._settle(second, "no room")
    assert [pipe.sent[-1] for pipe in pipes] == [("do", 2, "abort", changes[0])] * 2
    assert supervisor._catalog.pinned["one"] is old, "a successor serves what the others serve"
    supervisor._settle(first, None)
    supervisor._settle(second, None)
    assert pipes[0].sent[-2:] == [("answer", 0, "no room"), ("do", 3, "prepare", changes[1])]
    assert not new.file.exists() and old.file.exists()
    for child in (first, second):
        supervisor._settle(child, None)
    assert [pipe.sent[-1] for pipe in pipes] == [("do", 4, "commit", changes[1])] * 2
    assert supervisor._catalog.pinned["one"] is other and old.file.exists(), "one may still load it"
    for child in (first, second):
        supervisor._settle(child, None)
    assert pipes[0].sent[-1] == ("answer", 1, None)
    assert other.file.exists() and not old.file.exists()
    supervisor._store.close()


def test_a_worker_that_ends_while_it_loads_fails_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MULTIPROC, str(tmp_path))
    supervisor, pipes, old = supervisor_of(tmp_path, 2)
    first, second = supervisor._children.values()
    new = supervisor._store.pin(Source("one", "1", save(tmp_path, "one", NEG)))
    supervisor._ask(first, 0, Change("one", load=(new,)))
    process: Any = Ended()
    second.process = process
    supervisor._bury(second)
    supervisor._settle(first, None)
    assert pipes[0].sent[-1][2] == "abort"
    supervisor._settle(first, None)
    assert pipes[0].sent[-1] == ("answer", 0, "a worker ended while it loaded it")
    assert supervisor._catalog.pinned["one"] is old and not new.file.exists()
    supervisor._store.close()


class Ended:
    """A process that was killed."""

    pid, exitcode = 0, -signal.SIGKILL

    def join(self) -> None:
        """It has ended."""


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
