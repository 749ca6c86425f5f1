"""What a kernel prints while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnrt.nki.machine.binding import Arrays
from trnrt.nki.machine.dtypes import rounder
from trnrt.nki.machine.program import Engine, Instruction, Operation, View
from trnrt.nki.machine.rules.transfer import print_memory


def _text(view: View, arrays: Arrays) -> Callable[[], str]:
    """A tensor as numpy prints it: in its own format, where the run rounds to that."""
    array = arrays(view)
    dtype = view.dtype.numpy if rounder(view.dtype) is not None else array.dtype
    return lambda: str(array.astype(dtype))


def _device_print(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The prefix, then the tensor, to standard output."""
    prefix, text = instruction["print_prefix"], _text(instruction["tensor"], arrays)
    return lambda: print(prefix, text())


DEVICE_PRINT = Operation(
    name="device_print",
    engines=(Engine.dma,),
    writes=(),
    reads=("tensor",),
    rules=(print_memory,),
    bind=_device_print,
    partly=frozenset({"tensor"}),
)


def _capture(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """Keep the text of a tensor or register as it is now, for a ``print`` that follows."""
    cell = instruction["cell"]
    if instruction["tensor"] is None:
        held = arrays.register(instruction["value"])
        return lambda: cell.__setitem__(0, str(held[0]))
    text = _text(instruction["tensor"], arrays)
    return lambda: cell.__setitem__(0, text())


CAPTURE = Operation(
    name="capture",
    engines=(Engine.dma,),
    writes=(),
    reads=("tensor",),
    rules=(),
    bind=_capture,
    partly=frozenset({"tensor"}),
    optional=frozenset({"tensor"}),
)


def _print(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Python's ``print``. ``parts`` are strings, and cells that hold one."""
    parts, options = instruction["parts"], instruction["options"]
    return lambda: print("".join(p if isinstance(p, str) else p[0] for p in parts), end="", **options)


PRINT = Operation(name="print", engines=(Engine.dma,), writes=(), reads=(), rules=(), bind=_print)
