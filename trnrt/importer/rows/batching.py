"""Are the rows of a batch independent? Then a batch may be padded, or be one of several requests put together.

The record of each operator says what it does to the batch; here that is followed through a graph, from node to node. A
graph is bound to one number of rows, and much may hold for that number only: a constant can be as long as the batch, or
be computed from its length. So an open batch is followed at several, and what is done with a row must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.importer.naming import node_text
from trnrt.importer.rows.batch import Batch, Mixes, is_same_for_rows, ranges
from trnrt.importer.values import constant_array, named_outputs, static_shape
from trnrt.operators.record import NotApplicable, record_of

# From these a graph may learn how many rows there are, and do something else from some number on. Without them, it does
# the same for any number if it does for two.
_COUNTING = frozenset({"Shape", "Size"})
# Without axes it takes away the dimension of the batch where that is 1.
_OF_ONE = _COUNTING | {"Squeeze"}
# A shape is their second input; what they give says it all.
_SHAPED = frozenset({"Reshape", "Expand"})


@dataclass(frozen=True, eq=False)
class _Followed:
    """A graph bound to a number of ``rows``, and where the batch lies in the values that depend on it."""

    graph: ir.Graph
    rows: int
    batches: dict[ir.Value, Batch]


def mixing(graph: ir.Graph, inputs: Iterable[str], rows: int) -> str | None:
    """Why the rows of ``inputs`` may not be independent, or an output may not hold one for each; None if all is well.

    ``graph`` is static, with ``rows`` (2 or more) in dimension 0 of the inputs named. What holds for this number of
    rows need not hold for another: see ``mixing_at_any``.
    """
    try:
        _follow(graph, inputs, rows)
    except Mixes as reason:
        return str(reason)
    return None


def mixing_at_any(
    model: ir.Graph, bind: Callable[[int], ir.Graph], inputs: Iterable[str], most: int, *, fixed: bool = False
) -> str | None:
    """``mixing`` for any number of rows from 1 to ``most``; or for ``most`` rows alone, where that is ``fixed``.

    ``model`` is the graph as read, and ``bind`` gives that for a number of rows. Two of these are looked at: a 2 that
    stands in the model, as in a Reshape to [2, -1], is not the batch. Where the graph asks how many rows there are, it
    is looked at with ``most`` rows, too, and at what it gives for one.
    """
    inputs, operators = list(inputs), {node.op_type for node in model.all_nodes()}
    counts = [most] if fixed else [2, 3, max(4, most)] if operators & _COUNTING else [2, 3]
    first: _Followed | None = None
    for rows in counts:
        try:
            followed = _follow(bind(rows), inputs, rows)
            first = first or followed
            _compare(first, followed)
        except InputError:
            # What the file calls a batch may be a length that an operator counts on, such as Split's.
            return f"the model does not take {rows} rows"
        except Mixes as reason:
            return str(reason)
    assert first is not None
    return _one_row_problem(first, bind) if operators & _OF_ONE and not fixed else None


def _one_row_problem(first: _Followed, bind: Callable[[int], ir.Graph]) -> str | None:
    """Why the outputs for one row are not those of one of several."""
    try:
        graph = bind(1)
    except InputError:
        return "the model does not take 1 row"
    for value, of_several in zip(graph.outputs, first.graph.outputs, strict=True):
        shape = static_shape(of_several)
        if shape is not None and static_shape(value) != (1, *shape[1:]):
            return f"output {value.name!r} has the shape {static_shape(value)} for 1 row, and {shape} for {first.rows}"
    return None


def _follow(graph: ir.Graph, inputs: Iterable[str], rows: int) -> _Followed:
    """Follow the batch from ``inputs`` to the outputs. Mixes where it gets lost."""
    known: dict[ir.Value, Batch] = {}
    lists: set[ir.Value] = set()
    wanted = set(inputs)
    for value in graph.inputs:
        shape = static_shape(value)
        if value.name in wanted and shape:
            known[value] = Batch(shape, prod(shape[1:]), rows)
    for node in graph:
        sources = [known.get(value) if value is not None else None for value in node.inputs]
        try:
            if any(value in known for value in _captured_values(node)):
                raise Mixes("what it does to the batch is not known")
            if not any(sources):
                continue
            if (record := record_of(node)) is not None and isinstance(record.batch, NotApplicable):
                if sources[0] is None or sources[0].axis != 0:
                    raise Mixes("the batch is not dimension 0")
                lists.update(node.outputs)
                continue
            for value in named_outputs(node):
                known[value] = _apply_rule(node, sources, static_shape(value))
        except Mixes as reason:
            raise Mixes(f"{node_text(node)}: {reason}") from None
    for value in graph.outputs:
        if value not in lists:
            _check_output(value, known.get(value), rows)
    return _Followed(graph, rows, known)


def _captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """What the bodies of If, Loop and Scan read; values of their own among it."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = [attribute.as_graph()]
        else:
            bodies = list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []
        for body in bodies:
            read = chain(body.outputs, *(inner.inputs for inner in body.all_nodes()))
            yield from (value for value in read if value is not None)


def _apply_rule(node: ir.Node, sources: list[Batch | None], shape: tuple[int, ...] | None) -> Batch:
    record = record_of(node)
    if record is None or isinstance(record.batch, NotApplicable) or shape is None:
        raise Mixes("what it does to the batch is not known")
    batch = record.batch(node, sources, shape)
    if batch.axis < 0:  # asks for the axis: it must be one dimension's
        raise Mixes("the batch is lost")
    return batch


def _check_output(value: ir.Value, batch: Batch | None, rows: int) -> None:
    shape = static_shape(value)
    if batch is None or not shape or shape[0] != rows or batch.stride != prod(shape[1:]):
        raise Mixes(f"output {value.name!r} does not hold one row for each of the batch")


# -- the same for another number of rows ---------------------------------------------------------------


def _compare(one: _Followed, other: _Followed) -> None:
    """Mixes unless both graphs do the same with a row."""
    if one is other:
        return
    nodes = list(one.graph), list(other.graph)
    origins = [_origins(followed.graph) for followed in (one, other)]
    for node, its in zip(*nodes, strict=False):
        if not _does_the_same(node, its, one, other) or _read(node, origins[0]) != _read(its, origins[1]):
            raise Mixes(f"{node_text(node)}: what it does depends on the number of rows")
    results = [[origins[k].get(value) for value in f.graph.outputs] for k, f in enumerate((one, other))]
    if len(nodes[0]) != len(nodes[1]) or results[0] != results[1]:
        raise Mixes("what the model does depends on the number of rows")


def _origins(graph: ir.Graph) -> dict[ir.Value, tuple[int, int]]:
    """Where each value that is no constant comes from: which output of which node, or which input of the graph."""
    made = {value: (k, place) for k, node in enumerate(graph) for place, value in enumerate(node.outputs)}
    return made | {value: (-1, place) for place, value in enumerate(graph.inputs)}


def _read(node: ir.Node, origins: dict[ir.Value, tuple[int, int]]) -> list[tuple[int, int] | None]:
    return [None if value is None else origins.get(value) for value in node.inputs]


def _does_the_same(node: ir.Node, its: ir.Node, one: _Followed, other: _Followed) -> bool:
    if (node.domain, node.op_type) != (its.domain, its.op_type) or len(node.inputs) != len(its.inputs):
        return False
    if {a.name: _comparable_value(a) for a in node.attributes.values()} != {
        a.name: _comparable_value(a) for a in its.attributes.values()
    }:
        return False
    if [_place(value, one) for value in node.outputs] != [_place(value, other) for value in its.outputs]:
        return False
    batch = one.batches.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if node.op_type == "Slice" and node.domain == "" and batch is not None:
        # Of the batch it takes all, however that is written.
        rank, axis = len(batch.shape), batch.axis
        within = [[entry for entry in ranges(slicing, rank) if entry[0] != axis] for slicing in (node, its)]
        return within[0] == within[1]
    pairs = zip(node.inputs, its.inputs, strict=True)
    return all(
        (k == 1 and node.op_type in _SHAPED) or _is_same_constant(a, b, one, other) for k, (a, b) in enumerate(pairs)
    )


def _comparable_value(attribute: ir.Attr) -> Any:
    """An attribute's value, as one that can be compared."""
    if attribute.type == ir.AttributeType.TENSOR:
        array = attribute.as_tensor().numpy()
        return array.dtype.name, array.shape, array.tobytes()
    return attribute.value


def _place(value: ir.Value, followed: _Followed) -> object:
    """A value's shape, and where the batch lies in it, as it is for any number of rows."""
    shape, batch = static_shape(value), followed.batches.get(value)
    if batch is None or shape is None:
        return shape
    axis = batch.axis
    parts, rest = divmod(shape[axis], followed.rows)
    return axis, batch.within, parts, rest, shape[:axis], shape[axis + 1 :]


def _is_same_constant(a: ir.Value | None, b: ir.Value | None, of_a: _Followed, of_b: _Followed) -> bool:
    """Whether two constants are the same, or as long as the batch and the same for each row; True for no constants."""
    if a is None or b is None or a.const_value is b.const_value:
        return (a is None) == (b is None)
    one, other = constant_array(a), constant_array(b)
    if one is None or other is None or one.dtype != other.dtype or one.ndim != other.ndim:
        return False
    along = [axis for axis in range(one.ndim) if one.shape[axis] != other.shape[axis]]
    for axis in along[:1]:
        if not is_same_for_rows(one, axis, of_a.rows) or not is_same_for_rows(other, axis, of_b.rows):
            return False
        one, other = (np.moveaxis(x, axis, 0)[: x.shape[axis] // f.rows] for x, f in ((one, of_a), (other, of_b)))
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is not itself
