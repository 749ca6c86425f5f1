"""Data movement between HBM and SBUF."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.binding import Arrays, copier
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules.access import DMA_ACCESS


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``; who makes the descriptors, who triggers them and their priority change the timing only."""
    return copier(instruction["dst"], instruction["src"], arrays)


DMA_COPY = Operation(
    name="dma_copy",
    engines=(Engine.dma,),
    writes=("dst",),
    reads=("src",),
    rules=DMA_ACCESS,
    bind=_copy,
)
