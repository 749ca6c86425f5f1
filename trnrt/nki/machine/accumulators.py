"""An engine's accumulator registers: one float32 a partition, into which its instructions reduce their results.

The scalar and the vector engine have a set each, shared by all of their accumulating instructions. If the reference
calls their state unknown (``idle`` on the vector engine), they become NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnrt.nki.machine.binding import Arrays, column, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.modes import reduce_cmd
from trnrt.nki.machine.operators import Operator, binary_function, reduction
from trnrt.nki.machine.program import Engine, Instruction

_RESETS = (reduce_cmd.reset, reduce_cmd.reset_reduce)
_REDUCES = (reduce_cmd.reduce, reduce_cmd.reset_reduce, reduce_cmd.load_reduce)


def registers(instruction: Instruction, arrays: Arrays) -> Array:
    """The registers of the instruction's partitions, ``(P, 1)``."""
    return arrays(instruction["reduce_regs"])


def preparation(
    instruction: Instruction, arrays: Arrays, op: Operator | None, init: Any = None
) -> Callable[[], None] | None:
    """A call that prepares the registers for the results, as ``reduce_cmd`` says; None if there is nothing to do."""
    held, command = registers(instruction, arrays), instruction["reduce_cmd"]
    if command in _RESETS and op is not None:
        identity = op.identity
        return lambda: held.fill(identity)
    if command is reduce_cmd.load_reduce:
        loaded = column(init, arrays, held.ndim)
        return lambda: np.copyto(held, loaded())
    if command is reduce_cmd.idle and instruction.engine is Engine.vector:
        return lambda: held.fill(np.nan)
    return None


def _accumulation(
    instruction: Instruction, arrays: Arrays, op: Operator | None, init: Any
) -> Callable[[Array], None] | None:
    """A call that reduces an instruction's results into the registers; None if it doesn't change them.

    It reduces the results of a partition, then combines them with the register: the order of float32 sums is the
    simulator's own.
    """
    if instruction["reduce_regs"] is None:
        return None
    held, prepare = registers(instruction, arrays), preparation(instruction, arrays, op, init)
    if op is None or instruction["reduce_cmd"] not in _REDUCES:
        return None if prepare is None else lambda values: prepare()
    reduce, combine = reduction(op), binary_function(op)

    def accumulate(values: Array) -> None:
        if prepare is not None:
            prepare()
        reduced = reduce(values.reshape(values.shape[0], -1))
        held[...] = combine(held, reduced.reshape(held.shape))

    return accumulate


def _reading(instruction: Instruction, arrays: Arrays, negate: bool) -> Callable[[], None] | None:
    """A call that copies the registers to ``reduce_res``; None without that."""
    result = instruction["reduce_res"]
    if result is None:
        return None
    held, write = registers(instruction, arrays), writer(result, arrays(result))
    return (lambda: write(-held)) if negate else (lambda: write(held))


def accumulating_writer(
    instruction: Instruction, arrays: Arrays, op: Operator | None, init: Any = None, negate: bool = False
) -> Callable[[Array], None]:
    """A call that stores results in ``dst`` and reduces them, before rounding, into the registers.

    ``reduce_res`` is written last, by a separate instruction: if it overlaps ``dst``, it keeps the reduction.
    """
    dst = instruction["dst"]
    write = writer(dst, arrays(dst))
    accumulate = _accumulation(instruction, arrays, op, init)
    read = _reading(instruction, arrays, negate)
    if accumulate is None and read is None:
        return write

    def store(values: Array) -> None:
        write(values)
        if accumulate is not None:
            accumulate(values)
        if read is not None:
            read()

    return store
