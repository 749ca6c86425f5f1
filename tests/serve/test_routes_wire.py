"""The application behind the real HTTP server: what bytes on a socket get for an answer."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from engines import PATIENCE_S
from serving import MadeUpModel, MadeUpRepository, app_of, doubling, listening

INFER = "/v2/models/doubling/infer"
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


@dataclass(frozen=True)
class Served:
    """A server, and what stands behind it."""

    port: int
    model: MadeUpModel
    repository: MadeUpRepository


@pytest.fixture
def served() -> Iterator[Served]:
    model = doubling()
    repository = MadeUpRepository(model, max_body_mib=1, max_concurrency=4)
    with listening(app_of(repository), repository) as port:
        yield Served(port, model, repository)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def sent(served: Served, raw: bytes) -> Reply:
    """The answer to these bytes."""
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as connection:
        connection.sendall(raw)
        with http.client.HTTPResponse(connection, method=raw.partition(b" ")[0].decode("latin-1")) as response:
            response.begin()
            return Reply(response.status, response.headers, response.read())


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    head = [line, "Host: localhost", "Connection: close", *headers, *([f"Content-Length: {len(body)}"] if body else [])]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


WELL_FORMED = [
    (request("GET /nope HTTP/1.1"), 404),
    (request(f"GET {INFER} HTTP/1.1"), 405),
    (request("OPTIONS * HTTP/1.1"), 404),
    (request("GET http://localhost/nope HTTP/1.1"), 404),
    (request("GET /v2/models/%FF%00%2F HTTP/1.1"), 404),
    (request("GET /v2/models/%zz HTTP/1.1"), 404),
    (request("GET /v2/models/" + "x" * 30_000 + " HTTP/1.1"), 404),
    (request("GET /nope?" + "x=1&" * 5000 + " HTTP/1.1"), 404),
    (request("PROPFIND /v2 HTTP/1.1"), 405),
    (request("TRACE /v2 HTTP/1.1"), 405),
    (request("GET /nope HTTP/1.0"), 404),
    (request("GET /nope HTTP/1.1", *(f"X-{k}: {'y' * 50}" for k in range(97))), 404),
    (request("GET /nope HTTP/1.1", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"), 404),
    (request("GET /nope HTTP/1.1", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), 404),
    (request(f"POST {INFER} HTTP/1.1"), 400),
    (request(f"POST {INFER} HTTP/1.1", "Content-Length: 0"), 400),
    (request(f"POST {INFER} HTTP/1.1", body=b"{"), 400),
    (request(f"POST {INFER} HTTP/1.1", "Transfer-Encoding: chunked") + b"3\r\n{ 1\r\n0\r\n\r\n", 400),
    (request(f"POST {INFER} HTTP/1.1", "Content-Type: text/plain", body=BODY), 415),
    (request(f"POST {INFER} HTTP/1.1", "Content-Encoding: gzip", body=BODY), 415),
    (request(f"POST {INFER} HTTP/1.1", "Inference-Header-Content-Length: 9", body=BODY), 400),
    (request(f"POST {INFER} HTTP/1.1", "Expect: 100-continue", "Content-Length: 9999999"), 413),
    (request(f"POST {INFER} HTTP/1.1", "Content-Length: 9999999999999999"), 413),
    (request("POST /v2/repository/index HTTP/1.1", body=b"{}"), 403),
]


@pytest.mark.parametrize(("raw", "status"), WELL_FORMED, ids=lambda value: repr(value)[2:50])
def test_every_failure_is_an_error_in_json(served: Served, raw: bytes, status: int) -> None:
    reply = sent(served, raw)
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    told = json.loads(reply.body)
    assert list(told) == ["error"] and told["error"]


def test_a_head_has_no_body(served: Served) -> None:
    reply = sent(served, request("HEAD /v2 HTTP/1.1"))
    assert (reply.status, reply.body) == (200, b"") and int(reply.headers["content-length"]) > 0
    assert sent(served, request("HEAD /nope HTTP/1.1")).status == 404


def test_a_body_in_pieces_that_is_too_large(served: Served) -> None:
    """Nobody said how large it would be; the answer comes before it ends."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    reply = sent(served, request(f"POST {INFER} HTTP/1.1", "Transfer-Encoding: chunked") + chunk * 17)
    assert reply.status == 413 and "error" in json.loads(reply.body)


def test_many_requests_on_one_connection(served: Served) -> None:
    """After whatever answer the connection is good for the next."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
    for path, body, status in [
        (INFER, BODY, 200),
        (INFER, b"{", 400),
        ("/nope", BODY, 404),
        (INFER, b" " * (2 << 20), 413),
        (INFER, BODY, 200),
        ("/v2/models/nobody/infer", b" " * (1 << 19), 404),
        (INFER, BODY, 200),
    ]:
        connection.request("POST", path, body)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_requests_one_behind_the_other(served: Served) -> None:
    """Pipelined: each is answered, in order."""
    lines = [f"POST {INFER} HTTP/1.1", "Host: localhost", f"Content-Length: {len(BODY)}"]
    heads = [[*lines, f"X-Request-Id: {k}", *(["Connection: close"] if k == 4 else [])] for k in range(5)]
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as connection:
        connection.sendall(b"".join("\r\n".join([*head, "", ""]).encode() + BODY for head in heads))
        with connection.makefile("rb") as file:
            replies = file.read().split(b"HTTP/1.1 ")[1:]
    assert [reply[:3] for reply in replies] == [b"200"] * 5
    assert [f"x-request-id: {k}\r\n".encode() in reply for k, reply in enumerate(replies)] == [True] * 5


@pytest.mark.parametrize("path", [INFER, "/predict"])
def test_clients_that_hang_up_free_their_places(served: Served, path: str) -> None:
    served.model.seconds = 600.0
    body = BODY if path == INFER else b'{"instances": [[1, 2, 3, 4]]}'
    clients = [socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) for _ in range(4)]
    for client in clients:
        client.sendall(request(f"POST {path} HTTP/1.1", body=body))
    until(lambda: served.model.waiting == 4)
    assert sent(served, request("GET /v2 HTTP/1.1")).status == 503
    for client in clients:
        client.close()
    until(lambda: served.model.waiting == 0)
    assert served.model.cancelled == 4
    served.model.seconds = 0.0
    until(lambda: sent(served, request(f"POST {path} HTTP/1.1", body=body)).status == 200)
    assert [code for _, _, code in served.repository.metrics.requests].count(499) == 4


def test_a_client_that_hangs_up_before_its_body_is_there(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE_S) as client:
        client.sendall(request(f"POST {INFER} HTTP/1.1", "Content-Length: 1000") + b"{")
        until(lambda: served.model.on_their_way == 1)
    until(lambda: served.model.on_their_way == 0)
    assert served.model.answered == 0
