"""Quantised parts of a float graph: a value rounded to bytes and back, and weights that are bytes."""

from __future__ import annotations

import numpy as np

from graphs.draft import Draft
from graphs.movement import has_rank
from graphs.noise import MOVES, SMOOTH, STEP, Dropped

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def need_bytes(draft: Draft) -> None:
    draft.since(10)
    if draft.float_type != "float32":
        raise Dropped("scales of float32 are drawn")


def draw_zero(draft: Draft, dtype: str, count: int) -> str:
    """Zero points; those of int8 are mostly 0."""
    low, high = LIMITS[dtype]
    numbers = [0 if dtype == "int8" and draft.chance(0.7) else draft.between(low // 2, high // 2) for _ in range(count)]
    return draft.fixed(numbers if count > 1 else numbers[0], dtype)


def draw_round_trip(draft: Draft) -> None:
    """QuantizeLinear and DequantizeLinear, at times with a move or a maximum between them."""
    need_bytes(draft)
    source = draft.pick(has_rank(1, 5))
    shape, dtype = draft.shape(source), draft.choice(["int8", "uint8"])
    largest = float(np.abs(draft.array(source)).max())
    axis = draft.between(1, len(shape) - 1) if draft.opset >= 13 and len(shape) > 1 and draft.chance(0.3) else None
    count = 1 if axis is None else shape[axis]
    scales = np.array([max(largest, 0.1) / draft.choice([40, 100, 127]) for _ in range(count)], np.float32)
    parts = [draft.fixed(scales if axis is not None else scales[0], "float32"), draw_zero(draft, dtype, count)]
    if axis is not None and count == 1:
        parts[1] = draft.fixed([0], dtype)
    (number,) = draft.add("QuantizeLinear", [source, *parts], STEP, axis=axis)
    if axis is None and draft.chance(0.4):
        number = draw_move(draft, number)
    draft.add("DequantizeLinear", [number, *parts], SMOOTH, axis=axis)


def draw_move(draft: Draft, number: str) -> str:
    """Bytes that are moved, or the largest ones of windows."""
    shape = draft.shape(number)
    op = draft.choice(["Transpose", "Reshape", "MaxPool", "Slice"])
    if op == "Reshape":
        return draft.move(op, [number, draft.fixed([0, -1])])
    if op == "MaxPool" and len(shape) == 4 and draft.opset >= 12:
        return draft.move(op, [number], kernel_shape=[draft.between(1, min(size, 2)) for size in shape[2:]])
    if op == "Slice" and len(shape) > 1:
        return draft.move(op, [number, *(draft.fixed([k]) for k in (0, max(1, shape[-1] - 1), len(shape) - 1))])
    if draft.batched(number):
        return number
    return draft.move("Transpose", [number])


def draw_byte_weights(draft: Draft) -> None:
    """A product with weights that are bytes, with a scale for all or for each column."""
    need_bytes(draft)
    source = draft.pick(has_rank(2, 4))
    inner, features, dtype = draft.shape(source)[-1], draft.size(9), draft.choice(["int8", "uint8"])
    low, high = LIMITS[dtype]
    columns = draft.opset >= 13 and features > 1 and draft.chance(0.5)
    count = features if columns else 1
    scales = np.array([draft.choice([0.01, 0.02, 1 / 64]) for _ in range(count)], np.float32)
    numbers = draft.fixed(draft.generator.integers(low, high + 1, (inner, features)), dtype)
    draft.values[numbers] = draft.rounding.given(draft.constants[numbers])
    parts = [draft.fixed(scales if columns else scales[0], "float32"), draw_zero(draft, dtype, count)]
    (weights,) = draft.add("DequantizeLinear", [numbers, *parts], axis=1 if columns else None)
    draft.add("MatMul", [source, weights])


def draw_dynamic(draft: Draft) -> None:
    """A value that is quantised by its own range, and back again."""
    need_bytes(draft)
    draft.since(11)
    source = draft.pick(has_rank(1, 5))
    if draft.batched(source):
        raise Dropped("the range is of all rows")
    parts = draft.add("DynamicQuantizeLinear", [source], SMOOTH, outputs=3)
    draft.add("DequantizeLinear", parts, MOVES if draft.values[parts[1]].exact else SMOOTH)
