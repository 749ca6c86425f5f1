"""The layer around the routes, as plain ASGI: request ids, log lines, limits and keys.

``Tracked`` lets a request in or refuses it, drops its work if it takes too long or its client has gone, answers every
failure, and logs every request. A refusal is a Problem: raised anywhere, answered once. All that is known of a request
is in its ``Visit``: each layer of its own would cost a request as much as parsing its JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trnrt.serve.hosting.admission import Place
from trnrt.serve.hosting.clients import EVERYBODY, current_client
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.answers import error_answer
from trnrt.serve.http.inflating import Inflating, encoding_of
from trnrt.serve.http.origins import Origins
from trnrt.serve.http.problems import INTERNAL, Problem
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.processes.traces import begin_trace, current_trace, recorders

HEALTH = ("/v2/health/live", "/v2/health/ready")
METRICS = "/metrics"
OPEN = ("/", "/docs", "/openapi.json")
OPEN_FOLDER = "/pages/"
"""These paths need no key: health, and pages and scripts, which contain nothing of the models."""
_VISIT, _HEADERS = "trnrt.visit", "trnrt.headers"
"""The places of a request's ``Visit``, and of its headers by name, in its scope."""
UNTIMED = "/v2/repository/"
"""Paths without a deadline: loading a model takes as long as compiling it."""

WATCH_AFTER_S = 0.05
"""After this time, or twice as long, a request gets a task that notices when its client has gone."""
GONE = 499
"""The status in log and metrics of a request whose client has gone; it is never sent."""

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def header(scope: Scope, name: bytes) -> str | None:
    """The first header called ``name``, which is in lower case; None if there is none."""
    value = (scope.get(_HEADERS) or headers_of(scope)).get(name)
    return None if value is None else value.decode("latin-1")


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """A request's headers by name in lower case; the first one of several."""
    found: Mapping[bytes, bytes] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = dict(reversed(scope["headers"]))
    return found


class Tracked:
    """Gives each request its id, lets it in or refuses it, answers its exceptions, counts it and logs it."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        self.app, self._repository, self._metrics = app, repository, repository.metrics
        self._prefix, self._numbers = os.urandom(8).hex(), itertools.count()
        self._gate, self._sweep = Gate(repository), Sweep(repository.metrics.count_rejection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003, "reason": ""})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = headers_of(scope)
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        identity = given if SANE_ID.fullmatch(given) else self._new_id()
        request_id.set(identity)
        current_client.set(EVERYBODY)
        parent, token = header(scope, b"traceparent") if b"traceparent" in headers else None, None
        if parent is not None or (recorders and not _is_probe(scope)):
            token = begin_trace(parent, header(scope, b"tracestate"))
        method = scope["method"]
        # A HEAD is a GET without its body; the server's own scope keeps the method.
        inner = {**scope, "method": "GET"} if method == "HEAD" else scope
        visit = Visit(receive, send, identity, with_body=method != "HEAD")
        inner[_VISIT] = visit
        try:
            await self._answer_request(inner, visit)
        finally:
            self._sweep.remove(visit)
            self._record_request(inner, method, visit)
            if token is not None:
                _end_trace(inner, method, visit)
                current_trace.reset(token)
            del inner[_VISIT]  # scope and visit refer to each other: only the garbage collector would free them

    def _new_id(self) -> str:
        """A random prefix for the worker and a count, which is faster than a random number for each request."""
        return f"{self._prefix}{next(self._numbers):016x}"

    async def _answer_request(self, scope: Scope, visit: Visit) -> None:
        """Send the app's answer, or the answer to its exception."""
        try:
            if not scope["path"].startswith(UNTIMED):
                self._sweep.add(visit, self._repository.settings.request_timeout)
            with self._gate.let_in(scope, visit):
                await self.app(scope, visit.receive, visit.send)
            return
        except asyncio.CancelledError:
            if visit.ending is None or visit.task.uncancel():
                raise
            error: Exception = visit.ending
        except Exception as raised:
            error = raised
        try:
            await self._answer_failure(error, scope, visit)
        finally:
            del error  # it refers to this frame, and this frame to it: only the garbage collector would free them

    async def _answer_failure(self, error: Exception, scope: Scope, visit: Visit) -> None:
        """Send the answer to an exception; raise it again if an answer is half sent."""
        self._sweep.remove(visit)
        if not isinstance(error, Problem):
            log("error", "unhandled", traceback="".join(traceback.format_exception(error)))
        if visit.status:
            # Break off the connection: the server does that with an error.
            raise error
        problem = error if isinstance(error, Problem) else Problem(500, f"{INTERNAL}: {request_id.get()}")
        if problem.status == GONE:
            visit.status = GONE
            return
        if problem.reason:
            self._metrics.count_rejection(problem.reason)
        visit.error = problem.text
        await error_answer(problem)(scope, visit.receive, visit.send)

    def _record_request(self, scope: Scope, method: str, visit: Visit) -> None:
        # Paths and methods that no route or table knows are "other": a label must not have endless values.
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        status, seconds = visit.status or GONE, time.perf_counter() - visit.began
        self._metrics.request(path, method if method in METHODS else "other", status, seconds)
        more = {"error": visit.error} if visit.error else {}
        if name := current_client.get().name:
            self._metrics.count_key(name, status)
            more["key"] = name
        log("info", "request", method=method, path=scope["path"], status=status, ms=round(seconds * 1e3, 3), **more)


def _is_probe(scope: Scope) -> bool:
    """True for what is asked every few seconds by machines: spans of these would bury the others."""
    return scope["path"] in HEALTH or scope["path"] == METRICS


def _end_trace(scope: Scope, method: str, visit: Visit) -> None:
    """End the request's span, by OpenTelemetry's conventions for HTTP servers."""
    known, status = method if method in METHODS else "_OTHER", visit.status or GONE
    attributes = {"http.request.method": known, "url.path": scope["path"], "http.response.status_code": status}
    if route := getattr(scope.get("route"), "path", None):
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    name = f"{'HTTP' if known == '_OTHER' else known} {route or ''}".rstrip()
    current_trace.get().end(name, attributes, visit.error if status >= 500 else "")


class Gate:
    """Refuses requests of other sites, during a shutdown, above the limit, without a key, or with too large a body."""

    def __init__(self, repository: Repository) -> None:
        self._repository, self._settings, self._admission = repository, repository.settings, repository.admission
        self._origins = Origins(repository.settings, repository.metrics.count_rejection)

    def let_in(self, scope: Scope, visit: Visit) -> AbstractContextManager[object]:
        """The request's place among those that the server answers at a time; a Problem if it is refused."""
        if self._settings is not self._repository.settings:  # they were read again
            self._settings = self._repository.settings
            self._origins = Origins(self._settings, self._repository.metrics.count_rejection)
        headers, path = headers_of(scope), scope["path"]
        self._origins.check(scope["method"], path, headers)
        if not (path in HEALTH or path in OPEN or path.startswith(OPEN_FOLDER)):
            client = scope.get("client")
            self._admission.check_key(_given_key(headers), client[0] if client else "")
        encoding = encoding_of(header(scope, b"content-encoding")) if b"content-encoding" in headers else None
        length = headers.get(b"content-length")
        # A length of many digits is too large in any case.
        if length is not None and length.isdigit():
            self._admission.check_size(int(length[:19]))
        if path in HEALTH or path == METRICS:
            return _NO_PLACE  # they must always answer; they read no body
        place = self._admission.enter()
        visit.count_body(place, encoding, self._admission.check_size)
        return place


_NO_PLACE = nullcontext()


def _given_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    own = headers.get(b"x-api-key")
    if own is not None:
        return own
    kind, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else None


class Sweep:
    """Looks at all requests every ``WATCH_AFTER_S``: one timer for all costs less than two for each.

    ``count`` gets the reason of each refusal.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._visits, self._count = dict[Visit, None](), count
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, visit: Visit, limit_s: float) -> None:
        """Look at a request from now on."""
        visit.limit_s = limit_s
        self._visits[visit] = None
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # None, or one that has ended
            self._loop = loop
            loop.call_later(WATCH_AFTER_S, self._look)

    def remove(self, visit: Visit) -> None:
        """Look no more at a request."""
        self._visits.pop(visit, None)
        if visit.watching is not None:
            visit.watching.cancel()

    def _look(self) -> None:
        now = time.perf_counter()
        for visit in list(self._visits):
            visit.look(now, self._count)
        if self._visits and self._loop is not None:
            self._loop.call_later(WATCH_AFTER_S, self._look)
        else:
            self._loop = None


class Visit:
    """A request on its way through the layer: ASGI's ``receive`` and ``send`` for the application.

    ``status``: of the answer, 0 before it starts; ``error``: its text. ``ending``: why the request is cancelled.
    ``limit_s``: the time that it may take, from ``began``.
    """

    __slots__ = (
        *("_count", "_identity", "_receive", "_send", "_was_seen", "_with_body"),
        *("began", "ending", "error", "is_waiting", "limit_s", "status", "task", "watching"),
    )

    def __init__(self, receive: Receive, send: Send, identity: str, *, with_body: bool) -> None:
        self._receive, self._send, self._with_body = receive, send, with_body
        self._identity = identity.encode("ascii")
        self._count: Callable[[int], None] | None = None
        self._was_seen = self.is_waiting = False
        self.began, self.limit_s = time.perf_counter(), math.inf
        self.status, self.error = 0, ""
        self.ending: Problem | None = None
        self.watching: asyncio.Task[None] | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task

    def count_body(self, place: Place, encoding: str | None, check_size: Callable[[int], None]) -> None:
        """Count the bytes of the body, of their real size."""
        if encoding is None:
            self._count = place.count
        else:
            self._receive = Inflating(self._receive, encoding, place.count, check_size)

    async def receive(self) -> Message:
        """Receive from the client. Problem(GONE) if that has gone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Problem(GONE, "the client has gone")
        if self._count is not None:
            self._count(len(message.get("body", b"")))
        self.is_waiting = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the common headers."""
        self.is_waiting = False
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"x-request-id", self._identity), *current_trace.get().headers]
            if _NO_SNIFFING not in headers:
                headers.append(_NO_SNIFFING)
            await self._send({**message, "headers": headers})
            self.status = message["status"]  # the server may refuse to begin an answer
            return
        if not self._with_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)

    def end(self, problem: Problem) -> None:
        """Cancel the request, and answer it with the problem."""
        if self.ending is None:
            self.ending = problem
            self.task.cancel()

    def look(self, now: float, count: Callable[[str], None]) -> None:
        """End a request that takes too long; watch the client of one that waits for its answer."""
        if now - self.began >= self.limit_s:
            if self.ending is None:
                count("timeout")
            self.end(Problem(504, f"the request took longer than {self.limit_s:g} s, the server's limit"))
        elif self.is_waiting and self._was_seen and self.watching is None:
            self.watching = asyncio.get_running_loop().create_task(self._watch())
        self._was_seen = self.is_waiting

    async def _watch(self) -> None:
        """Behind a request's body, the next message is the disconnect."""
        message = await self._receive()
        if message["type"] == "http.disconnect" and self.is_waiting:
            self.end(Problem(GONE, "the client has gone"))


def limit_time(scope: Scope, seconds: float) -> None:
    """Give a request its model's own time."""
    visit: Visit | None = scope.get(_VISIT)
    if visit is not None:
        visit.limit_s = seconds
