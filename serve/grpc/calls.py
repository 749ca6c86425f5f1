"""The layer around every call: its id, key and place, its message, deadline and status, its log line and metrics.

All methods are served as streams of requests, which look the same on the wire: so a call is refused before its message
is read, and nothing waits in memory for a key to be checked. A refusal is a Problem, as over HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from grpc.aio import EOF

from trnrt.errors import TrnrtError
from trnrt.serve.grpc.deadlines import Deadline
from trnrt.serve.grpc.inference import unpack
from trnrt.serve.hosting.admission import LARGEST_BODIES, Body
from trnrt.serve.hosting.clients import EVERYBODY, current_client
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.limits import GONE, SANE_ID
from trnrt.serve.http.problems import INTERNAL, Problem, problem_of
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import TensorError, value_text
from trnrt.serve.processes.logs import log, request_id
from trnrt.serve.processes.traces import NO_TRACE, begin_trace, current_trace, recorders

LARGE = 1 << 18
"""Messages over this size, bytes, are parsed and written on a thread of their own, one at a time."""
SLOW_S = 1.0
"""A message that takes longer to arrive needs one of SLOW_PLACES."""
HEADROOM = 2
"""Messages over this many times the limit end in grpc, which does not say why; smaller ones are refused here."""
SLOW_PLACES = LARGEST_BODIES // HEADROOM
"""Messages that may be slow at once: grpc holds what has arrived of them, and does not say how much that is."""
HEALTH_PATH = "/grpc.health.v1.Health/"
"""Machines ask it every few seconds: spans of that would bury the others."""
_EOF_S = 5.0
"""The longest time that grpc may take to cancel a call that it has ended."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By the status of the same failure over HTTP."""


@dataclass(frozen=True)
class Method:
    """``answer`` returns the answer to a call. ``streams``: it writes its answers itself, and returns b"".

    ``is_open``: no key, no place and no message: it must always answer. ``timed``: --request-timeout holds.
    """

    answer: Callable[[Call], Awaitable[bytes]]
    is_open: bool = False
    timed: bool = True
    streams: bool = False


class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All calls of a server. ``methods``: by path; ``leave`` waits for those that came before it."""

    def __init__(self, repository: Repository, methods: dict[str, Method]) -> None:
        self.repository, self.admission, self.metrics = repository, repository.admission, repository.metrics
        self.largest_message = HEADROOM * self.admission.largest_body
        self.pending = self.slow = 0
        self.leaving = asyncio.Event()
        self.idle: dict[Call, None] = {}
        """Streams that wait for a message, or for a status to change; those that wait longest first."""
        self._empty = asyncio.Event()
        self._large = ThreadPoolExecutor(1, "large messages")
        self._prefix, self._numbers = os.urandom(8).hex(), itertools.count()
        self._handlers = {path: self._make_handler(path, method) for path, method in methods.items()}

    def service(self, details: Any) -> Any:
        """The handler of a method."""
        return self._handlers.get(details.method) or self._refuse_unknown(details.method)

    async def leave(self) -> None:
        """Wait until all calls so far are answered; streams end when they wait for a message."""
        self.leaving.set()
        for call in list(self.idle):
            call.task.cancel()
        if self.pending:
            await self._empty.wait()

    def make_room(self) -> None:
        """End the streams that have waited longest for a message, above half of the requests at once: a stream holds a
        place, and costs its client nothing."""
        most = max(1, self.repository.settings.max_concurrency // 2)
        if len(self.idle) > most:
            waiting = [call for call in self.idle if call.holds_place]
            for call in waiting[: max(0, len(waiting) - most)]:
                call.crowded_out = call.task.cancel()

    async def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that takes long for a message of ``size`` bytes: a large one on the thread for these."""
        if size <= LARGE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._large, function, *arguments)

    def new_id(self) -> str:
        """An id for a request without one."""
        return f"{self._prefix}{next(self._numbers):016x}"

    def _refuse_unknown(self, path: str) -> Any:
        async def refuse(_call: Call) -> bytes:
            services = "inference.GRPCInferenceService and grpc.health.v1.Health"
            raise Problem(501, f"there is no method {value_text(path)} here; the services are {services}")

        return self._make_handler("other", Method(refuse))

    def _make_handler(self, path: str, method: Method) -> Any:
        async def handle(_messages: Any, context: Any) -> bytes:
            call = Call(self, path, context)
            self.pending += 1
            call.task.add_done_callback(lambda task: self._finish(call, method))
            try:
                return await call.answer(method)
            except asyncio.CancelledError:
                call.status = call.status if call.status != 200 else GONE
                raise

        make = grpc.stream_stream_rpc_method_handler if method.streams else grpc.stream_unary_rpc_method_handler
        return make(handle)

    def _finish(self, call: Call, method: Method) -> None:
        """The call's task is done: its answer is sent, or its client has gone."""
        call.release()
        call.end_trace()
        if not (method.streams and call.status == 200):  # a stream records each of its messages
            call.record()
        self.pending -= 1
        if self.leaving.is_set() and not self.pending:
            self._empty.set()


class Call:
    """One call. Its place is held until the answer is sent: an unread answer is memory, too."""

    def __init__(self, calls: Calls, path: str, context: Any) -> None:
        self.calls, self.path, self.repository = calls, path, calls.repository
        self.status, self.error = 200, ""
        self._context, self._began = context, time.perf_counter()
        self._headers: dict[str, str | bytes] = {}
        for name, value in context.invocation_metadata():
            self._headers.setdefault(name, value)
        given = self._headers.get("x-request-id")
        sane = isinstance(given, str) and SANE_ID.fullmatch(given) is not None
        self.id = str(given) if sane else calls.new_id()
        request_id.set(self.id)
        current_client.set(EVERYBODY)
        self._client = EVERYBODY
        self._begin_trace()
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self._place, self._body, self._is_open = ExitStack(), Body(calls.admission), False
        self.deadline = Deadline(None, None)
        self._messages = 0
        self.crowded_out = False

    def _begin_trace(self) -> None:
        """Give the call its place in the caller's trace, or in one of its own if spans are recorded."""
        parent, state = self._headers.get("traceparent"), self._headers.get("tracestate")
        current_trace.set(NO_TRACE)
        if isinstance(parent, str) or (recorders and not self.path.startswith(HEALTH_PATH)):
            begin_trace(parent if isinstance(parent, str) else None, state if isinstance(state, str) else None)
        self.trace = current_trace.get()

    def _trailing(self) -> list[tuple[str, str]]:
        """The metadata behind every answer."""
        ids = [(name.decode("ascii"), value.decode("ascii")) for name, value in self.trace.headers]
        return [("x-request-id", self.id), *ids]

    async def answer(self, method: Method) -> bytes:
        """The method's answer. Ends the call with a status if that fails."""
        self._context.set_trailing_metadata(tuple(self._trailing()))
        try:
            with self._limit_time(method) as limit:
                async with limit:
                    return await method.answer(self)
        except Exception as error:
            problem = self.problem_of(error)
        self.status, self.error = problem.status, problem.text
        if problem.reason:
            self.calls.metrics.count_rejection(problem.reason)
        trailing = self._trailing()
        if retry := problem.headers.get("Retry-After"):
            trailing += [("retry-after", retry), ("grpc-retry-pushback-ms", str(int(retry) * 1000))]
        await self._context.abort(code_of(problem.status), problem.text, tuple(trailing))
        raise AssertionError("abort raises")

    async def read(self) -> bytes:
        """The call's message. Problem: 413 if it is too large, 503 if too many are slow, 400 if there is none."""
        with self._slow_place():
            message = await self._context.read()
        if message is EOF:
            # The client has gone, or the message is far too large, and grpc is about to cancel the call. If not:
            self.error = f"the call ended before its message, or has one over {self.calls.largest_message} bytes"
            await asyncio.sleep(_EOF_S)
            raise Problem(400, f"the call of {self.path} has no message")
        return await self.unpack(message)

    async def read_next(self, idle_s: float) -> bytes | None:
        """The next message of a stream; None at its end. Problem(503) after ``idle_s``, or in a shutdown."""
        try:
            with self.idle():
                self.calls.make_room()
                async with asyncio.timeout(idle_s):
                    message = await self._context.read()
        except TimeoutError:
            raise Problem(503, f"no message came for {idle_s:g} s, the limit for a stream; open another one") from None
        return None if message is EOF else message

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wait in here, in a stream, for something that may never come: a shutdown ends the wait, with Problem(503)."""
        ending = Problem(503, "the server is shutting down and takes no more requests")
        if self.calls.leaving.is_set():
            raise ending
        self.calls.idle[self] = None
        try:
            yield
        except asyncio.CancelledError:
            if self.crowded_out:
                self.calls.metrics.count_rejection("concurrency")
                ending = Problem(503, "no message came, and many streams wait; open another one", retry_after=1)
            elif not self.calls.leaving.is_set():
                raise
            self.task.uncancel()
            raise ending from None
        finally:
            self.calls.idle.pop(self, None)

    @contextmanager
    def next_request(self) -> Iterator[None]:
        """A message of a stream is a request of its own: with its time, and its bytes while it is answered."""
        self._began, self._messages = time.perf_counter(), self._messages + 1
        self.deadline = Deadline(self.repository.settings.request_timeout, None)
        counted = self._body.size
        try:
            yield
        finally:
            self._body.count(counted - self._body.size)

    def check_rate(self) -> None:
        """Count this message of a stream for its key. Problem(429) above the key's rate, 401 without the key."""
        if self._messages > 1:  # the call itself counted for the first one
            self.calls.admission.take_message(self._client)

    async def unpack(self, message: bytes) -> bytes:
        """Count a message, compressed and not; return it without its compression."""
        self._body.count(len(message))
        admission = self.calls.admission
        plain: bytes = await self.calls.run(len(message), unpack, message, admission.largest_body, admission.too_large)
        if plain is not message:
            self._body.count(len(plain) - len(message))
        return plain

    @property
    def holds_place(self) -> bool:
        """True if the call counts for --max-concurrency."""
        return not self._is_open

    async def write(self, answer: bytes) -> None:
        """Send an answer of a stream."""
        await self._context.write(answer)

    def problem_of(self, error: Exception) -> Problem:
        """The client's form of a failure."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, RequestError | TensorError):
            return Problem(400 if isinstance(error, RequestError) else 500, str(error))
        if isinstance(error, TrnrtError):
            return problem_of(error)
        log("error", "unhandled", traceback=traceback.format_exc())
        return Problem(500, f"{INTERNAL}: {self.id}")

    def release(self) -> None:
        """Give the place back."""
        self._place.close()

    def record(self, status: int | None = None, error: str = "") -> None:
        """Count the call, or a message of a stream, and log it."""
        status, error = (self.status, self.error) if status is None else (status, error)
        seconds = time.perf_counter() - self._began
        self.calls.metrics.request(self.path, "GRPC", status, seconds)
        fields: dict[str, str] = {**self.trace.fields, **({"error": error} if error else {})}
        if name := self._client.name:
            self.calls.metrics.count_key(name, status)
            fields["key"] = name
        log("info", "request", method="GRPC", path=self.path, status=status, ms=round(seconds * 1e3, 3), **fields)

    def end_trace(self) -> None:
        """End the call's span, by OpenTelemetry's conventions for RPC servers."""
        service, _, method = self.path.strip("/").rpartition("/")
        number: int = code_of(self.status).value[0] if self.status != 200 else 0
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": method,
            "rpc.grpc.status_code": number,
        }
        self.trace.end(self.path.strip("/"), attributes, self.error if self.status >= 500 else "")

    @contextmanager
    def _limit_time(self, method: Method) -> Iterator[asyncio.Timeout]:
        """Check the key, take a place, and set the deadline: Problem(504) when it passes."""
        self._is_open = method.is_open
        if not method.is_open:
            self._client = self.calls.admission.check_key(self._given_key(), _address_of(self._context.peer()))
            self._body = self._place.enter_context(self.calls.admission.enter())
        else:
            self._place.callback(lambda: self._body.count(-self._body.size))
        own_s = self.repository.settings.request_timeout if method.timed and not method.streams else None
        deadline = self.deadline = Deadline(own_s, self._context.time_remaining())
        try:
            yield deadline.timeout
        except TimeoutError:
            if not deadline.timeout.expired():
                raise
            self.calls.metrics.count_rejection("timeout")
            raise deadline.problem() from None

    def _given_key(self) -> bytes | None:
        own = self._headers.get("x-api-key")
        if own is not None:
            return _bytes(own)
        kind, _, key = _bytes(self._headers.get("authorization", b"")).partition(b" ")
        return key.strip() if kind.lower() == b"bearer" else None

    @contextmanager
    def _slow_place(self) -> Iterator[None]:
        """Refuse the call, with Problem(503), if its message takes long and too many others do."""
        calls = self.calls
        held = refused = False

        def take() -> None:
            nonlocal held, refused
            if self._is_open or calls.slow >= SLOW_PLACES:
                refused = self.task.cancel()
            else:
                held = True
                calls.slow += 1

        timer = asyncio.get_running_loop().call_later(SLOW_S, take)
        try:
            yield
        except asyncio.CancelledError:
            if not refused:
                raise
            self.task.uncancel()
            calls.metrics.count_rejection("concurrency")
            others = f"{SLOW_PLACES} others are as slow, which is the limit"
            raise Problem(503, f"the message did not arrive within {SLOW_S:g} s, and {others}", retry_after=1) from None
        finally:
            timer.cancel()
            calls.slow -= held


def code_of(status: int) -> grpc.StatusCode:
    """gRPC's code for the status of a Problem."""
    return CODES.get(status, CODES[400] if status < 500 else CODES[500])


def _address_of(peer: str) -> str:
    """The address in ``ipv4:127.0.0.1:1234`` or ``ipv6:[::1]:1234``, whose brackets gRPC may escape."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
