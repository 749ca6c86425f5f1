"""The texts of a report's data."""

from __future__ import annotations


class Texts:
    """Every text once; columns hold its number. Number 0 is the empty text."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        """The number of a text; one that was not seen before gets the next."""
        return self._numbers.setdefault(text, len(self._numbers))

    def to_list(self) -> list[str]:
        """The texts by number."""
        return list(self._numbers)
