"""The errors and the one warning that the simulator raises on purpose, and the base class of all of trnrt's errors.

This module imports nothing, so that all of trnrt may use it. ``trnrt.errors`` re-exports these classes beside its own,
so that callers need only one base class.

Exit codes are the CLI's contract: 1 when the answer is no, 2 when the request was wrong.
"""

from __future__ import annotations


class TrnrtError(Exception):
    """Base class. ``str(error)`` is the message for users; ``hint`` says what would help."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # the last line of a traceback, for those who use Python


class ArgumentError(TrnrtError):
    """An argument of a call doesn't fit: an input of a run, or an option."""


class OptionError(ArgumentError):
    """A flag or argument has a value that trnrt does not take."""


class KernelError(TrnrtError, AssertionError):
    """A kernel breaks a rule of the hardware or of NKI; names instruction, operand, limit and source line.

    It is an AssertionError, too: AWS's simulator raises that, and code for it catches that. ``source``: the line that
    it names, if that isn't the one that raised it.
    """

    exit_code = 1
    source: object = None


class KernelMemoryError(KernelError):
    """A kernel's tiles do not fit SBUF or PSUM; lists the tiles that are alive at that point."""


class KernelWarning(UserWarning):
    """The hardware may behave differently, or AWS's compiler may refuse the code; names the source line."""
