"""Instructions that reduce into their engine's accumulator registers, and the vector engine's scan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.accumulators import accumulating_writer, preparation, registers
from trnrt.nki.machine.binding import Arrays, as_float32, column, in_shape, within_range, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator, binary_function
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import accumulating, operands, operators


def _tensor_scalar_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data <op0> operand0``, reduced with ``reduce_op``."""
    target = arrays(instruction["dst"])
    data = in_shape(arrays(instruction["data"]), target.shape)
    function = binary_function(instruction["op0"])
    operand0 = column(instruction["operand0"], arrays, target.ndim)
    op, init, negate = instruction["reduce_op"], instruction["reduce_init"], instruction["reduce_res_negate"]
    store = accumulating_writer(instruction, arrays, op, init, negate)
    return lambda: store(function(as_float32(data()), operand0()))


TENSOR_SCALAR_REDUCE = Operation(
    name="tensor_scalar_reduce",
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("data", "operand0", "reduce_init"),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        operands.operand_given,
        operands.column_operands,
        accumulating.float32_columns,
        accumulating.reduce_reverse,
        accumulating.reduce_command,
        accumulating.accumulated_operator,
        accumulating.loaded_value,
        operands.other_start_partition,
    ),
    bind=_tensor_scalar_reduce,
    cost=costs.accumulating,
    numbers=frozenset({"operand0", "reduce_init"}),
    optional=frozenset({"operand0", "reduce_init", "reduce_res"}),
    columns=frozenset({"operand0", "reduce_init", "reduce_res"}),
    registers="reduce_regs",
)


def _running(op: Operator) -> Callable[[Array], Array]:
    """(P, 1 + N) -> (P, N): ``reg = x <op> reg`` for each x of a row, the first of which is the register."""
    if op is OPERATORS["subtract"]:
        # x - reg alternates the register's sign: a sum of alternating terms, whose float32 rounding is the same.
        def alternating(values: Array) -> Array:
            signs = np.ones(values.shape[1], np.float32)
            signs[1::2] = -1
            return (np.add.accumulate(values * signs, axis=1) * signs)[:, 1:]

        return alternating
    function = op.binary
    assert isinstance(function, np.ufunc)
    accumulate = function.accumulate
    return lambda values: accumulate(values, axis=1)[:, 1:]


def _tensor_scalar_cumulative(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``register = (src <op0> imm0) <op1> register`` element by element; ``dst`` gets each state."""
    src, dst = instruction["src"], instruction["dst"]
    rows = in_shape(arrays(src), (src.partitions, src.free_size))
    function, op1 = binary_function(instruction["op0"]), instruction["op1"]
    imm0 = column(instruction["imm0"], arrays, 2)
    held, prepare = registers(instruction, arrays), preparation(instruction, arrays, op1, instruction["imm1"])
    running, write = _running(op1), writer(dst, arrays(dst))

    def compute() -> None:
        if prepare is not None:
            prepare()
        values = function(as_float32(rows()), imm0())
        states = running(np.concatenate([held, values], axis=1))
        write(states)
        held[...] = states[:, -1:]

    return compute


TENSOR_SCALAR_CUMULATIVE = Operation(
    name="tensor_scalar_cumulative",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src", "imm0", "imm1"),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        operands.column_operands,
        accumulating.float32_columns,
        accumulating.cumulative_dtypes,
        accumulating.reduce_command,
        accumulating.accumulated_operator,
        accumulating.loaded_value,
        operands.other_start_partition,
    ),
    bind=_tensor_scalar_cumulative,
    cost=costs.streaming,
    numbers=frozenset({"imm0", "imm1"}),
    optional=frozenset({"imm1"}),
    columns=frozenset({"imm0", "imm1"}),
    registers="reduce_regs",
)


def _exponential(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = exp(src - max_value)``, summed."""
    target = arrays(instruction["dst"])
    source = in_shape(arrays(instruction["src"]), target.shape)
    most = column(instruction["max_value"], arrays, target.ndim)
    store = accumulating_writer(instruction, arrays, OPERATORS["add"], instruction["reduce_init"])
    return lambda: store(np.exp(as_float32(source()) - most()))


EXPONENTIAL = Operation(
    name="exponential",
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("src", "max_value", "reduce_init"),
    rules=(
        accumulating.from_v4,
        *operands.ELEMENTWISE,
        operands.column_operands,
        accumulating.exponential_dimensions,
        accumulating.exponential_dtypes,
        accumulating.float32_columns,
        accumulating.reduce_command,
        accumulating.loaded_value,
        operands.other_start_partition,
    ),
    bind=_exponential,
    cost=costs.exponentiation,
    numbers=frozenset({"max_value", "reduce_init"}),
    optional=frozenset({"reduce_init", "reduce_res"}),
    columns=frozenset({"max_value", "reduce_init", "reduce_res"}),
    registers="reduce_regs",
)


def _activate2(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op((data <op0> imm0) <op1> imm1)``, reduced with ``reduce_op``."""
    target = arrays(instruction["dst"])
    data = in_shape(arrays(instruction["data"]), target.shape)
    stages = [
        (binary_function(op, instruction[reverse]), column(instruction[imm], arrays, target.ndim))
        for op, reverse, imm in (
            (instruction["op0"], "reverse0", "imm0"),
            (instruction["op1"], "reverse1", "imm1"),
        )
        if op is not OPERATORS["bypass"]
    ]
    function, parametric = within_range(instruction, arrays), instruction["op"].parametric
    parameter = column(instruction["relu_param"], arrays, target.ndim)
    store = accumulating_writer(instruction, arrays, instruction["reduce_op"])

    def activate() -> None:
        values = as_float32(data())
        for stage, immediate in stages:
            values = stage(values, immediate())
        store(parametric(values, parameter()) if function is None else function(values))

    return activate


ACTIVATE2 = Operation(
    name="activate2",
    engines=(Engine.scalar,),
    writes=("dst", "reduce_res"),
    reads=("data", "imm0", "imm1", "relu_param"),
    rules=(
        accumulating.from_v4,
        *operands.ELEMENTWISE,
        operands.column_operands,
        accumulating.activate2_function,
        accumulating.activate2_operators,
        accumulating.activate2_reverse,
        accumulating.activate2_immediates,
        accumulating.reduce_command,
        accumulating.accumulated_operator,
        operands.other_start_partition,
    ),
    bind=_activate2,
    cost=costs.accumulating,
    numbers=frozenset({"imm0", "imm1", "relu_param"}),
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"imm0", "imm1", "relu_param", "reduce_res"}),
    registers="reduce_regs",
)


def _scan_step(
    first: Callable[[Array, Array], Array], second: Callable[[Array, Array], Array]
) -> Callable[[Array, Array, Array, Array], None]:
    """``out = (left <op0> state) <op1> right`` on one column of all partitions."""
    if isinstance(first, np.ufunc) and isinstance(second, np.ufunc):
        one, other = first, second

        def in_place(left: Array, right: Array, state: Array, out: Array) -> None:
            other(one(left, state, out=out), right, out=out)

        return in_place

    def copied(left: Array, right: Array, state: Array, out: Array) -> None:
        out[...] = second(first(left, state), right)

    return copied


def _tensor_tensor_scan(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``state = (data0 <op0> state) <op1> data1`` element by element from ``initial`` on; ``dst`` gets each state."""
    dst, shape = instruction["dst"], (instruction["dst"].partitions, instruction["dst"].free_size)
    left = in_shape(arrays(instruction["data0"]), shape)
    right = in_shape(arrays(instruction["data1"]), shape)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    second = binary_function(instruction["op1"], instruction["reverse1"])
    initial = column(instruction["initial"], arrays, 1)
    step, write = _scan_step(first, second), writer(dst, arrays(dst))

    def scan() -> None:
        state = initial()
        states = np.empty(shape[::-1], np.float32)
        lefts = np.ascontiguousarray(as_float32(left()).T)
        rights = np.ascontiguousarray(as_float32(right()).T)
        for one, other, out in zip(lefts, rights, states, strict=True):
            step(one, other, state, out)
            state = out
        write(states.T)

    return scan


TENSOR_TENSOR_SCAN = Operation(
    name="tensor_tensor_scan",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data0", "data1", "initial"),
    rules=(
        *operands.ELEMENTWISE,
        operands.column_operands,
        operands.one_psum_input,
        operators.scan_operators,
        operators.operator_generation,
        operands.other_start_partition,
    ),
    bind=_tensor_tensor_scan,
    cost=costs.scanning,
    numbers=frozenset({"initial"}),
    columns=frozenset({"initial"}),
)
