"""The scalar engine: functions of one element, and the sums of their results in the engine's own registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from trnrt.nki.machine import costs, modes, spreading
from trnrt.nki.machine.accumulators import accumulating_writer
from trnrt.nki.machine.binding import Arrays, as_float32, column, exact, in_shape, within_range
from trnrt.nki.machine.dtypes import DTYPES, Array
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.rules import operands
from trnrt.nki.machine.rules.checks import dtype_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.machine.windows import copy_call
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["activation", "activation_reduce"]

_REDUCE_COMMANDS = (
    modes.reduce_cmd.idle,
    modes.reduce_cmd.reset,
    modes.reduce_cmd.reduce,
    modes.reduce_cmd.reset_reduce,
)


@rule(
    "activation-function",
    "an activation's op is a function of the scalar engine",
    "API reference, Activation Functions",
)
def activation_function(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.activation:
        return None
    if isinstance(op, Operator) and op.parametric:
        return f"op={op!r} takes its slope from nisa.activate2's relu_param; what it is in nisa.activation is not known"
    return f"op={op!r} is not an activation function of the scalar engine"


@rule("activation-bias-tile", "on trn1 an activation's bias is a tile", "nki.isa activation, Layout")
def activation_bias_tile(instruction: Instruction, target: Target) -> str | None:
    bias = instruction["bias"]
    if target.activation_scalar_bias or bias is None or isinstance(bias, View):
        return None
    return f"bias is the number {bias}; on {target.name} it must be a [P, 1] tile"


activation_bias_dtype = dtype_rule(
    "activation-bias-dtype",
    "an activation's bias may have any dtype but tfloat32",
    "nki.isa activation, Data types",
    bias=[name for name in DTYPES if name != "tfloat32"],
)


@rule(
    "activation-reduce",
    "an activation reduces its results only by addition",
    "nki.isa activation, reduce_op and reduce_cmd",
)
def reduced_activation(instruction: Instruction, target: Target) -> str | None:
    command, op = instruction["reduce_cmd"], instruction["reduce_op"]
    if command not in _REDUCE_COMMANDS:
        return f"reduce_cmd={command!r}; it must be idle, reset, reduce or reset_reduce"
    reduces = command in (modes.reduce_cmd.reduce, modes.reduce_cmd.reset_reduce)
    if op is not OPERATORS["add"] and (reduces or op is not None):
        return f"reduce_op={op!r} with reduce_cmd={command!r}; it must be nl.add"
    return None


@rule(
    "reciprocal-bias",
    "on trn1 an activation with nl.reciprocal has no bias",
    "API reference, NKI Engine Selection: NeuronCore-v2",
)
def reciprocal_bias(instruction: Instruction, target: Target) -> str | None:
    if target.generation > 2 or instruction["op"] is not OPERATORS["reciprocal"] or instruction["bias"] is None:
        return None
    return f"bias is {instruction['bias']!s} with op=nl.reciprocal; on {target.name} it must be None"


def _activation(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op(data * scale + bias)``, and what ``reduce_cmd`` does with the results before they are rounded."""
    dst, bias = instruction["dst"], instruction["bias"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    scale = None if instruction["scale"] == 1.0 else column(instruction["scale"], arrays, target.ndim)
    shift = None if bias is None else column(bias, arrays, target.ndim)
    function = within_range(instruction, arrays)
    assert function is not None
    if _is_rectified_sum(instruction):
        assert shift is not None
        return rectified_sum(target, data, shift, arrays.scratch)
    store = accumulating_writer(instruction, arrays, OPERATORS["add"])

    def activate() -> None:
        values: Array = as_float32(data())
        if scale is not None:
            values = values * scale()
        if shift is not None:
            values = values + shift()
        store(function(values))

    return activate


def _is_rectified_sum(instruction: Instruction) -> bool:
    """True for ``dst = relu(data + bias)`` alone, in float32."""
    plain = instruction["scale"] == 1.0 and instruction["bias"] is not None and instruction["reduce_regs"] is None
    floats = exact(instruction["dst"]) and instruction["data"].dtype.is_float
    return bool(plain and floats and instruction["op"] is OPERATORS["relu"])


def rectified_sum(
    target: Array,
    data: Callable[[], Array],
    shift: Callable[[], Any],
    scratch: Callable[[str, tuple[int, ...]], Array],
) -> Callable[[], None]:
    """A call that puts ``relu(data + shift)`` into ``target``, without new arrays for what is between.

    Both steps are on whole arrays without gaps: numpy takes five to ten times as long to combine 8,192 elements with a
    single number, or with one for each row, than with as many (measured with numpy 2.4 and AVX2).
    """
    shifts, zeros = scratch("shifts", target.shape), _zeros(target.shape)
    whole = target if target.flags.c_contiguous else scratch("rectified sum", target.shape)
    write = None if whole is target else copy_call(target, whole)

    def rectify() -> None:
        np.copyto(shifts, shift())
        np.maximum(np.add(data(), shifts, out=whole), zeros, out=whole)
        if write is not None:
            write()

    return rectify


@lru_cache(maxsize=64)
def _zeros(shape: tuple[int, ...]) -> Array:
    """Zeros to compare with; nobody writes to them."""
    zeros = np.zeros(shape, np.float32)
    zeros.flags.writeable = False
    return zeros


@declare(
    engines=(Engine.scalar,),
    writes=("dst", "reduce_res"),
    reads=("data", "bias", "scale"),
    numbers=frozenset({"bias", "scale"}),
    optional=frozenset({"bias", "reduce_res"}),
    columns=frozenset({"bias", "scale", "reduce_res"}),
    registers="reduce_regs",
    rules=(
        *operands.ELEMENTWISE,
        operands.float32_operands,
        activation_bias_tile,
        activation_bias_dtype,
        activation_function,
        reduced_activation,
        reciprocal_bias,
    ),
    meaning=_activation,
    cycles=costs.accumulating,
    spreads=spreading.elements,
)
def activation(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    reduce_op: Operator | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    name: str | None = None,
) -> Args:
    """``dst = op(data * scale + bias)`` on the scalar engine.

    ``reduce_cmd`` clears the engine's accumulator registers, adds each partition's results to them, or both;
    ``reduce_res`` ``[P, 1]`` gets a copy of them afterwards.
    """
    reduce_regs = None
    if reduce_res is not None or reduce_cmd is not modes.reduce_cmd.idle:
        reduce_regs = active_tracer("nisa.activation").accumulators(Engine.scalar, data)
    return locals()


def activation_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    reduce_op: Operator,
    reduce_res: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    name: str | None = None,
) -> Instruction:
    """``activation``, and the sum of each partition's results into ``reduce_res`` ``[P, 1]``."""
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, modes.reduce_cmd.reset_reduce, name)
