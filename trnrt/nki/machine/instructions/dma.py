"""Data movement between HBM and SBUF."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine import rules
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape
from trnrt.nki.machine.dtypes import rounder
from trnrt.nki.machine.program import Engine, Instruction, Operation


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``; a change of dtype goes through float32."""
    dst, src = instruction["dst"], instruction["src"]
    target, source = arrays(dst), arrays(src)
    take = in_shape(source, target.shape)
    if dst.dtype == src.dtype:

        def move() -> None:
            target[...] = take()

        return move
    rounded = rounder(dst.dtype)

    def convert() -> None:
        values = as_float32(take())
        target[...] = values if rounded is None else rounded(values)

    return convert


DMA_COPY = Operation(
    name="dma_copy",
    engines=(Engine.dma,),
    writes=("dst",),
    reads=("src",),
    rules=(rules.dma_no_psum, rules.partition_limit, rules.dimensions, rules.same_size),
    bind=_copy,
)
