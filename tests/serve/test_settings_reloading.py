"""Settings that are read again while the server runs: what changes, what stays, and that no request fails."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import MIXING, RELU, numbers, run, save
from serving import ServerProcess, client_of, error_of, events, fetch, server_process, until, workers

from trnrt.serve.hosting import reloading
from trnrt.serve.hosting.changes import plan_load
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.reloading import Reloader
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.processes import rereading
from trnrt.serve.settings import read_settings
from trnrt.serve.settings_keys import hash_key

ROWS = {"instances": [[1, -2, 3, -4]]}
ALICE, BOB = "alices-key", "bobs-key"
TOP = 'backend = "simulator"\nmax_batch = 2\n'


def key(name: str, secret: str, *limits: str) -> str:
    return "\n".join([f"[key.{name}]", f'sha256 = "{hash_key(secret.encode())}"', *limits, ""])


class Server:
    """A repository in this process with its file of settings."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch, text: str, **graphs: str) -> None:
        self.file = tmp_path / "server.toml"
        self.file.write_text(text, encoding="utf-8")
        paths = [save(tmp_path, name, graph) for name, graph in graphs.items()]
        self.repository = Repository(read_settings({"config": self.file, "models": paths}), Metrics())
        self.reloader = Reloader(self.repository)
        self.lines: list[dict[str, Any]] = []
        patch.setattr(rereading, "log", lambda level, event, **fields: self.lines.append({"event": event, **fields}))

    async def reload(self, text: str) -> None:
        self.file.write_text(text, encoding="utf-8")
        await self.reloader.reload()

    def model(self, name: str) -> ServedModel:
        model = self.repository.models[name]
        assert isinstance(model, ServedModel)
        return model


def test_keys_and_limits_change_at_once_and_no_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch, TOP + key("alice", ALICE), relu=RELU)

    async def work() -> None:
        await server.repository.start()
        model = server.model("relu")
        assert model._engine is not None
        loaded, was = model._engine.loaded, model.loaded_settings
        async with client_of(make_app(server.repository)) as client:

            async def post(secret: str) -> httpx.Response:
                return await client.post("/predict", json=ROWS, headers={"X-API-Key": secret})

            assert [(await post(secret)).status_code for secret in (ALICE, BOB)] == [200, 401]
            await server.reload(
                f"max_concurrency = 9\nmax_body_mib = 3\n{TOP}{key('bob', BOB, 'requests_per_second = 0.01')}"
                "[model.relu]\nmax_queue = 7\nmax_delay_ms = 5\nshadow = 0.5\nbatching = false\n"
                "request_timeout = 3\nmax_tensor_elements = 5\n"
            )
            assert [(await post(secret)).status_code for secret in (ALICE, BOB, BOB)] == [401, 200, 429]
            await server.reload(TOP + key("bob", BOB))
            wide = {"instances": ROWS["instances"] * 2}
            assert (await client.post("/predict", json=wide, headers={"X-API-Key": BOB})).status_code == 200
            await server.reload(TOP + key("bob", BOB) + "[model.relu]\nmax_tensor_elements = 5\nmax_queue = 7\n")
            refused = await client.post("/predict", json=wide, headers={"X-API-Key": BOB})
            assert "the limit of this server is 2" in error_of(refused, 400)  # left of 5 after the first row
        assert model._engine is not None and model._engine.loaded is loaded and model.loaded_settings is was
        assert model._engine.batcher._limits.queue == 7
        await server.reload(
            f"max_concurrency = 9\nmax_body_mib = 3\n{TOP}{key('bob', BOB)}"
            "[model.relu]\nshadow = 1.0\nbatching = false\n"
        )
        assert model._engine.shadow.share == 1.0 and not loaded.mergeable
        assert server.repository.admission.largest_body == 3 << 20 and server.repository.admission._most == 9

    run(work())
    assert [line["event"] for line in server.lines] == ["reloaded"] * 4


def test_keys_and_hosts_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys, a server on loopback answers for its own machine's names alone."""
    server = Server(tmp_path, monkeypatch, TOP, relu=RELU)

    async def work() -> None:
        await server.repository.start()
        async with client_of(make_app(server.repository)) as client:

            async def status(host: str, secret: str = "") -> int:
                return (await client.get("/v2", headers={"Host": host, "X-API-Key": secret})).status_code

            assert [await status("localhost"), await status("a.example")] == [200, 421]
            await server.reload(f'{TOP}allowed_host = ["a.example"]\n')
            assert [await status("a.example"), await status("b.example")] == [200, 421]
            await server.reload(TOP + key("alice", ALICE))
            assert [await status("localhost"), await status("a.example", ALICE)] == [401, 200]
            for text in (TOP, ""):
                await server.reload(text)
                assert [await status("localhost"), await status("a.example", ALICE)] == [401, 200]
                assert "everybody would be let in" in server.lines[-1]["reason"]

    run(work())


@pytest.mark.parametrize("name", ["relu", "new"])
def test_settings_that_change_while_a_model_is_loaded_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Between preparing and committing, which waits for the slowest worker, whether the model served before or not."""
    server = Server(tmp_path, monkeypatch, TOP + f'model_dir = "{tmp_path}"\n', relu=RELU)

    async def work() -> None:
        repository = server.repository
        await repository.start()
        assert repository._store is not None
        save(tmp_path, name, RELU)
        change = plan_load(repository.settings, repository.catalog, repository._store, name, lambda _key: True)
        assert await repository.prepare(change) is None
        await server.reload(f'{TOP}model_dir = "{tmp_path}"\n[model.{name}]\nmax_batch = 4\nmax_queue = 7\n')
        await repository.commit(change)
        await asyncio.gather(*repository._tasks)
        model = server.model(name)
        assert model._engine is not None and model._engine.batcher._limits.queue == 7
        assert model.described.buckets == (1, 2, 4) and model.state == "ready"

    run(work())


def test_a_models_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{TOP}request_timeout = 60\n[model.slow]\nrequest_timeout = 0.2\n[model.other]\nrequest_timeout = 0.2\n"
    server = Server(tmp_path, monkeypatch, text, slow=RELU, other=RELU)
    go = threading.Event()

    async def work() -> None:
        await server.repository.start()
        for name in ("slow", "other"):
            engine = server.model(name)._engine
            assert engine is not None
            real = engine.loaded.run
            engine.loaded.run = lambda feeds, real=real: (go.wait(60), real(feeds))[1]  # type: ignore[method-assign,misc]
        async with client_of(make_app(server.repository)) as client:
            assert "0.2 s" in error_of(await client.post("/predict?model=slow", json=ROWS), 504)
            await server.reload(f"{TOP}request_timeout = 0.1\n[model.other]\nrequest_timeout = 60\n")
            asking = asyncio.create_task(client.post("/predict?model=other", json=ROWS))
            assert "0.1 s" in error_of(await client.post("/predict?model=slow", json=ROWS), 504)
            await asyncio.sleep(0.2)
            go.set()
            assert (await asking).status_code == 200, "longer than the server's own limit"

    run(work())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_batch = 0\n", "--max-batch (TRNRT_MAX_BATCH)"),
        ("max_batch = \n", "is not TOML"),
        ("[model.relu]\nmax_bach = 3\n", "[model.relu]: there is no setting 'max_bach'"),
        ("[model.nobody]\nmax_batch = 3\n", "there is no model 'nobody'"),
        ("[key.alice]\nsha256 = 'alices-new-key'\n", "[key.alice]: sha256 is no hash"),
    ],
)
def test_a_wrong_file_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    server = Server(tmp_path, monkeypatch, TOP + key("alice", ALICE), relu=RELU)

    async def work() -> None:
        await server.repository.start()
        before = server.repository.settings
        await server.reload(text)
        assert server.repository.settings is before
        assert server.repository.admission.check_key(ALICE.encode()).name == "alice"
        (line,) = server.lines
        assert line["event"] == "reload_failed" and told in line["reason"] and line["file"] == str(server.file)
        assert "alices-new-key" not in str(line)

    run(work())


@pytest.mark.parametrize("kind", ["pipe", "zeros", "key"])
def test_what_can_not_be_read_to_its_end_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A supervisor that waits for a pipe obeys no signal any more; one that reads /dev/zero takes all memory."""
    server = Server(tmp_path, monkeypatch, TOP + key("alice", ALICE), relu=RELU)
    before = server.repository.settings
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if kind == "key":
        server.file.write_text(f'[key.bob]\nfile = "{pipe}"\n', encoding="utf-8")
    else:
        server.file.unlink()
        server.file.symlink_to("/dev/zero" if kind == "zeros" else pipe)
    assert rereading.read_changes(before, ["relu"]) is None
    assert "regular file" in server.lines[-1]["reason"]


def test_what_needs_a_restart_is_told_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch, TOP, relu=RELU)

    async def work() -> None:
        await server.repository.start()
        await server.reload(f'{TOP}port = 1234\nhost = "127.0.0.2"\nworkers = 3\nmax_queue = 5\n')
        settings = server.repository.settings
        assert (settings.host, settings.port, settings.workers, settings.max_queue) == ("127.0.0.1", 8000, 1, 5)

    run(work())
    assert [line["event"] for line in server.lines] == ["reload_ignored", "reloaded"]
    assert set(server.lines[0]["settings"]) == {"host", "port", "workers"} and server.lines[1]["settings"] == [
        "max_queue"
    ]


def test_a_model_is_compiled_again_while_requests_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch, TOP + key("alice", ALICE), relu=RELU, other=RELU)
    statuses: Counter[int] = Counter()
    done, expected = asyncio.Event(), list[Any]()

    async def work() -> None:
        await server.repository.start()
        app = make_app(server.repository)
        other = server.model("other").loaded_settings

        async def ask_on(client: httpx.AsyncClient, name: str) -> None:
            while not done.is_set():
                answer = await client.post(f"/predict?model={name}", json=ROWS, headers={"X-API-Key": ALICE})
                statuses[answer.status_code] += 1
                assert answer.json()["predictions"] == expected

        async with client_of(app) as client:
            first = await client.post("/predict?model=relu", json=ROWS, headers={"X-API-Key": ALICE})
            expected.extend(first.json()["predictions"])
            asking = [asyncio.create_task(ask_on(client, name)) for name in ("relu", "relu", "relu", "other")]
            for number in range(4):
                sizes = "[1, 3]" if number % 2 == 0 else "[2]"
                own = f"[model.relu]\nbuckets = {sizes}\nmax_queue = {50 + number}\n"
                await server.reload(f"{TOP}{key('alice', ALICE)}{key('bob', BOB)}{own}")
                assert server.model("relu").described.buckets == ((1, 3) if number % 2 == 0 else (2,))
                before = statuses[200]
                while statuses[200] < before + 20:
                    await asyncio.sleep(0.001)
            done.set()
            await asyncio.gather(*asking)
        assert server.model("other").loaded_settings is other

    run(work())
    assert set(statuses) == {200} and statuses[200] > 80


def test_a_model_that_does_not_load_with_new_settings_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tmp_path, monkeypatch, TOP, relu=RELU, mixing=MIXING)

    async def work() -> None:
        await server.repository.start()
        model = server.model("relu")
        engine = model._engine
        assert engine is not None
        # An input that the model does not have in that size.
        await server.reload(
            f'{TOP}[model.relu]\nlengths = [8]\npad = ["nobody=1"]\nmax_instructions = 1\nmax_queue = 3\n'
        )
        assert model.state == "ready" and model._engine is not None and model._engine.loaded is engine.loaded
        assert model._engine.batcher._limits.queue == 3, "limits change all the same"
        own = server.repository.settings.for_model("relu")
        assert (own.max_instructions, own.lengths, own.max_queue) == (None, [], 3)
        assert (await model.infer({"x": numbers(1, 4)})).rows == 1
        await server.reload(f"{TOP}[model.relu]\nbuckets = [1]\n")
        assert model.described.buckets == (1,)

    run(work())


def ready(server: ServerProcess, secret: str) -> int:
    return fetch("GET", f"{server.url}/v2/models/relu", headers={"X-API-Key": secret}).status_code


def test_all_workers_take_over_the_settings_and_successors_have_them(tmp_path: Path) -> None:
    path, file = save(tmp_path, "relu", RELU), tmp_path / "server.toml"
    file.write_text(TOP + key("alice", ALICE), encoding="utf-8")
    stop, statuses = threading.Event(), Counter[str]()

    def ask_on(url: str) -> None:
        while not stop.is_set():
            with httpx.Client(timeout=60) as client:  # connections to any worker
                for _ in range(5):
                    answer = client.post(f"{url}/predict", json=ROWS, headers={"X-API-Key": ALICE})
                    statuses[str(answer.status_code)] += 1

    with server_process(tmp_path, str(path), "--config", str(file), "--workers", "2") as server:
        asking = [threading.Thread(target=ask_on, args=(server.url,)) for _ in range(2)]
        for thread in asking:
            thread.start()
        assert ready(server, BOB) == 401
        file.write_text(
            f"{TOP}{key('alice', ALICE)}{key('bob', BOB)}[model.relu]\nbuckets = [1, 3]\n", encoding="utf-8"
        )
        server.process.send_signal(signal.SIGHUP)
        until(lambda: len(events(server, "reload_done")) == 2)
        assert [line["loaded"] for line in events(server, "reload_done")] == [["relu"]] * 2
        file.write_text("max_batch = 0\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: events(server, "reload_failed"))
        stop.set()
        for thread in asking:
            thread.join()
        assert set(statuses) == {"200"} and statuses["200"] > 10
        assert {ready(server, BOB) for _ in range(10)} == {200}
        os.kill(workers(server)[0], signal.SIGKILL)
        until(lambda: len(events(server, "model_ready")) == 5)
        assert [line["buckets"] for line in events(server, "model_ready")][2:] == [[1, 3]] * 3
        assert {ready(server, BOB) for _ in range(10)} == {200}
        assert server.stop() == 0
    said = server.log.read_text(encoding="utf-8")
    assert ALICE not in said and BOB not in said and '"key":"alice"' in said


def test_the_largest_json_changes_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the process that reads it, whose memory is limited accordingly."""
    server = Server(tmp_path, monkeypatch, f"max_json_mib = 1\n{TOP}", relu=RELU)

    async def work() -> None:
        await server.repository.start()
        app = make_app(server.repository)
        reader = app.state.converter.reader
        async with client_of(app) as client:
            row = "[" + ",".join(["0.0000000000001"] * 4) + "]"
            large = f'{{"instances": [{",".join([row] * 1000)}], "x": "{"a" * (1 << 20)}"}}'
            head = {"Content-Type": "application/json"}

            async def status() -> int:
                return (await client.post("/predict", content=large.encode(), headers=head)).status_code

            assert await status() == 413
            await server.reload(f"max_json_mib = 2\n{TOP}")
            assert await status() == 200
            process, memory = reader.pid, reader.memory
            assert await status() == 200 and reader.pid == process
            await server.reload(f"max_json_mib = 3\n{TOP}")
            assert await status() == 200 and reader.pid != process and reader.memory - memory == 32 << 20
            await server.reload(f"max_json_mib = 1\n{TOP}")
            assert await status() == 413
        reader.close()

    run(work())
    assert [line["settings"] for line in server.lines] == [["max_json_mib"]] * 3


def test_limits_that_grpc_keeps_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(reloading, "log", lambda level, event, **fields: told.append({"event": event, **fields}))
    first = f"grpc_port = 0\nmax_body_mib = 2\n{TOP}"
    server = Server(tmp_path, monkeypatch, first, relu=RELU)

    async def work() -> None:
        for text in (first, first.replace("= 2\n", "= 1\n", 1), "max_concurrency = 1000\n" + first):
            await server.reload(text)
        await server.reload(first.replace("max_body_mib = 2", "max_body_mib = 3"))

    run(work())
    assert [(line["event"], line["settings"]) for line in told] == [
        ("reload_partial", ["max_concurrency"]),
        ("reload_partial", ["max_body_mib"]),
    ]
    assert "until a restart" in told[0]["reason"]


def test_instances_change_while_requests_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = threading.enumerate()  # those of models of other tests may still be there
    server = Server(tmp_path, monkeypatch, TOP, relu=RELU)

    async def work() -> None:
        await server.repository.start()
        model, stopped = server.model("relu"), asyncio.Event()

        async def ask() -> int:
            answered = 0
            while not stopped.is_set():
                await model.infer({"x": numbers(1, 4)})
                answered += 1
                await asyncio.sleep(0.01)  # the loads need the interpreter, too
            return answered

        asking = [asyncio.create_task(ask()) for _ in range(3)]
        for count in (3, 1, 2):
            await server.reload(f"{TOP}[model.relu]\ninstances = {count}\n")
            assert model._engine is not None and len(model._engine.instances) == count
        before = model._engine
        await server.reload(f"{TOP}[model.relu]\ninstances = 0\n")
        assert model._engine is before
        stopped.set()
        assert all(await asyncio.gather(*asking))
        own = [thread for thread in threading.enumerate() if thread not in others]
        waiting = [thread for thread in own if thread.name.startswith("compute relu")]
        await until_over(lambda: sum(thread.is_alive() for thread in waiting) == 2)

    run(work())
    assert server.lines[-1]["event"] == "reload_failed" and "not 0" in server.lines[-1]["reason"]


async def until_over(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
