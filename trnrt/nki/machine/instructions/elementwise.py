"""Vector-engine instructions that compute each element of a tile on its own: copies and ALU operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, column, constant, copier, exact, in_shape, writer
from trnrt.nki.machine.bits import number_pattern, pattern, stored
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, binary_function
from trnrt.nki.machine.program import Engine, Instruction, Operation, View
from trnrt.nki.machine.rules import access, operands, operators

_NATIVE_INTEGERS = ("int32", "uint32")


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``."""
    return copier(instruction["dst"], instruction["src"], arrays)


TENSOR_COPY = Operation(
    name="tensor_copy",
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    writes=("dst",),
    reads=("src",),
    rules=(*operands.ELEMENTWISE, operands.scalar_tensor_copy),
    bind=_copy,
    cost=costs.copying,
)


def _memset(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = value``, the value converted to the tile's dtype."""
    target = arrays(instruction["dst"])
    value = constant(instruction["value"], instruction["dst"].dtype)
    return partial(target.fill, value.item()) if target.flags.c_contiguous else partial(np.copyto, target, value)


MEMSET = Operation(
    name="memset",
    engines=(Engine.gpsimd, Engine.vector),
    writes=("dst",),
    reads=(),
    rules=access.ENGINE_ACCESS,
    bind=_memset,
    cost=costs.filling,
    numbers=frozenset({"value"}),
)


def integers_only(instruction_args: dict[str, object]) -> bool:
    """Whether tensor_tensor's tiles are all 32-bit integers, which the GpSimd engine computes with exactly."""
    tiles = [instruction_args[arg] for arg in ("dst", "data1", "data2")]
    return all(isinstance(tile, View) and tile.dtype.name in _NATIVE_INTEGERS for tile in tiles)


def _integer_power(base: Array, exponent: Array) -> Array:
    if exponent.min() < 0:
        raise KernelError(
            "tensor_tensor: nl.power of integers with a negative exponent; what it gives is not documented"
        )
    return np.power(base, exponent)


def _bit_operand(operand: View | float | None, arrays: Arrays, shape: tuple[int, ...]) -> Callable[[], Array]:
    """A tile, or a number that broadcasts, as bit patterns."""
    if not isinstance(operand, View):
        number = number_pattern(int(operand or 0))
        return lambda: number
    take = in_shape(arrays(operand), shape)
    return lambda: pattern(take())


def _bitvec_tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` on bit patterns."""
    target, function = arrays(instruction["dst"]), binary_function(instruction["op"])
    left = _bit_operand(instruction["data1"], arrays, target.shape)
    right = _bit_operand(instruction["data2"], arrays, target.shape)
    return lambda: np.copyto(target, stored(function(left(), right()), target.dtype))


def _bitvec_tensor_scalar(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = (data <op0> operand0) <op1> operand1`` on bit patterns, operands broadcast."""
    target, op1 = arrays(instruction["dst"]), instruction["op1"]
    one_a_partition = (target.shape[0],) + (1,) * (target.ndim - 1)
    data = _bit_operand(instruction["data"], arrays, target.shape)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    operand0 = _bit_operand(instruction["operand0"], arrays, one_a_partition)
    if op1 is None:
        return lambda: np.copyto(target, stored(first(data(), operand0()), target.dtype))
    second = binary_function(op1, instruction["reverse1"])
    operand1 = _bit_operand(instruction["operand1"], arrays, one_a_partition)
    return lambda: np.copyto(target, stored(second(first(data(), operand0()), operand1()), target.dtype))


def _integer_tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` in 32-bit integers; what overflows wraps around."""
    target, op = arrays(instruction["dst"]), instruction["op"]
    function = _integer_power if op is OPERATORS["power"] else binary_function(op)
    left = in_shape(arrays(instruction["data1"]), target.shape)
    right = in_shape(arrays(instruction["data2"]), target.shape)

    def compute() -> None:
        target[...] = function(left().astype(np.int64), right().astype(np.int64)).astype(target.dtype)

    return compute


def _tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` in float32, on the GpSimd engine in integers where all tiles are 32-bit ones."""
    if instruction["op"].bitvec:
        return _bitvec_tensor_tensor(instruction, arrays)
    if instruction.engine is Engine.gpsimd and integers_only(instruction.args):
        return _integer_tensor_tensor(instruction, arrays)
    dst = instruction["dst"]
    target = arrays(dst)
    function = binary_function(instruction["op"])
    left = in_shape(arrays(instruction["data1"]), target.shape)
    right = in_shape(arrays(instruction["data2"]), target.shape)
    floats = instruction["data1"].dtype.is_float and instruction["data2"].dtype.is_float
    if exact(dst) and floats and isinstance(function, np.ufunc):
        ufunc = function
        return lambda: ufunc(left(), right(), out=target)
    write = writer(dst, target)
    return lambda: write(function(as_float32(left()), as_float32(right())))


TENSOR_TENSOR = Operation(
    name="tensor_tensor",
    engines=(Engine.vector, Engine.gpsimd),
    writes=("dst",),
    reads=("data1", "data2"),
    rules=(
        *operands.ELEMENTWISE,
        operands.one_psum_input,
        operands.vector_operator,
        operands.two_input_operator,
        operators.operator_generation,
        *operators.BITVEC,
        operators.power_engine,
        operands.same_start_partition,
    ),
    bind=_tensor_tensor,
    cost=costs.two_inputs,
)


def _tensor_scalar(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = (data <op0> operand0) <op1> operand1``, operands broadcast along the free dimensions."""
    if instruction["op0"].bitvec:
        return _bitvec_tensor_scalar(instruction, arrays)
    dst, op1 = instruction["dst"], instruction["op1"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    operand0 = column(instruction["operand0"], arrays, target.ndim)
    write = writer(dst, target)
    if op1 is None:
        if exact(dst) and instruction["data"].dtype.is_float and isinstance(first, np.ufunc):
            ufunc = first
            return lambda: ufunc(data(), operand0(), out=target)
        return lambda: write(first(as_float32(data()), operand0()))
    second = binary_function(op1, instruction["reverse1"])
    operand1 = column(instruction["operand1"], arrays, target.ndim)
    return lambda: write(second(first(as_float32(data()), operand0()), operand1()))


TENSOR_SCALAR = Operation(
    name="tensor_scalar",
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    writes=("dst",),
    reads=("data", "operand0", "operand1"),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.operator_generation,
        operators.one_kind_of_operator,
        *operators.BITVEC,
        operators.bitvec_engine,
        operands.operand_given,
        operands.column_operands,
        operands.float32_operands,
        operands.tensor_scalar_engine,
        operands.other_start_partition,
    ),
    bind=_tensor_scalar,
    cost=costs.scaling,
    numbers=frozenset({"operand0", "operand1"}),
    optional=frozenset({"operand0", "operand1"}),
    columns=frozenset({"operand0", "operand1"}),
)


def _scalar_tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = (data <op0> operand0) <op1> operand1`` with a broadcast ``operand0`` and a tile ``operand1``."""
    dst = instruction["dst"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    other = in_shape(arrays(instruction["operand1"]), target.shape)
    operand0 = column(instruction["operand0"], arrays, target.ndim)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    second = binary_function(instruction["op1"], instruction["reverse1"])
    write = writer(dst, target)
    return lambda: write(second(first(as_float32(data()), operand0()), as_float32(other())))


SCALAR_TENSOR_TENSOR = Operation(
    name="scalar_tensor_tensor",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "operand0", "operand1"),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        operands.two_input_operator,
        operands.operand_given,
        operands.column_operands,
        operands.one_psum_input,
        operands.other_start_partition,
    ),
    bind=_scalar_tensor_tensor,
    cost=costs.scalar_then_tensor,
    numbers=frozenset({"operand0"}),
    optional=frozenset({"operand0"}),
    columns=frozenset({"operand0"}),
)


def _reciprocal(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = 1 / data`` on the vector engine."""
    dst = instruction["dst"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    write = writer(dst, target)
    return lambda: write(np.reciprocal(as_float32(data())))


RECIPROCAL = Operation(
    name="reciprocal",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=operands.ELEMENTWISE,
    bind=_reciprocal,
    cost=costs.reciprocal,
)


def _copy_predicated(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src`` where ``predicate`` is not zero (with ``reverse_pred``: where it is)."""
    dst, src = instruction["dst"], instruction["src"]
    target = arrays(dst)
    chosen = in_shape(arrays(instruction["predicate"]), target.shape)
    take: Callable[[], Array]
    if isinstance(src, View):
        take = in_shape(arrays(src), target.shape)
    else:
        number = constant(src, dst.dtype)
        take = lambda: number  # noqa: E731
    wanted = not instruction["reverse_pred"]
    return lambda: np.copyto(target, take(), where=(chosen() != 0) == wanted)


TENSOR_COPY_PREDICATED = Operation(
    name="tensor_copy_predicated",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("dst", "src", "predicate"),  # what is not chosen stays: dst is read, too
    rules=(
        *operands.ELEMENTWISE,
        operands.predicate_dtype,
        operands.predicated_dtype,
        operands.one_psum_input,
        operands.other_start_partition,
    ),
    bind=_copy_predicated,
    partly=frozenset({"dst", "src"}),
    cost=costs.selecting,
    numbers=frozenset({"src"}),
)
