"""Instructions that reduce into their engine's accumulator registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs, modes, spreading
from trnrt.nki.machine.accumulators import accumulating_writer, preparation, registers
from trnrt.nki.machine.binding import Arrays, as_float32, column, in_shape, within_range, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator, binary_function
from trnrt.nki.machine.program import Engine, Instruction, Reduction, View
from trnrt.nki.machine.rules import accumulating, operands, operators
from trnrt.nki.machine.rules.checks import NOT_32_BIT_INTEGERS, check_dimensions, dtype_rule, generation_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["activate2", "exponential", "tensor_scalar_cumulative", "tensor_scalar_reduce"]

_Command = modes.reduce_cmd

_EXPONENTIAL_FLOATS = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32")
_EXPONENTIAL_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16")
_EXPONENTIAL_DIMENSIONS = 4
_PIPELINES = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


from_v4 = generation_rule(
    "from-v4", "exponential and activate2 exist from NeuronCore-v4 on", "nki.isa exponential, activate2", 4
)


@rule("reduce-reverse", "tensor_scalar_reduce can't reverse its operands yet", "nki.isa tensor_scalar_reduce, reverse0")
def reduce_reverse(instruction: Instruction, target: Target) -> str | None:
    return f"reverse0={instruction['reverse0']!r}; it must be False" if instruction["reverse0"] else None


cumulative_dtypes = dtype_rule(
    "cumulative-dtypes",
    "tensor_scalar_cumulative takes floats and integers of up to 16 bits",
    "nki.isa tensor_scalar_cumulative, Operation constraints",
    dst=NOT_32_BIT_INTEGERS,
    src=NOT_32_BIT_INTEGERS,
)


exponential_dtypes = dtype_rule(
    "exponential-dtypes",
    "exponential's tiles have dtypes that it supports",
    "nki.isa exponential, Supported dtypes",
    dst=(*_EXPONENTIAL_FLOATS, "tfloat32", *_EXPONENTIAL_INTEGERS),
    src=(*_EXPONENTIAL_FLOATS, *_EXPONENTIAL_INTEGERS, "uint32"),
    reduce_res=(*_EXPONENTIAL_FLOATS, "tfloat32"),
)


@rule("exponential-dimensions", "exponential's tiles have at most 4 dimensions", "nki.isa exponential, Constraints")
def exponential_dimensions(instruction: Instruction, target: Target) -> str | None:
    return check_dimensions(instruction, _EXPONENTIAL_DIMENSIONS, "dst", "src")


@rule("activate2-operators", "activate2 takes six pairs of op0 and op1", "nki.isa activate2")
def activate2_operators(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    pair = tuple(op.name if isinstance(op, Operator) else None for op in (op0, op1))
    if pair in _PIPELINES:
        return None
    legal = ", ".join(f"({first}, {second})" for first, second in _PIPELINES)
    return f"op0={op0!r}, op1={op1!r}; it must be one of {legal}"


@rule("activate2-function", "activate2's op is a function of the scalar engine", "nki.isa activate2, op")
def activate2_function(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and (op.activation or op.parametric):
        return None
    return f"op={op!r} is not an activation function of the scalar engine"


@rule("activate2-reverse", "activate2 can't reverse the operands of nl.bypass", "nki.isa activate2")
def activate2_reverse(instruction: Instruction, target: Target) -> str | None:
    for reverse, arg in (("reverse0", "op0"), ("reverse1", "op1")):
        if instruction[reverse] and instruction[arg] is OPERATORS["bypass"]:
            return f"{reverse}=True; {arg} is nl.bypass, there is nothing to reverse"
    return None


@rule(
    "activate2-immediates", "if both immediates of activate2 are tiles, they have the same dtype", "nki.isa activate2"
)
def activate2_immediates(instruction: Instruction, target: Target) -> str | None:
    imm0, imm1 = instruction["imm0"], instruction["imm1"]
    if isinstance(imm0, View) and isinstance(imm1, View) and imm0.dtype != imm1.dtype:
        return f"imm0 is {imm0.dtype}, imm1 {imm1.dtype}; they must be equal"
    return None


def _tensor_scalar_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data <op0> operand0``, reduced with ``reduce_op``."""
    target = arrays(instruction["dst"])
    data = in_shape(arrays(instruction["data"]), target.shape)
    function = binary_function(instruction["op0"])
    operand0 = column(instruction["operand0"], arrays, target.ndim)
    op, init, negate = instruction["reduce_op"], instruction["reduce_init"], instruction["reduce_res_negate"]
    store = accumulating_writer(instruction, arrays, op, init, negate)
    return lambda: store(function(as_float32(data()), operand0()))


@declare(
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("data", "operand0", "reduce_init"),
    numbers=frozenset({"operand0", "reduce_init"}),
    optional=frozenset({"operand0", "reduce_init", "reduce_res"}),
    columns=frozenset({"operand0", "reduce_init", "reduce_res"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.reset_reduce, _Command.reduce, _Command.load_reduce),
        operator="reduce_op",
        operators=("add", "multiply", "maximum", "minimum"),
        loads="reduce_init",
        unused=(None,),
    ),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        operands.operand_given,
        accumulating.float32_columns,
        reduce_reverse,
    ),
    meaning=_tensor_scalar_reduce,
    cycles=costs.accumulating,
    spreads=spreading.elements,
)
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    reduce_op: Operator,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    reduce_init: float | NkiTensor | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Args:
    """``dst = data <op0> operand0``, and ``reduce_op`` over each partition's results into ``reduce_res`` ``[P, 1]``.

    ``reduce_cmd`` resets the vector engine's registers, loads ``reduce_init`` (``load_reduce``), or keeps them;
    ``reduce_res_negate`` negates ``reduce_res``, not the registers.
    """
    reduce_regs = active_tracer("nisa.tensor_scalar_reduce").accumulators(Engine.vector, data)
    return locals()


def _running(op: Operator) -> Callable[[Array], Array]:
    """(P, 1 + N) -> (P, N): ``reg = x <op> reg`` for each x of a row. A row's first element is the register."""
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


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src", "imm0", "imm1"),
    numbers=frozenset({"imm0", "imm1"}),
    optional=frozenset({"imm1"}),
    columns=frozenset({"imm0", "imm1"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.reset_reduce, _Command.reduce, _Command.load_reduce),
        operator="op1",
        operators=("add", "subtract", "multiply", "maximum", "minimum"),
        loads="imm1",
    ),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        accumulating.float32_columns,
        cumulative_dtypes,
    ),
    meaning=_tensor_scalar_cumulative,
    cycles=costs.streaming,
    spreads=spreading.running,
)
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Operator,
    op1: Operator,
    imm0: float | NkiTensor,
    imm1: float | NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    name: str | None = None,
) -> Args:
    """``register = (src <op0> imm0) <op1> register`` along each partition; ``dst`` gets every state of the register.

    It starts from ``op1``'s identity, from the register's value (``reduce``), or from ``imm1`` (``load_reduce``).
    """
    reduce_regs = active_tracer("nisa.tensor_scalar_cumulative").accumulators(Engine.vector, src)
    return locals()


def _exponential(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = exp(src - max_value)``, summed."""
    target = arrays(instruction["dst"])
    source = in_shape(arrays(instruction["src"]), target.shape)
    most = column(instruction["max_value"], arrays, target.ndim)
    store = accumulating_writer(instruction, arrays, OPERATORS["add"], instruction["reduce_init"])
    return lambda: store(np.exp(as_float32(source()) - most()))


@declare(
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("src", "max_value", "reduce_init"),
    numbers=frozenset({"max_value", "reduce_init"}),
    optional=frozenset({"reduce_init", "reduce_res"}),
    columns=frozenset({"max_value", "reduce_init", "reduce_res"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.idle, _Command.reset_reduce, _Command.reduce, _Command.load_reduce),
        loads="reduce_init",
        unused=(None, 0.0),
    ),
    rules=(
        from_v4,
        *operands.ELEMENTWISE,
        exponential_dimensions,
        exponential_dtypes,
        accumulating.float32_columns,
    ),
    meaning=_exponential,
    cycles=costs.exponentiation,
    spreads=spreading.elements,
)
def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: float | NkiTensor = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    reduce_init: float | NkiTensor = 0.0,
    name: str | None = None,
) -> Args:
    """``dst = exp(src - max_value)`` on the vector engine of NeuronCore-v4, and the sum of each partition's results.

    After ``idle`` the registers read as NaN: the reference calls their state unknown.
    """
    reduce_regs = active_tracer("nisa.exponential").accumulators(Engine.vector, src)
    return locals()


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


@declare(
    engines=(Engine.scalar,),
    writes=("dst", "reduce_res"),
    reads=("data", "imm0", "imm1", "relu_param"),
    numbers=frozenset({"imm0", "imm1", "relu_param"}),
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"imm0", "imm1", "relu_param", "reduce_res"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.idle, _Command.reset, _Command.reset_reduce, _Command.reduce),
        operator="reduce_op",
        operators=("add", "maximum", "minimum", "abs_max", "abs_min"),
    ),
    rules=(
        from_v4,
        *operands.ELEMENTWISE,
        activate2_function,
        activate2_operators,
        activate2_reverse,
        activate2_immediates,
    ),
    meaning=_activate2,
    cycles=costs.accumulating,
    spreads=spreading.elements,
)
def activate2(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    imm0: float | NkiTensor,
    imm1: float | NkiTensor,
    op0: Operator,
    op1: Operator,
    relu_param: float | NkiTensor = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Operator | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    name: str | None = None,
) -> Args:
    """``dst = op((data <op0> imm0) <op1> imm1)`` on the scalar engine of NeuronCore-v4, and its reduction.

    ``relu_param`` is the slope of ``nl.prelu``; an operator of None means ``nl.bypass``.
    """
    reduce_regs = None
    if reduce_res is not None or reduce_cmd is not modes.reduce_cmd.idle:
        reduce_regs = active_tracer("nisa.activate2").accumulators(Engine.scalar, data)
    op0 = OPERATORS["bypass"] if op0 is None else op0
    op1 = OPERATORS["bypass"] if op1 is None else op1
    return locals()
