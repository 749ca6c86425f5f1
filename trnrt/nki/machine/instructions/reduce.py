"""Reductions along the free dimensions."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import access, operands


def _tensor_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis)`` in float32, times -1 with ``negate``."""
    dst, data = instruction["dst"], instruction["data"]
    kept = data.shape[: data.ndim - len(instruction["axis"])]
    take = in_shape(arrays(data), (*kept, -1))
    reduce = instruction["op"].binary.reduce
    write = writer(dst, arrays(dst))
    if instruction["negate"]:
        return lambda: write(-reduce(as_float32(take()), axis=-1))
    return lambda: write(reduce(as_float32(take()), axis=-1))


TENSOR_REDUCE = Operation(
    name="tensor_reduce",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        operands.reduce_operator,
        operands.trailing_axes,
        operands.reduced_size,
    ),
    bind=_tensor_reduce,
)
