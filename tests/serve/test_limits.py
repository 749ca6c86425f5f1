"""What every request passes: ids, keys, sizes, times, full and leaving servers, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from serving import (
    MadeUpMetrics,
    MadeUpRepository,
    app_of,
    ask,
    client_of,
    computing,
    doubling,
    error_of,
    lines_logged,
    run,
)
from starlette.types import ASGIApp, Message, Scope, Send

from trnrt.serve.hosting.admission import LARGEST_BODIES
from trnrt.serve.http.limits import GONE, METRICS, WATCH_AFTER_S, Tracked, limit_time
from trnrt.serve.http.problems import Problem

INFER = "/v2/models/doubling/infer"
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
HEALTH = ("/v2/health/live", "/v2/health/ready")


# -- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc", "A1-_.:/+=@", "x" * 128])
def test_an_id_is_taken_and_echoed(given: str) -> None:
    response = ask(app_of(MadeUpRepository(doubling())), "GET", "/v2", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", 'a"b', "a,b", "ü"])
def test_an_id_that_is_none_is_replaced(given: str) -> None:
    headers = {"X-Request-Id": given.encode("latin-1")}
    response = ask(app_of(MadeUpRepository(doubling())), "GET", "/v2", headers=headers)
    assert len(response.headers["x-request-id"]) == 32
    assert int(response.headers["x-request-id"], 16) >= 0


def test_every_answer_has_an_id_of_its_own() -> None:
    app = app_of(MadeUpRepository(doubling()))
    ids = {ask(app, "GET", path).headers["x-request-id"] for path in ("/v2", "/v2", "/nope", INFER, "/metrics", "/")}
    assert len(ids) == 6


def test_requests_are_logged_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_logged(monkeypatch)
    repository = MadeUpRepository(doubling())
    app = app_of(repository)
    ask(app, "POST", INFER, json=BODY, headers={"X-Request-Id": "one"})
    ask(app, "POST", INFER, content=b"{", headers={"X-Request-Id": "two"})
    ask(app, "GET", "/v2/models/nobody", headers={"X-Request-Id": "three"})
    ask(app, "BREW", "/pot", headers={"X-Request-Id": "four"})
    assert repository.metrics.requests == [
        ("/v2/models/{model}/infer", "POST", 200),
        ("/v2/models/{model}/infer", "POST", 400),
        ("/v2/models/{model}", "GET", 404),
        ("other", "other", 404),
    ]
    assert [(line["request_id"], line["status"], line["path"]) for line in lines] == [
        ("one", 200, INFER),
        ("two", 400, INFER),
        ("three", 404, "/v2/models/nobody"),
        ("four", 404, "/pot"),
    ]
    assert "error" not in lines[0] and "no JSON" in lines[1]["error"]


# -- keys ----------------------------------------------------------------------------------------------------------

KEYS = "first,zweiter-schlüssel"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic first"},
        {"Authorization": "first"},
        {"X-API-Key": ""},
        {"X-API-Key": "firs"},
        {"X-API-Key": "first,"},
        {"X-API-Key": "wrong", "Authorization": "Bearer first"},
    ],
)
def test_a_wrong_key(headers: dict[str, str]) -> None:
    repository = MadeUpRepository(doubling(), api_keys=KEYS)
    app = app_of(repository)
    for method, path in (("GET", "/v2"), ("POST", INFER), ("GET", "/nope"), ("GET", METRICS), ("GET", "/models.json")):
        response = ask(app, method, path, headers=headers)
        text = error_of(response, 401)
        assert "API key" in text and "first" not in text
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert repository.metrics.refused == ["key"] * 5


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first"},
        {"authorization": "bearer  first "},
        {"X-API-Key": "first"},
        {"X-API-Key": "zweiter-schlüssel".encode()},
    ],
)
def test_a_right_key(headers: dict[str, Any]) -> None:
    app = app_of(MadeUpRepository(doubling(), api_keys=KEYS))
    assert ask(app, "POST", INFER, headers=headers, json=BODY).status_code == 200
    assert ask(app, "GET", "/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize("path", [*HEALTH, "/", "/docs", "/openapi.json"])
def test_what_needs_no_key(path: str) -> None:
    app = app_of(MadeUpRepository(doubling(), api_keys=KEYS))
    assert ask(app, "GET", path).status_code == 200


# -- sizes ---------------------------------------------------------------------------------------------------------


async def chunks(size: int, first: bytes = b"") -> AsyncIterator[bytes]:
    yield first
    for _ in range(size >> 16):
        yield b" " * (1 << 16)


@pytest.mark.parametrize("path", [INFER, "/predict"])
def test_a_body_that_is_too_large(path: str) -> None:
    repository = MadeUpRepository(doubling(), max_body_mib=1)
    app = app_of(repository)
    limit = 1 << 20
    assert "more than 1048576 bytes (1 MiB)" in error_of(ask(app, "POST", path, content=b" " * (limit + 1)), 413)
    assert "no JSON" in error_of(ask(app, "POST", path, content=b" " * limit), 400)
    # Without a length, and with one that is not true.
    error_of(ask(app, "POST", path, content=chunks(limit + (1 << 16))), 413)
    assert "no JSON" in error_of(ask(app, "POST", path, content=chunks(limit)), 400)
    error_of(ask(app, "POST", path, content=chunks(limit + (1 << 16)), headers={"Content-Length": "5"}), 413)
    error_of(ask(app, "POST", path, content=b"", headers={"Content-Length": "9" * 400}), 413)
    assert repository.models["doubling"].on_their_way == 0
    assert repository.metrics.refused == ["body"] * 4


def test_a_form_that_is_too_large() -> None:
    app = app_of(MadeUpRepository(doubling(), max_body_mib=1))
    error_of(ask(app, "POST", "/predict", files={"image": b"x" * (1 << 20)}), 413)
    head = {"Content-Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    error_of(ask(app, "POST", "/predict", content=chunks(2 << 20, part), headers=head), 413)


def test_bodies_that_are_too_large_together() -> None:
    """Each is small enough; while they come in, and while they wait, all of them are held."""
    model = doubling()
    model.go = go = asyncio.Event()
    repository = MadeUpRepository(model, max_body_mib=1)
    app = app_of(repository)
    content = json.dumps(BODY).encode().ljust(1 << 20)

    async def work() -> None:
        async with client_of(app) as client:
            inside = [asyncio.create_task(client.post(INFER, content=content)) for _ in range(LARGEST_BODIES)]
            await computing(model, LARGEST_BODIES)
            refused = await client.post(INFER, json=BODY)
            assert "the bodies of the requests" in error_of(refused, 503)
            assert refused.headers["retry-after"] == "1"
            assert (await client.get("/v2/health/ready")).status_code == 200
            go.set()
            assert {response.status_code for response in await asyncio.gather(*inside)} == {200}
            assert (await client.post(INFER, content=content)).status_code == 200

    run(work())
    assert repository.metrics.refused == ["concurrency"]


# -- full, leaving, late -------------------------------------------------------------------------------------------


def test_a_full_server() -> None:
    model = doubling()
    model.go = go = asyncio.Event()
    repository = MadeUpRepository(model, max_concurrency=2)
    app = app_of(repository)

    async def work() -> None:
        async with client_of(app) as client:
            inside = [asyncio.create_task(client.post(INFER, json=BODY)) for _ in range(2)]
            await computing(model, 2)
            refused = await client.post(INFER, json=BODY)
            assert "answers 2 requests already" in error_of(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
            for path in (*HEALTH, "/metrics"):
                assert (await client.get(path)).status_code == 200
            go.set()
            assert [response.status_code for response in await asyncio.gather(*inside)] == [200, 200]
            assert (await client.post(INFER, json=BODY)).status_code == 200

    run(work())
    assert repository.metrics.refused == ["concurrency"]


@pytest.mark.parametrize("raised", [Problem(400, "bad"), RuntimeError("worse")])
def test_a_request_that_fails_leaves_its_place(raised: Exception) -> None:
    model = doubling()
    app = app_of(MadeUpRepository(model, max_concurrency=1))
    model.error = raised
    for _ in range(3):
        assert ask(app, "POST", INFER, json=BODY).status_code in (400, 500)
    model.error = None
    assert ask(app, "POST", INFER, json=BODY).status_code == 200


def test_a_leaving_server() -> None:
    model = doubling()
    model.go = go = asyncio.Event()
    repository = MadeUpRepository(model)
    app = app_of(repository)

    async def work() -> None:
        async with client_of(app) as client:
            accepted = asyncio.create_task(client.post(INFER, json=BODY))
            await computing(model, 1)
            repository.admission.draining = True
            for method, path in (("POST", INFER), ("GET", "/v2"), ("GET", "/")):
                refused = await client.request(method, path)
                assert "shutting down" in error_of(refused, 503)
                assert int(refused.headers["retry-after"]) >= 1
            assert "shutting down" in error_of(await client.get("/v2/health/ready"), 503)
            assert (await client.get("/v2/health/live")).json() == {"live": True}
            assert (await client.get("/metrics")).status_code == 200
            go.set()
            assert (await accepted).status_code == 200

    run(work())


@pytest.mark.parametrize("where", ["model", "body"])
def test_a_request_that_takes_too_long(where: str) -> None:
    model = doubling(30.0 if where == "model" else 0.0)
    repository = MadeUpRepository(model, request_timeout=1.0, max_concurrency=1)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    body = {"json": BODY} if where == "model" else {"content": slow()}
    response = ask(app_of(repository), "POST", INFER, **body)
    assert "longer than 1 s" in error_of(response, 504)
    assert (model.cancelled, model.waiting, model.on_their_way) == (int(where == "model"), 0, 0)
    assert repository.metrics.refused == ["timeout"]
    model.seconds = 0
    patient = MadeUpRepository(model, max_concurrency=1)
    assert ask(app_of(patient), "POST", INFER, json=BODY).status_code == 200


def test_each_request_ends_at_its_own_time() -> None:
    """One timer looks at all of them; the later ones go on."""
    repository = MadeUpRepository(doubling(), request_timeout=60.0)
    ended: list[str] = []

    async def app(scope: Scope, _receive: object, send: Send) -> None:
        seconds = float(scope["path"][1:])
        limit_time(scope, seconds)
        try:
            await asyncio.sleep(60.0 if seconds < 10 else 1.0)
        finally:
            ended.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def work() -> list[int]:
        tracked = Tracked(app, repository)  # type: ignore[arg-type]
        async with client_of(tracked) as client:  # type: ignore[arg-type]
            answers = await asyncio.gather(*(client.get(f"/{limit}") for limit in ("50", "0.6", "0.1")))
        await asyncio.sleep(3 * WATCH_AFTER_S)
        assert tracked._sweep._loop is None, "without requests it looks at nothing"
        return [answer.status_code for answer in answers]

    assert run(work()) == [200, 504, 504]
    assert sorted(ended) == ["/0.1", "/0.6", "/50"] and repository.metrics.refused == ["timeout"] * 2


def test_a_timeout_in_the_middle_of_an_answer_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second answer is sent; the server closes the connection."""
    lines, sent = lines_logged(monkeypatch), list[Message]()
    repository = MadeUpRepository(doubling(), request_timeout=0.1)

    async def app(_scope: Scope, _receive: object, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.sleep(30)

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.sleep(30)
        raise AssertionError

    async def work() -> None:
        with pytest.raises(Problem, match=r"longer than 0\.1 s"):
            await Tracked(app, repository)(scope_of(), receive, send)  # type: ignore[arg-type]
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    run(work())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert repository.metrics.refused == ["timeout"] and [line["status"] for line in lines] == [200]


def test_a_timeout_that_is_not_the_servers_is_its_own_fault() -> None:
    model = doubling()
    model.error = TimeoutError("some library's")
    error_of(ask(app_of(MadeUpRepository(model)), "POST", INFER, json=BODY), 500)


# -- clients that go, and what only a server sees ------------------------------------------------------------------


def scope_of(method: str = "POST", path: str = INFER, kind: str = "http") -> Scope:
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


async def until_gone(app: ASGIApp, messages: list[Message], wait: float) -> list[Message]:
    """Call the app; it receives these messages, and after a while that the client has gone."""
    sent: list[Message] = []

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(wait)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(), receive, send)
    return sent


def test_a_client_that_goes_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_logged(monkeypatch)
    model = doubling(30.0)
    repository = MadeUpRepository(model, max_concurrency=1)
    app = app_of(repository)

    async def work() -> list[Message]:
        body = {"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}
        sent = await asyncio.wait_for(until_gone(app, [body], WATCH_AFTER_S), 5)
        assert len(asyncio.all_tasks()) == 1
        return sent

    assert run(work()) == []
    assert (model.cancelled, model.waiting) == (1, 0)
    assert repository.metrics.requests == [("/v2/models/{model}/infer", "POST", GONE)]
    assert [line["status"] for line in lines] == [GONE]
    model.seconds = 0
    assert ask(app, "POST", INFER, json=BODY).status_code == 200


def test_a_client_that_goes_while_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doubling()
    repository = MadeUpRepository(model)
    part: Message = {"type": "http.request", "body": b"{", "more_body": True}
    assert run(until_gone(app_of(repository), [part], 0.0)) == []
    assert (model.answered, model.on_their_way) == (0, 0)
    assert repository.metrics.requests[0][2] == GONE


def test_a_task_that_is_cancelled_from_outside_stays_so() -> None:
    """As at the end of a server: it is no client that has gone, and no time that is over."""
    model = doubling(30.0)
    app = app_of(MadeUpRepository(model))

    async def work() -> None:
        async with client_of(app) as client:
            task = asyncio.create_task(client.post(INFER, json=BODY))
            await computing(model, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(work())
    assert (model.cancelled, model.waiting) == (1, 0)


def test_what_fails_when_an_answer_is_half_sent_is_raised() -> None:
    """There is nothing more to say: the server breaks the connection off."""
    repository = MadeUpRepository(doubling())
    app = app_of(repository)

    async def work() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the socket broke")

        with pytest.raises(OSError, match="broke"):
            await app(scope_of("GET", "/v2"), receive, send)

    run(work())
    assert repository.metrics.requests == [("/v2", "GET", 200)]


def test_web_sockets_are_closed() -> None:
    sent: list[Message] = []

    async def work() -> None:
        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await app_of(MadeUpRepository(doubling()))(scope_of(kind="websocket"), receive, send)

    run(work())
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_no_sniffing() -> None:
    app = app_of(MadeUpRepository(doubling()))
    for path in ("/v2", "/nope", "/", "/metrics", "/openapi.json"):
        response: httpx.Response = ask(app, "GET", path)
        assert response.headers.get_list("x-content-type-options") == ["nosniff"], path


def test_the_made_up_metrics_are_like_the_real_ones() -> None:
    from trnrt.serve.hosting.metrics import Metrics

    for name in ("request", "count_rejection", "render"):
        assert callable(getattr(Metrics, name)) and callable(getattr(MadeUpMetrics, name))
