"""The server's failures: a status, a text and, if useful, headers."""

from __future__ import annotations

from collections.abc import Mapping

from trnrt.errors import DeviceError, InputError, TrnrtError

INTERNAL = "the server failed to answer this request; its log has the details under the request's id"
RETRY_AFTER_S = 2
"""When to retry a model that is loading, or whose device failed: another worker may have it."""


class Problem(Exception):
    """Any failure, answered as ``{"error": text}`` with ``headers``; ``retry_after``, in seconds, is one of them.

    ``reason``: of a refusal that is still to be counted, by whoever answers it.
    """

    def __init__(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
        *,
        retry_after: int | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.reason = reason
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def __reduce__(self) -> tuple[type[Problem], tuple[object, ...]]:
        """Pickled with all its arguments: an exception has its text alone."""
        return Problem, (self.status, self.text, self.headers)


def problem_of(error: TrnrtError) -> Problem:
    """The client's form of one of trnrt's errors: 400 for an input that does not fit, else 500.

    The text is the error's message with its hint: both are written for the user. A device error is 503, as a retry may
    succeed; its hint is for the operator only.
    """
    if isinstance(error, DeviceError):
        return Problem(503, f"the device failed: {error}", retry_after=RETRY_AFTER_S)
    status = 400 if isinstance(error, InputError) else 500
    return Problem(status, error_text(error))


def error_text(error: TrnrtError) -> str:
    """An error's message and, after a semicolon, its hint."""
    return f"{error}; {error.hint}" if error.hint else str(error)
