"""Rules of range_select, select_reduce, affine_select, iota and nc_match_replace8."""

from __future__ import annotations

from math import prod
from numbers import Integral

import numpy as np

from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction, Register, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

FLOAT32_MIN = float(np.finfo(np.float32).min)
_EXACT_INDICES = 1 << 24  # float32 counts to here
_RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_PREDICATES = ("int8", "uint8", "int16", "uint16")
_NOT_SELECTED = ("tfloat32", "int32", "uint32")
_PATTERN_DIMENSIONS = 4
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_MATCHED, _SEARCHED_MAX, _VALUES_DIMENSIONS = 8, 16384, 3


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


@rule("range-dtype", "range_select selects from floats", "nki.isa range_select, Constraints")
def range_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["on_true_tile"].dtype
    return None if dtype.is_float else f"on_true_tile is {dtype}; it must be a float dtype"


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


@rule("selected-dtype", "select_reduce selects from any dtype but tfloat32, int32 and uint32", "nki.isa select_reduce")
def selected_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["on_true"].dtype
    return f"on_true is {dtype}; it can't be" if dtype.name in _NOT_SELECTED else None


@rule("selecting-dtype", "select_reduce's predicate is an integer of 8 or 16 bits", "nki.isa select_reduce")
def selecting_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["predicate"].dtype
    return None if dtype.name in _PREDICATES else f"predicate is {dtype}; it must be {' or '.join(_PREDICATES)}"


@rule("reduced-dtype", "select_reduce's reduction is a float", "nki.isa select_reduce, reduce_res")
def reduced_dtype(instruction: Instruction, target: Target) -> str | None:
    result = instruction["reduce_res"]
    if not isinstance(result, View) or result.dtype.is_float:
        return None
    return f"reduce_res is {result.dtype}; it must be a float dtype"


@rule(
    "pattern-form",
    "a pattern is a list of up to 4 [step, num], with integers, num at least 1",
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


@rule("pattern-size", "a pattern has as many values as the destination a partition", "nki.isa iota, affine_select")
def pattern_size(instruction: Instruction, target: Target) -> str | None:
    count, dst = prod(num for _, num in instruction["pattern"]), instruction["dst"]
    if count == dst.free_size:
        return None
    return f"pattern {instruction['pattern']!r} has {count} values, dst {dst.free_size} elements; they must be equal"


@rule(
    "pattern-integers",
    "a pattern's channel_multiplier is an int32, its offset one or a register",
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


@rule(
    "match-size",
    "nc_match_replace8 looks for 8 values in up to 16,384 elements",
    "nki.isa nc_match_replace8; SDK 2.26's text of it",
)
def match_size(instruction: Instruction, target: Target) -> str | None:
    for arg in ("vals", "dst_idx"):
        view = instruction[arg]
        if view is not None and view.free_size != _MATCHED:
            return f"{arg} holds {view.free_size} elements a partition; it must hold {_MATCHED}"
    if instruction["vals"].ndim > _VALUES_DIMENSIONS:
        return f"vals has {instruction['vals'].ndim} dimensions; the limit is {_VALUES_DIMENSIONS}"
    data, dst = instruction["data"], instruction["dst"]
    if data.free_size > _SEARCHED_MAX:
        return f"data holds {data.free_size} elements a partition; the limit is {_SEARCHED_MAX}"
    if data.free_size != dst.free_size:
        return f"data holds {data.free_size} elements a partition, dst {dst.free_size}; they must be equal"
    return None


@rule("match-dtype", "the indices of matches are uint16 or uint32", "nki.isa nc_find_index8, its sibling")
def match_dtype(instruction: Instruction, target: Target) -> str | None:
    view = instruction["dst_idx"]
    if view is None or view.dtype.name in ("uint16", "uint32"):
        return None
    return f"dst_idx is {view.dtype}; indices are uint16 or uint32"
