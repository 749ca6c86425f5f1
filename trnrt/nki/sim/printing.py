"""``print`` in a kernel that is simulated: it becomes part of the program, and shows values when it runs.

The text of a tensor or register, in whatever string it stands, is a mark while the kernel is traced; ``print``
replaces the marks by what the program kept there. Where a kernel is only traced, ``print`` is Python's own.
"""

from __future__ import annotations

import builtins
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from trnrt.nki.machine.instructions.printing import CAPTURE, PRINT
from trnrt.nki.machine.program import Engine, Program, View
from trnrt.nki.sim.trace import active_tracer, is_tracing
from trnrt.nki.sim.values import MARKER, DeviceValue

_LOCK = threading.Lock()
_REPLACED: list[Callable[..., None]] = []  # Python's print, once for each kernel that is being traced


class _Printer:
    """Takes the prints of a kernel. ``marks`` are texts that stand for values, with the cells that get them."""

    def __init__(self) -> None:
        self.marks: dict[str, list[str]] = {}
        self._at_work = False

    def mark(self, value: DeviceValue, description: str, internal: bool) -> str:
        """The text of a value: a mark, or for the simulator's own messages its description."""
        if (internal and not self._at_work) or not is_tracing():
            return description
        text = f"<{description} #{len(self.marks) + 1}>"
        cell = self.marks[text] = [description, description]  # what the run finds, and what is known before
        args = {"tensor": value if isinstance(value, View) else None, "value": value, "cell": cell}
        active_tracer("print").emit(CAPTURE, args, Engine.unknown, None)
        return text

    def print(self, values: tuple[Any, ...], sep: str, end: str, options: dict[str, Any]) -> None:
        """Put a call of ``print`` into the program."""
        self._at_work = True
        try:
            text = sep.join(map(str, values)) + end
        finally:
            self._at_work = False
        active_tracer("print").emit(PRINT, {"parts": self._parts(text), "options": options}, Engine.unknown, None)

    def _parts(self, text: str) -> list[str | list[str]]:
        """The text cut at its marks, with their cells in their place."""
        marks = [mark for mark in self.marks if mark in text]
        pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]
        return [self.marks.get(piece, piece) for piece in pieces]


_PRINTER: ContextVar[_Printer | None] = ContextVar("printer", default=None)


@contextmanager
def printing() -> Iterator[None]:
    """Take what the kernels that are traced meanwhile print into their programs."""
    printer = _Printer()
    tokens = _PRINTER.set(printer), MARKER.set(printer.mark)
    with _LOCK:
        _REPLACED.append(_REPLACED[0] if _REPLACED else builtins.print)
        builtins.print = _print
    try:
        yield
    finally:
        _PRINTER.reset(tokens[0])
        MARKER.reset(tokens[1])
        with _LOCK:
            original = _REPLACED.pop()
            if not _REPLACED:
                builtins.print = original


def show(program: Program) -> None:
    """Print what a program that will not run would have printed, tensors by their descriptions."""
    for instruction in program.instructions:
        if instruction.operation is PRINT:
            text = "".join(part if isinstance(part, str) else part[1] for part in instruction["parts"])
            print(text, end="", **instruction["options"])


def _print(*values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> None:
    printer = _PRINTER.get()
    caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
    if printer is None or not is_tracing() or caller in sys.stdlib_module_names:  # another thread's, a debugger's
        _REPLACED[0](*values, sep=sep, end=end, file=file, flush=flush)
    else:
        options = {"file": file, "flush": flush}
        printer.print(values, " " if sep is None else sep, "\n" if end is None else end, options)
