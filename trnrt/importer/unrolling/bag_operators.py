"""Bags of rows as plain operators: one reduction for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.rewriting.editing import Array
from trnrt.importer.values import static_shape

# Elements of the matrix of zeros and ones, and of the rows that a maximum goes over: 64 MiB in float32.
_MOST_ELEMENTS = 2**24


@dataclass(frozen=True)
class Bound:
    """Where a bag starts or ends: element ``place`` of ``vector``, or the number ``place`` if there is none."""

    vector: ir.Value | None
    place: int


@dataclass(frozen=True)
class Source:
    """The rows: those of ``table``, or those that ``indices`` look up in it, times ``weights``."""

    table: ir.Value
    indices: ir.Value | None = None
    weights: ir.Value | None = None


@dataclass(frozen=True)
class Bag:
    """The ``mode`` of rows ``start`` to ``end``; ``zero``: 0 where start is end, whatever the mode gives for none.

    ``last``: a mean divides by the rows from ``start`` to there instead of ``end``.
    """

    mode: str
    source: Source
    start: Bound
    end: Bound
    zero: bool = False
    last: int | None = None


def write_bags(writer: Writer, bags: Sequence[Bag]) -> bool:
    """Write the bags in the place of the writer's node; False if they are too large together, or no matrix."""
    source, mode = bags[0].source, bags[0].mode
    table, counted = static_shape(source.table), static_shape(source.indices or source.table)
    if table is None or counted is None or len(table) != 2 or len(counted) != (2 if source.indices is None else 1):
        return False
    count = counted[0]
    if all(bag.start.vector is None and bag.end.vector is None for bag in bags):
        spans = _fixed_spans(bags, count)
        longest = int(np.diff(spans).max())
        if len(bags) * (longest * table[1] if mode == "max" else count) > _MOST_ELEMENTS or longest == 0:
            return False
        value = _write_fixed(writer, bags, spans, count)
    elif len(bags) * count * (table[1] if mode == "max" else 1) > _MOST_ELEMENTS:
        return False
    else:
        value = _write_computed(writer, bags, count)
    writer.finish(value)
    return True


def _rows(writer: Writer, source: Source) -> ir.Value:
    """The rows [N, D]."""
    if source.indices is None:
        return source.table
    rows = writer.apply("Gather", source.table, source.indices, axis=0)
    return rows if source.weights is None else writer.apply("Mul", rows, writer.unsqueeze(source.weights, 1))


def _dtype(source: Source) -> np.dtype[np.generic]:
    return np.dtype((source.table.dtype or ir.DataType.FLOAT).numpy())


# -- bounds that are constant ----------------------------------------------------------------------------


def _fixed_spans(bags: Sequence[Bag], count: int) -> Array:
    """The start and end of each bag, [B, 2]; an empty one has the same. Slice counts negative ones from the end."""
    spans = np.array([(bag.start.place, bag.end.place) for bag in bags], np.int64)
    spans = np.clip(np.where(spans < 0, spans + count, spans), 0, count)
    return np.stack([spans[:, 0], spans.max(axis=1)], axis=1)


def _write_fixed(writer: Writer, bags: Sequence[Bag], spans: Array, count: int) -> ir.Value:
    """Bags of one size reduce a dimension of their own; others, a maximum of repeated rows, or a product."""
    source, mode = bags[0].source, bags[0].mode
    lengths = np.diff(spans)
    longest = int(lengths.max())
    places = np.minimum(spans[:, :1] + np.arange(longest), np.maximum(spans[:, 1:] - 1, 0))
    if mode == "max" or (lengths.min() == longest and not any(bag.last for bag in bags)):
        value = _reduce(writer, mode, _grid(writer, source, places, count))
    else:
        steps = np.arange(count)
        inside = (spans[:, :1] <= steps) & (steps < spans[:, 1:])
        value = writer.apply("MatMul", inside.astype(_dtype(source)), _rows(writer, source))
        if mode == "mean":
            counts = [[b.last - b.start.place] if b.last else count for b, count in zip(bags, lengths, strict=True)]
            value = writer.apply("Div", value, np.maximum(counts, 1).astype(_dtype(source)))
    if mode == "max" and not lengths.all():
        empty = np.array([[0.0 if bag.zero else -np.inf] for bag in bags], _dtype(source))
        value = writer.apply("Where", lengths == 0, empty, value)
    return value


def _grid(writer: Writer, source: Source, places: Array, count: int) -> ir.Value:
    """The rows at places [B, L], as [B, L, D]."""
    in_order = places.size == count and (places.reshape(-1) == np.arange(count)).all()
    if not in_order:
        rows = writer.apply("Gather", _rows(writer, source), places.reshape(-1), axis=0)
        return writer.reshape(rows, *places.shape, -1)
    if source.indices is None:
        return writer.reshape(source.table, *places.shape, -1)
    rows = writer.apply("Gather", source.table, writer.reshape(source.indices, *places.shape), axis=0)
    if source.weights is None:
        return rows
    return writer.apply("Mul", rows, writer.unsqueeze(writer.reshape(source.weights, *places.shape), 2))


def _reduce(writer: Writer, mode: str, value: ir.Value) -> ir.Value:
    """The sums, means or maxima of dimension 1."""
    operator = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}[mode]
    if mode == "sum" or writer.opset >= 18:
        return writer.apply(operator, value, np.array([1], np.int64), keepdims=0)
    return writer.apply(operator, value, axes=[1], keepdims=0)


# -- bounds from an input --------------------------------------------------------------------------------


def _write_computed(writer: Writer, bags: Sequence[Bag], count: int) -> ir.Value:
    """Which rows are in a bag is a matrix [B, N], computed from the bounds."""
    source, mode = bags[0].source, bags[0].mode
    bounds = [_join_bounds(writer, [getattr(bag, side) for bag in bags]) for side in ("start", "end")]
    starts, ends = (_from_front(writer, bound, count) for bound in bounds)
    steps = np.arange(count, dtype=np.int64)[None]
    begun, open_still = writer.apply("LessOrEqual", starts, steps), writer.apply("Greater", ends, steps)
    inside = writer.apply("And", begun, open_still)
    rows = _rows(writer, source)
    if mode == "max":
        lowest = np.array(-np.inf, _dtype(source))
        all_rows = writer.apply("Where", writer.unsqueeze(inside, 2), writer.unsqueeze(rows, 0), lowest)
        value = _reduce(writer, mode, all_rows)
        if any(bag.zero for bag in bags):
            value = writer.apply("Where", writer.apply("Equal", *bounds), np.zeros((), _dtype(source)), value)
        return value
    ones = writer.apply("Cast", inside, to=ir.DataType.from_numpy(_dtype(source)))
    value = writer.apply("MatMul", ones, rows)
    if mode == "mean":
        number = writer.apply("ReduceSum", ones, np.array([1], np.int64), keepdims=1)
        if any(bag.last for bag in bags):
            lasts = np.array([[bag.last or 0] for bag in bags], np.int64)
            rest = writer.apply("Cast", writer.apply("Sub", lasts, bounds[0]), to=ones.dtype)
            number = writer.apply("Where", lasts > 0, rest, number)
        value = writer.apply("Div", value, writer.apply("Max", number, np.ones((), _dtype(source))))
    return value


def _join_bounds(writer: Writer, bounds: Sequence[Bound]) -> ir.Value:
    """The bounds as a column [B, 1]: stretches of vectors and of constants, one after the other."""
    parts = []
    for (vector, _), run in groupby(
        enumerate(bounds), key=lambda pair: (pair[1].vector, pair[0] - pair[1].place if pair[1].vector else 0)
    ):
        places = [bound.place for _, bound in run]
        if vector is None:
            parts.append(writer.constant(np.array(places, np.int64), "bounds"))
        elif places == list(range((static_shape(vector) or (0,))[0])):
            parts.append(vector)
        else:
            cut = [np.array([at], np.int64) for at in (places[0], places[-1] + 1, 0)]
            parts.append(writer.apply("Slice", vector, *cut))
    return writer.unsqueeze(parts[0] if len(parts) == 1 else writer.apply("Concat", *parts, axis=0), 1)


def _from_front(writer: Writer, bounds: ir.Value, count: int) -> ir.Value:
    """Bounds as Slice takes them: a negative one counts from the end."""
    moved = writer.apply("Add", bounds, np.array(count, np.int64))
    return writer.apply("Where", writer.apply("Less", bounds, np.array(0, np.int64)), moved, bounds)
