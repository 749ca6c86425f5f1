"""MaxUnpool by indices in an input of the model. Others are rewritten before: a MaxPool's own, and constant ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Case, exact
from trnrt.operators.record import NEVER, Declaration
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.row_numbers import read_view
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, node_name, value_name
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, DeviceTensor, HostNode
from trnrt.planner.steps import Call, Operand, Step, Tensors


@dataclass(kw_only=True)
class ScatterStep(Step):
    """Zeros (V, 1), with the elements of ``sources[1]`` (R, 1) at the places in ``sources[0]`` (R, 1)."""

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape

    def call(self, tensors: Tensors) -> Call:
        return Call("scatter", "scatter_rows", ())


@exact
def bound_unpool(case: Case) -> list[Array]:
    """The errors, where their elements go."""
    return [np.abs(case.first(case.e))]


@Declaration(
    {"MaxUnpool": (9, 11, 22)},
    batch=batch.unknown,
    order=order.keep_order,
    bound=bound_unpool,
    values=(2,),
    folds=NEVER,
    shapes=shapes.by_onnx,
)
def lower_max_unpool(lowering: Lowering, node: ir.Node) -> None:
    """Zeros, with elements at the places that an input of the model gives: DMA writes each. A MaxPool's own indices
    take no look-up if its windows don't overlap."""
    indices, made = node.inputs[1], node.outputs[0]
    assert indices is not None
    if not lowering.is_input(indices):
        raise Blocked(
            "indices that the device computes may repeat, and DMA writes in any order; a MaxPool's own are supported, "
            "of windows as large as their strides, without padding, for a result of its input's shape",
            f"give both nodes such windows, and the MaxUnpool that output_shape; {FALLBACK}",
        )
    shape, source = lowering.shape(made), lowering.operand(node.inputs[0])
    size, count = prod(shape), prod(source.shape)
    step = ScatterStep(
        name=node_name(node),
        sources=[_place_numbers(lowering, node, indices, size), Operand(source.value, (count, 1))],
        output=lowering.spare_name(f"{value_name(made)}.places"),
        shape=(size + 1, 1),
    )
    lowering.add(step, [node], "DMA writes elements by their number in the whole tensor", place="dma")
    whole = View.whole(step.output, step.shape).slice(0, 0, size).reshape(shape)
    assert whole is not None
    lowering.set_view(made, whole)


def _place_numbers(lowering: Lowering, node: ir.Node, indices: ir.Value, size: int) -> Operand:
    """The places as the device takes them: int32 (R, 1), all different but ``size``, which nobody reads."""
    view = lowering.index_view(indices)
    find = partial(
        place_numbers,
        shape=view.shape,
        strides=view.strides,
        offset=view.offset,
        size=size,
        what=f"'{printable(view.root)}'",
        reader=f"MaxUnpool '{printable(node_name(node))}'",
    )
    name = lowering.spare_name(f"{node_name(node)}.numbers")
    tensor = DeviceTensor(name, (prod(view.shape), 1), "int32")
    host = HostNode(node_name(node), "MaxUnpool", (view.root,), name, find)
    lowering.prepare(tensor, host)
    lowering.counts_through_batch = True
    return Operand(name, tensor.shape)


@host_function
def place_numbers(
    values: Array,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    size: int,
    what: str,
    reader: str,
) -> Array:
    """The places that a view of ``values`` reads, int32 (R, 1). Of elements for one place the last one stays, as in
    onnxruntime: the others go to place ``size``.

    A place out of range raises an InputError that names the input ``what`` and the node ``reader``.
    """
    found = read_view(values, shape, strides, offset).astype(np.int64).reshape(-1)
    wrong = (found < 0) | (found >= size)
    if wrong.any():
        raise InputError(
            f"input {what} holds {found[wrong][0]}, and {reader} writes to one of {size} places by it",
            hint=f"numbers from 0 to {size - 1} are taken",
        )
    last = np.zeros(len(found), bool)
    last[len(found) - 1 - np.unique(found[::-1], return_index=True)[1]] = True
    return np.where(last, found, size).astype(np.int32).reshape(-1, 1)
