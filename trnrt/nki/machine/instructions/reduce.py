"""Reductions along the free dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.bits import pattern, stored
from trnrt.nki.machine.operators import reduction
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import access, operands, operators


def _tensor_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis)`` in float32, times -1 with ``negate``; bitvec operators on bit patterns."""
    dst, data = instruction["dst"], instruction["data"]
    kept = data.shape[: data.ndim - len(instruction["axis"])]
    take = in_shape(arrays(data), (*kept, -1))
    reduce, target = reduction(instruction["op"]), arrays(dst)
    if instruction["op"].bitvec:
        return lambda: np.copyto(target, stored(reduce(pattern(take())), target.dtype).reshape(target.shape))
    write = writer(dst, target)
    if instruction["negate"]:
        return lambda: write(-reduce(as_float32(take())))
    return lambda: write(reduce(as_float32(take())))


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
        *operators.BITVEC,
        operators.bitvec_negate,
    ),
    bind=_tensor_reduce,
    cost=costs.reduction,
)
