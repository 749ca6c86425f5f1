"""Ray Serve with two replicas: the answers of the local server, under load, without one of its processes, updated."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import loaded, run
from serving import error_of, fetch

pytest.importorskip("ray")

from ray_serving import RayServer, of_session, pictures, ray_server, save_digits

CLIENTS = 64
ROWS = 8
"""The largest batch: fewer buckets are compiled sooner."""
MODEL = "model-digits"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


@dataclass(frozen=True)
class Models:
    """The file that is served, and another version of it."""

    old: Path
    new: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    return Models(save_digits(folder / "old", "old"), save_digits(folder / "new", "new", opposite=True))


@pytest.fixture(scope="module")
def server(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    # Requests that wait in a batch for others are requests that a replica can die with.
    arguments = (str(models.old), "--replicas", "2", "--max-batch", str(ROWS), "--max-delay-ms", "100")
    with ray_server(tmp_path_factory.mktemp("ray"), *arguments) as started:
        yield started
    until(lambda: not of_session(started.process.pid))


@dataclass
class Said:
    """What clients were told: statuses with bodies, by the number of the picture, and connections that broke."""

    answers: list[tuple[int, int, Any]]
    broken: int = 0


def ask(connection: http.client.HTTPConnection, number: int) -> tuple[int, Any]:
    """One picture to /predict: status and body."""
    body = json.dumps({"instances": pictures()[number : number + 1].tolist()})
    connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    return response.status, json.loads(text) if text.startswith(b"{") else text.decode()


@contextmanager
def load(server: RayServer, clients: int = CLIENTS) -> Iterator[Said]:
    """Clients that ask one thing after the other, until the context ends; each waits for its answer."""
    said, over = Said([]), threading.Event()

    def client(first: int) -> None:
        number = first
        # Closed whatever is raised: the test that happens to run when it is collected would fail for it.
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            while not over.is_set():
                number = (number + 7) % len(pictures())
                try:
                    said.answers.append((number, *ask(connection, number)))
                except (http.client.HTTPException, ConnectionError):
                    said.broken += 1
                    connection.close()

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(client, number % len(pictures())) for number in range(clients)]
        try:
            yield said
        finally:
            over.set()
        for future in futures:
            future.result(120)


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What the condition is when it holds at last."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def kill_one(server: RayServer, deployment: str) -> None:
    """Kill a replica's process, and wait for its successor."""
    before = set(server.started(deployment))
    os.kill(server.processes(deployment)[0], signal.SIGKILL)
    until(lambda: set(server.started(deployment)) - before)
    (successor,) = set(server.started(deployment)) - before
    until(lambda: successor in server.replicas(deployment))


@pytest.fixture(scope="module")
def expected(models: Models) -> dict[str, list[str]]:
    """What each version says of each picture: the local server's answers."""

    async def labels(path: Path) -> list[str]:
        model = await loaded(path, max_batch=ROWS)
        made = await model.infer({"image": pictures()})
        names = model.described.labels
        assert names is not None
        return [names[k] for k in made.outputs["logits"].argmax(axis=1)]

    return {path.parent.name: run(labels(path)) for path in (models.old, models.new)}


def wrong(said: Said, *right: list[str]) -> list[Any]:
    """The answers that are none of the right ones."""
    return [
        (number, status, body if status != 200 else body["predictions"])
        for number, status, body in said.answers
        if status != 200 or body["predictions"][0] not in [labels[number] for labels in right]
    ]


def infer(server: RayServer, rows: np.ndarray) -> np.ndarray:
    tensor = {"name": "image", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
    answer = httpx.post(f"{server.url}/v2/models/digits/infer", json={"inputs": [tensor]}, timeout=60).json()
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_answers_are_bit_for_bit_those_of_the_local_server(server: RayServer, models: Models) -> None:
    """In every bucket, padded and not, and for more rows than a batch has."""

    async def local() -> list[np.ndarray]:
        model = await loaded(models.old, max_batch=ROWS)
        return [(await model.infer({"image": pictures()[:count]})).outputs["logits"] for count in counts]

    counts = (1, 2, 3, ROWS, ROWS + 3, 20)
    for count, right in zip(counts, run(local()), strict=True):
        assert np.array_equal(infer(server, pictures()[:count]), right), count


def test_it_is_the_same_server(server: RayServer) -> None:
    """Validation, errors, ids, health, pages: one application."""
    bad = {"inputs": [{"name": "image", "shape": [1, 1, 8, 7], "datatype": "FP32", "data": [0.0] * 56}]}
    answer = fetch("POST", f"{server.url}/v2/models/digits/infer", json=bad, headers={"X-Request-Id": "mine"})
    assert "the model wants [-1, 1, 8, 8]" in error_of(answer, 400)
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert "there is no model 'other'" in error_of(fetch("GET", f"{server.url}/v2/models/other"), 404)
    assert fetch("GET", f"{server.url}/v2/health/ready").json() == {"ready": True}
    assert fetch("GET", f"{server.url}/").text.startswith("<!doctype html>")
    assert "--admin" in error_of(fetch("POST", f"{server.url}/v2/repository/index"), 403)


def test_metrics_are_those_of_all_processes(server: RayServer) -> None:
    with load(server, 8) as said:
        until(lambda: len(said.answers) > 50)

    def busy(page: str) -> list[str]:
        rows = [line for line in page.splitlines() if line.startswith("trnrt_batch_rows_sum")]
        return [line for line in rows if f"#{MODEL}#" in line and not line.endswith(" 0.0")]

    def both() -> str | None:
        page = fetch("GET", f"{server.url}/metrics").text
        assert page.count("# TYPE trnrt_batch_rows histogram") <= 1
        return page if len(busy(page)) == 2 else None

    # A page goes without who takes too long to say its numbers.
    page = until(both)
    assert page.count("# TYPE trnrt_batch_rows histogram") == 1
    until(lambda: len(server.replicas("front")) == 2 == len(server.replicas(MODEL)))


def test_nothing_is_lost_or_wrong_when_a_replica_is_killed(server: RayServer, expected: dict[str, list[str]]) -> None:
    with load(server) as said:
        until(lambda: len(said.answers) > CLIENTS)
        # Mostly the first one holds requests; where it had none at that moment, another dies.
        while not server.logged("replica_gone"):
            kill_one(server, MODEL)
        count = len(said.answers)
        until(lambda: len(said.answers) > count + CLIENTS)
    assert wrong(said, expected["old"]) == [] and said.broken == 0


def test_nothing_is_lost_or_wrong_when_a_front_is_killed(server: RayServer, expected: dict[str, list[str]]) -> None:
    """What it had, Ray's proxy sends to the other one."""
    with load(server) as said:
        until(lambda: len(said.answers) > CLIENTS)
        while not server.heard("A front ended while it had a request"):
            kill_one(server, "front")
        count = len(said.answers)
        until(lambda: len(said.answers) > count + CLIENTS)
    assert wrong(said, expected["old"]) == [] and said.broken == 0


def test_an_update_fails_no_request_and_mixes_nothing(
    server: RayServer, models: Models, expected: dict[str, list[str]], tmp_path: Path
) -> None:
    """Labels and numbers are those of the same version, which is the old one, and at last the new one."""
    command = [sys.executable, "-m", "trnrt", "serve", str(models.new), "--engine", "ray", "--replicas", "2"]
    where = ["--max-batch", str(ROWS), "--max-delay-ms", "100", "--port", str(server.port), "--address", server.address]
    with load(server, 4) as said:
        until(lambda: len(said.answers) > CLIENTS)
        # What the first one started wants a token, which Ray sends to an address only where it is told to.
        told = {**os.environ, "RAY_AUTH_MODE": "token"}
        done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=300, env=told)
        assert done.returncode == 0 and "ready at" in done.stdout, done.stderr
        updated = len(said.answers)
        until(lambda: len(said.answers) > updated + CLIENTS)
    assert wrong(said, expected["old"], expected["new"]) == [] and said.broken == 0
    last = Said(said.answers[updated + 4 :])
    assert len(last.answers) > 10 and wrong(last, expected["new"]) == []


def test_a_stop_answers_what_was_accepted_and_ends_with_0(server: RayServer, expected: dict[str, list[str]]) -> None:
    """The last test: the server is gone after it."""
    with load(server, 16) as said:
        until(lambda: len(said.answers) > CLIENTS)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    told = [(status, body) for _, status, body in said.answers if status != 200]
    assert {status for status, _ in told} <= {503} and all("shutting down" in body["error"] for _, body in told)
    assert wrong(Said([answer for answer in said.answers if answer[1] == 200]), expected["new"]) == []
