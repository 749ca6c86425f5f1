"""The scalar engine: functions of one element, and the sums of their results in the engine's own registers."""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine import costs
from trnrt.nki.machine.accumulators import accumulating_writer
from trnrt.nki.machine.binding import Arrays, as_float32, column, in_shape, within_range
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import operands, operators


def _activation(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op(data * scale + bias)``, and what ``reduce_cmd`` does with the results before they are rounded."""
    dst, bias = instruction["dst"], instruction["bias"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    scale = None if instruction["scale"] == 1.0 else column(instruction["scale"], arrays, target.ndim)
    shift = None if bias is None else column(bias, arrays, target.ndim)
    function = within_range(instruction, arrays)
    assert function is not None
    store = accumulating_writer(instruction, arrays, OPERATORS["add"])

    def activate() -> None:
        values: Array = as_float32(data())
        if scale is not None:
            values = values * scale()
        if shift is not None:
            values = values + shift()
        store(function(values))

    return activate


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
        operators.reciprocal_bias,
        operands.other_start_partition,
    ),
    bind=_activation,
    cost=costs.accumulating,
    numbers=frozenset({"bias", "scale"}),
    optional=frozenset({"bias", "reduce_res"}),
    columns=frozenset({"bias", "scale", "reduce_res"}),
    registers="reduce_regs",
)
