"""Operators along rows: Softmax, LogSoftmax, ArgMax, ArgMin and TopK.

Along another axis than the last one, the rows are a view: its copy brings the axis to the end, and what comes out is a
view again, so that Transposes about such a node cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.kernels import argmax, softmax, topk
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import normalize, sums
from trnrt.operators.movement import integers
from trnrt.operators.record import NEVER, SMALL, Declaration, NotApplicable
from trnrt.operators.reduce import checked_axes, nonempty_shape
from trnrt.planner.lowering.host import host_function
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
_INDICES = NotApplicable("indices are whole numbers: how far apart the elements are that they name is compared")


@dataclass(kw_only=True)
class RowsStep(Step):
    """A kernel that reads its source as a matrix of rows."""

    columns: int

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[0].value)
        return (Layout.ROWS, Layout.HBM) if stored == (self.shape[0], self.columns) else (Layout.HBM,)

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else (self.shape[0], self.columns)


@dataclass(kw_only=True)
class SoftmaxStep(RowsStep):
    """Softmax of each row, or its logarithm: the name of the kernel."""

    kernel: str

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.ROWS, Layout.HBM)

    def call(self, tensors: Tensors) -> Call:
        return Call("softmax", self.kernel, (), {"rows": self.shape[0]})


@dataclass(kw_only=True)
class ArgmaxStep(RowsStep):
    """The index of each row's largest or smallest element, the first or the last of them, uint32 in HBM."""

    kernel: str
    last: bool

    def call(self, tensors: Tensors) -> Call:
        last = {"last": True} if self.last else {}
        return Call("argmax", self.kernel, (), {"rows": self.shape[0]} | last)


@dataclass(kw_only=True)
class TopKStep(RowsStep):
    """The k extremes of each row in order, or (uint32) where they stand."""

    largest: bool

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        return (Layout.HBM,)

    def call(self, tensors: Tensors) -> Call:
        kernel = "topk_indices" if self.dtype else "topk_values"
        return Call("topk", kernel, (self.shape[1], self.largest))


def _move_axis_last(lowering: Lowering, value: ir.Value | None, axis: int, *, exact: bool = False) -> Operand:
    """A tensor with one axis as its last; ``exact``: short integers, too."""
    view = lowering.view_of(value, short_integers=exact)
    if not view.shape:
        return Operand(lowering.operand_of(view).value, (1,))
    order = [d for d in range(len(view.shape)) if d != axis]
    return lowering.operand_of(view.permute((*order, axis)))


def _stored_last(lowering: Lowering, made: ir.Value, stored: str, axis: int) -> None:
    """Say that a node's output is stored with one axis as its last."""
    shape = list(lowering.shape(made))
    size = shape.pop(axis)
    order = list(range(len(shape)))
    order.insert(axis, len(shape))
    lowering.set_view(made, View.whole(stored, (*shape, size)).permute(tuple(order)))


@_along({"Softmax": (6, 11, 13)}, order=order.softmax, bound=normalize.softmax, values=(), folds=SMALL)
@_along({"LogSoftmax": (6, 11, 13)}, order=order.softmax, bound=normalize.softmax, values=(), folds=NEVER)
def lower_softmax(lowering: Lowering, node: ir.Node) -> None:
    """Softmax, or its logarithm, along an axis (before opset 13: over everything from the axis on)."""
    made = node.outputs[0]
    shape = nonempty_shape(lowering.shape(made)) or (1,)
    axis = checked_axes((attribute(node, "axis", -1 if lowering.opset >= 13 else 1),), len(shape))[0]
    is_last = lowering.opset < 13 or prod(shape[axis + 1 :]) == 1
    source = lowering.operand(node.inputs[0]) if is_last else _move_axis_last(lowering, node.inputs[0], axis)
    columns = prod(shape[axis:]) if is_last else shape[axis]
    if columns > softmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {softmax.MAX_COLUMNS}")
    step = SoftmaxStep(
        name=node_name(node),
        sources=[source],
        output=value_name(made) if is_last else lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(prod(shape) // columns, columns),
        columns=columns,
        kernel="softmax" if node.op_type == "Softmax" else "log_softmax",
    )
    lowering.add(step, [node], "a row a partition: maximum, exponential with running sum, scaling")
    if not is_last:
        _stored_last(lowering, made, step.output, axis)


@_along({"ArgMax": (6, 11, 12, 13), "ArgMin": (6, 11, 12, 13)}, order=order.arg, bound=_INDICES, values=(), folds=SMALL)
def lower_argmax(lowering: Lowering, node: ir.Node) -> None:
    """The index of the first, or the last, maximum or minimum along an axis."""
    lowering.mark_index(node.outputs[0])  # first, so that nodes after one that is blocked are not blamed for it
    shape = _shape_of(lowering, node.inputs[0])
    axis = checked_axes((attribute(node, "axis", 0),), len(shape))[0]
    source = _move_axis_last(lowering, node.inputs[0], axis, exact=True)
    columns = shape[axis]
    if columns > argmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel counts to {argmax.MAX_COLUMNS}")
    step = ArgmaxStep(
        name=node_name(node),
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=(prod(shape) // columns, 1),
        dtype="uint32",
        columns=columns,
        kernel=node.op_type.lower(),
        last=attribute(node, "select_last_index", 0) == 1,
    )
    lowering.add(step, [node], "the vector engine's search; indices become int64 on the host")


def _shape_of(lowering: Lowering, value: ir.Value | None) -> tuple[int, ...]:
    """The shape of an input, of at least one dimension and one element."""
    return nonempty_shape(lowering.shape(value)) or (1,)


@_along({"TopK": (6, 10, 11, 24)}, order=order.keep_order, bound=sums.topk, values=(1,), folds=NEVER)
def lower_topk(lowering: Lowering, node: ir.Node) -> None:
    """The k extremes along an axis in order, and where they stand: each output that is read is a search of its own."""
    values, indices = node.outputs
    lowering.mark_index(indices)  # first, as for ArgMax
    shape = _shape_of(lowering, node.inputs[0])
    axis = checked_axes((attribute(node, "axis", -1),), len(shape))[0]
    k = _read_k(lowering, node, shape[axis])
    source = _move_axis_last(lowering, node.inputs[0], axis, exact=True)
    if values.uses() or values.is_graph_output():
        stored = lowering.spare_name(f"{value_name(values)}.rows")
        _add_topk(lowering, node, source, stored, k, "")
        _stored_last(lowering, values, stored, axis)
        lowering.mark_whole_numbers(values)
    if indices.uses() or indices.is_graph_output():
        stored = lowering.spare_name(f"{value_name(indices)}.rows")
        _add_topk(lowering, node, source, stored, k, "uint32")
        rows = (*shape[:axis], *shape[axis + 1 :], k)
        turn = partial(_turn_back, shape=rows, axis=axis)
        lowering.host.append(
            HostNode(node_name(node), operator_name(node), (stored,), value_name(indices), turn),
        )


def _read_k(lowering: Lowering, node: ir.Node, columns: int) -> int:
    """K, an attribute before opset 10, and within the kernel's limits."""
    if lowering.opset < 10:
        k = int(attribute(node, "k", 0))
    else:
        given = integers(lowering, node, 1, "K")
        if given is None:
            raise Blocked("the input K is missing", "connect it, or export the model anew")
        if len(given) != 1:
            raise Blocked(f"{len(given)} numbers for K")
        k = given[0]
    if not 1 <= k <= columns:
        raise Blocked(f"K={k} along an axis of {columns} elements")
    if columns > topk.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel counts to {topk.MAX_COLUMNS}")
    found = topk.found_together(columns, k)
    if found > topk.MOST:
        raise Blocked(f"K={k} along an axis of {columns} elements: {found} are found; the kernel holds {topk.MOST}")
    return k


def _add_topk(lowering: Lowering, node: ir.Node, source: Operand, stored: str, k: int, dtype: str) -> None:
    """Append one of the two searches."""
    rows = prod(source.shape[:-1])
    step = TopKStep(
        name=lowering.spare_name(f"{node_name(node)}.{'indices' if dtype else 'values'}"),
        sources=[source],
        output=stored,
        shape=(rows, k),
        dtype=dtype,
        columns=source.shape[-1],
        largest=attribute(node, "largest", 1) == 1,
    )
    lowering.add(step, [node], "eight of each row at a time, by the vector engine; indices become int64 on the host")


@host_function
def _turn_back(indices: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Rows of indices with their axis where the model has it."""
    return np.moveaxis(indices.reshape(shape), -1, axis)
