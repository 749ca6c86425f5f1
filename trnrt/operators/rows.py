"""Operators along rows: Softmax, LogSoftmax, ArgMax, ArgMin and TopK.

If the axis isn't the last one, a copy moves it there, and the output is a view with the axis back in its place:
Transposes around such a node cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import is_used
from trnrt.kernels import argmax, softmax, topk
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import normalize, sums
from trnrt.operators.expectation import add_expectation
from trnrt.operators.movement import integers
from trnrt.operators.programs import ComputeStep, Program
from trnrt.operators.record import NEVER, SMALL, Declaration, NotApplicable
from trnrt.operators.reduce import checked_axes, nonempty_shape
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.indices import is_final
from trnrt.planner.lowering.moving import move_step
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import (
    Blocked,
    Lowering,
    attribute,
    node_name,
    operator_name,
    value_name,
)
from trnrt.planner.plan import Array, HostNode, Layout
from trnrt.planner.steps import Call, Operand, Step, Tensors

_along = partial(Declaration, batch=batch.along_axis, shapes=shapes.by_onnx)
# Rows from this long on are searched once for values and indices: the copy of the values out of the result takes less
# than a search. Predicted on trn2, batch 1 to 300: 10 to 24 % less at 1,000 elements, 2 to 13 % more at 8.
SEARCHED_ONCE = 1000
_INDICES = NotApplicable("indices are whole numbers: validation compares the elements that they point to")


@dataclass(kw_only=True)
class RowsStep(Step):
    """A kernel that reads its source as a matrix, with as many rows as its result has."""

    @property
    def columns(self) -> int:
        return prod(self.sources[0].shape) // self.shape[0]

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[0].value)
        return (Layout.ROWS, Layout.HBM) if stored == (self.shape[0], self.columns) else (Layout.HBM,)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else (self.shape[0], self.columns)


@dataclass(kw_only=True)
class SoftmaxStep(RowsStep):
    """Softmax of each row, or its logarithm (the kernels "softmax" and "log_softmax")."""

    kernel: str

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.ROWS, Layout.HBM)

    def call(self, tensors: Tensors) -> Call:
        return Call("softmax", self.kernel, (), {"rows": self.shape[0]})


@dataclass(kw_only=True)
class ArgmaxStep(RowsStep):
    """The index of each row's largest or smallest element, the first or the last one; uint32 in HBM."""

    kernel: str
    last: bool

    def read_wide(self, *, whole: bool) -> bool:
        return True

    def call(self, tensors: Tensors) -> Call:
        last = {"last": True} if self.last else {}
        return Call("argmax", self.kernel, (), {"rows": self.shape[0]} | last)


@dataclass(kw_only=True)
class TopKStep(RowsStep):
    """The k largest or smallest elements of each row in order ("topk_values"), their indices (uint32,
    "topk_indices"), or both side by side (float32, "topk_pairs")."""

    kernel: str
    k: int
    largest: bool

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        return (Layout.HBM,)

    def call(self, tensors: Tensors) -> Call:
        return Call("topk", self.kernel, (self.k, self.largest))


def _move_axis_last(lowering: Lowering, value: ir.Value | None, axis: int, *, exact: bool = False) -> Operand:
    """A tensor with one axis moved to the end; ``exact``: short integers, too."""
    view = lowering.view_of(value, short_integers=exact)
    if not view.shape:
        return Operand(lowering.operand_of(view).value, (1,))
    order = [d for d in range(len(view.shape)) if d != axis]
    return lowering.operand_of(view.permute((*order, axis)))


def _store_axis_last(lowering: Lowering, made: ir.Value, stored: str, axis: int) -> None:
    """Declare that a node's output is stored with one axis moved to the end."""
    shape = list(lowering.shape(made))
    shape.append(shape.pop(axis))
    lowering.set_view(made, _put_axis_back(View.whole(stored, tuple(shape)), axis))


def _put_axis_back(view: View, axis: int) -> View:
    """The view with its last axis back in its place, ``axis``."""
    order = list(range(len(view.shape) - 1))
    order.insert(axis, len(order))
    return view.permute(tuple(order))


@_along({"Softmax": (6, 11, 13)}, order=order.softmax, bound=normalize.softmax, values=(), folds=SMALL)
@_along({"LogSoftmax": (6, 11, 13)}, order=order.softmax, bound=normalize.softmax, values=(), folds=NEVER)
def lower_softmax(lowering: Lowering, node: ir.Node) -> None:
    """Softmax, or its logarithm, along an axis (before opset 13: over everything from the axis on)."""
    made = node.outputs[0]
    shape = nonempty_shape(lowering.shape(made)) or (1,)
    axis = checked_axes((attribute(node, "axis", -1 if lowering.opset >= 13 else 1),), len(shape))[0]
    is_last = lowering.opset < 13 or prod(shape[axis + 1 :]) == 1
    if not is_last and node.op_type == "Softmax" and add_expectation(lowering, node, axis):
        return
    source = lowering.operand(node.inputs[0]) if is_last else _move_axis_last(lowering, node.inputs[0], axis)
    columns = prod(shape[axis:]) if is_last else shape[axis]
    if columns > softmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {softmax.MAX_COLUMNS}")
    output = value_name(made) if is_last else lowering.spare_name(f"{value_name(made)}.rows")
    kernel = "softmax" if node.op_type == "Softmax" else "log_softmax"
    add_softmax(lowering, node, node_name(node), source, output, columns, kernel)
    if not is_last:
        _store_axis_last(lowering, made, output, axis)


def add_softmax(
    lowering: Lowering, node: ir.Node, name: str, source: Operand, output: str, columns: int, kernel: str = "softmax"
) -> None:
    """Append the step ``name``: softmax of each row of a tensor."""
    step = SoftmaxStep(
        name=name,
        sources=[source],
        output=output,
        shape=(prod(source.shape) // columns, columns),
        kernel=kernel,
    )
    lowering.add(step, [node], "a row a partition: maximum, exponential with running sum, scaling")


@_along({"ArgMax": (6, 11, 12, 13), "ArgMin": (6, 11, 12, 13)}, order=order.arg, bound=_INDICES, values=(), folds=SMALL)
def lower_argmax(lowering: Lowering, node: ir.Node) -> None:
    """The index of the first, or the last, maximum or minimum along an axis."""
    made = node.outputs[0]
    _mark_places(lowering, made, value_name(made))  # first: if this node is blocked, those after it are not blamed
    shape = _shape_of(lowering, node.inputs[0])
    axis = checked_axes((attribute(node, "axis", 0),), len(shape))[0]
    source = _move_axis_last(lowering, node.inputs[0], axis, exact=True)
    columns = shape[axis]
    if columns > argmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {argmax.MAX_COLUMNS}")
    step = ArgmaxStep(
        name=node_name(node),
        sources=[source],
        output=value_name(made),
        shape=(prod(shape) // columns, 1),
        dtype="uint32",
        kernel=node.op_type.lower(),
        last=attribute(node, "select_last_index", 0) == 1,
    )
    lowering.add(step, [node], f"the vector engine's search{_destination(lowering, made)}")


def _destination(lowering: Lowering, indices: ir.Value) -> str:
    """The use of a search's indices, to be added to a reason."""
    return "; indices become int64 on the host" if lowering.is_on_host(indices) else ""


def _mark_places(lowering: Lowering, made: ir.Value, stored: str) -> None:
    """Record that a search stores the indices ``made`` as uint32: only boundary nodes read them, or steps, too."""
    if is_final(made):
        lowering.mark_index(made)
    else:
        lowering.mark_places(made, stored, _add_floats)


def _add_floats(lowering: Lowering, places: str) -> str:
    """Append the step that copies a search's places to float32; the copy's name."""
    search = next(step for step in lowering.steps if step.output == places)
    program = Program()
    program.apply("copy", program.source(Operand(places, search.shape)))
    step = ComputeStep(
        name=lowering.spare_name(f"{places}.floats"),
        sources=program.operands,
        output=lowering.spare_name(f"{places}.whole"),
        shape=search.shape,
        dtype="" if lowering.dtype == "float32" else "float32",
        program=program,
    )
    nodes = [node for node in lowering.graph if node.name in search.nodes]
    lowering.add(step, nodes, "a search, whose places are computed with in float32")
    return step.output


def _shape_of(lowering: Lowering, value: ir.Value | None) -> tuple[int, ...]:
    """The shape of an input, of at least one dimension and one element."""
    return nonempty_shape(lowering.shape(value)) or (1,)


@_along({"TopK": (6, 10, 11, 24)}, order=order.keep_order, bound=sums.topk, values=(1,), folds=NEVER)
def lower_topk(lowering: Lowering, node: ir.Node) -> None:
    """The k largest or smallest elements along an axis in order, and their indices. Each output in use takes a search;
    in float32, which represents the indices, a single one may find both if that is faster."""
    values, indices = node.outputs
    places = lowering.spare_name(f"{value_name(indices)}.rows")
    _mark_places(lowering, indices, places)  # first, as for ArgMax
    shape = _shape_of(lowering, node.inputs[0])
    axis = checked_axes((attribute(node, "axis", -1),), len(shape))[0]
    k = _read_k(lowering, node, shape[axis])
    source = _move_axis_last(lowering, node.inputs[0], axis, exact=True)
    # Another axis than the last one needs that copy anyway.
    worthwhile = shape[axis] >= SEARCHED_ONCE or prod(shape[axis + 1 :]) > 1
    together = worthwhile and is_used(values) and is_used(indices)
    rows = (*shape[:axis], *shape[axis + 1 :])
    if together:
        pairs = lowering.spare_name(f"{value_name(values)}.rows")
        _add_topk(lowering, node, source, k, "pairs", pairs, "float32")
        both = View.whole(pairs, (*rows, 2 * k))
        found = both.slice(len(rows), 0, k)
        if lowering.dtype != "float32" and is_used(values):
            narrow = View.whole(lowering.spare_name(f"{value_name(values)}.narrow"), found.shape)
            step = move_step(narrow.root, narrow.root, narrow.shape, [(found, narrow)])
            lowering.add(step, [node], "its values in the session's dtype", place="dma")
            found = narrow
        lowering.set_view(values, _put_axis_back(found, axis))
        _store_places(lowering, node, pairs, both.slice(len(rows), k, k), axis)
    elif is_used(indices):
        _add_topk(lowering, node, source, k, "indices", places, "uint32")
        _store_places(lowering, node, places, View.whole(places, (*rows, k)), axis)
    if is_used(values):
        if not together:
            stored = lowering.spare_name(f"{value_name(values)}.rows")
            _add_topk(lowering, node, source, k, "values", stored)
            _store_axis_last(lowering, values, stored, axis)
        lowering.mark_whole_numbers(values)


def _store_places(lowering: Lowering, node: ir.Node, stored: str, view: View, axis: int) -> None:
    """Declare where TopK's indices are: on the host if they are final, else a view of what the search has stored."""
    indices = node.outputs[1]
    if lowering.is_on_host(indices):
        turn = partial(_turn_back, shape=view.shape, axis=axis)
        lowering.host.append(HostNode(node_name(node), operator_name(node), (stored,), value_name(indices), turn))
    else:
        lowering.set_view(indices, _put_axis_back(view, axis))
        lowering.mark_whole_numbers(indices)
        if not lowering.holds_places(stored):
            lowering.mark_wide(stored)


def _read_k(lowering: Lowering, node: ir.Node, columns: int) -> int:
    """K, an attribute before opset 10, and within the kernel's limits."""
    if lowering.opset < 10:
        k = int(attribute(node, "k", 0))
    else:
        given = integers(lowering, node, 1, "K")
        if given is None:
            raise Blocked("the input K is missing", WRONG)
        if len(given) != 1:
            raise Blocked(f"{len(given)} numbers for K", WRONG)
        k = given[0]
    if not 1 <= k <= columns:
        raise Blocked(f"K={k} along an axis of {columns} elements", WRONG)
    if columns > topk.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {topk.MAX_COLUMNS}")
    found = topk.found_together(columns, k)
    if found > topk.MOST_FOUND:
        raise Blocked(
            f"K={k} along an axis of {columns} elements: {found} are found; the kernel holds {topk.MOST_FOUND}"
        )
    return k


def _add_topk(
    lowering: Lowering, node: ir.Node, source: Operand, k: int, kind: str, output: str, dtype: str = ""
) -> None:
    """Append a search for "values", "indices" or "pairs" of both."""
    step = TopKStep(
        name=lowering.spare_name(f"{node_name(node)}.{kind}"),
        sources=[source],
        output=output,
        shape=(prod(source.shape[:-1]), 2 * k if kind == "pairs" else k),
        dtype=dtype,
        kernel=f"topk_{kind}",
        k=k,
        largest=attribute(node, "largest", 1) == 1,
    )
    why = "the best of each row, by the vector engine"
    lowering.add(step, [node], f"{why}{_destination(lowering, node.outputs[1])}")


@host_function
def _turn_back(found: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Move the axis of rows of indices back to its place; the indices end the rows of ``found``."""
    indices = found.reshape(*shape[:-1], -1)[..., -shape[-1] :]
    return np.moveaxis(indices.astype(np.int64), -1, axis)
