"""A layer within Ray's HTTP proxies: if a front dies with a request, another front gets it.

Ray itself answers 500 then, as it can't know whether a retry does harm. A retried prediction does none. If a front
died, the proxy sends nothing at all: an application's failure is answered by its replica, and a request that is refused
or can't be routed is answered by the proxy.

If a front dies before it accepts a request, Ray sends it to another front, but only the head. A front asks the proxy
for the body, and the proxy gives each piece once. If the dead front had asked already, the other one would wait for
ever. So the body goes along with the head.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray's variable that names ``layers`` to its proxies."""
LAYERS = "trnrt.serve.ray.proxy:layers"
ATTEMPTS = 4
"""Fronts that one request may try: it may be the request that kills them."""
PAUSE_S = 0.1
"""The wait grows by this with each attempt: an unreachable machine fails at once, every time."""
KEPT_BYTES = 256 << 20
"""The bodies that a proxy keeps for retries, at most. Beyond that, clients have to retry themselves."""
GATHER_S = 1.0
"""How long a body may take to arrive. A slower one is passed on as it comes, to a front with a deadline."""
BODY = "trnrt.body"
"""The body's key in the extensions of a request's scope."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_PREDICTIONS = ("/predict", "/infer")
"""The ends of the paths of predictions: POST requests to other applications of the cluster may have side effects."""
_RETRY = {"Retry-After": "1"}
_LOG = logging.getLogger("ray.serve")
"""The proxies' logger: no other one has a handler there."""


def layers() -> list[Middleware]:
    """The middleware that Ray puts around each of its HTTP proxies."""
    return [Middleware(AskAgain)]


class AskAgain:
    """Sends an unanswered request again; 503 if that does not help."""

    def __init__(self, app: ASGIApp, most: int = KEPT_BYTES) -> None:
        self._app, self._room = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _may_be_repeated(scope):
            await self._app(scope, receive, send)
            return
        body, answered = _Body(self, receive), False

        async def sender(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await body.gather()
            if body.whole and body.complete:
                scope = {**scope, "extensions": {**(scope.get("extensions") or {}), BODY: body.content()}}
            for attempt in range(1, ATTEMPTS + 1):
                await self._app(scope, body.receive, sender)
                if answered or body.gone:
                    return
                _LOG.warning("A front ended while it had a request for %r (attempt %d).", scope["path"], attempt)
                if not body.whole:
                    break
                body.rewind()
                await asyncio.sleep(PAUSE_S * (attempt - 1))
            text = f"{attempt} of this server's processes ended while they had this request, the last just now"
            await JSONResponse({"error": text}, 503, _RETRY | _id_of(scope))(scope, receive, send)
        finally:
            body.drop()

    def keep(self, count: int) -> bool:
        """Reserve ``count`` bytes; return whether there is room. A negative count releases some."""
        fits = count <= self._room
        self._room -= count if fits else 0
        return fits


class _Body:
    """A request's body, as the client sends it. It can be read again while it is ``whole``: nothing was dropped.

    ``complete``: its end has come; ``gone``: the client has gone.
    """

    def __init__(self, keeper: AskAgain, receive: Receive) -> None:
        self._keeper, self._receive = keeper, receive
        self._kept: list[Message] = []
        self._at = self._bytes = 0
        self.whole, self.complete, self.gone = True, False, False

    async def gather(self) -> None:
        """Receive what comes soon, while there is room."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self.whole and not self.complete and not self.gone:
                    await self._take()

    def content(self) -> bytes:
        """All that is kept."""
        return b"".join(message.get("body", b"") for message in self._kept)

    async def receive(self) -> Message:
        """ASGI's ``receive``."""
        if self._at == len(self._kept):
            await self._take()
        message = self._kept[self._at]
        self._at += 1
        if not self.whole:
            self._release_read()
        return message

    def rewind(self) -> None:
        """Read it from its first byte on."""
        self._at = 0

    def drop(self) -> None:
        """Release it."""
        self._keeper.keep(-self._bytes)
        self._kept, self._bytes, self._at = [], 0, 0

    async def _take(self) -> None:
        """Receive one message."""
        message = await self._receive()
        self.gone = message["type"] == "http.disconnect"
        self.complete = self.complete or not (self.gone or message.get("more_body", False))
        count = len(message.get("body", b""))
        if self.whole and self._keeper.keep(count):
            self._bytes += count
        elif self.whole:
            self.whole = False
            self._keeper.keep(-self._bytes)
            self._bytes = 0
            self._release_read()
        self._kept.append(message)

    def _release_read(self) -> None:
        """Release the messages that were read."""
        del self._kept[: self._at]
        self._at = 0


def _may_be_repeated(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    return scope["method"] in _SAFE or (scope["method"] == "POST" and scope["path"].endswith(_PREDICTIONS))


def _id_of(scope: Scope) -> dict[str, str]:
    """The header with the request's id, which the proxy set."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-request-id"]
    return {"X-Request-Id": found[0]} if found else {}
