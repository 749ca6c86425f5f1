"""Integers of inputs: arithmetic, comparisons, look-ups by them, and the columns of a OneHot."""

from __future__ import annotations

import numpy as np

from graphs.draft import Draft, type_of
from graphs.noise import MOVES, Dropped


def given_integers(draft: Draft) -> str:
    """An input of integers: one that is there, or a new one of an input's shape."""
    there = [x.name for x in draft.inputs if x.kind in ("index", "integer") and x.dtype in ("int32", "int64")]
    if there and draft.chance(0.7):
        return str(draft.choice(there))
    if len(draft.inputs) > 3:
        raise Dropped("enough inputs")
    return draft.input(draft.choice(draft.inputs).shape, draft.choice(["int32", "int64"]), "index")


def as_float(draft: Draft, name: str) -> None:
    draft.add("Cast", [name], MOVES, to=type_of(draft.float_type))


def draw_integer_arithmetic(draft: Draft) -> None:
    """A few operations on integers, then a float or a truth of them."""
    draft.since(13)
    source = given_integers(draft)
    dtype = str(draft.array(source).dtype)
    value = source
    for _ in range(draft.between(1, 3)):
        op = draft.choice(["Add", "Sub", "Mul", "Neg", "Abs", "Max", "Div", "Mod", "CumSum", "ReduceSum", "Trilu"])
        rank = draft.array(value).ndim
        if op in ("Neg", "Abs"):
            (value,) = draft.add(op, [value], MOVES)
        elif op == "Trilu":
            draft.since(14)
            if rank > 1 and not (rank == 2 and draft.opened):
                (value,) = draft.add(op, [value], MOVES, upper=draft.between(0, 1))
        elif op in ("CumSum", "ReduceSum"):
            if rank > 1:
                axis = draft.between(1, rank - 1)
                (value,) = draft.add(op, [value, draft.fixed([axis] if op == "ReduceSum" else axis)], MOVES)
        else:
            number = draft.choice([1, 2, 3, -2])
            other = source if draft.chance(0.3) and op not in ("Div", "Mod") else draft.fixed(number, dtype)
            (value,) = draft.add(op, [value, other], MOVES)
    if draft.chance(0.5):
        op = draft.choice(["Equal", "Greater", "Less"])
        draft.add(op, [value, draft.fixed(draft.between(-2, 3), dtype)], MOVES)
    else:
        as_float(draft, value)


def draw_one_hot(draft: Draft) -> None:
    draft.since(11)
    source = given_integers(draft)
    rank = draft.array(source).ndim
    if rank > 4 or str(draft.array(source).dtype) != "int64" or draft.float_type != "float32":
        raise Dropped("a type that onnxruntime does not have")
    values = draft.fixed([draft.choice([0.0, -0.5]), draft.choice([1.0, 2.5])], "float32")
    axis = draft.choice([None, -1, *range(1, rank + 1)])
    draft.add("OneHot", [source, draft.fixed(draft.between(1, 6)), values], MOVES, axis=axis)


def draw_elements(draft: Draft) -> None:
    """GatherElements by an input or by constants."""
    draft.since(11)
    source = draft.pick(lambda array: array.ndim > 1)
    shape = draft.shape(source)
    axis = draft.between(1, len(shape) - 1)
    fits = [
        x.name
        for x in draft.inputs
        if x.kind == "index"
        and draft.shape(x.name) == shape
        and shape[axis] >= 3
        and str(x.dtype) in ("int32", "int64")
    ]
    if fits and draft.chance(0.7):
        draft.move("GatherElements", [source, draft.choice(fits)], axis=axis)
        return
    if draft.batched(source):
        raise Dropped("the batch stays")
    grid = tuple(draft.between(1, size + 2) if d == axis else size for d, size in enumerate(shape))
    indices = draft.generator.integers(-shape[axis], shape[axis], grid)
    draft.move("GatherElements", [source, draft.fixed(indices)], axis=axis)


def draw_searched(draft: Draft) -> None:
    """Elements, rows of a table, or whole rows of a value, by the indices of a search or what is computed of them."""
    draft.since(13)
    source = draft.pick(lambda array: array.ndim > 1)
    shape = draft.shape(source)
    axis = draft.between(1, len(shape) - 1)
    if len(shape) == 3 and axis == 1 and draft.chance(0.6):
        _draw_best_rows(draft, source)
        return
    index = _draw_search(draft, source, axis, draft.between(1, shape[axis]))
    for _ in range(draft.between(0, 2)):
        op = draft.choice(["Div", "Mod", "Sub"])
        number = shape[axis] if op == "Sub" else draft.between(1, shape[axis])
        (index,) = draft.add(op, [index, draft.fixed(number)], MOVES)
        if op == "Sub":  # counted from the end
            break
    if draft.chance(0.5):
        draft.move("GatherElements", [source, index], axis=axis)
    else:
        draft.move("Gather", [draft.weight(draft.numbers([shape[axis], draft.between(1, 4)])), index])


def _draw_search(draft: Draft, source: str, axis: int, count: int) -> str:
    if draft.chance(0.4):
        return draft.add(draft.choice(["ArgMax", "ArgMin"]), [source], MOVES, axis=axis, keepdims=1)[0]
    largest = draft.choice([None, 0, 1])
    return draft.add("TopK", [source, draft.fixed([count])], MOVES, outputs=2, axis=axis, largest=largest)[1]


def _draw_best_rows(draft: Draft, source: str) -> None:
    """The rows (N, R, C) with the largest elements."""
    draft.since(18)
    _, rows, columns = draft.shape(source)
    (best,) = draft.add("ReduceMax", [source, draft.fixed([-1])], MOVES, keepdims=0)
    index = _draw_search(draft, best, 1, draft.between(1, rows))
    (column,) = draft.add("Unsqueeze", [index, draft.fixed([2])], MOVES)
    (wide,) = draft.add("Expand", [column, draft.fixed([1, 1, columns])], MOVES)
    draft.move("GatherElements", [source, wide], axis=1)


def draw_parts(draft: Draft) -> None:
    """GatherND of a table by an input, or of a value by constants."""
    draft.since(12)
    source = draft.pick(lambda array: array.ndim > 0)
    shape = draft.shape(source)
    if draft.batched(source):
        raise Dropped("the batch stays")
    depth = draft.between(1, len(shape))
    grid = draft.choice([(1,), (3,), (2, 2)])
    indices = np.stack([draft.generator.integers(-size, size, grid) for size in shape[:depth]], -1)
    draft.move("GatherND", [source, draft.fixed(indices)])


def draw_cumulated(draft: Draft) -> None:
    """CumSum of floats, along any axis but the batch's."""
    draft.since(11)
    source = draft.pick(lambda array: array.ndim > 0)
    rank = len(draft.shape(source))
    axis = draft.between(1 if draft.batched(source) and rank > 1 else 0, rank - 1)
    attributes = {name: draft.choice([None, 1]) for name in ("exclusive", "reverse")}
    draft.add("CumSum", [source, draft.fixed(axis)], **attributes)


def draw_triangle(draft: Draft) -> None:
    draft.since(14)
    source = draft.pick(lambda array: array.ndim > 1)
    if draft.batched(source) and len(draft.shape(source)) == 2:
        raise Dropped("the batch stays")
    draft.move("Trilu", [source, draft.fixed(draft.between(-3, 3))], upper=draft.choice([None, 0]))
