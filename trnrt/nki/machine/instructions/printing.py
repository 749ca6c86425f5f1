"""What a kernel prints while it runs."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.binding import Arrays
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules.transfer import print_memory


def _print(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The prefix, then the tensor as numpy prints it, to standard output."""
    view, prefix = instruction["tensor"], instruction["print_prefix"]
    array, dtype = arrays(view), view.dtype.numpy
    return lambda: print(prefix, array.astype(dtype))


DEVICE_PRINT = Operation(
    name="device_print",
    engines=(Engine.dma,),
    writes=(),
    reads=("tensor",),
    rules=(print_memory,),
    bind=_print,
)
