"""All connections of a worker: their limits, their number, and a sweep every second that closes the slow ones."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.logs import log
from trnrt.serve.settings import ServeSettings

SWEEP_S = 1.0
"""A timeout ends up to this much late. One sweep costs less than a timer for each request."""
RESERVE = 64
"""Connections beyond the limit: each may ask for health, and is then closed."""
RESERVE_S = 2.0
"""The longest time that a connection of the reserve may take to send its head."""
CROWDED, CROWDED_IDLE_S = 0.75, 5.0
"""Above this share of the limit, idle connections are closed after this time, to make room for others."""
LEAST_RATE = 1024
"""Bytes a second, once a body or an answer has taken longer than its timeout: one byte from time to time is not
enough."""
LINGER_S = 2.0
"""After a refusal the rest of what the client sends is read for this long. A socket that is closed with unread bytes
resets the connection, and the client may lose the answer (RFC 9112, 9.6)."""
LINGER_BYTES = 8 << 20
PIPELINED = 32
"""Requests that may wait on a connection behind the one that is being answered."""
LARGE = 64 << 10
"""An answer from this size on counts as held while its client reads it: as the transport's high-water mark."""


class Swept(Protocol):
    """A connection, as its keeper sees it."""

    @property
    def answering(self) -> bool:
        """True while a request is being answered."""

    def sweep(self, now: float, idle_s: float) -> None:
        """Close it if something takes too long."""

    def held_bytes(self) -> int:
        """Bytes that wait for the client to read them."""

    def abort(self) -> None:
        """Close it at once."""


@dataclass(frozen=True)
class Limits:
    """The limits of a connection: bytes, counts, and seconds."""

    head_bytes: int
    fields: int
    connections: int
    buffered: int
    discarded: int
    head_s: float
    body_s: float
    write_s: float
    idle_s: float

    @classmethod
    def from_settings(cls, settings: ServeSettings) -> Limits:
        """Those of the settings. A body that nobody wants is read to its end up to twice the largest body."""
        return cls(
            settings.max_header_bytes,
            settings.max_headers,
            room_for(settings.max_connections),
            settings.max_buffered_mib << 20,
            2 * (settings.max_body_mib << 20),
            settings.header_timeout,
            settings.body_timeout,
            settings.write_timeout,
            settings.keep_alive_timeout,
        )


class Connections:
    """The connections of one worker. Call it on the event loop."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.limits, self._metrics = Limits.from_settings(settings), metrics
        self._open: set[Swept] = set()
        self._reserve: dict[Swept, None] = {}  # the oldest first
        self._slow: set[Swept] = set()
        self._dropped: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._defaults: list[tuple[bytes, bytes]] | None = None
        self._common = b""
        self.pending = 0
        """Requests that came before ``empty`` and are not answered yet."""
        self.leaving = False
        self._is_empty = asyncio.Event()

    def enter(self, connection: Swept) -> bool:
        """Count a new connection. True if it is beyond the limit: it may ask for health alone."""
        self._open.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        if len(self._open) - len(self._reserve) <= self.limits.connections:
            return False
        if len(self._reserve) >= RESERVE:
            # The oldest that has not asked for anything makes room: a probe sends its request at once.
            oldest = next((each for each in self._reserve if not each.answering), connection)
            self.drop(oldest, "connections")
            if oldest is connection:
                return True
        self._reserve[connection] = None
        return True

    def leave(self, connection: Swept) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._reserve.pop(connection, None)
        self._slow.discard(connection)

    def drop(self, connection: Swept, reason: str) -> None:
        """Close a connection without an answer, and count that."""
        self._dropped[reason] += 1
        self._metrics.count_rejection(reason)
        self.leave(connection)
        connection.abort()

    def begin_one(self) -> bool:
        """Count a request; return whether it is counted. After ``empty`` has begun it is not."""
        self.pending += not self.leaving
        return not self.leaving

    def end_one(self) -> None:
        """A request that was counted is answered, or its client has gone."""
        self.pending -= 1
        if self.leaving and not self.pending:
            self._is_empty.set()

    async def empty(self) -> None:
        """Let every answer close its connection from now on; wait until all earlier requests are answered."""
        self.leaving = True
        if self.pending:
            await self._is_empty.wait()

    def note_slow(self, connection: Swept, slow: bool) -> None:
        """Note that a connection's answer waits for its reader, or no longer does."""
        (self._slow.add if slow else self._slow.discard)(connection)

    def check_room(self, size: int) -> None:
        """Problem(503) if an answer of ``size`` bytes would be too much to hold for clients that read slowly. An answer
        that is alone is always sent."""
        held = sum(connection.held_bytes() for connection in self._slow)
        if held and held + size > self.limits.buffered:
            self._metrics.count_rejection("buffers")
            text = f"answers of {held} bytes wait for clients to read them, and this one has {size}"
            raise Problem(503, f"{text}; the server holds {self.limits.buffered} (--max-buffered-mib)", retry_after=1)

    def count(self, reason: str) -> None:
        """A request was refused."""
        self._metrics.count_rejection(reason)

    def record(self, method: str, status: int, seconds: float) -> None:
        """A request was answered before it reached the application."""
        self._metrics.request("other", method, status, seconds)

    def common_head(self, defaults: list[tuple[bytes, bytes]]) -> bytes:
        """The header lines of every answer, joined once for each list of ``defaults``: uvicorn makes a new one every
        second, for the date."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._common = b"".join(name + b": " + value + b"\r\n" for name, value in defaults)
        return self._common

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, limits = loop.time(), self.limits
        crowded = len(self._open) > CROWDED * limits.connections
        idle_s = min(limits.idle_s, CROWDED_IDLE_S) if crowded else limits.idle_s
        for connection in list(self._open):
            connection.sweep(now, idle_s)
        if self._dropped:  # one line: there may be thousands
            log("warning", "connections_dropped", open=len(self._open), **self._dropped)
            self._dropped.clear()
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._open else None


def new_id() -> str:
    """A request's id, for those that never reach the application."""
    return os.urandom(16).hex()


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


OWN_FILES = 192
"""Files that a worker needs for itself: models, pipes, logs, metrics; some more for each model and thread."""


def room_for(connections: int) -> int:
    """So many connections, or as many as this process may have files for."""
    try:
        import resource
    except ImportError:
        return connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(1, soft - OWN_FILES - RESERVE) if soft != resource.RLIM_INFINITY else connections
    if room < connections:
        log("warning", "few_files", limit=soft, max_connections=connections, used=room, told="raise ulimit -n")
    return min(connections, room)
