"""EmbeddingBag, as PyTorch's exporters write it: sums, means or maxima of consecutive rows, one bag after the other.

The loop over the bags is unrolled before, so here is a Concat of one reduced Slice for each bag. All bags together are
one reduction if their bounds are constant, or a product with a matrix of zeros and ones if an input has the offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import integers, is_computed, maker
from trnrt.importer.unrolling.bag_operators import Bag, Bound, Source, write_bags
from trnrt.importer.values import constant_array, input_at, is_used, release_bodies, static_shape

_MODES = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}


def merge_bags(writer: Writer) -> list[str]:
    """Replace each Concat of bags of the same rows."""
    notes = []
    for node in list(writer.model.graph):
        if node.op_type != "Concat" or node.domain or node.attributes.get_int("axis", 0) != 0 or writer.opset < 13:
            continue
        rows = [value for value in node.inputs if value is not None]
        bags = _read_bags(rows)
        if bags is None or static_shape(bags[0].source.table) is None:
            continue
        note, count = node_text(node), len(bags)
        writer.node = node
        if write_bags(writer, bags):
            _drop_choices(rows)
            notes.append(f"{note} joins {count} bags of rows: written as one reduction")
    return notes


def _drop_choices(values: Sequence[ir.Value]) -> None:
    """Remove each If that made a row which nothing reads any more."""
    for value in values:
        node = maker(value, "If")
        if node is not None and node.graph is not None and not is_used(value):
            node.graph.remove(node, safe=True)
            release_bodies(node)


def _read_bags(values: Sequence[ir.Value]) -> list[Bag] | None:
    """The bags that are joined; None if there are none, or something else. A row of zeros is a bag of no rows."""
    found = [None if _is_zeros(value) else _read_row(value) for value in values]
    known = [bag for bag in found if bag is not None]
    if not known or any(bag is None and not _is_zeros(v) for bag, v in zip(found, values, strict=True)):
        return None
    first = known[0]
    if {(bag.mode, bag.source) for bag in known} != {(first.mode, first.source)}:
        return None
    empty = Bag(first.mode, first.source, Bound(None, 0), Bound(None, 0), zero=True)
    return [bag or empty for bag in found]


def _is_zeros(value: ir.Value) -> bool:
    array = constant_array(value)
    return array is not None and array.ndim > 1 and array.shape[0] == 1 and not array.any()


def _read_row(value: ir.Value) -> Bag | None:
    """The bag that a tensor of one row is."""
    if (node := maker(value, "Unsqueeze")) is not None:
        return _read_reduction(node.inputs[0], keeps=False) if integers(node, "axes", 1) == [0] else None
    if (node := maker(value, "If")) is not None:
        return _read_choice(node)
    return _read_reduction(value, keeps=True)


def _read_choice(node: ir.Node) -> Bag | None:
    """An If that gives zeros for a bag without rows."""
    compared = maker(node.inputs[0], "Equal")
    then, other = (node.attributes[name].as_graph().outputs[0] for name in ("then_branch", "else_branch"))
    bag = _read_reduction(other, keeps=True)
    if compared is None or bag is None or not _is_zeros(then):
        return None
    if [_read_bound(value) for value in compared.inputs] != [bag.start, bag.end]:
        return None
    return replace(bag, zero=True)


def _read_reduction(value: ir.Value | None, *, keeps: bool) -> Bag | None:
    if (node := maker(value, "If")) is not None:
        return _read_last_mean(node)
    if (node := maker(value, "Div")) is not None:
        return _read_quotient(node, keeps=keeps)
    node = maker(value, *_MODES)
    if node is None or node.attributes.get_int("keepdims", 1) != keeps or integers(node, "axes", 1) != [0]:
        return None
    return _read_rows(node.inputs[0], _MODES[node.op_type])


def _read_last_mean(node: ir.Node) -> Bag | None:
    """The last mean in PyTorch's function: if the rows are more than 0, their sum divided by their number."""
    compared = maker(node.inputs[0], "Greater")
    then, other = (node.attributes[name].as_graph().outputs[0] for name in ("then_branch", "else_branch"))
    mean, total = _read_reduction(then, keeps=True), _read_reduction(_skip_copies(other), keeps=True)
    if compared is None or mean is None or total is None or constant_array(compared.inputs[1]) != 0:
        return None
    alike = (mean.source, mean.start, mean.end) == (total.source, total.start, total.end)
    counted = _read_count(compared.inputs[0]) == (mean.start, mean.end if mean.last is None else Bound(None, mean.last))
    return mean if alike and counted and (mean.mode, total.mode) == ("mean", "sum") else None


def _skip_copies(value: ir.Value | None) -> ir.Value | None:
    while (node := maker(value, "Identity")) is not None:
        value = node.inputs[0]
    return value


def _read_quotient(node: ir.Node, *, keeps: bool) -> Bag | None:
    """A sum divided by the number of its rows."""
    bag = _read_reduction(_skip_copies(node.inputs[0]), keeps=keeps)
    if bag is None or bag.mode != "sum":
        return None
    divisor = constant_array(node.inputs[1])
    if divisor is not None:
        if bag.start.vector is not None or divisor.size != 1 or not float(divisor.reshape(-1)[0]).is_integer():
            return None
        end = Bound(None, bag.start.place + int(divisor.reshape(-1)[0]))
    else:
        cast = maker(node.inputs[1], "Cast")
        found = None if cast is None else _read_count(cast.inputs[0])
        if found is None or found[0] != bag.start:
            return None
        end = found[1]
    if end == bag.end:
        return replace(bag, mode="mean")
    return None if end.vector is not None else replace(bag, mode="mean", last=end.place)


def _read_count(value: ir.Value | None) -> tuple[Bound, Bound] | None:
    """The bounds whose difference a value is."""
    node = maker(value, "Sub")
    if node is None:
        return None
    end, start = map(_read_bound, node.inputs)
    return None if start is None or end is None else (start, end)


def _read_rows(value: ir.Value | None, mode: str) -> Bag | None:
    """The rows that a bag reduces: a Slice of rows, or the rows that a Slice of indices looks up."""
    weights, product = None, maker(value, "Mul")
    if product is not None and (raised := maker(product.inputs[1], "Unsqueeze")) is not None:
        if integers(raised, "axes", 1) != [1]:
            return None
        value, weights = product.inputs[0], raised.inputs[0]
    if (lookup := maker(value, "Gather")) is not None and lookup.attributes.get_int("axis", 0) == 0:
        found, table = _read_slice(lookup.inputs[1]), lookup.inputs[0]
        if found is None or table is None:
            return None
        indices, start, end = found
        if weights is not None:
            weighed = _read_slice(weights)
            if weighed is None or weighed[1:] != (start, end):
                return None
            weights = weighed[0]
        return Bag(mode, Source(table, indices, weights), start, end)
    found = _read_slice(value) if weights is None else None
    return None if found is None else Bag(mode, Source(found[0]), *found[1:])


def _read_slice(value: ir.Value | None) -> tuple[ir.Value, Bound, Bound] | None:
    """The value that is sliced along its first dimension, with the bounds."""
    node = maker(value, "Slice")
    if node is None or node.inputs[0] is None or is_computed(node, 3) or is_computed(node, 4):
        return None
    if (integers(node, "axes", 3) or [0]) != [0] or (integers(node, "steps", 4) or [1]) != [1]:
        return None
    start, end = _read_bound(node.inputs[1]), _read_bound(node.inputs[2])
    return None if start is None or end is None else (node.inputs[0], start, end)


def _read_bound(value: ir.Value | None) -> Bound | None:
    """A number, or one element of a vector: by Slice, or by Gather with or without Unsqueeze."""
    array = constant_array(value)
    if array is not None:
        return Bound(None, int(array.reshape(-1)[0])) if array.size == 1 else None
    if (raised := maker(value, "Unsqueeze")) is not None:
        value = raised.inputs[0]
    if (gather := maker(value, "Gather")) is not None:
        place = constant_array(gather.inputs[1])
        return None if place is None or place.size != 1 else _element(gather.inputs[0], int(place.reshape(-1)[0]))
    node = maker(value, "Slice")
    first = constant_array(input_at(node, 1)) if node is not None else None
    last = constant_array(input_at(node, 2)) if node is not None else None
    if node is None or first is None or last is None or first.size != 1 or (last != first + 1).any():
        return None
    return _element(node.inputs[0], int(first.reshape(-1)[0]))


def _element(vector: ir.Value | None, place: int) -> Bound | None:
    """Element ``place`` of a vector, which may be joined from vectors and constants."""
    shape = static_shape(vector)
    if vector is None or shape is None or len(shape) != 1 or not 0 <= place < shape[0]:
        return None
    array = constant_array(vector)
    if array is not None:
        return Bound(None, int(array[place]))
    if (node := maker(vector, "Concat")) is not None:
        for part in node.inputs:
            size = (static_shape(part) or (0,))[0]
            if place < size:
                return _element(part, place)
            place -= size
        return None
    if (node := maker(vector, "Slice")) is not None and (found := _read_slice(vector)) is not None:
        source, start, _ = found
        if start.vector is None and start.place >= 0:
            return _element(source, start.place + place)
    return Bound(vector, place)
