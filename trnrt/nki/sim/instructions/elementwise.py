"""Each element of a tile on its own: copies and the ALU's operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, spreading
from trnrt.nki.machine.binding import Arrays, as_float32, column, constant, copier, exact, in_shape, writer
from trnrt.nki.machine.bits import low_bits, number_pattern, pattern
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator, binary_function
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules import access, operands, operators
from trnrt.nki.machine.rules.checks import dtype_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = [
    "memset",
    "reciprocal",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_scalar",
    "tensor_tensor",
]

_NATIVE_INTEGERS = ("int32", "uint32")
# The forms of tensor_scalar that a scalar engine with a multiply-add alone can do.
_SCALAR_ENGINE_FORMS = (("multiply", "add"), ("multiply", None), ("add", None))


@rule(
    "tensor-scalar-engine",
    "the GpSimd engine, and before trn3 the scalar engine, run only some forms of tensor_scalar",
    "nki.isa tensor_scalar, engine",
)
def tensor_scalar_engine(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    form = (op0.name, None if op1 is None else op1.name)
    if instruction.engine is Engine.gpsimd and form != ("rsqrt", None):
        return f"op0={op0!r}, op1={op1!r} on the gpsimd engine; it does nl.rsqrt only"
    restricted = instruction.engine is Engine.scalar and not target.scalar_engine_tensor_scalar
    if restricted and form not in _SCALAR_ENGINE_FORMS:
        return f"op0={op0!r}, op1={op1!r}; the scalar engine of {target.name} multiplies, adds, or does both in turn"
    return None


@rule("two-input-operator", "an operator on two tiles takes two inputs", "API reference, Supported Math Operators")
def two_input_operator(instruction: Instruction, target: Target) -> str | None:
    arg = "op" if "op" in instruction.args else "op1"
    op = instruction[arg]
    return None if isinstance(op, Operator) and op.binary else f"{arg}={op!r} does not take two inputs"


@rule("scalar-tensor-copy", "trn1's scalar engine has no tensor_copy", "nki.isa tensor_copy")
def scalar_tensor_copy(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.scalar and not target.scalar_engine_tensor_copy:
        return f"engine=scalar; on {target.name} use nisa.activation(op=nl.copy)"
    return None


predicate_dtype = dtype_rule(
    "predicate-dtype",
    "a predicate is uint8, uint16 or uint32",
    "nki.isa tensor_copy_predicated",
    predicate=("uint8", "uint16", "uint32"),
)


@rule(
    "one-kind-of-operator",
    "op0 and op1 are both bitvec operators or both arithmetic ones",
    "nki.isa tensor_scalar",
)
def one_kind_of_operator(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    if op1 is None or operators.is_bitvec(op0) == operators.is_bitvec(op1):
        return None
    return f"op0={op0!r}, op1={op1!r}; one of them is a bitvec operator and one an arithmetic one"


@rule("bitvec-engine", "tensor_scalar runs bitvec operators on the vector engine", "nki.isa tensor_scalar")
def bitvec_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.vector or not operators.is_bitvec(instruction["op0"]):
        return None
    return f"engine={instruction.engine!r} with op0={instruction['op0']!r}; it must be vector"


@rule("power-engine", "tensor_tensor raises to powers on the GpSimd engine", "nki.isa tensor_tensor, op")
def power_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction["op"] is OPERATORS["power"] and instruction.engine is not Engine.gpsimd:
        return f"engine={instruction.engine!r} with op=nl.power; it must be gpsimd"
    return None


def _copy(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = src``."""
    return copier(instruction["dst"], instruction["src"], arrays)


@declare(
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    writes=("dst",),
    reads=("src",),
    rules=(*operands.ELEMENTWISE, scalar_tensor_copy),
    meaning=_copy,
    cycles=costs.copying,
    spreads=spreading.elements,
    silent=True,
)
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> Args:
    """``dst = src`` on chip."""
    return locals()


def _memset(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = value``, the value converted to the tile's dtype."""
    target = arrays(instruction["dst"])
    value = constant(instruction["value"], instruction["dst"].dtype)
    return partial(target.fill, value.item()) if target.flags.c_contiguous else partial(np.copyto, target, value)


@declare(
    engines=(Engine.gpsimd, Engine.vector),
    writes=("dst",),
    reads=(),
    numbers=frozenset({"value"}),
    rules=access.ENGINE_ACCESS,
    meaning=_memset,
    cycles=costs.filling,
    spreads=None,
    silent=True,
)
def memset(dst: NkiTensor, value: float, engine: Engine = Engine.unknown, name: str | None = None) -> Args:
    """``dst = value``."""
    return locals()


def integers_only(*tiles: object) -> bool:
    """True if tensor_tensor's tiles are all 32-bit integers, which the GpSimd engine computes exactly."""
    return all(isinstance(tile, View) and tile.dtype.name in _NATIVE_INTEGERS for tile in tiles)


def _integer_power(base: Array, exponent: Array) -> Array:
    if exponent.min() < 0:
        raise KernelError("tensor_tensor: nl.power of integers with a negative exponent; the result is not documented")
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
    return lambda: np.copyto(target, low_bits(function(left(), right()), target.dtype))


def _bitvec_tensor_scalar(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = (data <op0> operand0) <op1> operand1`` on bit patterns, operands broadcast."""
    target, op1 = arrays(instruction["dst"]), instruction["op1"]
    one_a_partition = (target.shape[0],) + (1,) * (target.ndim - 1)
    data = _bit_operand(instruction["data"], arrays, target.shape)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    operand0 = _bit_operand(instruction["operand0"], arrays, one_a_partition)
    if op1 is None:
        return lambda: np.copyto(target, low_bits(first(data(), operand0()), target.dtype))
    second = binary_function(op1, instruction["reverse1"])
    operand1 = _bit_operand(instruction["operand1"], arrays, one_a_partition)
    return lambda: np.copyto(target, low_bits(second(first(data(), operand0()), operand1()), target.dtype))


def _integer_tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` in 32-bit integers; what overflows wraps around."""
    target, op = arrays(instruction["dst"]), instruction["op"]
    function = _integer_power if op is OPERATORS["power"] else binary_function(op)
    left = in_shape(arrays(instruction["data1"]), target.shape)
    right = in_shape(arrays(instruction["data2"]), target.shape)
    return lambda: np.copyto(target, function(left().astype(np.int64), right().astype(np.int64)).astype(target.dtype))


def _tensor_tensor(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data1 <op> data2`` in float32, on the GpSimd engine in integers where all tiles are 32-bit ones."""
    if instruction["op"].bitvec:
        return _bitvec_tensor_tensor(instruction, arrays)
    if instruction.engine is Engine.gpsimd and integers_only(*(instruction[arg] for arg in ("dst", "data1", "data2"))):
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


@declare(
    engines=(Engine.vector, Engine.gpsimd),
    writes=("dst",),
    reads=("data1", "data2"),
    rules=(
        *operands.ELEMENTWISE,
        operands.one_psum_input,
        operands.vector_operator,
        two_input_operator,
        operators.operator_generation,
        *operators.BITVEC,
        power_engine,
        operands.same_start_partition,
    ),
    meaning=_tensor_tensor,
    cycles=costs.two_inputs,
    spreads=spreading.elements,
)
def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Operator,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Args:
    """``dst = data1 <op> data2``, element by element, in float32.

    With 32-bit integers in SBUF and no named engine, the GpSimd engine computes in integer arithmetic; ``nl.power``
    also runs there. Bitvec operators work on the bit patterns of integers.
    """
    if engine is Engine.unknown and op is OPERATORS["power"]:
        engine = Engine.gpsimd
    elif engine is Engine.unknown and integers_only(dst, data1, data2) and not (isinstance(op, Operator) and op.bitvec):
        engine = Engine.gpsimd if all(t.buffer is MemoryRegion.sbuf for t in (dst, data1, data2)) else Engine.vector
    return locals()


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


@declare(
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    writes=("dst",),
    reads=("data", "operand0", "operand1"),
    numbers=frozenset({"operand0", "operand1"}),
    optional=frozenset({"operand0", "operand1"}),
    columns=frozenset({"operand0", "operand1"}),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.operator_generation,
        one_kind_of_operator,
        *operators.BITVEC,
        bitvec_engine,
        operands.operand_given,
        operands.float32_operands,
        tensor_scalar_engine,
    ),
    meaning=_tensor_scalar,
    cycles=costs.scaling,
    spreads=spreading.elements,
)
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    reverse0: bool = False,
    op1: Operator | None = None,
    operand1: float | NkiTensor | None = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
    name: str | None = None,
) -> Args:
    """``dst = (data <op0> operand0) <op1> operand1``; operands are numbers or float32 ``[P, 1]`` tiles."""
    return locals()


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


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "operand0", "operand1"),
    numbers=frozenset({"operand0"}),
    optional=frozenset({"operand0"}),
    columns=frozenset({"operand0"}),
    rules=(
        *operands.ELEMENTWISE,
        operands.vector_operator,
        operators.arithmetic_operator,
        operators.operator_generation,
        two_input_operator,
        operands.operand_given,
        operands.one_psum_input,
    ),
    meaning=_scalar_tensor_tensor,
    cycles=costs.scalar_then_tensor,
    spreads=spreading.elements,
)
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Operator,
    operand0: float | NkiTensor,
    op1: Operator,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Args:
    """``dst = (data <op0> operand0) <op1> operand1``; ``operand0`` broadcasts, ``operand1`` is a tile."""
    return locals()


def _reciprocal(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = 1 / data`` on the vector engine."""
    dst = instruction["dst"]
    target = arrays(dst)
    data = in_shape(arrays(instruction["data"]), target.shape)
    write = writer(dst, target)
    return lambda: write(np.reciprocal(as_float32(data())))


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=operands.ELEMENTWISE,
    meaning=_reciprocal,
    cycles=costs.reciprocal,
    spreads=spreading.elements,
)
def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Args:
    """``dst = 1 / data`` on the vector engine."""
    return locals()


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


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("dst", "src", "predicate"),  # unselected elements stay: dst is read, too
    numbers=frozenset({"src"}),
    partly=frozenset({"dst", "src"}),
    rules=(
        *operands.ELEMENTWISE,
        predicate_dtype,
        operands.kept_dtype,
        operands.one_psum_input,
    ),
    meaning=_copy_predicated,
    cycles=costs.selecting,
    spreads=None,
)
def tensor_copy_predicated(
    dst: NkiTensor, src: float | NkiTensor, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None
) -> Args:
    """``dst = src`` where ``predicate`` is not zero; elsewhere ``dst`` stays."""
    return locals()
