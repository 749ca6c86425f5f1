"""Reductions along the free dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import rules
from trnrt.nki.machine.binding import Arrays, as_float32, writer
from trnrt.nki.machine.program import Engine, Instruction, Operation


def _tensor_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis)`` in float32, times -1 with ``negate``."""
    dst = instruction["dst"]
    data = arrays(instruction["data"])
    axes = tuple(instruction["axis"])
    reduce = instruction["op"].binary.reduce
    sign = np.float32(-1.0 if instruction["negate"] else 1.0)
    write = writer(dst, arrays(dst))
    if not instruction["negate"]:
        return lambda: write(reduce(as_float32(data), axis=axes))
    return lambda: write(reduce(as_float32(data), axis=axes) * sign)


TENSOR_REDUCE = Operation(
    name="tensor_reduce",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(
        rules.on_chip,
        rules.partition_limit,
        rules.start_partition,
        rules.dimensions,
        rules.pattern_range,
        rules.same_partitions,
        rules.reduce_operator,
        rules.trailing_axes,
        rules.reduced_size,
    ),
    bind=_tensor_reduce,
)
