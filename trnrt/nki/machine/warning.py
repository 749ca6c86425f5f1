"""Warnings at a line of the kernel."""

from __future__ import annotations

import warnings

from trnrt.nki.errors import KernelWarning
from trnrt.nki.machine.program import Source


def warn_at(source: Source, message: str) -> None:
    """A KernelWarning that Python shows with the kernel's own line, each time."""
    warnings.warn_explicit(f"{message}\n  at {source}", KernelWarning, source.file, source.line)
