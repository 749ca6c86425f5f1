"""Every error that trnrt raises on purpose: one tree, so that a caller can catch one class. And its one warning.

This module imports nothing, so that every room, the simulator included, may use it.

Exit codes are the CLI's contract: 1 when the answer is no, 2 when the request was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass


class TrnrtError(Exception):
    """Base class. ``str(error)`` is what a user reads; ``hint`` says what would help."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ModelFileError(TrnrtError):
    """The model file can't be read: missing, not ONNX, truncated, or broken inside."""


class InputError(TrnrtError):
    """An input array or image does not fit the model: name, shape, dtype, or content."""


class OptionError(TrnrtError):
    """A flag or argument has a value that trnrt does not take."""


class TooManyBadError(TrnrtError):
    """A batch prediction met more bad rows than it was told to accept; what it made before is kept."""

    exit_code = 1


class CacheError(TrnrtError):
    """A file of the cache is not what was put there, or the cache is open to other users."""


class BackendError(TrnrtError):
    """The backend that was asked for can't run on this machine."""


class CoresTakenError(BackendError):
    """Other processes hold the NeuronCores; they may let go of them."""


class DeviceError(BackendError):
    """A NeuronCore failed, or did not answer in time; the model that ran on it is closed.

    ``usable`` tells whether this process may try again; where it may not, the core is free again once it ended.
    """

    def __init__(self, message: str, *, hint: str | None = None, usable: bool) -> None:
        super().__init__(message, hint=hint)
        self.usable = usable


@dataclass(frozen=True)
class Blocker:
    """One reason why a model can't run on the NeuronCore.

    ``node`` and ``op`` name the ONNX node, ``reason`` the attribute, shape or type that blocks it,
    ``hint`` the way out ("" when there is none).
    """

    node: str
    op: str
    reason: str
    hint: str = ""


_LONGEST_NAME = 120


class UnsupportedModelError(TrnrtError):
    """The model is valid ONNX, but trnrt has no kernels for it; carries every blocker at once."""

    exit_code = 1

    def __init__(self, model: str, blockers: list[Blocker]) -> None:
        # A name may be as long as its model likes.
        lines = [f"{b.op} node {b.node[:_LONGEST_NAME]!r}: {b.reason}" for b in blockers]
        count = f"{len(blockers)} node{'s' if len(blockers) != 1 else ''}"
        super().__init__(f"{model}: {count} can't run on the NeuronCore:\n  " + "\n  ".join(lines))
        self.model = model
        self.blockers = blockers


class KernelError(TrnrtError, AssertionError):
    """A kernel breaks a rule of the hardware or of NKI; names instruction, operand, limit and source line.

    An AssertionError, too: that is what AWS's simulator raises, and what code written for it catches.
    """

    exit_code = 1


class KernelMemoryError(KernelError):
    """A kernel's tiles do not fit SBUF or PSUM; lists the tiles that are alive at that point."""


class KernelWarning(UserWarning):
    """The simulator ran what the hardware may do otherwise, or AWS's compiler may refuse; names the source line."""
