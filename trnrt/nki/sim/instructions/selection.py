"""Selections: by ranges, predicates and affine patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, modes
from trnrt.nki.machine.accumulators import accumulating_writer
from trnrt.nki.machine.binding import Arrays, as_float32, column, constant, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, Reduction, Register, View
from trnrt.nki.machine.rules import access, accumulating, operands
from trnrt.nki.machine.rules.checks import FLOATS, NOT_32_BIT_INTEGERS, dtype_rule, generation_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["affine_select", "iota", "range_select", "select_reduce"]

_Command = modes.reduce_cmd

Pattern = Sequence[Sequence[int]]
_MAXIMUM, _EQUAL = OPERATORS["maximum"], OPERATORS["equal"]
FLOAT32_MIN = float(np.finfo(np.float32).min)
_EXACT_INDICES = 1 << 24  # float32 counts to here
_RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_WIDTH = 32  # the GpSimd engine's bits per count
_PATTERN_DIMENSIONS = 4
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


@rule(
    "range-comparison",
    "range_select compares with equal, less, less_equal, greater or greater_equal",
    "nki.isa range_select, Constraints",
)
def range_comparison(instruction: Instruction, target: Target) -> str | None:
    for arg in ("comp_op0", "comp_op1"):
        op = instruction[arg]
        if not (isinstance(op, Operator) and op.name in _RANGE_COMPARISONS):
            return f"{arg}={op!r}; it must be {' or '.join(f'nl.{name}' for name in _RANGE_COMPARISONS)}"
    return None


range_dtype = dtype_rule(
    "range-dtype", "range_select selects from floats", "nki.isa range_select, Constraints", on_true_tile=FLOATS
)


@rule("range-fill", "range_select fills with the least float32", "nki.isa range_select, on_false_value")
def range_fill(instruction: Instruction, target: Target) -> str | None:
    value = instruction["on_false_value"]
    if isinstance(value, (float, Integral, np.floating)) and np.float32(value) == np.float32(FLOAT32_MIN):
        return None
    return f"on_false_value is {value!s}; it must be {FLOAT32_MIN}"


@rule(
    "range-indices",
    "range_select's indices are compile-time integers within 2^24",
    "nki.isa range_select, Constraints; range_start",
)
def range_indices(instruction: Instruction, target: Target) -> str | None:
    start = instruction["range_start"]
    if not isinstance(start, Integral):
        return f"range_start is {start!s}; it must be an integer known at compile time"
    last = int(start) + instruction["on_true_tile"].free_size - 1
    if abs(int(start)) <= _EXACT_INDICES and abs(last) <= _EXACT_INDICES:
        return None
    return f"range_start={start} gives indices up to {last}; the limit is {_EXACT_INDICES}"


selected_dtype = dtype_rule(
    "selected-dtype",
    "select_reduce selects from any dtype but tfloat32, int32 and uint32",
    "nki.isa select_reduce",
    on_true=NOT_32_BIT_INTEGERS,
)


selecting_dtype = dtype_rule(
    "selecting-dtype",
    "select_reduce's predicate is an integer of 8 or 16 bits",
    "nki.isa select_reduce",
    predicate=("int8", "uint8", "int16", "uint16"),
)


reduced_dtype = dtype_rule(
    "reduced-dtype",
    "select_reduce's reduce_res has a float dtype",
    "nki.isa select_reduce, reduce_res",
    reduce_res=FLOATS,
)


@rule(
    "pattern-form",
    "a pattern is a list of up to 4 pairs [step, num] of integers; num is at least 1",
    "nki.isa iota, affine_select, pattern",
)
def pattern_form(instruction: Instruction, target: Target) -> str | None:
    pattern = instruction["pattern"]
    if not isinstance(pattern, (list, tuple)) or not 1 <= len(pattern) <= _PATTERN_DIMENSIONS:
        return f"pattern={pattern!r}; it must be a list of 1 to {_PATTERN_DIMENSIONS} [step, num]"
    for pair in pattern:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(n, Integral) for n in pair):
            return f"pattern={pattern!r}; {pair!r} is not [step, num]"
        if pair[1] < 1:
            return f"pattern={pattern!r}; num of {pair!r} must be at least 1"
    return None


@rule("pattern-size", "a pattern has as many values as a partition of the destination", "nki.isa iota, affine_select")
def pattern_size(instruction: Instruction, target: Target) -> str | None:
    count, dst = prod(num for _, num in instruction["pattern"]), instruction["dst"]
    if count == dst.free_size:
        return None
    return f"pattern {instruction['pattern']!r} has {count} values, dst {dst.free_size} elements; they must be equal"


@rule(
    "pattern-integers",
    "a pattern's channel_multiplier is an int32; its offset is an int32 or a register",
    "nki.isa iota, affine_select, offset and channel_multiplier",
)
def pattern_integers(instruction: Instruction, target: Target) -> str | None:
    for arg in ("offset", "channel_multiplier"):
        value = instruction[arg]
        if arg == "offset" and isinstance(value, Register):
            continue
        if not isinstance(value, Integral) or not _INT32_MIN <= int(value) <= _INT32_MAX:
            return f"{arg} is {value!s}; it must be an int32"
    return None


@rule("affine-comparison", "affine_select takes a comparison operator", "nki.isa affine_select, cmp_op")
def affine_comparison(instruction: Instruction, target: Target) -> str | None:
    op = instruction["cmp_op"]
    if isinstance(op, Operator) and op.comparison and not op.reduces:
        return None
    return f"cmp_op={op!r} is not a comparison"


from_v3 = generation_rule("from-v3", "range_select exists from NeuronCore-v3 on", "nki.isa range_select", 3)


def _range_select(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true_tile`` where the index passes both comparisons, else the least float32; also the maximum."""
    source = instruction["on_true_tile"]
    take = in_shape(arrays(source), (source.partitions, source.free_size))
    indices = np.float32(instruction["range_start"]) + np.arange(source.free_size, dtype=np.float32)
    first, second = instruction["comp_op0"].binary, instruction["comp_op1"].binary
    bound0, bound1 = column(instruction["bound0"], arrays, 2), column(instruction["bound1"], arrays, 2)
    fill = np.float32(FLOAT32_MIN)
    store = accumulating_writer(instruction, arrays, instruction["reduce_op"])
    return lambda: store(np.where(first(indices, bound0()) & second(indices, bound1()), as_float32(take()), fill))


@declare(
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("on_true_tile", "bound0", "bound1"),
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"bound0", "bound1", "reduce_res"}),
    partly=frozenset({"on_true_tile"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.idle, _Command.reset, _Command.reset_reduce, _Command.reduce),
        operator="reduce_op",
        operators=("maximum",),
    ),
    rules=(
        from_v3,
        *operands.ELEMENTWISE,
        accumulating.float32_columns,
        range_comparison,
        range_dtype,
        range_fill,
        range_indices,
    ),
    meaning=_range_select,
    cycles=costs.streaming,
    spreads=None,
)
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Operator,
    comp_op1: Operator,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Operator = _MAXIMUM,
    range_start: int = 0,
    on_false_value: float = FLOAT32_MIN,
    name: str | None = None,
) -> Args:
    """``dst = on_true_tile`` where ``range_start`` + place passes both comparisons, else the least float32.

    The maximum of each partition's results goes to the vector engine's registers, and to ``reduce_res`` ``[P, 1]``.
    """
    reduce_regs = active_tracer("nisa.range_select").accumulators(Engine.vector, on_true_tile)
    return locals()


def _select_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true`` where ``predicate`` is not zero (reversed: is), else ``on_false``; also the maximum."""
    target = arrays(instruction["dst"])
    chosen = in_shape(arrays(instruction["predicate"]), target.shape)
    on_true = in_shape(arrays(instruction["on_true"]), target.shape)
    on_false = column(instruction["on_false"], arrays, target.ndim)
    wanted = not instruction["reverse_pred"]
    store = accumulating_writer(instruction, arrays, instruction["reduce_op"])
    return lambda: store(np.where((chosen() != 0) == wanted, as_float32(on_true()), on_false()))


@declare(
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("predicate", "on_true", "on_false"),
    numbers=frozenset({"on_false"}),
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"on_false", "reduce_res"}),
    partly=frozenset({"on_true", "on_false"}),
    registers="reduce_regs",
    reduces=Reduction(
        commands=(_Command.idle, _Command.reset_reduce, _Command.reduce),
        operator="reduce_op",
        operators=("maximum",),
    ),
    rules=(
        *operands.ELEMENTWISE,
        operands.one_psum_input,
        selected_dtype,
        selecting_dtype,
        reduced_dtype,
    ),
    meaning=_select_reduce,
    cycles=costs.selecting,
    spreads=None,
)
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: float | NkiTensor,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: modes.reduce_cmd = modes.reduce_cmd.idle,
    reduce_op: Operator = _MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Args:
    """``dst = on_true`` where ``predicate`` is not zero, else ``on_false``; also each partition's maximum.

    After ``idle`` the registers read as NaN: the reference says that they may be modified.
    """
    reduce_regs = active_tracer("nisa.select_reduce").accumulators(Engine.vector, on_true)
    return locals()


def affine_values(partitions: int, pattern: Sequence[Sequence[int]], offset: int, channel_multiplier: int) -> Array:
    """(partitions, n) int32: offset + partition * channel_multiplier + the pattern's steps, last dimension fastest."""
    values = np.int64(offset) + np.arange(partitions, dtype=np.int64)[:, None] * int(channel_multiplier)
    for step, count in pattern:
        values = (values[:, :, None] + np.arange(count, dtype=np.int64) * int(step)).reshape(partitions, -1)
    return values.astype(np.int32)  # 32-bit arithmetic: what overflows wraps around


def _values(instruction: Instruction, arrays: Any) -> Callable[[], Array]:
    """The affine values of an instruction; computed at each call only where the offset is a register."""
    dst, offset = instruction["dst"], instruction["offset"]
    dynamic = isinstance(offset, Register)
    pattern, multiplier = instruction["pattern"], instruction["channel_multiplier"]
    values = affine_values(dst.partitions, pattern, 0 if dynamic else offset, multiplier)
    if not dynamic:
        return lambda: values
    wide, cell = values.astype(np.int64), arrays.register(offset)
    return lambda: (wide + cell[0]).astype(np.int32)


def affine_span(
    partitions: int, pattern: Sequence[Sequence[int]], offset: int, channel_multiplier: int
) -> tuple[int, int]:
    """The least and the greatest of ``affine_values``, before they wrap around."""
    ends = [(partitions - 1) * channel_multiplier, *((count - 1) * step for step, count in pattern)]
    return offset + sum(min(0, end) for end in ends), offset + sum(max(0, end) for end in ends)


def _misfit(least: int, most: int, dst: View) -> str | None:
    """The problem if an integer ``dst`` can't hold all integers from ``least`` to ``most``."""
    limits = np.iinfo(np.uint8 if dst.dtype.numpy == np.bool_ else dst.dtype.numpy)
    if (limits.bits >= _WIDTH and limits.min < 0) or (limits.min <= least and most <= limits.max):
        return None
    return (
        f"dst is {dst.dtype}, the values go from {least} to {most}; the engine's result for values that do "
        "not fit is not documented: take a wider dtype"
    )


@rule("iota-fit", "iota's values fit an integer destination", "nki.isa iota, dst: no overflow is documented")
def iota_fit(instruction: Instruction, target: Target) -> str | None:
    dst, offset = instruction["dst"], instruction["offset"]
    if dst.dtype.is_float or isinstance(offset, Register):
        return None
    span = affine_span(dst.partitions, instruction["pattern"], offset, instruction["channel_multiplier"])
    return _misfit(*span, dst)


def _affine_select(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true_tile`` where the affine value compares with 0, else ``on_false_value``."""
    dst, source = instruction["dst"], instruction["on_true_tile"]
    target = arrays(dst)
    values, compare = _values(instruction, arrays), instruction["cmp_op"].binary
    known = None if isinstance(instruction["offset"], Register) else compare(values(), 0).reshape(target.shape)
    take = in_shape(arrays(source), target.shape)

    def select() -> Array:
        mask: Array = compare(values(), 0).reshape(target.shape) if known is None else known
        return mask

    if source.dtype == dst.dtype:
        filled = constant(instruction["on_false_value"], dst.dtype)
        return lambda: np.copyto(target, np.where(select(), take(), filled))
    fill, write = np.float32(instruction["on_false_value"]), writer(dst, target)
    return lambda: write(np.where(select(), as_float32(take()), fill))


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("on_true_tile",),
    numbers=frozenset({"on_false_value"}),
    partly=frozenset({"on_true_tile"}),
    rules=(
        *operands.ELEMENTWISE,
        pattern_form,
        pattern_size,
        pattern_integers,
        affine_comparison,
    ),
    meaning=_affine_select,
    cycles=costs.gpsimd_kernel,
    spreads=None,
)
def affine_select(
    dst: NkiTensor,
    pattern: Pattern,
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Operator = _EQUAL,
    offset: int | Register = 0,
    name: str | None = None,
) -> Args:
    """``dst = on_true_tile`` where the affine value (see ``iota``) compares with 0, else ``on_false_value``."""
    return locals()


def _iota(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = the affine values, cast to its dtype."""
    dst = instruction["dst"]
    target, values = arrays(dst), _values(instruction, arrays)
    if dst.dtype.is_float:
        write = writer(dst, target)
        return lambda: write(values().astype(np.float32))

    if not isinstance(instruction["offset"], Register):
        integers = values().astype(target.dtype).reshape(target.shape)
        return lambda: np.copyto(target, integers)

    def count() -> None:
        counted = values()
        misfit = _misfit(int(counted.min()), int(counted.max()), dst)
        if misfit is not None:
            raise KernelError(f"iota: {misfit}")
        np.copyto(target, counted.reshape(target.shape), casting="unsafe")

    return count


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=(),
    rules=(*access.ENGINE_ACCESS, pattern_form, pattern_size, pattern_integers, iota_fit),
    meaning=_iota,
    cycles=costs.gpsimd_kernel,
    spreads=None,
)
def iota(
    dst: NkiTensor, pattern: Pattern, offset: int | Register = 0, channel_multiplier: int = 0, name: str | None = None
) -> Args:
    """``dst`` = ``offset`` + partition * ``channel_multiplier`` + index * step for each ``[step, num]`` of ``pattern``.

    Values are int32; ``offset`` may be a register. KernelError if an integer dtype of ``dst`` can't hold them:
    the result is not documented.
    """
    return locals()
