"""trnrt's own errors, all subclasses of TrnrtError, and its warnings.

This module imports only the simulator's errors, so that every room may import it.

Exit codes are the CLI's contract: 1 when the answer is no, 2 when the request was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.nki.errors import ArgumentError as ArgumentError
from trnrt.nki.errors import KernelError as KernelError
from trnrt.nki.errors import KernelMemoryError as KernelMemoryError
from trnrt.nki.errors import KernelWarning as KernelWarning
from trnrt.nki.errors import OptionError as OptionError
from trnrt.nki.errors import TrnrtError as TrnrtError


class ModelFileError(TrnrtError):
    """The model file can't be read: missing, not ONNX, truncated, or broken inside."""


class NoSuchModelError(ModelFileError):
    """There is no model file at the path."""


class InputError(ArgumentError):
    """An input array or image does not fit the model: name, shape, dtype, or content."""


class MissingInputError(InputError, ValueError):
    """A run lacks an input of the model. It is a ValueError, too: onnxruntime raises that."""


class TooManyBadError(TrnrtError):
    """A batch prediction met more bad rows than ``--max-bad`` accepts; finished parts are kept."""

    exit_code = 1


class ReportError(TrnrtError):
    """A self-test's report is whole, but nothing can be learned from it."""

    exit_code = 1


class QuantiseError(TrnrtError):
    """onnxruntime can't quantise the model, or not within the loss that the user accepts."""

    exit_code = 1


class CacheError(TrnrtError):
    """A cached file was changed, or other users may write to the cache."""


class BackendError(TrnrtError):
    """The requested backend can't run on this machine."""


class CoresTakenError(BackendError):
    """Other processes hold the NeuronCores; they may release them."""


class DeviceError(BackendError):
    """A NeuronCore failed or timed out; its model is closed.

    ``usable``: this process may try again. Otherwise the core is free once the process has ended.
    """

    def __init__(self, message: str, *, hint: str | None = None, usable: bool) -> None:
        super().__init__(message, hint=hint)
        self.usable = usable


class InterruptedRunError(TrnrtError):
    """A run was not begun, because its options have ``terminate`` set."""

    exit_code = 1


class NotSupportedError(TrnrtError, AttributeError):
    """onnxruntime's interface has this name, and trnrt can't do it (docs/onnxruntime-api.md).

    It is an AttributeError, too, so that ``hasattr`` is False.
    """


class InterfaceWarning(UserWarning):
    """trnrt ignores something that a script for onnxruntime says; the warning names it, once in a process."""


class KernelSizeError(TrnrtError):
    """A step alone has more instructions than ``--max-instructions`` allows for a kernel."""

    exit_code = 1


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
    """The model is valid ONNX, but trnrt has no kernels for it; carries all blockers."""

    exit_code = 1

    def __init__(self, model: str, blockers: list[Blocker]) -> None:
        # Names may be of any length.
        lines = [f"{b.op} node {b.node[:_LONGEST_NAME]!r}: {b.reason}" for b in blockers]
        count = f"{len(blockers)} node{'s' if len(blockers) != 1 else ''}"
        super().__init__(f"{model}: {count} can't run on the NeuronCore:\n  " + "\n  ".join(lines))
        self.model = model
        self.blockers = blockers
