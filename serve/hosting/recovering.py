"""After an error of the device a model is loaded again, and again, with pauses that grow."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from trnrt.errors import BackendError, DeviceError, TrnrtError
from trnrt.serve.http.problems import error_text


@dataclass(frozen=True)
class Backoff:
    """Pauses before the attempts to load a model: ``first_s``, each twice the one before, at most ``longest_s``.

    A model that was ready for ``longest_s`` begins anew with the first; one that fails sooner goes on where it was. No
    chance is in it: what a server does after an error can be told beforehand.
    """

    first_s: float = 1.0
    longest_s: float = 60.0

    def pause_s(self, attempt: int) -> float:
        """The pause before an attempt; the first is 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 32))

    def now(self) -> float:
        """A clock that only goes forward, seconds."""
        return time.monotonic()

    async def wait(self, seconds: float) -> None:
        """Let so much time pass."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Failure:
    """Why a model did not load. It may another time where the ``device`` failed, or else the ``backend`` had no room
    for it or answered wrong; where the ``core`` is lost, not in this process."""

    reason: str
    device: bool = False
    backend: bool = False
    core: bool = False


def failure_of(error: Exception) -> Failure:
    """What an error that came while a model was loaded means for it; the error, and what it holds, is let go."""
    if isinstance(error, DeviceError):
        return Failure(error_text(error), device=error.usable, backend=True, core=not error.usable)
    if isinstance(error, TrnrtError):
        return Failure(error_text(error), backend=isinstance(error, BackendError))
    # A model is data: whatever it does to its own loading, the others are served.
    return Failure(f"it does not load: {type(error).__name__}: {error}")
