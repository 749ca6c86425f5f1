"""The exceptions by which a lowering function rejects a node."""

from __future__ import annotations

FALLBACK = "--fallback onnxruntime runs this node on the CPU"
WRONG = "the model is wrong, and onnxruntime refuses it, too: export it again"


class Blocked(Exception):
    """Raised by a lowering function for a node that it can't lower; the walk continues and collects further ones.

    ``hint`` is the way out: it must help, as ``tests/planner/test_hints.py`` tries.
    """

    def __init__(self, reason: str, hint: str = FALLBACK) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def use_float32(dtype: str) -> str:
    """The way out for numbers that ``dtype``, the session's, doesn't represent."""
    return FALLBACK if dtype == "float32" else "use --dtype float32"


class NotStatic(Blocked):
    """A tensor has no static shape. If this blocks several nodes, only the first is reported."""
