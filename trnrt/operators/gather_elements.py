"""GatherElements and GatherND: DMA looks elements, or rows, up by their number in the whole tensor.

The number is the sum of each index times the step of its dimension. Where the indices are in an input of the model, or
constant, the host computes the numbers and checks them. The vector engine computes them of indices that a step makes,
if these are certainly within bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.errors import InputError
from trnrt.importer.values import static_shape
from trnrt.operators import batch
from trnrt.operators.gather import GatherStep, check_range
from trnrt.operators.movement import bound_gather, can_move, moves
from trnrt.operators.programs import Program, Register, add_program
from trnrt.operators.record import SMALL
from trnrt.planner.lowering.blocked import WRONG, use_float32
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.integers import EXACT
from trnrt.planner.lowering.row_numbers import read_view
from trnrt.planner.lowering.views import View, dense_strides
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, operator_name, value_name
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, DeviceTensor, HostNode
from trnrt.planner.steps import Operand


@dataclass(frozen=True)
class _Places:
    """Where the elements are: the sum of ``steps`` times the indices along the dimensions of ``sizes``, plus ``base``,
    for each number of ``grid``. ``width`` elements are taken together. ``columns``: the last dimension of the indices
    is that of ``sizes``; else their dimensions are those of the grid, and others along which they repeat."""

    grid: tuple[int, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    base: Array
    width: int = 1
    columns: bool = False


@moves({"GatherElements": (11, 13)}, batch=batch.gather_elements, bound=bound_gather, values=(), folds=SMALL)
def lower_gather_elements(lowering: Lowering, node: ir.Node) -> None:
    """The element at each index, which replaces one coordinate of the index's own place. Computed indices look up whole
    rows if they repeat along all of the last dimensions (Expand)."""
    view = can_move(lowering, node.inputs[0])
    axis = attribute(node, "axis", 0) % len(view.shape)
    rank = _distinct_rank(lowering, node.inputs[1], view.shape, axis)
    grid, width = lowering.shape(node.inputs[1])[:rank], prod(view.shape[rank:])
    strides = [stride // width for stride in dense_strides(view.shape)]
    base = np.zeros(grid, np.int64)
    for d in range(rank):
        if d != axis:
            base += np.arange(grid[d]).reshape([-1 if k == d else 1 for k in range(rank)]) * strides[d]
    _look_up(lowering, node, view, _Places(grid, (view.shape[axis],), (strides[axis],), base, width))


def _distinct_rank(lowering: Lowering, indices: ir.Value | None, shape: tuple[int, ...], axis: int) -> int:
    """The number of dimensions up to the last one along which computed indices differ, or don't take all elements of a
    tensor of this shape."""
    rank = len(shape)
    if indices is None or lowering.constant(indices) is not None or lowering.is_input(indices):
        return rank
    view = lowering.place_view(indices)
    while rank > axis + 1 and view.shape[rank - 1] == shape[rank - 1] and view.strides[rank - 1] == 0:
        rank -= 1
    return rank


@moves({"GatherND": (11, 12, 13)}, batch=batch.gather_nd, bound=bound_gather, values=(), folds=SMALL)
def lower_gather_nd(lowering: Lowering, node: ir.Node) -> None:
    """The part of the tensor that each row of indices names; tensor and indices share ``batch_dims`` dimensions."""
    view = can_move(lowering, node.inputs[0])
    *grid, depth = lowering.shape(node.inputs[1])
    together = int(attribute(node, "batch_dims", 0))
    end = together + depth
    width = prod(view.shape[end:])
    strides = [stride // width for stride in dense_strides(view.shape)]
    base = np.zeros(grid, np.int64)
    for d in range(together):
        base += np.arange(grid[d]).reshape([-1 if k == d else 1 for k in range(len(grid))]) * strides[d]
    places = _Places(tuple(grid), view.shape[together:end], tuple(strides[together:end]), base, width, columns=True)
    _look_up(lowering, node, view, places)


def _look_up(lowering: Lowering, node: ir.Node, view: View, places: _Places) -> None:
    """Append the look-up of the elements at ``places``."""
    made = node.outputs[0]
    table = lowering.operand_of(view)
    numbers = _numbers(lowering, node, places)
    step = GatherStep(
        name=node_name(node),
        sources=[numbers, Operand(table.value, (prod(view.shape) // places.width, places.width))],
        output=value_name(made),
        shape=(prod(places.grid), places.width),
    )
    lowering.add(step, [node], "DMA looks elements up by their number in the whole tensor", place="dma")
    lowering.mark_whole_numbers(made)


def _numbers(lowering: Lowering, node: ir.Node, places: _Places) -> Operand:
    """The numbers as the device takes them: int32 (R, 1)."""
    indices = node.inputs[1]
    assert indices is not None
    constant = lowering.constant(indices)
    if constant is None and not lowering.is_input(indices):
        return _compute_numbers(lowering, node, indices, places)
    reader = f"{operator_name(node)} '{printable(node_name(node))}'"
    find = partial(element_numbers, sizes=places.sizes, steps=places.steps, base=places.base, reader=reader)
    name = lowering.spare_name(f"{node_name(node)}.numbers")
    if constant is not None:
        try:
            numbers = find(constant, strides=dense_strides(constant.shape), offset=0, what="")
        except InputError:
            raise Blocked(f"an index outside the {places.sizes} elements of its dimensions", WRONG) from None
        host = HostNode(node_name(node), operator_name(node), (), name, partial(constant_array_of, array=numbers))
    else:
        view = lowering.index_view(indices)
        find = partial(find, strides=view.strides, offset=view.offset, what=f"'{printable(view.root)}'")
        host = HostNode(node_name(node), operator_name(node), (view.root,), name, find)
    tensor = DeviceTensor(name, (prod(places.grid), 1), "int32")
    lowering.prepare(tensor, host)
    lowering.counts_through_batch = True
    return Operand(name, tensor.shape)


@host_function
def constant_array_of(array: Array) -> Array:
    """Constant numbers, for a kernel that takes them like an input."""
    return array


@host_function
def element_numbers(
    values: Array,
    strides: tuple[int, ...],
    offset: int,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    base: Array,
    what: str,
    reader: str,
) -> Array:
    """The elements' numbers, int32 (R, 1), by the indices that a view of ``values`` reads; see ``_Places``.

    An index out of range raises an InputError that names the input ``what`` and the node ``reader``.
    """
    shape = base.shape if len(strides) == base.ndim else (*base.shape, len(sizes))
    found = read_view(values, shape, strides, offset).astype(np.int64).reshape(*base.shape, len(sizes))
    limits = np.array(sizes, np.int64)
    wrong = (found < -limits) | (found >= limits)
    if wrong.any():
        size = limits[np.argwhere(wrong)[0][-1]]
        raise InputError(
            f"input {what} holds {found[wrong][0]}, and {reader} looks up one of {size} elements by it",
            hint=f"numbers from 0 to {size - 1} are taken, and from {-size} to -1, which count from the end",
        )
    numbers: Array = ((found % limits) * np.array(steps, np.int64)).sum(axis=-1) + base
    return numbers.astype(np.int32).reshape(-1, 1)


def _compute_numbers(lowering: Lowering, node: ir.Node, indices: ir.Value, places: _Places) -> Operand:
    """The numbers as a step's result."""
    most = max(abs(step) * size for step, size in zip(places.steps, places.sizes, strict=True)) + int(places.base.max())
    exact = "float32" if lowering.is_wide(indices) else lowering.dtype
    if most > EXACT["float32"] or exact != "float32":
        raise Blocked(
            f"computed indices into {most} elements: {exact} counts them only up to {EXACT[exact]:.0f}",
            f"make the indices an input of the model; {use_float32(lowering.dtype)}",
        )
    parts = _coordinates(indices, len(places.sizes)) if places.columns else [indices]
    for size, coordinate in zip(places.sizes, parts, strict=True):
        check_range(lowering.wholes.limits_of(coordinate), size)
    rank, rows = places.base.ndim, (prod(places.grid), 1)
    view = lowering.place_view(indices)
    for d in range(rank, len(view.shape) - places.columns):
        view = view.slice(d, 0, 1)
    if view.is_whole and lowering.holds_places(view.root) and places.steps == (1,) and not places.base.any():
        return Operand(view.root, rows)
    program = Program()
    total: Register | None = None
    for k, (size, step) in enumerate(zip(places.sizes, places.steps, strict=True)):
        one = view.slice(rank, k, 1) if places.columns else view
        index = program.source(Operand(lowering.operand_of(one).value, rows))
        from_end = program.apply("multiply", program.apply("less", index, 0.0), float(size))
        part = program.apply("multiply", program.apply("add", index, from_end), float(step))
        total = part if total is None else program.apply("add", total, part)
    assert total is not None
    if places.base.any():
        program.apply("add", total, program.source(places.base.reshape(-1, 1).astype(np.float32)))
    output = lowering.spare_name(f"{node_name(node)}.numbers")
    return add_program(lowering, node, program, output, rows, "numbers of elements", dtype="int32")


def _coordinates(indices: ir.Value, count: int) -> list[ir.Value]:
    """For each column of the last dimension of indices, a value with its numbers: a part of a Concat, or all."""
    node, last = indices.producer(), len(static_shape(indices) or ()) - 1
    if node is None or node.op_type != "Concat" or attribute(node, "axis", 0) not in (-1, last):
        return [indices] * count
    return [value for value in node.inputs if value is not None for _ in range((static_shape(value) or (1,))[-1])]
