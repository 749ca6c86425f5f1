"""Operators along rows: Softmax, LogSoftmax, ArgMax and ArgMin."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trnrt.kernels import argmax, softmax
from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, rows_and_columns, value_name
from trnrt.planner.plan import Layout
from trnrt.planner.steps import Call, Step, Tensors

_TRANSPOSE_HINT = "transpose the tensor so that this axis is the last one"


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
    """The index of each row's first largest or smallest element, uint32 in HBM; the name of the kernel."""

    kernel: str

    def call(self, tensors: Tensors) -> Call:
        return Call("argmax", self.kernel, (), {"rows": self.shape[0]})


@lowers("Softmax", "LogSoftmax")
def lower_softmax(lowering: Lowering, node: ir.Node) -> None:
    """Softmax, or its logarithm, over the last axis (before opset 13: over everything from the axis on)."""
    source = lowering.operand(node.inputs[0])
    rank = len(source.shape)
    axis = attribute(node, "axis", -1 if lowering.opset >= 13 else 1)
    axis = axis + rank if axis < 0 else axis
    if lowering.opset >= 13 and axis != rank - 1:
        raise Blocked(f"axis={axis} of {rank} dimensions; the kernel works along the last one", _TRANSPOSE_HINT)
    rows, columns = rows_and_columns(source.shape, axis)
    if columns > softmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel takes {softmax.MAX_COLUMNS}")
    step = SoftmaxStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=(rows, columns),
        columns=columns,
        kernel="softmax" if node.op_type == "Softmax" else "log_softmax",
    )
    lowering.add(step, [node], "a row a partition: maximum, exponential with running sum, scaling")


@lowers("ArgMax", "ArgMin")
def lower_argmax(lowering: Lowering, node: ir.Node) -> None:
    """The index of the first maximum, or minimum, along the last axis."""
    lowering.mark_index(node.outputs[0])  # first, so that nodes after one that is blocked are not blamed for it
    source = lowering.operand(node.inputs[0])
    rank = len(source.shape)
    axis = attribute(node, "axis", 0)
    axis = axis + rank if axis < 0 else axis
    if axis != rank - 1:
        raise Blocked(f"axis={axis} of {rank} dimensions; the kernel works along the last one", _TRANSPOSE_HINT)
    if attribute(node, "select_last_index", 0):
        raise Blocked("select_last_index=1; the hardware's search finds the first index")
    rows, columns = rows_and_columns(source.shape, axis)
    if columns > argmax.MAX_COLUMNS:
        raise Blocked(f"rows of {columns} elements; the kernel counts to {argmax.MAX_COLUMNS}")
    step = ArgmaxStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=(rows, 1),
        dtype="uint32",
        columns=columns,
        kernel=node.op_type.lower(),
    )
    lowering.add(step, [node], "the vector engine's search; indices become int64 on the host")
