"""The layers around the routes, as plain ASGI: request ids, log lines, limits and keys.

From the outside in: ``Tracked`` logs every request and answers every failure; ``Gate`` refuses requests; ``Deadline``
drops the work of requests that take too long or whose client has gone. A refusal is a Problem: raised anywhere,
answered once, by ``Tracked``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
import traceback
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
_DEADLINE = "trnrt.deadline"
"""The place of a request's ``_Limit`` in its scope."""
UNTIMED = "/v2/repository/"
"""Paths without a deadline: loading a model takes as long as compiling it."""

WATCH_AFTER_S = 0.05
"""After this time a request gets a task that notices when its client has gone."""
GONE = 499
"""The status in log and metrics of a request whose client has gone; it is never sent."""

SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")


def header(scope: Scope, name: bytes) -> str | None:
    """The first header called ``name``, which is in lower case; None if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


class Tracked:
    """The outermost layer: gives each request its id, answers its exceptions, counts it and logs it."""

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
        identity = given if given is not None and SANE_ID.fullmatch(given) else self._new_id()
        request_id.set(identity)
        current_client.set(EVERYBODY)
        parent = header(scope, b"traceparent")
        token = None
        if parent is not None or (recorders and not _is_probe(scope)):
            token = begin_trace(parent, header(scope, b"tracestate"))
        method = scope["method"]
        # A HEAD is a GET without its body; the server's own scope keeps the method.
        inner = {**scope, "method": "GET"} if method == "HEAD" else scope
        sender = _Sender(send, identity, with_body=method != "HEAD")
        try:
            await self._answer_request(inner, receive, sender)
        finally:
            self._record_request(inner, method, sender, time.perf_counter() - began)
            if token is not None:
                _end_trace(inner, method, sender)
                current_trace.reset(token)

    def _new_id(self) -> str:
        """A random prefix for the worker and a count, which is faster than a random number for each request."""
        return f"{self._prefix}{next(self._numbers):016x}"

    async def _answer_request(self, scope: Scope, receive: Receive, sender: _Sender) -> None:
        """Send the app's answer, or the answer to its exception. If an answer is half sent, raise the exception
        again."""
        try:
            await self.app(scope, receive, sender)
            return
        except Exception as error:
            if not isinstance(error, Problem):
                log("error", "unhandled", traceback=traceback.format_exc())
            if sender.status:
                # Break off the connection: the server does that with an error.
                raise
            problem = error if isinstance(error, Problem) else Problem(500, f"{INTERNAL}: {request_id.get()}")
        if problem.status == GONE:
            sender.status = GONE
            return
        if problem.reason:
            self._metrics.count_rejection(problem.reason)
        sender.error = problem.text
        await error_answer(problem)(scope, receive, sender)

    def _record_request(self, scope: Scope, method: str, sender: _Sender, seconds: float) -> None:
        # Paths and methods that no route or table knows are "other": a label must not have endless values.
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        status = sender.status or GONE
        self._metrics.request(path, method if method in METHODS else "other", status, seconds)
        more = {"error": sender.error} if sender.error else {}
        if name := current_client.get().name:
            self._metrics.count_key(name, status)
            more["key"] = name
        log("info", "request", method=method, path=scope["path"], status=status, ms=round(seconds * 1e3, 3), **more)


def _is_probe(scope: Scope) -> bool:
    """True for what is asked every few seconds by machines: spans of these would bury the others."""
    return scope["path"] in HEALTH or scope["path"] == METRICS


def _end_trace(scope: Scope, method: str, sender: _Sender) -> None:
    """End the request's span, by OpenTelemetry's conventions for HTTP servers."""
    known, status = method if method in METHODS else "_OTHER", sender.status or GONE
    attributes = {"http.request.method": known, "url.path": scope["path"], "http.response.status_code": status}
    if route := getattr(scope.get("route"), "path", None):
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    name = f"{'HTTP' if known == '_OTHER' else known} {route or ''}".rstrip()
    current_trace.get().end(name, attributes, sender.error if status >= 500 else "")


class _Sender:
    """Sends an answer with the common headers, and keeps its status; 0 before it starts."""

    def __init__(self, send: Send, identity: str, *, with_body: bool) -> None:
        self._send, self._identity, self._with_body = send, identity.encode("ascii"), with_body
        self.status = 0
        self.error = ""

    async def __call__(self, message: Message) -> None:
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


class Gate:
    """Refuses requests of other sites, during a shutdown, above the limit, without a key, or with too large a body."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        self.app, self._admission = app, repository.admission
        self._repository, self._settings = repository, repository.settings
        self._origins = Origins(repository.settings, repository.metrics.count_rejection)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._settings is not self._repository.settings:  # they were read again
            self._settings = self._repository.settings
            self._origins = Origins(self._settings, self._repository.metrics.count_rejection)
        self._origins.check(scope)
        path = scope["path"]
        if not (path in HEALTH or path in OPEN or path.startswith(OPEN_FOLDER)):
            client = scope.get("client")
            self._admission.check_key(_given_key(scope), client[0] if client else "")
        encoding = self._check_body(scope)
        if path in HEALTH or path == METRICS:
            # They must always answer; they read no body.
            await self.app(scope, receive, send)
            return
        with self._admission.enter() as body:
            if encoding is not None:
                inflating = Inflating(receive, encoding, body.count, self._admission.check_size)
                await self.app(scope, inflating, send)
                return

            async def receive_counted() -> Message:
                message = await receive()
                body.count(len(message.get("body", b"")))
                return message

            await self.app(scope, receive_counted, send)

    def _check_body(self, scope: Scope) -> str | None:
        """The body's encoding. Problem for one that isn't taken, or a body that is too large by its declared length."""
        encoding = encoding_of(header(scope, b"content-encoding"))
        length = header(scope, b"content-length")
        # A length of many digits is too large in any case.
        if length is not None and length.isdecimal():
            self._admission.check_size(int(length[:19]))
        return encoding


def _given_key(scope: Scope) -> bytes | None:
    own = header(scope, b"x-api-key")
    if own is not None:
        return own.encode("latin-1")
    kind, _, key = (header(scope, b"authorization") or "").partition(" ")
    return key.strip().encode("latin-1") if kind.lower() == "bearer" else None


class Deadline:
    """Cancels requests that take too long (504), and those whose client has gone."""

    def __init__(self, app: ASGIApp, repository: Repository) -> None:
        self.app, self._repository = app, repository

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(UNTIMED):
            await self.app(scope, receive, send)
            return
        watch = _Watch(receive, send)
        limit = scope[_DEADLINE] = _Limit(self._repository.settings.request_timeout)
        try:
            async with limit.timeout:
                await self.app(scope, watch.receive, watch.send)
        except TimeoutError:
            if not limit.timeout.expired():
                raise
            self._repository.metrics.count_rejection("timeout")
            raise Problem(504, f"the request took longer than {limit.seconds:g} s, the server's limit") from None
        except asyncio.CancelledError:
            if not watch.gone:
                raise
            watch.task.uncancel()
            raise Problem(GONE, "the client has gone") from None
        finally:
            watch.stop()


class _Limit:
    """The time that a request may take, seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._began = seconds, asyncio.get_running_loop().time()
        self.timeout = asyncio.timeout(seconds)

    def change(self, seconds: float) -> None:
        """Set another limit, from the request's begin."""
        self.seconds = seconds
        self.timeout.reschedule(self._began + seconds)


def limit_time(scope: Scope, seconds: float) -> None:
    """Give a request its model's own time."""
    limit: _Limit | None = scope.get(_DEADLINE)
    if limit is not None and limit.seconds != seconds:
        limit.change(seconds)


class _Watch:
    """Notices when a client goes while its request waits: after the body, the next message is the disconnect."""

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
        """Receive from the client; the watch begins with the end of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise Problem(GONE, "the client has gone")
        if not message.get("more_body", False) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)
        return message

    async def send(self, message: Message) -> None:
        """Pass an answer on; from then on a disconnect no longer cancels."""
        self._started = True
        await self._send(message)

    def stop(self) -> None:
        """End the watch."""
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
