"""What every request passes before a route sees it, as plain ASGI: its id, its log line, its limits and its key.

From the outside in: ``Tracked`` knows every request and answers every failure; ``Gate`` refuses what may not come in;
``Deadline`` drops the work of those whose time is over or who have gone away. A refusal is a Problem, raised anywhere,
answered once.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import os
import re
import time
import traceback
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.problems import INTERNAL, Problem
from trnrt.serve.processes.logs import log, request_id

HEALTH = ("/v2/health/live", "/v2/health/ready")
METRICS = "/metrics"
OPEN = ("/", "/docs", "/openapi.json")
OPEN_FOLDER = "/pages/"
"""What needs no key: health, and pages and scripts, which hold nothing of the models."""
UNTIMED = "/v2/repository/"
"""Loading a model takes as long as compiling it does."""

WATCH_AFTER_S = 0.05
"""After this time of waiting it is worth a task of its own to notice that the client has gone."""
GONE = 499
"""The status in log and metrics of a request whose client has gone; nobody gets it."""
FULL_RETRY_S = "1"
LARGEST_BODIES = 16
"""Bodies of all requests together, in bodies of the largest size: memory is not to be had for the asking."""

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def header(scope: Scope, name: bytes) -> str | None:
    """The first header called ``name``, in lower case; None where there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def error_body(text: str) -> bytes:
    """The body of every failure."""
    return json.dumps({"error": text}).encode("ascii")


async def answer(problem: Problem, send: Send) -> None:
    """Send a failure."""
    body = error_body(problem.text)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Tracked:
    """The outermost: gives each request its id, answers what was raised for it, counts it and logs it."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        self.app, self._metrics = app, repository.metrics
        self._prefix, self._numbers = os.urandom(8).hex(), itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003, "reason": ""})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        given = header(scope, b"x-request-id")
        identity = given if given is not None and _SANE_ID.fullmatch(given) else self._new_id()
        request_id.set(identity)
        method = scope["method"]
        # A HEAD is a GET without its body; the server's own scope keeps the method.
        inner = {**scope, "method": "GET"} if method == "HEAD" else scope
        sender = _Sender(send, identity, with_body=method != "HEAD")
        try:
            await self._answer_request(inner, receive, sender)
        finally:
            self._record_request(inner, method, sender, time.perf_counter() - began)

    def _new_id(self) -> str:
        """Random for each worker's run, and counted within it, which is faster than random for each request."""
        return f"{self._prefix}{next(self._numbers):016x}"

    async def _answer_request(self, scope: Scope, receive: Receive, sender: _Sender) -> None:
        """The app's answer, or that of what it raised. Re-raises what comes when an answer is half sent."""
        try:
            await self.app(scope, receive, sender)
        except Problem as problem:
            await self._answer_problem(problem, sender)
        except Exception:
            log("error", "unhandled", traceback=traceback.format_exc())
            if sender.status:
                # The connection must be broken off: that is what the server does with an error.
                raise
            await self._answer_problem(Problem(500, f"{INTERNAL}: {request_id.get()}"), sender)

    async def _answer_problem(self, problem: Problem, sender: _Sender) -> None:
        if sender.status:
            raise problem
        if problem.status == GONE:
            sender.status = GONE
            return
        sender.error = problem.text
        await answer(problem, sender)

    def _record_request(self, scope: Scope, method: str, sender: _Sender, seconds: float) -> None:
        # Of the client's own words only what a route or a table knows becomes a label: they have no end.
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        status = sender.status or GONE
        self._metrics.request(path, method if method in _METHODS else "other", status, seconds)
        told = {"error": sender.error} if sender.error else {}
        log("info", "request", method=method, path=scope["path"], status=status, ms=round(seconds * 1e3, 3), **told)


class _Sender:
    """Sends an answer with the headers that all have, and knows its status; 0 before it starts."""

    def __init__(self, send: Send, identity: str, *, with_body: bool) -> None:
        self._send, self._identity, self._with_body = send, identity.encode("ascii"), with_body
        self.status = 0
        self.error = ""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._identity)]
            if _NO_SNIFFING not in headers:
                headers.append(_NO_SNIFFING)
            message = {**message, "headers": headers}
        elif not self._with_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


class Gate:
    """Refuses requests while the server goes or is full, without a key, or with a body that is too large."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        settings = repository.settings
        self.app, self._repository = app, repository
        self._keys = [key.get_secret_value().encode("utf-8") for key in settings.api_keys]
        self._most, self._largest = settings.max_concurrency, settings.max_body_mib << 20
        self.inside = self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        self._check_key(scope, path)
        self._check_body(scope)
        if path in HEALTH or path == METRICS:
            # They must answer when all else is refused; they read no body.
            await self.app(scope, receive, send)
            return
        if self._repository.draining:
            self._refuse("draining", "the server is shutting down and takes no more requests")
        if self.inside >= self._most:
            self._refuse("concurrency", f"the server answers {self.inside} requests already, which is its limit")
        self.inside += 1
        body = _Body(receive, self)
        try:
            await self.app(scope, body, send)
        finally:
            self.inside -= 1
            self.held -= body.size

    def take(self, size: int, more: int) -> None:
        """Count ``more`` bytes of a body that has ``size`` with them: a client need not say how long it is."""
        self.held += more
        if size > self._largest:
            raise self._too_large()
        if self.held > LARGEST_BODIES * self._largest:
            self._refuse("concurrency", f"the bodies of the requests that it answers take {self.held} bytes already")

    def _refuse(self, reason: str, text: str) -> None:
        self._repository.metrics.count_rejection(reason)
        raise Problem(503, text, {"Retry-After": FULL_RETRY_S})

    def _check_key(self, scope: Scope, path: str) -> None:
        if not self._keys or path in HEALTH or path in OPEN or path.startswith(OPEN_FOLDER):
            return
        given = _given_key(scope)
        # Each is compared, and each in constant time: how long it takes tells nothing about any of them.
        if sum([hmac.compare_digest(given or b"", key) for key in self._keys]) and given is not None:
            return
        self._repository.metrics.count_rejection("key")
        reason = "no API key" if given is None else "a wrong API key"
        way_out = "send one as Authorization: Bearer KEY or as X-API-Key: KEY"
        raise Problem(401, f"{reason}; {way_out}", {"WWW-Authenticate": 'Bearer realm="trnrt"'})

    def _check_body(self, scope: Scope) -> None:
        """Refuse a body that is too large, as the client says itself, or compressed."""
        encoding = header(scope, b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in ("", "identity"):
            raise Problem(415, "the body has a Content-Encoding; send it as it is", {"Accept-Encoding": "identity"})
        length = header(scope, b"content-length")
        # A length of many digits need not be read to be too large.
        if length is not None and length.isdecimal() and (len(length) > 18 or int(length) > self._largest):
            raise self._too_large()

    def _too_large(self) -> Problem:
        self._repository.metrics.count_rejection("body")
        limit = f"{self._largest} bytes ({self._largest >> 20} MiB), which is the server's limit"
        return Problem(413, f"the body has more than {limit}")


def _given_key(scope: Scope) -> bytes | None:
    own = header(scope, b"x-api-key")
    if own is not None:
        return own.encode("latin-1")
    kind, _, key = (header(scope, b"authorization") or "").partition(" ")
    return key.strip().encode("latin-1") if kind.lower() == "bearer" else None


class _Body:
    """Receives a body, and lets the gate count it."""

    def __init__(self, receive: Receive, gate: Gate) -> None:
        self._receive, self._gate = receive, gate
        self.size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        more = len(message.get("body", b""))
        self.size += more
        self._gate.take(self.size, more)
        return message


class Deadline:
    """Cancels what takes too long (504), and what is done for a client that has gone."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        self.app, self._repository = app, repository
        self._seconds = repository.settings.request_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNTIMED):
            await self.app(scope, receive, send)
            return
        watch = _Watch(receive, send)
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                await self.app(scope, watch.receive, watch.send)
        except TimeoutError:
            if not limit.expired():
                raise
            self._repository.metrics.count_rejection("timeout")
            raise Problem(504, f"the request took longer than {self._seconds:g} s, the server's limit") from None
        except asyncio.CancelledError:
            if not watch.gone:
                raise
            watch.task.uncancel()
            raise Problem(GONE, "the client has gone") from None
        finally:
            watch.stop()


class _Watch:
    """Notices that a client goes while its request waits: the next thing received after a body is its end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._started = False
        self.gone = False
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task

    async def receive(self) -> Message:
        """What the client sends; with the last of it the watch begins."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise Problem(GONE, "the client has gone")
        if not message.get("more_body", False) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)
        return message

    async def send(self, message: Message) -> None:
        """Pass an answer on; from then on it is the server's business who reads it."""
        self._started = True
        await self._send(message)

    def stop(self) -> None:
        """The request is done."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._started:
            self.gone = True
            self.task.cancel()
