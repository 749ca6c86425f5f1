"""The exceptions by which a lowering function rejects a node."""

from __future__ import annotations


class Blocked(Exception):
    """Raised by a lowering function for a node that it can't lower; the walk continues and collects further ones."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class NotStatic(Blocked):
    """A tensor has no static shape. If this blocks several nodes, only the first is reported."""
