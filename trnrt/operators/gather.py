"""Gather: by constant indices, or by those in an input of the model, as embeddings do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.operators import batch
from trnrt.operators.movement import add_take, can_move, moves
from trnrt.operators.record import CHEAP, COUNTS, Index
from trnrt.planner.lowering.refusals import FALLBACK
from trnrt.planner.lowering.row_numbers import row_numbers
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import INTEGERS, Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.naming import printable
from trnrt.planner.plan import DeviceTensor, HostNode
from trnrt.planner.steps import Call, Operand, Step, Tensors


@dataclass(kw_only=True)
class GatherStep(Step):
    """Rows of ``sources[1]`` (V, C), by the row numbers in ``sources[0]`` (R, 1)."""

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape

    def call(self, tensors: Tensors) -> Call:
        return Call("gather", "gather_rows", ())


@moves({"Gather": (6, 11, 13)}, batch=batch.gather, values=Index(1), folds=CHEAP | COUNTS)
def lower_gather(lowering: Lowering, node: ir.Node) -> None:
    """Constant indices become access patterns, one for each run; by indices from an input, DMA looks rows up."""
    view = can_move(lowering, node.inputs[0])
    picked = lowering.constant(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(view.shape)
    size = view.shape[axis]
    if picked is None:
        _look_up(lowering, node, view, axis)
        return
    if np.any(picked < -size) or np.any(picked >= size):
        raise Blocked(f"an index outside the {size} elements of dimension {axis}")
    indices = (picked % size).reshape(-1)
    add_take(lowering, node, view, axis, indices, "constant indices: an access pattern for each run of them")


def _look_up(lowering: Lowering, node: ir.Node, view: View, axis: int) -> None:
    """Look rows up by numbers that the host checks. The tensor's ``axis`` becomes its first dimension."""
    indices, made = node.inputs[1], node.outputs[0]
    if indices is None or indices.dtype not in INTEGERS or not lowering.is_input(indices):
        raise Blocked("the indices are computed", f"indices must be constants or inputs of the model; {FALLBACK}")
    rest = [d for d in range(len(view.shape)) if d != axis]
    sizes = tuple(view.shape[d] for d in rest)
    table = lowering.operand_of(view.permute((axis, *rest)))
    numbers = _row_numbers(lowering, node, indices, view.shape[axis])
    step = GatherStep(
        name=node_name(node),
        sources=[numbers, Operand(table.value, (view.shape[axis], prod(sizes)))],
        output=value_name(made) if axis == 0 else lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(numbers.shape[0], prod(sizes)),
    )
    lowering.add(step, [node], "DMA looks rows up by numbers that the host has checked", place="dma")
    lowering.mark_whole_numbers(made)
    if axis:
        picked = lowering.shape(indices)
        before, after = range(len(picked), len(picked) + axis), range(len(picked) + axis, len(picked) + len(sizes))
        stored = View.whole(step.output, (*picked, *sizes))
        lowering.set_view(made, stored.permute((*before, *range(len(picked)), *after)))


def _row_numbers(lowering: Lowering, node: ir.Node, indices: ir.Value, size: int) -> Operand:
    """The indices as the device takes them: int32 (R, 1), from 0 to ``size`` - 1."""
    view = lowering.index_view(indices)
    compute = partial(
        row_numbers,
        shape=view.shape,
        strides=view.strides,
        offset=view.offset,
        size=size,
        what=f"'{printable(view.root)}'",
        reader=f"Gather '{printable(node_name(node))}'",
    )
    name = lowering.spare_name(f"{node_name(node)}.numbers")
    tensor = DeviceTensor(name, (prod(view.shape), 1), "int32")
    lowering.prepare(tensor, HostNode(node_name(node), "Gather", (view.root,), name, compute))
    return Operand(name, tensor.shape)
