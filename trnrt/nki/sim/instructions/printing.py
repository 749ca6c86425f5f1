"""Printing while a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays
from trnrt.nki.machine.dtypes import rounder
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import declare

_declare = partial(declare, engines=(Engine.dma,), cycles=costs.no_own_cycles, spreads=None)


@rule("print-memory", "device_print prints SBUF and HBM", "nki.language device_print")
def print_memory(instruction: Instruction, target: Target) -> str | None:
    if instruction["tensor"].buffer is MemoryRegion.psum:
        return "tensor is in PSUM; copy it to SBUF first (nisa.tensor_copy)"
    return None


def _text(view: View, arrays: Arrays) -> Callable[[], str]:
    """A tensor as numpy prints it, in its own format if the run rounds to that."""
    array = arrays(view)
    dtype = view.dtype.numpy if rounder(view.dtype) is not None else array.dtype
    return lambda: str(array.astype(dtype))


def _device_print(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The prefix, then the tensor, to standard output."""
    prefix, text = instruction["print_prefix"], _text(instruction["tensor"], arrays)
    return lambda: print(prefix, text())


DEVICE_PRINT = _declare(
    writes=(),
    reads=("tensor",),
    partly=frozenset({"tensor"}),
    rules=(print_memory,),
    meaning=_device_print,
).record("device_print")


def _capture(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """Save the present text of a tensor or register, for a later ``print``."""
    cell = instruction["cell"]
    if instruction["tensor"] is None:
        held = arrays.register(instruction["value"])
        return lambda: cell.__setitem__(0, str(held[0]))
    text = _text(instruction["tensor"], arrays)
    return lambda: cell.__setitem__(0, text())


CAPTURE = _declare(
    writes=(),
    reads=("tensor",),
    optional=frozenset({"tensor"}),
    partly=frozenset({"tensor"}),
    rules=(),
    meaning=_capture,
).record("capture")


def _print(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Python's ``print``. ``parts`` are strings, and cells that hold one."""
    parts, options = instruction["parts"], instruction["options"]
    return lambda: print("".join(p if isinstance(p, str) else p[0] for p in parts), end="", **options)


PRINT = _declare(
    writes=(),
    reads=(),
    rules=(),
    meaning=_print,
).record("print")
