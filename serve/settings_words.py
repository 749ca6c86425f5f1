"""Our words for what pydantic says of a wrong value."""

from __future__ import annotations

_LIMITS = {
    "input should be less than or equal to": "it must be at most",
    "input should be greater than or equal to": "it must be at least",
    "input should be": "it must be",
}


def own_words(message: str) -> str:
    """A message of pydantic, as trnrt says it."""
    text = message.removeprefix("Value error, ").lower()
    for theirs, ours in _LIMITS.items():
        text = text.replace(theirs, ours)
    return text
