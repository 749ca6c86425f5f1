"""Strict mode's look at a kernel's file, before it is traced."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.sim.subset import check_source


def check_file(function: Callable[..., Any]) -> None:
    """KernelError with everything that the NKI compiler refuses in the file of a kernel, one finding a line.

    ``function`` counts as a kernel whether or not something in its file says so. Nothing happens where there is no
    file to read: a kernel that was typed in.
    """
    filename = inspect.getsourcefile(function)
    source = "".join(linecache.getlines(filename)) if filename else ""
    if filename is None or not source:
        return
    findings = check_source(source, filename, entries=[function.__code__.co_firstlineno])
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings)
        raise KernelError(f"kernel {function.__name__}: the NKI compiler refuses its file:\n{lines}")
