"""DMA that transposes or adds on its way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import transfer

SOURCES = tuple(f"src{i}" for i in range(transfer.MAX_SOURCES))


def _transpose(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src`` with the first and the last dimension exchanged, bit for bit."""
    target, source = arrays(instruction["dst"]), arrays(instruction["src"])
    turned = source.transpose(transfer.TRANSPOSE_AXES[source.ndim])
    if np.may_share_memory(target, source):

        def move_within() -> None:
            target[...] = turned.copy()

        return move_within

    def move() -> None:
        target[...] = turned

    return move


DMA_TRANSPOSE = Operation(
    name="dma_transpose",
    engines=(Engine.dma,),
    writes=("dst",),
    reads=("src",),
    rules=transfer.TRANSPOSE,
    bind=_transpose,
)


def _compute(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The sum of the sources, one after the other, in float32."""
    target = arrays(instruction["dst"])
    takes = [in_shape(arrays(view), target.shape) for arg, view in instruction.operands if arg in SOURCES]
    write = writer(instruction["dst"], target)

    def compute() -> None:
        total = np.add(as_float32(takes[0]()), as_float32(takes[1]()))
        for take in takes[2:]:
            np.add(total, as_float32(take()), out=total)
        write(total)

    return compute


DMA_COMPUTE = Operation(
    name="dma_compute",
    engines=(Engine.dma,),
    writes=("dst",),
    reads=SOURCES,
    rules=transfer.COMPUTE,
    bind=_compute,
    optional=frozenset(SOURCES[1:]),
)
