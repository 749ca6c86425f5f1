"""A failure as the server answers it: a status, one text and, where they help, headers."""

from __future__ import annotations

from collections.abc import Mapping

from trnrt.errors import DeviceError, InputError, TrnrtError

INTERNAL = "the server failed to answer this request; its log has the details under the request's id"
RETRY_AFTER_S = 2
"""When to ask again for a model that is being loaded, or whose device failed: another worker may have it."""


class Problem(Exception):
    """Any failure to be answered as ``{"error": text}``; ``headers`` such as Retry-After go with it.

    ``retry_after``: in how many seconds it is worth asking again, where somebody knows.
    """

    def __init__(
        self, status: int, text: str, headers: Mapping[str, str] | None = None, *, retry_after: int | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


def problem_of(error: TrnrtError) -> Problem:
    """What a client is told of one of trnrt's errors: 400 for an input that does not fit, else 500.

    The text is the error's message with its hint: both are written for the user. After an error of the device, 503, the
    same request may well be answered later; the hint is the operator's.
    """
    if isinstance(error, DeviceError):
        return Problem(503, f"the device failed: {error}", retry_after=RETRY_AFTER_S)
    status = 400 if isinstance(error, InputError) else 500
    return Problem(status, error_text(error))


def error_text(error: TrnrtError) -> str:
    """An error's message and, after a semicolon, what would help."""
    return f"{error}; {error.hint}" if error.hint else str(error)
