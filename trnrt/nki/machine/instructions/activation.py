"""The scalar engine: functions of one element, and the sums of their results in the engine's own registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine.binding import Arrays, as_float32, column, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.modes import reduce_cmd
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import operands


def _activation(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op(data * scale + bias)``, and what ``reduce_cmd`` does with the results before they are rounded."""
    dst, bias = instruction["dst"], instruction["bias"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    scale = None if instruction["scale"] == 1.0 else column(instruction["scale"], arrays, target.ndim)
    shift = None if bias is None else column(bias, arrays, target.ndim)
    function = instruction["op"].activation
    write = writer(dst, target)
    accumulate = _accumulation(instruction, arrays)

    def activate() -> None:
        values: Array = as_float32(data())
        if scale is not None:
            values = values * scale()
        if shift is not None:
            values = values + shift()
        values = function(values)
        if accumulate is not None:
            accumulate(values)
        write(values)

    return activate


def _accumulation(instruction: Instruction, arrays: Arrays) -> Callable[[Array], None] | None:
    """What happens to the accumulator registers, one a partition, and whether ``reduce_res`` gets a copy of them."""
    if instruction["reduce_regs"] is None:
        return None
    registers = arrays(instruction["reduce_regs"])
    result, command = instruction["reduce_res"], instruction["reduce_cmd"]
    read_out = None if result is None else writer(result, arrays(result))

    def accumulate(values: Array) -> None:
        if command in (reduce_cmd.reset, reduce_cmd.reset_reduce):
            registers.fill(0.0)
        if command in (reduce_cmd.reduce, reduce_cmd.reset_reduce):
            sums = values.reshape(values.shape[0], -1).sum(axis=1, dtype=np.float32, keepdims=True)
            np.add(registers, sums, out=registers)
        if read_out is not None:
            read_out(registers)

    return accumulate


ACTIVATION = Operation(
    name="activation",
    engines=(Engine.scalar,),
    writes=("dst", "reduce_res"),
    reads=("data", "bias", "scale"),
    rules=(
        *operands.ELEMENTWISE,
        operands.column_operands,
        operands.float32_operands,
        operands.activation_bias_tile,
        operands.activation_bias_dtype,
        operands.activation_function,
        operands.activation_reduce,
    ),
    bind=_activation,
    numbers=frozenset({"bias", "scale"}),
    optional=frozenset({"bias", "reduce_res"}),
    columns=frozenset({"bias", "scale", "reduce_res"}),
    registers="reduce_regs",
)
