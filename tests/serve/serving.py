"""Servers for tests: an application in this process around models that are made up, and a real server's processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import numpy as np
import pytest
import uvicorn
from engines import PATIENCE_S
from fastapi import FastAPI
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from trnrt.cli import app as cli
from trnrt.commands.verbs import Flag
from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.admission import Admission
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.catalog import Canary
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.connections import Connections
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import request_id
from trnrt.serve.processes.worker import server_config
from trnrt.serve.settings import ServeSettings

Array = NDArray[Any]
Compute = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Answer = TypeVar("Answer")

MODELS = Path(__file__).parents[2] / "models"
START_S = 120.0


class MadeUpModel:
    """A model as the routes see one: it computes at once, after ``seconds`` or ``go``, whatever it is told to."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[TensorMeta],
        outputs: Sequence[TensorMeta],
        compute: Compute,
        *,
        seconds: float = 0.0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.version, self.compute, self.seconds, given = name, "1", compute, seconds, dict(metadata or {})
        self.digest = ""
        self.described = Description(
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            metadata=given,
            labels=json.loads(given.get("labels", "null")),
            predictions={1: Range(11.0, 12.5, 14.0)},
            batch="N",
        )
        self.state, self.reason = "ready", cast("str | None", None)
        self.busy: str | None = None
        self.retry_after: int | None = None
        self.waiting = self.answered = self.cancelled = self.on_their_way = 0
        self.error: Exception | None = None
        self.go: asyncio.Event | None = None

    def admit(self) -> None:
        """The queue is never full."""

    def _check(self, feeds: Mapping[str, Array]) -> None:
        for meta in self.described.inputs:
            if meta.name not in feeds:
                raise Problem(400, f"missing input {meta.name!r}")
            shape = feeds[meta.name].shape
            fits = len(shape) == len(meta.shape) and all(d in (-1, s) for d, s in zip(meta.shape, shape, strict=True))
            if not fits or 0 in shape:
                raise Problem(400, f"input {meta.name!r} has shape {shape}; the model wants {meta.shape}")

    async def infer(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, timeout_s: float | None = None
    ) -> Inference:
        """The outputs asked for."""
        if self.error is not None:
            raise self.error
        self._check(feeds)
        self.waiting += 1
        try:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.go is not None:
                await self.go.wait()
            made = self.compute(feeds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        self.answered += 1
        rows = next((len(array) for array in feeds.values() if array.ndim), 1)
        names = [meta.name for meta in self.described.outputs] if outputs is None else outputs
        return Inference({name: made[name] for name in names}, 0.1, 0.2, 0.3, rows, rows, 1, self.described)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Counts those on their way."""
        self.on_their_way += 1
        try:
            yield
        finally:
            self.on_their_way -= 1


class MadeUpMetrics:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []
        self.refused: list[str] = []
        self.keys: list[tuple[str, int]] = []

    def request(self, path: str, method: str, code: int, seconds: float) -> None:
        """A request was answered."""
        assert seconds >= 0
        self.requests.append((path, method, code))

    def count_rejection(self, reason: str) -> None:
        """A request was refused."""
        self.refused.append(reason)

    def count_key(self, name: str, code: int) -> None:
        """A request with a key was answered."""
        self.keys.append((name, code))

    def collect_all(self) -> CollectorRegistry:
        """Nothing."""
        return CollectorRegistry()

    def render(self) -> tuple[bytes, str]:
        """One line."""
        return b"made_up 1\n", "text/plain; version=0.0.4; charset=utf-8"


class MadeUpRepository:
    """A repository of models that are made up."""

    def __init__(self, *models: MadeUpModel, **settings: Any) -> None:
        self.settings = ServeSettings(**settings)
        self.metrics = MadeUpMetrics()
        self.models = {model.name: model for model in models}
        self.admission = Admission(self.settings, cast(Metrics, self.metrics))
        self.done: list[str] = []
        self.canary: Canary | None = None

    def find(self, name: str, version: str = "") -> MadeUpModel:
        """As the real one."""
        if name not in self.models:
            raise Problem(404, f"there is no model {name!r}")
        if version not in ("", "1"):
            raise Problem(404, f"model {name!r} has no version {version!r}; its only version is 1")
        return self.models[name]

    def find_main(self, name: str, version: str = "") -> MadeUpModel:
        """As the real one."""
        return self.find(name, version)

    def versions(self, name: str) -> list[MadeUpModel]:
        """As the real one."""
        return [self.models[name]]

    @property
    def draining(self) -> bool:
        """As the real one."""
        return self.admission.draining

    @property
    def ready(self) -> bool:
        """Whether all are."""
        return not self.draining and not self.reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Why not."""
        models = self.models.values()
        return {m.name: m.busy or m.reason or m.state for m in models if m.busy or m.state != "ready"}

    async def act_on_all(self, action: str, name: str) -> None:
        """Say so."""
        self.done.append(f"{action} {self.find(name).name}")

    def canary_of(self, name: str) -> Canary | None:
        """The last one."""
        self.find(name)
        return self.canary

    async def set_canary(self, name: str, canary: Canary) -> None:
        """Say so."""
        self.done.append(f"{self.find(name).name} {canary.version}={canary.share:g}")
        self.canary = canary

    def index(self) -> list[dict[str, Any]]:
        """As the real one."""
        return [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in self.models]


def app_of(repository: MadeUpRepository) -> FastAPI:
    """The real application around models that are made up."""
    return make_app(cast(Repository, repository))


def doubling(seconds: float = 0.0, name: str = "doubling") -> MadeUpModel:
    """Rows of four numbers, doubled."""
    x, y = TensorMeta("x", "float32", (-1, 4)), TensorMeta("y", "float32", (-1, 4))
    return MadeUpModel(name, [x], [y], lambda feeds: {"y": feeds["x"] * 2}, seconds=seconds)


def echo(*dtypes: str, name: str = "echo") -> MadeUpModel:
    """Gives back what it gets: an input and an output of each dtype, with the dtype's name and any number of rows."""
    inputs = [TensorMeta(f"in_{dtype}", dtype, (-1, 2)) for dtype in dtypes]
    outputs = [TensorMeta(f"out_{dtype}", dtype, (-1, 2)) for dtype in dtypes]
    return MadeUpModel(name, inputs, outputs, lambda feeds: {f"out_{dtype}": feeds[f"in_{dtype}"] for dtype in dtypes})


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a test's coroutine; what hangs fails."""

    async def limited() -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(limited())


async def computing(model: MadeUpModel, count: int) -> None:
    """Wait until so many requests have come to a model; the test's own limit ends that."""
    while model.waiting < count:
        await asyncio.sleep(0.001)


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in this process; what the application raises is the test's failure."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application in this process."""

    async def work() -> httpx.Response:
        async with client_of(app) as client:
            return await client.request(method, path, **options)

    return run(work())


def error_of(response: httpx.Response, status: int) -> str:
    """The text of a failure, which is all that its body holds."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"] and isinstance(body["error"], str) and body["error"], body
    return body["error"]


def lines_logged(patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the middlewares log from here on, each with its request's id."""
    lines: list[dict[str, Any]] = []

    def keep(level: str, event: str, **fields: object) -> None:
        lines.append({"level": level, "event": event, "request_id": request_id.get(), **fields})

    patch.setattr("trnrt.serve.http.limits.log", keep)
    return lines


@contextmanager
def listening(app: ASGIApp, repository: MadeUpRepository | None = None) -> Iterator[int]:
    """An application behind the real HTTP server, set up as a worker's is, in a thread of this process; its port."""
    kept = repository or MadeUpRepository()
    connections = Connections(kept.settings, cast(Metrics, kept.metrics))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        # From here on whoever connects waits for the server to begin.
        listener.listen()
        server = uvicorn.Server(server_config(app, connections))
        thread = threading.Thread(target=server.run, args=([listener],), name="server")
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the server did not stop"


def serve_flags() -> dict[str, Flag]:
    """The flags of ``trnrt serve`` by name."""
    command = cli.all_verbs()["serve"]
    return {
        param.name: param for param in command.params if isinstance(param, Flag) and param.name and param.expose_value
    }


# -- processes -----------------------------------------------------------------------------------------------------


def fetch(method: str, url: str, **options: Any) -> httpx.Response:
    """One request to a real server, which may compile before it answers, on a machine that is busy with other tests."""
    return httpx.request(method, url, timeout=PATIENCE_S, **options)


class ServerProcess:
    """A real ``trnrt serve``; ``log`` is the file with what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @cached_property
    def url(self) -> str:
        """Where it answers; waited for until it says so."""
        return str(until(self._listening)[1])

    @property
    def port(self) -> int:
        """The port that it has taken."""
        return int(self.url.rpartition(":")[2])

    @property
    def grpc_address(self) -> str:
        """The address of its gRPC: HOST:PORT."""
        found = re.search(rf"listening on {re.escape(self.url)}; gRPC on (\S+);", self.log.read_text(errors="replace"))
        assert found, "it serves no gRPC"
        return found[1]

    def _listening(self) -> re.Match[str] | None:
        ended = self.process.poll() is not None  # looked at first: what it says, it has said by then
        said = self.log.read_text(errors="replace")
        found = re.search(r"listening on (http://\S+);", said)
        assert found or not ended, f"the server ended: {said[-4000:]}"
        return found

    def wait_ready(self, seconds: float = START_S) -> None:
        """Wait until every model is ready."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, f"the server ended: {self.log.read_text(errors='replace')[-4000:]}"
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/v2/health/ready", timeout=5).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready after {seconds} s: {self.log.read_text(errors='replace')[-4000:]}")

    def stop(self, seconds: float = PATIENCE_S) -> int:
        """End it as an operator does, and give its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def server_process(
    tmp_path: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    program: Sequence[str] = ("-m", "trnrt"),
) -> Iterator[ServerProcess]:
    """``trnrt serve ARGUMENTS`` on a port that it chooses, ready; it is stopped at the end."""
    log = tmp_path / "server.log"
    command = [sys.executable, *program, "serve", *arguments, "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file, env={**os.environ, **(env or {})})
    server = ServerProcess(process, log)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """What the condition is when it holds at last."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"still {value!r} after {seconds:g} s"
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
    page = fetch("GET", f"{server.url}/metrics").text
    return next((float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(start)), None)


def ready_workers(server: ServerProcess, model: str) -> float | None:
    """How many workers have the model ready."""
    return metric(server, f'trnrt_model_state{{model="{model}",state="ready",version="1"}}')


def digits(count: int) -> tuple[Array, Array]:
    """Pictures of digits as the sample models take them, (count, 1, 8, 8), and what they show."""
    with np.load(MODELS / "digits_test.npz") as held:
        return held["image"][:count], held["label"][:count]
