"""Recovery after a device error: the model is loaded again and again, with growing pauses."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from trnrt.errors import BackendError, DeviceError, TrnrtError
from trnrt.serve.http.problems import error_text


@dataclass(frozen=True)
class Backoff:
    """Pauses before the attempts to load a model: first ``first_s``, then doubled up to ``longest_s``.

    After a model was ready for ``longest_s``, the pauses start again with the first. They are not random: the server's
    behaviour after an error is predictable.
    """

    first_s: float = 1.0
    longest_s: float = 60.0

    def pause_s(self, attempt: int) -> float:
        """The pause before an attempt; the first attempt is 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 32))

    def now(self) -> float:
        """A monotonic clock, seconds."""
        return time.monotonic()

    async def wait(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Failure:
    """Why a model did not load.

    ``device``: the device failed. ``backend``: a later attempt may succeed, as the device failed, had no room or
    answered wrong. ``core``: this process can't use its core any more.
    """

    reason: str
    device: bool = False
    backend: bool = False
    core: bool = False


def failure_of(error: Exception) -> Failure:
    """Classify an error of a load. The error itself is not kept, nor the memory that it refers to."""
    if isinstance(error, DeviceError):
        return Failure(error_text(error), device=error.usable, backend=error.usable, core=not error.usable)
    if isinstance(error, TrnrtError):
        return Failure(error_text(error), backend=isinstance(error, BackendError))
    # A model is data: if it can't be loaded, the others are still served.
    return Failure(f"it does not load: {type(error).__name__}: {error}")
