"""A finding: the result of a rule about this machine."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("ok", "warning", "missing", "wrong")
BAD = ("missing", "wrong")


@dataclass(frozen=True)
class Finding:
    """The result of a rule. ``state``: one of STATES; ``mend``: a command or advice, or empty."""

    name: str
    state: str
    found: str
    expected: str = ""
    mend: str = ""

    @property
    def text(self) -> str:
        """The finding in one line."""
        return f"{self.name}: {self.found}{f' (wanted: {self.expected})' if self.expected else ''}"
