"""One request and its answer: ASGI's ``receive`` and ``send`` on a connection."""

from __future__ import annotations

import asyncio
import http
import traceback
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from trnrt.serve.http.connections import LARGE
from trnrt.serve.http.problems import INTERNAL, Problem
from trnrt.serve.processes.logs import log

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE_LINE = b"connection: close\r\n"
_CHUNKED_LINE = b"transfer-encoding: chunked\r\n"
_DISCONNECT = {"type": "http.disconnect"}
_BODILESS = (204, 304)


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


_STATUS_LINES = {status: status_line(status) for status in range(200, 600)}


class Wire(Protocol):
    """The part of a connection that an exchange uses."""

    @property
    def write_paused(self) -> bool:
        """True while the client reads too slowly."""

    @property
    def leaving(self) -> bool:
        """True when the server shuts down: each answer closes its connection."""

    async def drain(self) -> None:
        """Wait until the client has read most of what was written, or has gone."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def want_body(self) -> None:
        """The application waits for more of the body."""

    def common_head(self) -> bytes:
        """The header lines of every answer."""

    def check_room(self, size: int) -> None:
        """Problem(503) if an answer of ``size`` bytes can't be held."""

    def finish(self, exchange: Exchange) -> None:
        """An answer is written: go on with the next request, or close."""

    def end(self, exchange: Exchange) -> None:
        """The application is done with a request."""

    def refuse(self, reason: str, problem: Problem, scope: Scope | None = None) -> None:
        """Answer a request that the application does not answer, and close."""

    def abort(self) -> None:
        """Close at once."""


class Exchange:
    """A request's body as it comes, and its answer. The connection fills it; the application empties it.

    more: the body has not ended; size: its bytes that wait here.
    problem: why the body is broken; ``receive`` raises it, so that the application answers it.
    counted: a shutdown waits for it; gone: the client has gone; task: the application's.
    written: something of the answer is; complete: all of it is.
    """

    __slots__ = (
        "_connection",
        "_delivered",
        "_event",
        "_head",
        "_length",
        "_parts",
        "complete",
        "counted",
        "expects",
        "gone",
        "keep_alive",
        "more",
        "problem",
        "scope",
        "size",
        "task",
        "written",
    )

    def __init__(self, connection: Wire, scope: Scope, *, keep_alive: bool, expects: bool) -> None:
        self._connection, self.scope = connection, scope
        self.keep_alive, self.expects = keep_alive, expects
        self._parts: list[bytes] = []
        self.size = 0
        self.more = True
        self.counted = self._delivered = self.gone = self.written = self.complete = False
        self.problem: Problem | None = None
        self._event: asyncio.Event | None = None
        self.task: asyncio.Task[None] | None = None
        self._head: bytes | None = None
        self._length: int | None = None  # the bytes of the answer that are left; None if they go in chunks

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. If it fails, answer 500 in the server's form, or break off the connection."""
        try:
            await app(self.scope, self.receive, self.send)
            if self.complete or self.gone:
                return
            log("error", "no_answer", path=self.scope["path"])
        except asyncio.CancelledError:
            self._connection.abort()
            raise
        except Exception:
            log("error", "broken_answer", path=self.scope["path"], traceback=traceback.format_exc())
        finally:
            self._connection.end(self)
        if self.gone or self.complete:
            return
        if self.written:
            self._connection.abort()
        else:
            self.complete = True
            self._connection.refuse("", Problem(500, INTERNAL), self.scope)

    # -- the request's body -------------------------------------------------------------------------------------------

    def add(self, part: bytes) -> None:
        """A part of the body has come."""
        self._parts.append(part)
        self.size += len(part)
        self.wake()

    def wake(self) -> None:
        """Let ``receive`` look again."""
        if self._event is not None:
            self._event.set()

    async def receive(self) -> Message:
        """The body as far as it has come; after its end, the disconnect."""
        while True:
            if self.gone or self.complete:
                return dict(_DISCONNECT)
            if not self._delivered:
                if self.problem is not None:
                    raise self.problem
                if self._parts or not self.more:
                    return self._take()
                if self.expects:
                    self.expects = False
                    self._connection.write(CONTINUE)
                self._connection.want_body()
            if self._event is None:
                self._event = asyncio.Event()
            self._event.clear()
            await self._event.wait()

    def _take(self) -> Message:
        body = b"".join(self._parts)
        self._parts, self.size = [], 0
        self._delivered = not self.more
        return {"type": "http.request", "body": body, "more_body": self.more}

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Write the answer's head, with the first part of its body, and its body."""
        connection = self._connection
        if connection.write_paused:
            await connection.drain()
        if self.gone:
            return
        if self._head is None:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"an answer begins with http.response.start, not {message['type']}")
            self._head = self._make_head(message)
            return
        if message["type"] != "http.response.body" or self.complete:
            raise RuntimeError(f"{message['type']} after the {'answer' if self.complete else 'start of an answer'}")
        body, more = message.get("body", b""), message.get("more_body", False)
        self._write(self._frame(body, more))
        if not more:
            if self._length:
                raise RuntimeError(f"the answer is {self._length} bytes shorter than its Content-Length")
            self.complete = True
            connection.finish(self)

    def _make_head(self, message: Message) -> bytes:
        status: int = message["status"]
        fields: list[bytes] = []
        length: int | None = None
        for name, value in message.get("headers", ()):  # names are in lower case, by ASGI
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive = False
                continue
            fields += (name, b": ", value, b"\r\n")
        if self.expects or self._connection.leaving:  # a client that was not asked for its body may not send it
            self.keep_alive = False
        if not self.keep_alive:
            fields.append(CLOSE_LINE)
        if self.scope["method"] == "HEAD" or status in _BODILESS:
            self._length = 0
        elif length is None:
            fields.append(_CHUNKED_LINE)
        else:
            self._length = length
            if length > LARGE:
                self._connection.check_room(length)
        lines = b"".join(fields)
        if not lines.count(b"\r") == lines.count(b"\n") == (len(fields) + 3 * (len(fields) % 4)) // 4:
            raise RuntimeError("a header of the answer has a line end")
        return b"".join((_STATUS_LINES[status], self._connection.common_head(), lines, b"\r\n"))

    def _frame(self, body: Any, more: bool) -> bytes:
        """The body's bytes as they go onto the wire."""
        if self._length is None:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self.scope["method"] == "HEAD":
            return b""
        if len(body) > self._length:
            raise RuntimeError(f"the answer is {len(body) - self._length} bytes longer than its Content-Length")
        self._length -= len(body)
        return bytes(body)

    def _write(self, data: bytes) -> None:
        assert self._head is not None
        if self.written:
            self._connection.write(data)
        elif len(data) > LARGE:  # not copied
            self._connection.write(self._head)
            self._connection.write(data)
        else:
            self._connection.write(self._head + data)
        self.written = True
