"""A client's connection: from bytes to requests, within limits, and from answers to bytes.

It stands in the place of uvicorn's own protocol, which has no limits. uvicorn's server still accepts connections and
shuts them down.

A request that is malformed or too large never reaches the application. It gets the same form of answer, a request id,
a line in the log and its place in the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from enum import IntEnum
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.server import ServerState

from trnrt.serve.http.connections import (
    LARGE,
    LEAST_RATE,
    LINGER_BYTES,
    LINGER_S,
    PIPELINED,
    RESERVE_S,
    Connections,
    new_id,
)
from trnrt.serve.http.exchange import CLOSE_LINE, Exchange, status_line
from trnrt.serve.http.heads import (
    Fields,
    Head,
    Refusal,
    check_head,
    malformed_refusal,
    target_too_long,
    too_large,
    too_many,
    unparsable,
    without_upgrade,
)
from trnrt.serve.http.limits import HEALTH, METHODS, SANE_ID
from trnrt.serve.http.line import Line
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import dumps
from trnrt.serve.processes.logs import log

_FRAMING = 16
"""Bytes of chunk sizes and extensions that each byte of a body may bring: chunks of one byte take 5."""


class Stage(IntEnum):
    """The parser's place: between requests, in a head or in a body; or the connection reads no more requests."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    OVER = 3


class Connection(Line):
    """One client's connection."""

    def __init__(self, app: ASGIApp, state: ServerState, connections: Connections) -> None:
        super().__init__(state, connections)
        self._app = app
        self._parser: Any = httptools.HttpRequestParser(self)
        self._addresses: dict[str, Any] = {}
        self._extra = False
        self._stage, self._since = Stage.IDLE, self._loop.time()
        self._fed = self._received = self._discarded = self._trailers = 0
        self._moved = 0.0
        self._target, self._fields = b"", cast(Fields, [])
        self._refusal: Refusal | None = None
        self._upgrading = self._served = False
        self._current: Exchange | None = None  # it is being answered
        self._reading: Exchange | None = None  # its body is being read
        self._waiting: deque[Exchange] = deque()  # pipelined behind the current one

    # -- asyncio's protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        names = {"client": transport.get_extra_info("peername"), "server": transport.get_extra_info("sockname")}
        self._addresses = {key: tuple(name[:2]) if name else None for key, name in names.items()}
        self._state.connections.add(cast(Any, self))
        self._extra = self._all.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whichever side."""
        self._state.connections.discard(cast(Any, self))
        self._stage, self._parser = Stage.OVER, None
        for exchange in (self._current, *self._waiting):
            if exchange is not None:
                exchange.gone = True
                exchange.wake()
        self._waiting.clear()
        self.resume_writing()
        self._all.leave(self)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._stage is Stage.OVER:
            self._discard(len(data))
            return
        if self._stage is Stage.IDLE:
            self._begin_head()
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._is_over():  # data behind the last request are ignored
                self._fail(self._refusal or unparsable(error, data))
        else:
            if self._fed > self._limits.head_bytes:
                self._check_fed()

    def shutdown(self) -> None:
        """The server shuts down: close now, or after the answer that is under way."""
        if self._current is None:
            self._transport.close()
        else:
            self._current.keep_alive = False

    # -- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._stage is not Stage.HEAD:  # pipelined, in one read with the one before
            self._begin_head()
        self._target, self._fields = b"", []

    def on_url(self, target: bytes) -> None:
        """A part of the request's target."""
        self._target += target
        if len(self._target) > self._limits.head_bytes:
            self._refuse_parsing(target_too_long(self._limits.head_bytes))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; or a trailer's, which is dropped."""
        if self._stage is Stage.BODY:
            self._trailers += 1
            if self._trailers > self._limits.fields:
                self._refuse_parsing(too_many(self._limits.fields))
            return
        self._fields.append((name.lower(), value))
        if len(self._fields) > self._limits.fields:
            self._refuse_parsing(too_many(self._limits.fields))

    def on_headers_complete(self) -> None:
        """The head is there: check it, and begin the exchange."""
        parser = self._parser
        method, version = parser.get_method().decode("ascii"), parser.get_http_version()
        try:
            head = check_head(method, self._target, version, self._fields, self._limits.head_bytes)
            if self._extra and head.path not in HEALTH:
                raise self._full()
        except Refusal as refusal:
            self._refuse_parsing(refusal)
            return
        if parser.should_upgrade():
            self._upgrading = True
            return
        scope = self._scope(method, version, head)
        keep = version == "1.1" and parser.should_keep_alive() and not self._extra
        self._stage, self._fed, self._received, self._trailers, self._discarded = Stage.BODY, 0, 0, 0, 0
        self._since = self._moved = self._loop.time()
        self._reading = exchange = Exchange(self, scope, keep_alive=keep, expects=head.expects)
        if self._current is None:
            self._start(exchange)
        elif len(self._waiting) < PIPELINED:
            self._pause_reading()
            self._waiting.append(exchange)
        else:
            text = f"more than {PIPELINED} requests wait on this connection; read their answers first"
            self._reading = None
            self._refuse_parsing(Refusal("connections", Problem(503, text, retry_after=1)))

    def on_body(self, part: bytes) -> None:
        """A part of a body."""
        size = len(part)
        self._received += size
        self._moved = self._loop.time()
        self._fed = max(self._fed - (1 + _FRAMING) * size, -self._limits.head_bytes)
        exchange = self._reading
        if exchange is None or exchange.complete:
            self._discard(size)
            return
        exchange.add(part)
        if exchange.size > LARGE:
            self._pause_reading()

    def on_message_complete(self) -> None:
        """A request has ended."""
        if self._upgrading:
            return
        exchange, self._reading = self._reading, None
        self._stage, self._since, self._fed = Stage.IDLE, self._loop.time(), 0
        if exchange is None:
            return
        exchange.more = False
        exchange.wake()
        if not exchange.keep_alive:
            self._stage = Stage.OVER
            if exchange.complete:
                self._transport.close()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _begin_head(self) -> None:
        self._stage, self._since, self._fed, self._served = Stage.HEAD, self._loop.time(), 0, True

    def _is_over(self) -> bool:
        return self._stage is Stage.OVER

    def _refuse_parsing(self, refusal: Refusal) -> None:
        """Stop the parser: an exception in a callback does."""
        self._refusal = refusal
        raise refusal

    def _full(self) -> Refusal:
        text = f"the server has {self._limits.connections} connections already, which is its limit"
        return Refusal("connections", Problem(503, text, retry_after=1))

    def _scope(self, method: str, version: str, head: Head) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "scheme": "http",
            "headers": self._fields,
            "state": {},
            **self._addresses,
        }

    def _check_fed(self) -> None:
        """Refuse a head, or what surrounds the chunks of a body, that is too long and has not ended."""
        if self._stage is Stage.BODY:
            self._fail(malformed_refusal(f"chunk extensions and trailers of more than {self._limits.head_bytes} bytes"))
        elif self._stage is Stage.HEAD:
            most = self._limits.head_bytes
            self._fail(too_large(most) if self._fields or not self._target else target_too_long(most))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request again as if the client had offered no other protocol: the parser reads no body then."""
        self._upgrading = False
        method = self._parser.get_method().decode("ascii")
        head = without_upgrade(method, self._target, self._fields)
        self._parser = httptools.HttpRequestParser(self)
        self._stage = Stage.IDLE
        self.data_received(head + rest)

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        exchange.counted = self._all.begin_one()
        exchange.task = self._loop.create_task(exchange.run(self._app))
        self._state.tasks.add(exchange.task)

    def end(self, exchange: Exchange) -> None:
        """The application is done with a request."""
        if exchange.task is not None:
            self._state.tasks.discard(exchange.task)
        if exchange.counted:
            self._all.end_one()

    def finish(self, exchange: Exchange) -> None:
        """An answer is written: go on with the next request, or close."""
        self._state.total_requests += 1
        self._current = None
        if self._transport.is_closing():
            return
        if not exchange.keep_alive:
            if exchange.more or exchange.problem is not None:
                self._linger()
            else:
                self._stage = Stage.OVER
                self._transport.close()
            return
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._refusal is not None:
            self.refuse(self._refusal.reason, self._refusal.problem)
            return
        elif self._stage is not Stage.BODY:
            self._since = self._loop.time()
        if not self._waiting:
            self._read_on()

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _fail(self, refusal: Refusal) -> None:
        """No more requests: refuse this one, after the answers to those before it."""
        self._refusal, self._stage = refusal, Stage.OVER
        exchange = self._reading
        if exchange is None:
            if self._current is None:
                self.refuse(refusal.reason, refusal.problem)
            return
        exchange.keep_alive = False
        if exchange.complete:
            self._all.drop(self, refusal.reason)
            return
        self._all.count(refusal.reason)
        exchange.problem, exchange.more = refusal.problem, False  # the application answers it
        exchange.wake()

    def refuse(self, reason: str, problem: Problem, scope: Scope | None = None) -> None:
        """Answer a request that the application does not answer, and close. It counts by ``reason``, unless that is
        empty."""
        self._current = None
        fields = scope["headers"] if scope else self._fields
        given = next((value.decode("latin-1") for name, value in fields if name == b"x-request-id"), "")
        identity = given if SANE_ID.fullmatch(given) else new_id()
        body = dumps({"error": problem.text})
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "X-Request-Id": identity}
        headers |= {"X-Content-Type-Options": "nosniff", **problem.headers}
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items()).encode("latin-1")
        self.write(b"".join((status_line(problem.status), self.common_head(), lines, CLOSE_LINE, b"\r\n", body)))
        if reason:
            self._all.count(reason)
            method = self._parser.get_method().decode("ascii") if self._fields else "other"
            seconds = self._loop.time() - self._since
            self._all.record(method if method in METHODS else "other", problem.status, seconds)
            log(
                "info",
                "request",
                request_id=identity,
                method=method,
                path=self._target[:200].decode("latin-1"),
                status=problem.status,
                ms=round(seconds * 1e3, 3),
                error=problem.text,
            )
        self._linger()

    def _linger(self) -> None:
        """Send the answer to its end, and read for a while what the client still sends."""
        self._stage, self._since, self._discarded = Stage.OVER, self._loop.time(), 0
        self._read_on()
        with contextlib.suppress(OSError, RuntimeError):
            self._transport.write_eof()

    def _discard(self, size: int) -> None:
        """Drop bytes that nobody wants; close if there are too many."""
        self._discarded += size
        if self._discarded > (LINGER_BYTES if self._stage is Stage.OVER else self._limits.discarded):
            self.abort()

    # -- what the sweep and the exchanges need ------------------------------------------------------------------------

    @property
    def answering(self) -> bool:
        """True while a request is being answered."""
        return self._current is not None

    def sweep(self, now: float, idle_s: float) -> None:
        """Close the connection if something takes too long."""
        super().sweep(now, idle_s)
        waited = now - self._since
        if self.held_bytes():
            return
        if self._stage is Stage.OVER:
            if self._current is None and waited > LINGER_S:
                self.abort()
        elif self._stage is Stage.BODY:
            self._sweep_body(now)
        elif self._current is not None:
            return
        elif self._stage is Stage.HEAD:
            seconds = self._head_s()
            if waited > seconds:
                text = f"the request's head did not end within {seconds:g} s, the server's limit"
                self._fail(Refusal("slow", Problem(408, text)))
        elif waited > (idle_s if self._served else self._head_s()):
            self._transport.close()

    def _head_s(self) -> float:
        return min(RESERVE_S, self._limits.head_s) if self._extra else self._limits.head_s

    def _sweep_body(self, now: float) -> None:
        """Refuse a body that pauses, or hardly comes."""
        exchange, limit = self._reading, self._limits.body_s
        if self._paused or (exchange is not None and exchange.expects):
            self._since = self._moved = now  # the client waits for the server
            return
        late = now - self._since - limit
        if now - self._moved > limit or (late > 0 and self._received < LEAST_RATE * late):
            text = f"the body pauses for more than {limit:g} s, or comes with less than {LEAST_RATE} bytes a second"
            self._fail(Refusal("slow", Problem(408, text)))

    def want_body(self) -> None:
        """The application waits for more of the body."""
        if not self._waiting:
            self._read_on()

    def _read_on(self) -> None:
        if self._resume_reading():  # the client could not send meanwhile
            self._since = self._moved = self._loop.time()
            self._received = 0


def connection_class(connections: Connections) -> type[Connection]:
    """The protocol for ``uvicorn.Config(http=...)``."""

    class Bound(Connection):
        """A connection of these."""

        def __init__(
            self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
        ) -> None:
            super().__init__(config.loaded_app, server_state, connections)

    return Bound
