"""Counts a front's requests, so that a shutdown can wait for their answers. A worker's connections count its own."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = (b"connection", b"close")


class Doorkeeper:
    """Counts the requests that are being answered; closes connections when the server shuts down."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.pending_requests = 0
        """Requests that came before ``leave`` and are not answered yet."""
        self._leaving = False
        self._empty = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sender(message: Message) -> None:
            if self._leaving and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            await send(message)

        if self._leaving:  # answered too, but ``leave`` does not wait for it
            await self._app(scope, receive, sender)
            return
        self.pending_requests += 1
        try:
            await self._app(scope, receive, sender)
        finally:
            self.pending_requests -= 1
            self._set_empty()

    async def leave(self) -> None:
        """Let every answer close its connection from now on; wait until all earlier requests are answered."""
        self._leaving = True
        self._set_empty()
        await self._empty.wait()

    def _set_empty(self) -> None:
        if self._leaving and not self.pending_requests:
            self._empty.set()
