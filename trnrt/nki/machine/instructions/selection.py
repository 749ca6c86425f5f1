"""Selections: by ranges, predicates and affine patterns, and the vector engine's match and replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.accumulators import accumulating_writer
from trnrt.nki.machine.binding import Arrays, as_float32, column, constant, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation, Register, View
from trnrt.nki.machine.rules import access, accumulating, operands, selection

_WIDTH = 32  # bits in which the GpSimd engine counts


def _range_select(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true_tile`` where the index passes both comparisons, else the least float32; its maximum."""
    source = instruction["on_true_tile"]
    take = in_shape(arrays(source), (source.partitions, source.free_size))
    indices = np.float32(instruction["range_start"]) + np.arange(source.free_size, dtype=np.float32)
    first, second = instruction["comp_op0"].binary, instruction["comp_op1"].binary
    bound0, bound1 = column(instruction["bound0"], arrays, 2), column(instruction["bound1"], arrays, 2)
    fill = np.float32(selection.FLOAT32_MIN)
    store = accumulating_writer(instruction, arrays, instruction["reduce_op"])
    return lambda: store(np.where(first(indices, bound0()) & second(indices, bound1()), as_float32(take()), fill))


RANGE_SELECT = Operation(
    name="range_select",
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("on_true_tile", "bound0", "bound1"),
    rules=(
        accumulating.from_v3,
        *operands.ELEMENTWISE,
        operands.column_operands,
        accumulating.float32_columns,
        accumulating.reduce_command,
        accumulating.accumulated_operator,
        selection.range_comparison,
        selection.range_dtype,
        selection.range_fill,
        selection.range_indices,
        operands.other_start_partition,
    ),
    bind=_range_select,
    partly=frozenset({"on_true_tile"}),
    cost=costs.streaming,
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"bound0", "bound1", "reduce_res"}),
    registers="reduce_regs",
)


def _select_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true`` where ``predicate`` is not zero (reversed: where it is), else ``on_false``; its maximum."""
    target = arrays(instruction["dst"])
    chosen = in_shape(arrays(instruction["predicate"]), target.shape)
    on_true = in_shape(arrays(instruction["on_true"]), target.shape)
    on_false = column(instruction["on_false"], arrays, target.ndim)
    wanted = not instruction["reverse_pred"]
    store = accumulating_writer(instruction, arrays, instruction["reduce_op"])
    return lambda: store(np.where((chosen() != 0) == wanted, as_float32(on_true()), on_false()))


SELECT_REDUCE = Operation(
    name="select_reduce",
    engines=(Engine.vector,),
    writes=("dst", "reduce_res"),
    reads=("predicate", "on_true", "on_false"),
    rules=(
        *operands.ELEMENTWISE,
        operands.column_operands,
        operands.one_psum_input,
        accumulating.reduce_command,
        accumulating.accumulated_operator,
        selection.selected_dtype,
        selection.selecting_dtype,
        selection.reduced_dtype,
        operands.other_start_partition,
    ),
    bind=_select_reduce,
    partly=frozenset({"on_true", "on_false"}),
    cost=costs.selecting,
    numbers=frozenset({"on_false"}),
    optional=frozenset({"reduce_res"}),
    columns=frozenset({"on_false", "reduce_res"}),
    registers="reduce_regs",
)


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


def check_fit(least: int, most: int, dst: View) -> None:
    """KernelError where integers from ``least`` to ``most`` are more than an integer ``dst`` holds."""
    limits = np.iinfo(np.uint8 if dst.dtype.numpy == np.bool_ else dst.dtype.numpy)
    if (limits.bits < _WIDTH or limits.min == 0) and (least < limits.min or most > limits.max):
        raise KernelError(
            f"iota: dst is {dst.dtype}, the values go from {least} to {most}; what the engine writes where they do "
            "not fit is not documented: take a wider dtype"
        )


def _affine_select(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = on_true_tile`` where the affine value compares with 0, else ``on_false_value``."""
    dst, source = instruction["dst"], instruction["on_true_tile"]
    target = arrays(dst)
    values, compare = _values(instruction, arrays), instruction["cmp_op"].binary
    known = None if isinstance(instruction["offset"], Register) else compare(values(), 0).reshape(target.shape)
    take = in_shape(arrays(source), target.shape)

    def chosen() -> Array:
        mask: Array = compare(values(), 0).reshape(target.shape) if known is None else known
        return mask

    if source.dtype == dst.dtype:
        filled = constant(instruction["on_false_value"], dst.dtype)
        return lambda: np.copyto(target, np.where(chosen(), take(), filled))
    fill, write = np.float32(instruction["on_false_value"]), writer(dst, target)
    return lambda: write(np.where(chosen(), as_float32(take()), fill))


AFFINE_SELECT = Operation(
    name="affine_select",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("on_true_tile",),
    rules=(
        *operands.ELEMENTWISE,
        selection.pattern_form,
        selection.pattern_size,
        selection.pattern_integers,
        selection.affine_comparison,
    ),
    bind=_affine_select,
    partly=frozenset({"on_true_tile"}),
    cost=costs.gpsimd_kernel,
    numbers=frozenset({"on_false_value"}),
)


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
        check_fit(int(counted.min()), int(counted.max()), dst)
        np.copyto(target, counted.reshape(target.shape), casting="unsafe")

    return count


IOTA = Operation(
    name="iota",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=(),
    rules=(
        *access.ENGINE_ACCESS,
        selection.pattern_form,
        selection.pattern_size,
        selection.pattern_integers,
    ),
    bind=_iota,
    cost=costs.gpsimd_kernel,
)


def match_eight(rows: Array, values: Array) -> tuple[Array, Array]:
    """(P, N), (P, 8) -> which elements are matched, (P, N), and where each value was found, (P, 8), -1 if nowhere.

    The last value goes first, each takes the first element equal to it that no value has taken: of equal values the
    last one gets the first place.
    """
    taken = np.zeros(rows.shape, bool)
    places = np.full(values.shape, -1, np.int64)
    partitions = np.arange(rows.shape[0])
    for slot in reversed(range(values.shape[1])):
        hits = (rows == values[:, slot, None]) & ~taken
        at = hits.argmax(axis=1)
        found = hits[partitions, at]
        taken[partitions[found], at[found]] = True
        places[found, slot] = at[found]
    return taken, places


def _match_replace8(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data`` with the first element equal to each of ``vals`` replaced; ``dst_idx`` gets their places."""
    dst, data, vals, indices = (instruction[arg] for arg in ("dst", "data", "vals", "dst_idx"))
    rows = in_shape(arrays(data), (data.partitions, data.free_size))
    values = in_shape(arrays(vals), (vals.partitions, vals.free_size))
    replacement = np.float32(instruction["imm"])
    write = writer(dst, arrays(dst))
    target = None if indices is None else arrays(indices)

    def replace() -> None:
        given = as_float32(rows())
        taken, places = match_eight(given, as_float32(values()))
        write(np.where(taken, replacement, given))
        if target is not None:
            target[...] = places.astype(target.dtype).reshape(target.shape)  # -1 is all ones

    return replace


NC_MATCH_REPLACE8 = Operation(
    name="nc_match_replace8",
    engines=(Engine.vector,),
    writes=("dst", "dst_idx"),
    reads=("data", "vals"),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        selection.match_size,
        selection.match_dtype,
        operands.other_start_partition,
    ),
    bind=_match_replace8,
    cost=costs.streaming,
    numbers=frozenset({"imm"}),
    optional=frozenset({"dst_idx"}),
)
