"""The deadline of a request: the server's limit or the client's, whichever is earlier."""

from __future__ import annotations

import asyncio

from trnrt.serve.http.problems import Problem


class Deadline:
    """A request's end, from now. ``timeout``: the context of its work. None: no limit."""

    def __init__(self, own_s: float | None, client_s: float | None) -> None:
        self._own_s, self._client_s = own_s, client_s
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self.timeout = asyncio.timeout(self._seconds)

    def change(self, own_s: float) -> None:
        """Set another limit of the server, from the request's begin: a model may have its own."""
        if own_s != self._own_s:
            self._own_s = own_s
            self.timeout.reschedule(self._began + (self._seconds or 0.0))

    def left_s(self) -> float:
        """The seconds that are left."""
        return float("inf") if self._seconds is None else max(0.0, self._began + self._seconds - self._now())

    def problem(self) -> Problem:
        """The refusal of a request that took too long."""
        whose = "the server's limit" if self._seconds == self._own_s else "the call's deadline"
        return Problem(504, f"the request took longer than {self._seconds:g} s, {whose}")

    @property
    def _seconds(self) -> float | None:
        return min((seconds for seconds in (self._own_s, self._client_s) if seconds is not None), default=None)
