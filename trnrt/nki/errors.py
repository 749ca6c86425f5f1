"""The errors and the one warning that the simulator raises on purpose, and the base class of all of trnrt's.

This module imports nothing, so that every room may use it. ``trnrt.errors`` re-exports these classes beside its own:
a caller catches one class.

Exit codes are the CLI's contract: 1 when the answer is no, 2 when the request was wrong.
"""

from __future__ import annotations


class TrnrtError(Exception):
    """Base class. ``str(error)`` is what a user reads; ``hint`` says what would help."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class OptionError(TrnrtError):
    """A flag or argument has a value that trnrt does not take."""


class KernelError(TrnrtError, AssertionError):
    """A kernel breaks a rule of the hardware or of NKI; names instruction, operand, limit and source line.

    An AssertionError, too: that is what AWS's simulator raises, and what code written for it catches.
    """

    exit_code = 1


class KernelMemoryError(KernelError):
    """A kernel's tiles do not fit SBUF or PSUM; lists the tiles that are alive at that point."""


class KernelWarning(UserWarning):
    """The simulator ran what the hardware may do otherwise, or AWS's compiler may refuse; names the source line."""
