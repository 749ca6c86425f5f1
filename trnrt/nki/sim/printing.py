"""``print`` in a simulated kernel becomes part of the program, and shows values when the program runs.

While a kernel is traced, the text of a tensor or register is a mark, in any string. ``print`` replaces the marks by
the values that the program kept. Where a kernel is only traced, ``print`` is Python's own.
"""

from __future__ import annotations

import builtins
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import FrameType
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.execute import Executor
from trnrt.nki.machine.program import Engine, Program, View
from trnrt.nki.sim.instructions.printing import CAPTURE, DEVICE_PRINT, PRINT
from trnrt.nki.sim.trace import active_tracer, is_tracing
from trnrt.nki.sim.values import MARKER, PACKAGE, READER, DeviceValue

_PRINTS = (CAPTURE, PRINT, DEVICE_PRINT)
_DEBUGGERS = frozenset({"IPython", "_pydevd_bundle", "bdb", "debugpy", "ipdb", "pdb", "pudb", "pydevd"})
_LOCK = threading.Lock()
_REPLACED: list[Callable[..., None]] = []  # Python's print, once for each kernel that is being traced


class _Printer:
    """Collects the prints of a kernel. ``marks`` maps placeholder texts to the cells with their values.

    ``arrays`` are the arguments of the kernel: with them a debugger sees a tile's values before the whole program runs.
    """

    def __init__(self, arrays: Sequence[Array], *, precise: bool) -> None:
        self.arrays, self.precise = arrays, precise
        self.marks: dict[str, list[str]] = {}
        self._at_work = False

    def mark(self, value: DeviceValue, description: str, frame: FrameType) -> str:
        """The text of a value: a mark for the kernel, the value for a debugger, for the simulator its description."""
        internal = frame.f_code.co_filename.startswith(PACKAGE)
        if (internal and not self._at_work) or not is_tracing():
            return description
        if _answers_now(frame):
            array = self._peek(value)
            return description if array is None else str(array)
        text = f"<{description} #{len(self.marks) + 1}>"
        cell = self.marks[text] = [description, description]  # the value from the run; the description until then
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

    def read(self, value: DeviceValue, frame: FrameType) -> Array | None:
        """A tensor's elements, if an expression at a debugger's prompt asks for them."""
        return self._peek(value) if is_tracing() and _is_at_a_prompt(frame) else None

    def _peek(self, value: DeviceValue) -> Array | None:
        """A tensor's elements, from running the program so far; None if impossible."""
        tracer = active_tracer("print")
        if not isinstance(value, View) or value.dynamic is not None or tracer.open_loops or tracer.cores > 1:
            return None
        so_far = [i for i in tracer.program.instructions if i.operation not in _PRINTS]
        try:
            program = replace(tracer.program, instructions=so_far, outputs=[value])
            return Executor(program, precise=self.precise).run(self.arrays)[0]
        except KernelError:
            return None

    def _parts(self, text: str) -> list[str | list[str]]:
        """The text cut at its marks, each replaced by its cell."""
        marks = [mark for mark in self.marks if mark in text]
        pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]
        return [self.marks.get(piece, piece) for piece in pieces]


_PRINTER: ContextVar[_Printer | None] = ContextVar("printer", default=None)


@contextmanager
def printing(arrays: Sequence[Array], *, precise: bool) -> Iterator[None]:
    """Put a kernel's prints into its program while it is traced for these arguments."""
    printer = _Printer(arrays, precise=precise)
    tokens = _PRINTER.set(printer), MARKER.set(printer.mark), READER.set(printer.read)
    with _LOCK:
        _REPLACED.append(_REPLACED[0] if _REPLACED else builtins.print)
        builtins.print = _print
    try:
        yield
    finally:
        _PRINTER.reset(tokens[0])
        MARKER.reset(tokens[1])
        READER.reset(tokens[2])
        with _LOCK:
            original = _REPLACED.pop()
            if not _REPLACED:
                builtins.print = original


def show(program: Program) -> None:
    """Print the text of a program that will not run, with descriptions in the place of values."""
    for instruction in program.instructions:
        if instruction.operation is PRINT:
            text = "".join(part if isinstance(part, str) else part[1] for part in instruction["parts"])
            print(text, end="", **instruction["options"])


def _answers_now(frame: FrameType) -> bool:
    """True if a frame belongs to a debugger, a logger or the like, whose prints are not the kernel's."""
    module = _module_of(frame)
    return frame.f_code.co_filename == "<stdin>" or module in sys.stdlib_module_names or module in _DEBUGGERS


def _is_at_a_prompt(frame: FrameType) -> bool:
    """True if a debugger evaluates the code of a frame."""
    return frame.f_code.co_name == "<module>" and frame.f_back is not None and _module_of(frame.f_back) in _DEBUGGERS


def _module_of(frame: FrameType) -> str:
    """The package of a frame's code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _print(*values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> None:
    printer = _PRINTER.get()
    if printer is None or not is_tracing():  # another thread's
        _REPLACED[0](*values, sep=sep, end=end, file=file, flush=flush)
    elif _answers_now(frame := sys._getframe(1)):
        shown = [printer.mark(v, v.describe(), frame) if isinstance(v, DeviceValue) else v for v in values]
        _REPLACED[0](*shown, sep=sep, end=end, file=file, flush=flush)
    else:
        options = {"file": file, "flush": flush}
        printer.print(values, " " if sep is None else sep, "\n" if end is None else end, options)
