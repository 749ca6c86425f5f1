"""Instructions that compute each element of a tile on its own: copies, ALU operators, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from trnrt.nki.machine import rules
from trnrt.nki.machine.binding import Arrays, as_float32, column, exact, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import binary_function
from trnrt.nki.machine.program import Engine, Instruction, Operation, View

_TILE_RULES = (
    rules.on_chip,
    rules.partition_limit,
    rules.start_partition,
    rules.dimensions,
    rules.pattern_range,
    rules.same_partitions,
    rules.same_free_size,
    rules.gpsimd_no_psum,
)


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``: bit for bit where the dtypes are equal, else through float32."""
    dst, src = instruction["dst"], instruction["src"]
    target = arrays(dst)
    take = in_shape(arrays(src), target.shape)
    if dst.dtype == src.dtype or (exact(dst) and src.dtype.is_float):

        def move() -> None:
            target[...] = take()

        return move
    write = writer(dst, target)
    return lambda: write(as_float32(take()))


TENSOR_COPY = Operation(
    name="tensor_copy",
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    writes=("dst",),
    reads=("src",),
    rules=(*_TILE_RULES, rules.scalar_tensor_copy),
    bind=_copy,
)


def _memset(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = value``, the value rounded to the tile's dtype."""
    dst = instruction["dst"]
    target = arrays(dst)
    value = np.empty((1,) * target.ndim, target.dtype)
    writer(dst, value)(np.full(value.shape, instruction["value"], np.float32))
    return partial(target.fill, value.item()) if target.flags.c_contiguous else partial(np.copyto, target, value)


MEMSET = Operation(
    name="memset",
    engines=(Engine.vector, Engine.gpsimd),
    writes=("dst",),
    reads=(),
    rules=(
        rules.on_chip,
        rules.partition_limit,
        rules.start_partition,
        rules.dimensions,
        rules.pattern_range,
        rules.gpsimd_no_psum,
    ),
    bind=_memset,
)


def _tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` in float32."""
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
    rules=(*_TILE_RULES, rules.one_psum_input, rules.arithmetic_operator),
    bind=_tensor_tensor,
)


def _tensor_scalar(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = (data <op0> operand0) <op1> operand1``, operands broadcast along the free dimensions."""
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
    rules=(*_TILE_RULES, rules.column_operands, rules.float32_operands, rules.arithmetic_operator),
    bind=_tensor_scalar,
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
    rules=(*_TILE_RULES, rules.one_psum_input, rules.arithmetic_operator),
    bind=_scalar_tensor_tensor,
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
    rules=_TILE_RULES,
    bind=_reciprocal,
)


def _activation(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op(data * scale + bias)``; ``reduce_res`` gets the sum of each partition's results, before rounding."""
    dst, bias, reduce_res = instruction["dst"], instruction["bias"], instruction["reduce_res"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    scale = None if instruction["scale"] == 1.0 else column(instruction["scale"], arrays, target.ndim)
    shift = None if bias is None else column(bias, arrays, target.ndim)
    function = instruction["op"].activation
    write = writer(dst, target)
    total = None if reduce_res is None else writer(reduce_res, arrays(reduce_res))

    def activate() -> None:
        values: Array = as_float32(data())
        if scale is not None:
            values = values * scale()
        if shift is not None:
            values = values + as_float32(shift())
        values = function(values)
        if total is not None:
            total(values.reshape(values.shape[0], -1).sum(axis=1, dtype=np.float32, keepdims=True))
        write(values)

    return activate


ACTIVATION = Operation(
    name="activation",
    engines=(Engine.scalar,),
    writes=("dst", "reduce_res"),
    reads=("data", "bias", "scale"),
    rules=(
        *_TILE_RULES,
        rules.column_operands,
        rules.float32_operands,
        rules.activation_bias_tile,
        rules.activation_function,
    ),
    bind=_activation,
)


def _copy_predicated(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src`` where ``predicate`` is not zero (with ``reverse_pred``: where it is)."""
    dst, src = instruction["dst"], instruction["src"]
    target = arrays(dst)
    chosen = in_shape(arrays(instruction["predicate"]), target.shape)
    take = in_shape(arrays(src), target.shape) if isinstance(src, View) else lambda: np.asarray(src, target.dtype)
    wanted = not instruction["reverse_pred"]
    return lambda: np.copyto(target, take(), where=(chosen() != 0) == wanted)


TENSOR_COPY_PREDICATED = Operation(
    name="tensor_copy_predicated",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("dst", "src", "predicate"),  # what is not chosen stays: dst is read, too
    rules=(*_TILE_RULES, rules.predicate_dtype, rules.predicated_same_dtype),
    bind=_copy_predicated,
)
