"""A client's end of one keep-alive HTTP/1.1 connection, with as little work per request as Python allows.

The load generator shares the machine's cores with the server that it measures: it sends bytes made beforehand, and
parses the answers when the load is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

_BLANK = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True)
class Answer:
    """A raw response; ``head`` is the status line and the headers."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, None if absent."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return None


class WireError(ValueError):
    """The bytes aren't a response that this client can read."""


def take(held: bytes) -> tuple[Answer | None, bytes]:
    """The first whole response in ``held``, None if incomplete, and the remaining bytes.

    Raises WireError if it isn't HTTP or has no length, which this server always sends.
    """
    end = held.find(_BLANK)
    if end < 0:
        return None, held
    head = held[:end]
    if not head.startswith(b"HTTP/1."):
        raise WireError(f"not HTTP: {head[:40]!r}")
    start = head.lower().find(_LENGTH)
    if start < 0:
        raise WireError(f"no content-length in {head!r}")
    start += len(_LENGTH)
    stop = head.find(b"\r", start)
    size = int(head[start : stop if stop >= 0 else end])
    whole = end + len(_BLANK) + size
    if len(held) < whole:
        return None, held
    return Answer(int(head[9:12]), head, held[whole - size : whole]), held[whole:]


class Connection(asyncio.Protocol):
    """One connection. ``answered`` gets each response; ``lost`` is called once, when the connection is gone."""

    def __init__(
        self, answered: Callable[[Connection, Answer], None], lost: Callable[[Connection], None], number: int = 0
    ) -> None:
        self.number = number
        self.busy: int | None = None
        self._answered, self._lost = answered, lost
        self._held = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one, but not an instance

    def send(self, request: bytes, index: int) -> None:
        """Send a request, the caller's ``index``-th; ``busy`` is its index until it is answered."""
        assert self._transport is not None
        self.busy = index
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Pass on every whole response: more than one is a fault that the caller counts."""
        held = self._held + data if self._held else data
        while held:
            answer, held = take(held)
            if answer is None:
                break
            self._answered(self, answer)
        self._held = held

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the owner."""
        self._transport = None
        self._lost(self)

    @property
    def open(self) -> bool:
        """True if a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close it, if still open."""
        if self._transport is not None:
            self._transport.close()
