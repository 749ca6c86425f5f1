"""Attacks on a server's connections, over real sockets, with small limits: each is refused, and others are served."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from engines import PATIENCE_S
from serving import MadeUpRepository, app_of, doubling, lines_logged, listening, until
from starlette.types import ASGIApp, Receive, Scope, Send

from trnrt.serve.http import connections
from trnrt.serve.http.connections import PIPELINED, RESERVE
from trnrt.serve.http.limits import Tracked

HEAD = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
INFER = "/v2/models/doubling/infer"
POST = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n".encode()
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)
    monkeypatch.setattr(connections, "LINGER_S", 0.3)


class Attacked:
    """A server with a repository that is made up."""

    def __init__(self, port: int, repository: MadeUpRepository) -> None:
        self.port, self.repository = port, repository
        self.refused = repository.metrics.refused

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def replies(self, raw: bytes) -> list[tuple[int, http.client.HTTPMessage, bytes]]:
        """All answers to these bytes, until the server closes."""
        with self.connect() as client:
            send_all(client, raw)
            return answers(client)

    def reply(self, raw: bytes) -> tuple[int, str]:
        """The status of the one answer, and its error, in the one form."""
        ((status, headers, body),) = self.replies(raw)
        told = json.loads(body)
        assert headers["content-type"] == "application/json" and headers["connection"] == "close"
        assert headers["x-request-id"] and list(told) == ["error"], told
        return status, told["error"]

    def is_alive(self) -> bool:
        return self.replies(HEAD + b"Connection: close\r\n\r\n")[0][0] == 200


def send_all(client: socket.socket, raw: bytes) -> None:
    """Send until the server has had enough."""
    try:
        client.sendall(raw)
    except (BrokenPipeError, ConnectionResetError):
        return


def answers(client: socket.socket) -> list[tuple[int, http.client.HTTPMessage, bytes]]:
    """Every answer until the server closes. A server that resets has closed, too."""
    read = bytearray()
    try:
        while part := client.recv(1 << 16):
            read += part
    except ConnectionResetError:
        pass
    found = []
    while read:
        head, _, rest = bytes(read).partition(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        headers = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
        size = int(headers.get("content-length", 0))
        found.append((int(line.split()[1]), headers, rest[:size]))
        read = bytearray(rest[size:])
    return found


@contextmanager
def attacked(app: ASGIApp | None = None, seconds: float = 0.0, **settings: object) -> Iterator[Attacked]:
    repository = MadeUpRepository(doubling(seconds), **settings)
    with listening(app or app_of(repository), repository) as port:
        yield Attacked(port, repository)


@pytest.fixture(scope="module")
def small() -> Iterator[Attacked]:
    """A server whose heads may have 2048 bytes and 20 fields."""
    with attacked(max_header_bytes=2048, max_headers=20, max_body_mib=1) as server:
        yield server


# -- heads ---------------------------------------------------------------------------------------------------------

LARGE = [
    pytest.param(b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, id="target"),
    pytest.param(b"GET /" + b"x" * 5_000_000, 414, id="target without end"),
    pytest.param(HEAD + b"X: " + b"y" * 3000 + b"\r\n\r\n", 431, id="value"),
    pytest.param(HEAD + b"X: " + b"y" * 5_000_000, 431, id="value without end"),
    pytest.param(HEAD + b"y" * 3000 + b": x\r\n\r\n", 431, id="name"),
    pytest.param(HEAD + b"y" * 5_000_000, 431, id="name without end"),
    pytest.param(HEAD + b"X: y\r\n" * 30 + b"\r\n", 431, id="fields"),
    pytest.param(HEAD + b"X: y\r\n" * 1_000_000, 431, id="fields without end"),
    pytest.param(HEAD + b"X: " + b"y" * 500 + b"\r\nX: " + b"y" * 1800 + b"\r\n\r\n", 431, id="together"),
    pytest.param(b"\r\n" * 1_000_000, 431, id="empty lines"),
]


@pytest.mark.parametrize(("raw", "status"), LARGE)
def test_a_large_head_is_refused(small: Attacked, monkeypatch: pytest.MonkeyPatch, raw: bytes, status: int) -> None:
    lines: list[dict[str, object]] = []
    monkeypatch.setattr("trnrt.serve.http.connection.log", lambda level, event, **told: lines.append(told))
    small.refused.clear()
    small.repository.metrics.requests.clear()
    got, text = small.reply(raw)
    assert got == status and "the server's limit" in text
    assert small.refused == ["headers"]
    assert [(path, code) for path, _, code in small.repository.metrics.requests] == [("other", status)]
    assert [(line["status"], line["error"], bool(line["request_id"])) for line in lines] == [(status, text, True)]
    assert small.is_alive()


def test_a_refusal_keeps_the_clients_id(small: Attacked) -> None:
    ((status, headers, _),) = small.replies(HEAD + b"X-Request-Id: mine\r\n" + b"X: y\r\n" * 30)
    assert (status, headers["x-request-id"]) == (431, "mine")


def test_trailers_and_chunk_extensions_are_limited(small: Attacked) -> None:
    small.refused.clear()
    status, text = small.reply(CHUNKED + b"2\r\n{}\r\n0\r\n" + b"T: v\r\n" * 100_000)
    assert (status, "header fields" in text) == (431, True)
    status, text = small.reply(CHUNKED + b"2\r\n{}\r\n0\r\nT: " + b"v" * 5_000_000)
    assert (status, "trailers of more than 2048" in text) == (400, True)
    status, text = small.reply(CHUNKED + b"2;" + b"x" * 5_000_000)
    assert (status, "chunk extensions" in text) == (400, True)
    assert small.refused == ["headers", "malformed", "malformed"]


def test_chunks_of_one_byte_are_taken(small: Attacked) -> None:
    body = BODY + b" " * 20_000
    raw = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    raw += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-Sum: 1\r\n\r\n"
    ((status, _, answer),) = small.replies(raw)
    assert status == 200, answer


def test_trailers_are_not_headers() -> None:
    """A trailer comes after the keys were checked, and must not become one."""
    with attacked(api_keys="secret") as server:
        raw = CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\nX-API-Key: secret\r\nX-Request-Id: late\r\n\r\n"
        with server.connect() as client:
            client.sendall(raw)
            reply = client.recv(1 << 16)
        assert reply.startswith(b"HTTP/1.1 401") and b"late" not in reply


def test_requests_that_wait_behind_one_are_limited() -> None:
    with attacked(seconds=0.05) as server:
        one = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        replies = server.replies(one * (PIPELINED + 10))
        codes = [status for status, _, _ in replies]
        assert codes[: PIPELINED + 1] == [200] * (PIPELINED + 1) and codes[PIPELINED + 1 :] == [503]
        assert server.refused == ["connections"]


# -- malformed -----------------------------------------------------------------------------------------------------

MALFORMED = [
    (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "no Host"),
    (HEAD + b"Host: localhost\r\n\r\n", 400, "more than one Host"),
    (HEAD + b"Host: evil\r\n\r\n", 400, "more than one Host"),
    (b"GET /v2 HTTP/1.1\r\nHost:\r\n\r\n", 400, "Host header is b''"),
    (b"GET /v2 HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "Host header"),
    (b"GET /v2 HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "Host header"),
    (b"GET /v2 HTTP/1.1\r\nHost: u@a\r\n\r\n", 400, "Host header"),
    (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: +2\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: -2\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: 0x2\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length:\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n{}", 400, "Content-Length"),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "Content-Length"),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "Transfer-Encoding"),
    (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, "Transfer-Encoding"),
    (b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "Transfer-Encoding"),
    (CHUNKED + b"zz\r\n", 400, "chunk size"),
    (CHUNKED + b"-1\r\n", 400, "chunk size"),
    (CHUNKED + b"ffffffffffffffffff\r\n", 400, "Chunk size"),
    (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", 400, "chunk data"),
    (CHUNKED + b"1\nx\n0\n\n", 400, "chunk size"),
    (HEAD + b"X: a\r\n b\r\n\r\n", 400, "whitespace"),
    (b"GET /v2 HTTP/1.1\nHost: localhost\n\n", 400, "CRLF"),
    (HEAD + b"X: a\nY: b\r\n\r\n", 400, "CR"),
    (HEAD + b"X: a\rY: b\r\n\r\n", 400, "LF"),
    (HEAD + b"X : a\r\n\r\n", 400, "header token"),
    (HEAD + b": a\r\n\r\n", 400, "header token"),
    (HEAD + b"X\r\n\r\n", 400, "header token"),
    (HEAD + b"X: a\0b\r\n\r\n", 400, "header value"),
    (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "url"),
    (b"GET /v2#a HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "fragment"),
    (b"GET v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, ""),
    (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "slash"),
    (b"GET http://evil/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "another one"),
    (b"GET ftp://localhost/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "slash"),
    (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", 501, "CONNECT"),
    (b"GET /v2 HTTP/0.9\r\nHost: localhost\r\n\r\n", 505, "HTTP/0.9"),
    (b"GET /v2\r\n\r\n", 505, "HTTP/0.9"),
    (b"GET /v2 HTTP/1.2\r\nHost: localhost\r\n\r\n", 400, "version"),
    (b"GET /v2 HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "HTTP/2.0"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/2"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "TLS"),
    (b"BREW /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "method"),
    (b"get /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "method"),
    (b"\0" * 100, 400, "method"),
]


@pytest.mark.parametrize(("raw", "status", "told"), MALFORMED, ids=lambda value: repr(value)[:60])
def test_malformed_requests_have_the_one_form(small: Attacked, raw: bytes, status: int, told: str) -> None:
    small.refused.clear()
    got, text = small.reply(raw)
    assert (got, told in text) == (status, True), text
    assert small.refused == ["malformed"]
    assert small.is_alive()


def test_a_malformed_request_behind_others_is_answered_after_them() -> None:
    with attacked(seconds=0.2) as server:
        one = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
        assert [status for status, _, _ in server.replies(one + one + b"bad\r\n\r\n" + one)] == [200, 200, 400]


@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    ],
)
def test_another_protocol_that_is_offered_is_ignored(small: Attacked, offer: bytes) -> None:
    """As Java's HTTP client offers HTTP/2 with each request. It sends its body all the same."""
    post = POST + offer + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    with small.connect() as client:
        client.sendall(post + post[: len(post) // 2])
        time.sleep(0.05)
        client.sendall(post[len(post) // 2 :] + HEAD + b"Connection: close\r\n\r\n")
        assert [status for status, _, _ in answers(client)] == [200, 200, 200]


def test_a_client_that_waits_for_continue(small: Attacked) -> None:
    with small.connect() as client:
        head = POST + b"Content-Length: %d\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n" % len(BODY)
        client.sendall(head)
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(BODY)
        assert [status for status, _, _ in answers(client)] == [200]


def test_a_client_that_is_refused_before_continue_is_closed(small: Attacked) -> None:
    """It may or may not send its body: nobody can tell what comes next."""
    raw = POST + b"Content-Length: 9999999\r\nExpect: 100-continue\r\n\r\n"
    ((status, headers, _),) = small.replies(raw)
    assert (status, headers["connection"]) == (413, "close")


def test_a_body_that_nobody_wants_ends() -> None:
    """The request is answered; what it still sends is read up to a limit."""
    with attacked(max_body_mib=1) as server, server.connect() as client:
        client.sendall(b"POST /nope HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404")
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(50):
                client.sendall(chunk)
        assert server.is_alive()


# -- slow ----------------------------------------------------------------------------------------------------------


def test_slow_heads_and_idle_connections_are_closed() -> None:
    with attacked(header_timeout=0.3, keep_alive_timeout=0.6) as server:
        with server.connect() as silent, server.connect() as half, server.connect() as kept:
            half.sendall(HEAD)
            kept.sendall(HEAD + b"\r\n")
            assert answers(silent) == []
            ((status, _, body),) = answers(half)
            assert (status, "head did not end within 0.3 s" in str(body)) == (408, True)
            assert [status for status, _, _ in answers(kept)] == [200]
        with server.connect() as trickling:
            trickled = drip(trickling, HEAD + b"X: " + b"y" * 1000)
            assert trickled < 500
        assert server.refused == ["slow", "slow"]


def drip(client: socket.socket, raw: bytes) -> int:
    """Send a byte from time to time; how many went until the server closed."""
    for sent, byte in enumerate(raw):
        try:
            client.sendall(bytes([byte]))
        except (BrokenPipeError, ConnectionResetError):
            return sent
        time.sleep(0.02)
    return len(raw)


def test_bodies_that_stop_or_trickle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with attacked(body_timeout=0.5) as server:
        with server.connect() as stopped:
            stopped.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
            ((status, headers, body),) = answers(stopped)
            assert (status, headers["connection"]) == (408, "close")
            assert "pauses for more than 0.5 s" in str(body)
        with server.connect() as trickling:
            trickling.sendall(POST + b"Content-Length: 1000\r\n\r\n")
            assert drip(trickling, b"{" + b" " * 999) < 500
        with server.connect() as unread:  # its answer does not wait for the body
            unread.sendall(b"POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
            assert [status for status, _, _ in answers(unread)] == [404]
        assert server.refused == ["slow"] * 3
        assert [code for _, _, code in server.repository.metrics.requests] == [408, 408, 404]


def test_a_slow_model_is_no_slow_client() -> None:
    with attacked(seconds=1.2, body_timeout=0.2, header_timeout=0.2, write_timeout=0.2) as server:
        raw = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
        assert [status for status, _, _ in server.replies(raw)] == [200]


LARGE_ANSWER = 24 << 20


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", str(LARGE_ANSWER).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LARGE_ANSWER)})


def reader(server: Attacked) -> socket.socket:
    """A client with little room that has asked for a large answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(HEAD + b"\r\n")
    return client


def test_clients_that_do_not_read_are_closed() -> None:
    with attacked(large, write_timeout=0.5) as server, reader(server), reader(server) as trickling:
        end = time.monotonic() + PATIENCE_S
        while len(server.refused) < 2 and time.monotonic() < end:
            try:
                trickling.recv(16)
            except ConnectionResetError:
                break
            time.sleep(0.02)
        until(lambda: server.refused == ["slow", "slow"])


def test_a_client_that_reads_gets_all() -> None:
    # Not less than a busy machine may stop this process for: what it has not read by then counts as not wanted.
    with attacked(large, write_timeout=20) as server, reader(server) as client:
        count = 0
        while count < LARGE_ANSWER:
            part = client.recv(1 << 20)
            assert part, f"closed after {count} bytes: {server.refused}"
            count += len(part)


def test_answers_that_wait_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_logged(monkeypatch)
    repository = MadeUpRepository(doubling(), max_buffered_mib=30)
    app = Tracked(large, repository)  # type: ignore[arg-type]
    with listening(app, repository) as port:
        server = Attacked(port, repository)
        with reader(server) as first:
            assert first.recv(8) == b"HTTP/1.1"
            ((status, headers, body),) = server.replies(HEAD + b"Connection: close\r\n\r\n")
            assert (status, headers["retry-after"]) == (503, "1")
            assert "wait for clients to read them" in json.loads(body)["error"]
        assert repository.metrics.refused == ["buffers"]
        until(lambda: server.replies(HEAD + b"Connection: close\r\n\r\n")[0][0] == 200)
    assert 503 in [line["status"] for line in lines]


# -- many ----------------------------------------------------------------------------------------------------------

HEALTHY = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_health_is_answered_however_many_connections_there_are() -> None:
    with attacked(max_connections=20, header_timeout=60) as server, ExitStack() as stack:
        half_open = [stack.enter_context(server.connect()) for _ in range(20)]
        for client in half_open:
            client.sendall(HEAD)
        assert [status for status, _, _ in server.replies(HEALTHY)] == [200], "and closed"
        status, text = server.reply(HEAD + b"\r\n")
        assert (status, "20 connections already" in text) == (503, True)
        for _ in range(3 * RESERVE):
            client = stack.enter_context(server.connect())
            send_all(client, HEAD)
        assert [status for status, _, _ in server.replies(HEALTHY)] == [200]
        assert server.refused.count("connections") >= 2 * RESERVE
        for client in half_open[:10]:
            client.close()
        until(server.is_alive)


def test_idle_connections_make_room() -> None:
    with attacked(max_connections=8) as server, ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "CROWDED_IDLE_S", 0.2)
        for _ in range(8):
            client = stack.enter_context(server.connect())
            client.sendall(HEAD + b"\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        until(server.is_alive)


def test_a_connection_stays_open_while_it_is_used() -> None:
    with attacked(keep_alive_timeout=0.5, header_timeout=0.3) as server, server.connect() as client:
        for _ in range(8):
            client.sendall(HEAD + b"\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(0.2)
