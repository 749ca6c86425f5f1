"""Gather: by constant indices, or by those in an input of the model, as embeddings do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.wholes import Limits
from trnrt.operators import batch
from trnrt.operators.movement import add_take, bound_gather, can_move, moves
from trnrt.operators.programs import Program, add_program
from trnrt.operators.record import CHEAP, COUNTS, Index
from trnrt.planner.lowering.blocked import FALLBACK, WRONG
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

    def read_wide(self, *, whole: bool) -> bool:
        self.dtype = "float32"
        return True

    def call(self, tensors: Tensors) -> Call:
        return Call("gather", "gather_rows", ())


@moves({"Gather": (6, 11, 13)}, batch=batch.gather, bound=bound_gather, values=Index(1), folds=CHEAP | COUNTS)
def lower_gather(lowering: Lowering, node: ir.Node) -> None:
    """Elements or rows at indices. Constant indices become access patterns, one for each run; DMA looks up others."""
    view = can_move(lowering, node.inputs[0])
    picked = lowering.constant(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(view.shape)
    size = view.shape[axis]
    if picked is None:
        _look_up(lowering, node, view, axis)
        return
    if np.any(picked < -size) or np.any(picked >= size):
        raise Blocked(f"an index outside the {size} elements of dimension {axis}", WRONG)
    indices = (picked % size).reshape(-1)
    add_take(lowering, node, view, axis, indices, "constant indices: an access pattern for each run of them")


def _look_up(lowering: Lowering, node: ir.Node, view: View, axis: int) -> None:
    """Look rows up by numbers that the host checks, or that are within bounds. The tensor's ``axis`` becomes its first
    dimension."""
    indices, made = node.inputs[1], node.outputs[0]
    if indices is None or indices.dtype not in INTEGERS:
        raise Blocked("the indices are not integers", WRONG)
    rest = [d for d in range(len(view.shape)) if d != axis]
    sizes = tuple(view.shape[d] for d in rest)
    table = lowering.operand_of(view.permute((axis, *rest)))
    given = lowering.is_input(indices)
    numbers = (_row_numbers if given else _compute_numbers)(lowering, node, indices, view.shape[axis])
    step = GatherStep(
        name=node_name(node),
        sources=[numbers, Operand(table.value, (view.shape[axis], prod(sizes)))],
        output=value_name(made) if axis == 0 else lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(numbers.shape[0], prod(sizes)),
    )
    lowering.add(step, [node], "DMA looks rows up by their numbers", place="dma")
    if axis:
        picked = lowering.shape(indices)
        before, after = range(len(picked), len(picked) + axis), range(len(picked) + axis, len(picked) + len(sizes))
        stored = View.whole(step.output, (*picked, *sizes))
        lowering.set_view(made, stored.permute((*before, *range(len(picked)), *after)))
    lowering.mark_whole_numbers(made)


def _row_numbers(lowering: Lowering, node: ir.Node, indices: ir.Value, size: int) -> Operand:
    """The indices as the device takes them: int32, from 0 to ``size`` - 1, in their own shape, so that passes can take
    some rows; the step reads them as (R, 1)."""
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
    tensor = DeviceTensor(name, view.shape or (1,), "int32")
    lowering.prepare(tensor, HostNode(node_name(node), "Gather", (view.root,), name, compute))
    return Operand(name, (prod(view.shape), 1))


def check_range(limits: Limits | None, size: int) -> None:
    """Block computed indices that may be out of bounds: a kernel can't stop there, as onnxruntime does."""
    if limits is None or limits.low < -size or limits.high >= size:
        found = "any number" if limits is None else f"{limits.low:.0f} to {limits.high:.0f}"
        raise Blocked(
            f"computed indices that may be out of bounds: {found}, of {size} elements",
            f"limit them (Clip), or make them an input of the model, which is checked; {FALLBACK}",
        )


def _compute_numbers(lowering: Lowering, node: ir.Node, indices: ir.Value, size: int) -> Operand:
    """Indices that a step makes, as the device takes them."""
    check_range(lowering.wholes.limits_of(indices), size)
    shape = (prod(lowering.shape(indices)), 1)
    places = places_operand(lowering, indices)
    if places is not None:
        return Operand(places.value, shape)
    program = Program()
    index = program.source(Operand(lowering.operand(indices, short_integers=True).value, shape))
    from_end = program.apply("multiply", program.apply("less", index, 0.0), float(size))
    program.apply("add", index, from_end)
    output = lowering.spare_name(f"{node_name(node)}.numbers")
    return add_program(lowering, node, program, output, shape, "numbers of rows", dtype="int32")


def places_operand(lowering: Lowering, indices: ir.Value) -> Operand | None:
    """A search's places as it stores them, uint32; None if the indices are others."""
    view = lowering.place_view(indices)
    return Operand(view.root, view.shape) if view.is_whole and lowering.holds_places(view.root) else None
