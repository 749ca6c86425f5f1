"""Within Ray's HTTP proxies: a request that a front died with is asked for again, of another front.

Ray does not do that by itself, as it can't know whether it does harm, and answers 500. A prediction does none. That a
front died is seen by the proxy saying nothing at all: what an application fails with, its replica answers, and what is
too much or out of reach has an answer of the proxy.

What a front has not accepted when it dies, Ray itself sends to another one, but only the request's head: a front asks
the proxy for the body, and each piece of it is given once. Where the dead one had asked already, the other would wait
for a body that does not come. So the body goes along with the head.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""What Ray calls the variable that names ``layers`` to the processes of its proxies."""
LAYERS = "trnrt.serve.ray.proxy:layers"
ATTEMPTS = 4
"""Fronts that one request may be the end of: it may be the request that kills them."""
PAUSE_S = 0.1
"""How much longer each further attempt waits: a machine that can't be reached fails at once, again and again."""
KEPT_BYTES = 256 << 20
"""The most that a proxy keeps of bodies, to send them again. Who comes when it is full has to ask again himself."""
GATHER_S = 1.0
"""How long a body may take to come whole. One that takes longer is passed on as it comes, to a front that watches the
time."""
BODY = "trnrt.body"
"""Where the body is among the extensions of a request's scope."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_PREDICTIONS = ("/predict", "/infer")
"""How the paths end that compute something: other applications of the cluster may change something with theirs."""
_RETRY = {"Retry-After": "1"}
_LOG = logging.getLogger("ray.serve")
"""That of the proxies: no other one is heard there."""


def layers() -> list[Middleware]:
    """What Ray puts around each of its HTTP proxies."""
    return [Middleware(AskAgain)]


class AskAgain:
    """Asks for a request again that was not answered; 503 where that does not help."""

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
            told = f"{attempt} of this server's processes ended while they had this request, the last just now"
            await JSONResponse({"error": told}, 503, _RETRY | _id_of(scope))(scope, receive, send)
        finally:
            body.drop()

    def keep(self, count: int) -> bool:
        """Whether there is room for so many bytes; a negative count gives some back."""
        fits = count <= self._room
        self._room -= count if fits else 0
        return fits


class _Body:
    """What a client sends of a body. It can be read again as long as it is ``whole``: nothing of it was let go.

    ``complete``: its end has come; ``gone``: the client has gone.
    """

    def __init__(self, keeper: AskAgain, receive: Receive) -> None:
        self._keeper, self._receive = keeper, receive
        self._kept: list[Message] = []
        self._at = self._bytes = 0
        self.whole, self.complete, self.gone = True, False, False

    async def gather(self) -> None:
        """Receive what comes soon, as long as there is room."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self.whole and not self.complete and not self.gone:
                    await self._take()

    def content(self) -> bytes:
        """All that was kept."""
        return b"".join(message.get("body", b"") for message in self._kept)

    async def receive(self) -> Message:
        """What ASGI's ``receive`` gives."""
        if self._at == len(self._kept):
            await self._take()
        message = self._kept[self._at]
        self._at += 1
        if not self.whole:
            self._let_go()
        return message

    def rewind(self) -> None:
        """Read it from its first byte on."""
        self._at = 0

    def drop(self) -> None:
        """Keep nothing of it."""
        self._keeper.keep(-self._bytes)
        self._kept, self._bytes, self._at = [], 0, 0

    async def _take(self) -> None:
        """One message more."""
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
            self._let_go()
        self._kept.append(message)

    def _let_go(self) -> None:
        """Of what was read."""
        del self._kept[: self._at]
        self._at = 0


def _may_be_repeated(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    return scope["method"] in _SAFE or (scope["method"] == "POST" and scope["path"].endswith(_PREDICTIONS))


def _id_of(scope: Scope) -> dict[str, str]:
    """The id that the proxy took or gave, as the answers of a front have it."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-request-id"]
    return {"X-Request-Id": found[0]} if found else {}
