"""Are the rows of a batch independent? Then a batch may be padded, cut, or combined from several requests.

Each operator's record has a rule for the batch; here the rules are applied from node to node. A graph is bound to one
number of rows, and a constant may be as long as the batch, or computed from its length. So a batch of any size is
followed for several numbers of rows, and each row must be computed in the same way.
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

# A graph with one of these can read the number of rows, and change its behaviour from some number on. A graph without
# them that does the same for two numbers does so for any.
_COUNTING = frozenset({"Shape", "Size"})
# Squeeze without axes removes the batch's dimension if that is 1.
_OF_ONE = _COUNTING | {"Squeeze"}
# Their second input is a shape, which the shape of their output shows as well.
_SHAPED = frozenset({"Reshape", "Expand"})
_UNKNOWN = "what it does to the batch is not known"


@dataclass(frozen=True, eq=False)
class _Followed:
    """A graph bound to a number of ``rows``, and where the batch lies in the values that depend on it."""

    graph: ir.Graph
    rows: int
    batches: dict[ir.Value, Batch]


def mixing(graph: ir.Graph, inputs: Iterable[str], rows: int) -> str | None:
    """Why the rows of ``inputs`` may not be independent, or an output may not have one for each; None if they are.

    ``graph`` is static, with ``rows`` (2 or more) in dimension 0 of ``inputs``. The answer is for this number of rows
    only: see ``mixing_at_any``.
    """
    try:
        _follow(graph, inputs, rows)
    except Mixes as reason:
        return str(reason)
    return None


def mixing_at_any(
    model: ir.Graph, bind: Callable[[int], ir.Graph], inputs: Iterable[str], most: int, *, fixed: bool = False
) -> str | None:
    """``mixing`` for any number of rows from 1 to ``most``; with ``fixed``, for ``most`` rows only.

    ``model`` is the graph as read, ``bind`` binds it to a number of rows. Two numbers are tried: a 2 in the model, as
    in a Reshape to [2, -1], is not the batch. If the graph reads the number of rows, ``most`` rows are tried, too, and
    the outputs' shapes for one row.
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
            # The batch in the file may be a length that an operator needs, such as Split's.
            return f"the model does not take {rows} rows"
        except Mixes as reason:
            return str(reason)
    assert first is not None
    return _one_row_problem(first, bind) if operators & _OF_ONE and not fixed else None


def _one_row_problem(first: _Followed, bind: Callable[[int], ir.Graph]) -> str | None:
    """Why the outputs for one row differ from those of one row out of several."""
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
    """Follow the batch from ``inputs`` to the outputs. Mixes if it gets lost."""
    known: dict[ir.Value, Batch] = {}
    lists: set[ir.Value] = set()
    wanted = set(inputs)
    for value in graph.inputs:
        shape = static_shape(value)
        if value.name in wanted and shape:
            known[value] = Batch(shape, prod(shape[1:]), rows)
    for node in graph:
        sources = [known.get(value) if value is not None else None for value in node.inputs]
        record = record_of(node)
        try:
            if any(value in known for value in _captured_values(node)):
                raise Mixes(_UNKNOWN)
            if not any(sources):
                continue
            if record is None:
                raise Mixes(_UNKNOWN)
            if isinstance(record.batch, NotApplicable):
                if sources[0] is None or sources[0].axis != 0:
                    raise Mixes("the batch is not dimension 0")
                lists.update(node.outputs)
                continue
            for value in named_outputs(node):
                if (shape := static_shape(value)) is None:
                    raise Mixes(_UNKNOWN)
                known[value] = record.batch(node, sources, shape)
                _ = known[value].axis  # Mixes if it is not in one dimension
        except Mixes as reason:
            raise Mixes(f"{node_text(node)}: {reason}") from None
    for value in graph.outputs:
        if value not in lists:
            _check_output(value, known.get(value), rows)
    return _Followed(graph, rows, known)


def _captured_values(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the bodies of If, Loop and Scan read, their own among them."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = [attribute.as_graph()]
        else:
            bodies = list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []
        for body in bodies:
            read = chain(body.outputs, *(inner.inputs for inner in body.all_nodes()))
            yield from (value for value in read if value is not None)


def _check_output(value: ir.Value, batch: Batch | None, rows: int) -> None:
    shape = static_shape(value)
    if batch is None or not shape or shape[0] != rows or batch.stride != prod(shape[1:]):
        raise Mixes(f"output {value.name!r} does not hold one row for each of the batch")


# -- the same for another number of rows ---------------------------------------------------------------


def _compare(one: _Followed, other: _Followed) -> None:
    """Raise Mixes unless both graphs compute a row in the same way."""
    if one is other:
        return
    nodes = list(one.graph), list(other.graph)
    origins = [_origins(followed.graph) for followed in (one, other)]
    for node, its in zip(*nodes, strict=False):
        if not _is_alike(node, its, one, other) or _input_origins(node, origins[0]) != _input_origins(its, origins[1]):
            raise Mixes(f"{node_text(node)}: what it does depends on the number of rows")
    results = [[origins[k].get(value) for value in f.graph.outputs] for k, f in enumerate((one, other))]
    if len(nodes[0]) != len(nodes[1]) or results[0] != results[1]:
        raise Mixes("what the model does depends on the number of rows")


def _origins(graph: ir.Graph) -> dict[ir.Value, tuple[int, int]]:
    """The origin of each computed value: (node, output), or (-1, input of the graph)."""
    made = {value: (k, place) for k, node in enumerate(graph) for place, value in enumerate(node.outputs)}
    return made | {value: (-1, place) for place, value in enumerate(graph.inputs)}


def _input_origins(node: ir.Node, origins: dict[ir.Value, tuple[int, int]]) -> list[tuple[int, int] | None]:
    return [None if value is None else origins.get(value) for value in node.inputs]


def _is_alike(node: ir.Node, its: ir.Node, one: _Followed, other: _Followed) -> bool:
    """True if a node and its counterpart do the same with a row."""
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
        # The rule has checked that it takes all of the batch, which can be written in several ways.
        rank, axis = len(batch.shape), batch.axis
        within = [[entry for entry in ranges(slicing, rank) if entry[0] != axis] for slicing in (node, its)]
        return within[0] == within[1]
    pairs = zip(node.inputs, its.inputs, strict=True)
    return all(
        (k == 1 and node.op_type in _SHAPED) or _is_same_constant(a, b, one, other) for k, (a, b) in enumerate(pairs)
    )


def _comparable_value(attribute: ir.Attr) -> Any:
    """An attribute's value in a form that ``==`` can compare."""
    if attribute.type == ir.AttributeType.TENSOR:
        array = attribute.as_tensor().numpy()
        return array.dtype.name, array.shape, array.tobytes()
    return attribute.value


def _place(value: ir.Value, followed: _Followed) -> object:
    """A value's shape, and the place of the batch in it, independent of the number of rows."""
    shape, batch = static_shape(value), followed.batches.get(value)
    if batch is None or shape is None:
        return shape
    axis = batch.axis
    parts, rest = divmod(shape[axis], followed.rows)
    return axis, batch.row_step, parts, rest, shape[:axis], shape[axis + 1 :]


def _is_same_constant(a: ir.Value | None, b: ir.Value | None, of_a: _Followed, of_b: _Followed) -> bool:
    """True if two constants are equal, or lie along the batch and are equal for each row; True if neither is one."""
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
