"""The bytes of a connection: writing, slow readers, pauses, and the end."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.server import ServerState

from trnrt.serve.http.connections import LEAST_RATE, Connections

_MOVING = (0.0, 0, 0.0, 0)
"""No answer waits. Else: since when, what the client had read by then, when it last read, and what it had read then."""


class Line(asyncio.Protocol):
    """One client's connection, as bytes."""

    def __init__(self, state: ServerState, connections: Connections) -> None:
        self._state, self._all, self._limits = state, connections, connections.limits
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._paused = False
        self._writes, self._stalled = 0, _MOVING
        self._writable: asyncio.Event | None = None

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self._writable = asyncio.Event()
        self._all.note_slow(self, True)

    def resume_writing(self) -> None:
        """The client has read most of what was written, or has gone."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._all.note_slow(self, False)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self._transport.is_closing():
            self._writes += len(data)
            self._transport.write(data)

    @property
    def write_paused(self) -> bool:
        """True while the client reads too slowly."""
        return self._writable is not None

    async def drain(self) -> None:
        """Wait until the client has read most of what was written, or has gone."""
        if self._writable is not None:
            await self._writable.wait()

    @property
    def answering(self) -> bool:
        """True while a request is being answered."""
        return False

    def held_bytes(self) -> int:
        """Bytes that wait for the client to read them."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close at once, and drop what is not sent."""
        self._transport.abort()

    @property
    def leaving(self) -> bool:
        """True when the server shuts down: each answer closes its connection."""
        return self._all.leaving

    def common_head(self) -> bytes:
        """The header lines of every answer."""
        return self._all.common_head(self._state.default_headers)

    def check_room(self, size: int) -> None:
        """See ``Connections.check_room``."""
        self._all.check_room(size)

    def sweep(self, now: float, idle_s: float) -> None:
        """Close if the client hardly reads its answer."""
        held = self.held_bytes()
        if not held:
            self._stalled = _MOVING
            return
        since, at_first, moved, last = self._stalled
        read = self._writes - held
        if not since:
            self._stalled = (now, read, now, read)
            return
        if read > last:
            moved, last = now, read
        self._stalled = (since, at_first, moved, last)
        late = now - since - self._limits.write_s
        if now - moved > self._limits.write_s or (late > 0 and read - at_first < LEAST_RATE * late):
            self._all.drop(self, "slow")

    def _pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> bool:
        """Read on; return whether reading was paused."""
        if not self._paused or self._transport.is_closing():
            return False
        self._paused = False
        self._transport.resume_reading()
        return True
