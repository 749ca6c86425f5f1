"""Operators that only move elements: a view if an access pattern can say it, else a new tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at, is_used, paddings, slice_ranges
from trnrt.kernels.channels import Run
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Case, exact
from trnrt.operators.bounds.rounding import unit_of
from trnrt.operators.conv_steps import ConvStep
from trnrt.operators.record import CHEAP, COUNTS, NEVER, Declaration
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.host import host_function
from trnrt.planner.lowering.moving import move_step
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import (
    FLOATS,
    Blocked,
    Lowering,
    attribute,
    node_name,
    operator_name,
    value_name,
)
from trnrt.planner.plan import Array


def add_move(
    lowering: Lowering, node: ir.Node, parts: list[tuple[View, View]], why: str, fill: float | None = None
) -> None:
    """Append the step that assembles the node's output from ``parts``: (view that is read, view that is written)."""
    made = node.outputs[0]
    parts = [(lowering.readable(taken), put) for taken, put in parts]
    step = move_step(node_name(node), value_name(made), lowering.shape(made), parts, fill)
    lowering.add(step, [node], why, place="dma")
    lowering.mark_whole_numbers(made)


def take(view: View, axis: int, indices: Array) -> list[tuple[View, int, int]]:
    """Indices of one dimension as runs of equal steps: (view of the run, its start in the result, its length)."""
    runs: list[tuple[View, int, int]] = []
    start, count = 0, len(indices)
    numbers = [int(i) for i in indices]
    while start < count:
        end, step = start + 1, 0
        if end < count:
            step = numbers[end] - numbers[start]
            while end < count and numbers[end] - numbers[end - 1] == step:
                end += 1
        runs.append((view.slice(axis, numbers[start], end - start, step if end - start > 1 else 1), start, end - start))
        start = end
    return runs


def add_take(lowering: Lowering, node: ir.Node, view: View, axis: int, indices: Array, why: str) -> None:
    """Make the node's output from ``indices`` of one dimension: a view if they are one run."""
    made = node.outputs[0]
    runs = take(view, axis, indices)
    other = runs[0][0].reshape(lowering.shape(made)) if len(runs) == 1 else None
    if other is not None:
        lowering.add_view(node, made, other, why)
        return
    whole = View.whole(value_name(made), (*view.shape[:axis], len(indices), *view.shape[axis + 1 :]))
    add_move(lowering, node, [(taken, whole.slice(axis, start, count)) for taken, start, count in runs], why)


def add_takes(
    lowering: Lowering, node: ir.Node, view: View, picks: Mapping[int, Array], why: str, fill: float = 0.0
) -> None:
    """Make the node's output by a step for each of ``picks``: dimension -> the indices to take, -1 for ``fill``."""
    made, view = value_name(node.outputs[0]), lowering.readable(view)
    for number, (axis, picked) in enumerate(picks.items(), 1):
        is_last = number == len(picks)
        name = made if is_last else lowering.spare_name(f"{made}.axis{axis}")
        whole = View.whole(name, (*view.shape[:axis], len(picked), *view.shape[axis + 1 :]))
        inside = np.nonzero(picked >= 0)[0]
        first = int(inside[0]) if len(inside) else 0
        runs = take(view, axis, picked[inside])
        parts = [(taken, whole.slice(axis, first + start, count)) for taken, start, count in runs]
        missing = None if len(inside) == len(picked) else fill
        if is_last:
            add_move(lowering, node, parts, why, missing)
        else:
            lowering.add(move_step(name, name, whole.shape, parts, missing), [node], why, place="dma")
            view = whole


def reshape_view(lowering: Lowering, view: View, shape: tuple[int, ...], node: ir.Node | None = None) -> View:
    """The same elements in another shape: of a dense copy, named after ``node``, if no access pattern can say it."""
    other = view.reshape(shape)
    if other is not None:
        return other
    named = view if node is None else view.with_node(node_name(node))
    return View.whole(lowering.operand_of(named).value, shape)


# -- errors ------------------------------------------------------------------------------------------


@exact
def bound_move(case: Case) -> list[Array]:
    """The node applied to the errors."""
    return _run_on_errors(case, [case.e, *case.inputs[1:]])


@exact
def bound_gather(case: Case) -> list[Array]:
    """The node applied to the errors. Nothing is known of an element whose computed index may be another."""
    (moved,) = bound_move(case)
    doubt: Array = case.error(1) > 0
    if not doubt.any():
        return [moved]
    if case.op == "GatherND":
        doubt = doubt.max(axis=-1).reshape(*doubt.shape[:-1], *(1,) * (moved.ndim - doubt.ndim + 1))
    elif case.op == "Gather":
        axis = int(case.attribute("axis", 0)) % case.x.ndim
        doubt = doubt.reshape(*doubt.shape, *(1,) * (case.x.ndim - axis - 1))
    return [np.where(np.broadcast_to(doubt, moved.shape), np.float32(np.inf), moved)]


@exact
def bound_same(case: Case) -> list[Array]:
    """The same elements. A cast to whole numbers may round to either of two; one to fewer bits rounds in the model."""
    if case.y.dtype.kind in "iub":
        return [np.ceil(case.e)]
    theirs = 0.0 if case.dtype is None or case.dtype == np.float32 else unit_of(case.dtype)
    return [case.e + theirs * np.abs(case.y)]


@exact
def bound_concat(case: Case) -> list[Array]:
    """The errors of all inputs side by side."""
    return _run_on_errors(case, list(case.errors))


@exact
def bound_pad(case: Case) -> list[Array]:
    """Errors are moved; the padding has none."""
    value = case.input(2)
    exact_padding = [] if value is None else [case.inputs[1], np.zeros_like(value)]
    return [np.maximum(case.first(case.e, *exact_padding), 0)]


def _run_on_errors(case: Case, inputs: list[Array | None]) -> list[Array]:
    made = case.run([None if array is None else np.ascontiguousarray(array) for array in inputs])
    return [np.zeros((), np.float32) if array is None else np.abs(array) for array in made]


moves = partial(Declaration, order=order.keep_order, bound=bound_move, shapes=shapes.by_onnx)
_reshaping = partial(moves, batch=batch.reshape)
copying = partial(_reshaping, order=order.unary, bound=bound_same)


@_reshaping({"Reshape": (6, 13, 14, 19, 21, 23, 24, 25)}, values=(1,), folds=CHEAP | COUNTS)
@_reshaping({"Unsqueeze": (6, 11, 13, 21, 23, 24, 25)}, values=(1,), folds=CHEAP | COUNTS)
@_reshaping({"Squeeze": (6, 11, 13, 21, 23, 24, 25)}, order=order.squeeze, values=(1,), folds=CHEAP | COUNTS)
@_reshaping({"Flatten": (6, 9, 11, 13, 21, 23, 24, 25)}, values=(), folds=CHEAP)
@copying({"Identity": (6, 13, 14, 16, 19, 21, 23, 24, 25)}, values=(), folds=CHEAP | COUNTS)
@copying({"Dropout": (6, 7, 10, 12, 13, 22)}, order=order.dropout, values=(1, 2), folds=NEVER)
def lower_reshape(lowering: Lowering, node: ir.Node) -> None:
    """The same elements in another shape: later steps read them where they are."""
    source = node.inputs[0]
    lowering.shape(source)
    assert source is not None
    if node.op_type == "Dropout":
        _check_dropout(lowering, node)
    if not _shuffle(lowering, node, source):
        lowering.view(node, source, "the same elements in another shape; nothing moves")


def _shuffle(lowering: Lowering, node: ir.Node, source: ir.Value) -> bool:
    """Reorder channels of images, if that is what an earlier Transpose and this Reshape do together."""
    made = node.outputs[0]
    shape = lowering.shape(made)
    if len(shape) != 4 or source.dtype not in FLOATS or lowering.is_on_host(source):
        return False
    view = lowering.view_of(source)
    put = View.whole(value_name(made), shape).reshape(view.shape)
    if view.reshape(shape) is not None or put is None:
        return False
    step = move_step(node_name(node), value_name(made), shape, [(view, put)])
    runs = step.runs()
    if not runs:
        return False
    producer = _sole_conv(lowering, source, view.root)
    if producer is not None and producer.reorder(_channel_order(runs, shape[1])):
        producer.output = value_name(made)
        producer.nodes.append(node_name(node))
        producer.title.append(f"{operator_name(node)} {node_name(node)}")
        why = f"fused into {producer.name}: its outputs are computed in this order"
        lowering.report(node, "core", why, step=producer.name)
        return True
    lowering.add(step, [node], "channels in another order", place="dma")
    return True


def _sole_conv(lowering: Lowering, value: ir.Value, root: str) -> ConvStep | None:
    """The convolution that makes ``root``, if only views of it lead to ``value``, and one node reads ``value``."""
    seen: ir.Value | None = value
    while seen is not None and lowering.sole_consumer(seen)[0] is not None:
        if value_name(seen) == root:
            return next((s for s in lowering.steps if s.output == root and isinstance(s, ConvStep)), None)
        node = seen.producer()
        seen = node.inputs[0] if node is not None else None
    return None


def _channel_order(runs: list[Run], channels: int) -> list[int]:
    """The number of the source's channel for each channel of the result."""
    order = [0] * channels
    for run in runs:
        for k in range(run.count):
            order[run.put + k * run.put_step] = run.first + k * run.step
    return order


def _check_dropout(lowering: Lowering, node: ir.Node) -> None:
    """Only inference is supported, where the output is the input."""
    hint = "export the model in inference mode (model.eval())"
    if any(map(is_used, node.outputs[1:])):
        raise Blocked("the mask output is used, which only training needs", hint)
    training = input_at(node, 2)
    mode = lowering.constant(training)
    if training is not None and (mode is None or mode.any()):
        raise Blocked("training_mode is computed" if mode is None else "training_mode=1", hint)
    if lowering.opset < 7 and not attribute(node, "is_test", 0):
        raise Blocked("is_test=0, which is training", hint)


@moves({"Transpose": (6, 13, 21, 23, 24, 25)}, batch=batch.transpose, values=(), folds=CHEAP | COUNTS)
def lower_transpose(lowering: Lowering, node: ir.Node) -> None:
    """Another order of dimensions, as a view; consecutive ones are merged. The host transposes final indices."""
    source = node.inputs[0]
    if source is not None and lowering.is_on_host(source):
        order = tuple(attribute(node, "perm", tuple(reversed(range(len(lowering.shape(source)))))))
        shape = lowering.shape(source)
        lowering.run_on_host(node, partial(_turn_index, shape=shape, order=order), "turns a final index on the host")
        return
    view = can_move(lowering, source)
    order = tuple(attribute(node, "perm", tuple(reversed(range(len(view.shape))))))
    lowering.add_view(node, node.outputs[0], view.permute(order), "another order of dimensions: an access pattern")


@host_function
def _turn_index(values: Array, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    return values.reshape(shape).transpose(order)


def can_move(lowering: Lowering, value: ir.Value | None) -> View:
    """A tensor whose elements may be moved, as a view: also a search's places, which ``readable`` makes floats."""
    return lowering.place_view(value)


@moves({"Slice": (6, 10, 11, 13)}, batch=batch.slicing, order=order.slicing, values=(1, 2, 3, 4), folds=CHEAP | COUNTS)
def lower_slice(lowering: Lowering, node: ir.Node) -> None:
    """Ranges of indices: an access pattern with an offset and strides."""
    view = can_move(lowering, node.inputs[0])
    for axis, start, end, step in slice_ranges(node, len(view.shape), partial(integers, lowering, node)):
        size = view.shape[axis]
        # As in Python's slices, but on the way back, a start before the first element means the first element.
        first = max(start, -size) if step < 0 and size else start
        first, last, stride = slice(first, end, step).indices(size)
        view = view.slice(axis, first, len(range(first, last, stride)), stride)
    lowering.add_view(node, node.outputs[0], view, "ranges of indices: an access pattern")


def integers(lowering: Lowering, node: ir.Node, position: int, name: str) -> tuple[int, ...] | None:
    """The constant integers of an input, None if it is left out; blocks a computed one."""
    numbers = constant_numbers(lowering, node, position, name)
    return None if numbers is None else tuple(int(i) for i in numbers)


def constant_numbers(lowering: Lowering, node: ir.Node, position: int, name: str) -> Array | None:
    """The constant numbers of an input, None if it is left out; blocks a computed one."""
    value = input_at(node, position)
    if value is None:
        return None
    array = lowering.constant(value)
    if array is None:
        raise Blocked(f"the input {name!r} is computed", "export the model with it as a constant")
    return array.reshape(-1)


@moves(
    {"Split": (6, 11, 13, 18)},
    batch=batch.along_axis,
    order=order.split,
    values=(1,),
    folds=COUNTS,
    shapes=shapes.split,
)
def lower_split(lowering: Lowering, node: ir.Node) -> None:
    """Consecutive parts: each output is an access pattern on the input."""
    view = can_move(lowering, node.inputs[0])
    axis = attribute(node, "axis", 0) % len(view.shape)
    start = 0
    for made in node.outputs:
        if not made.name:
            continue
        size = lowering.shape(made)[axis]
        lowering.add_view(node, made, view.slice(axis, start, size), "a part of the input: an access pattern")
        start += size


@moves({"Expand": (8, 13)}, batch=batch.expand, values=(1,), folds=CHEAP)
def lower_expand(lowering: Lowering, node: ir.Node) -> None:
    """Broadcasting to a shape: repeated elements have stride 0."""
    view = can_move(lowering, node.inputs[0])
    made = node.outputs[0]
    lowering.add_view(node, made, view.broadcast(lowering.shape(made)), "repeated elements: an access pattern")


@moves({"Tile": (6, 13)}, batch=batch.expand, values=(1, 2), folds=CHEAP)
def lower_tile(lowering: Lowering, node: ir.Node) -> None:
    """Whole copies side by side: repeated elements have stride 0."""
    view = can_move(lowering, node.inputs[0])
    shape = lowering.shape(node.outputs[0])
    pairs = [(total // size, size) for total, size in zip(shape, view.shape, strict=True)]
    split = view.reshape(tuple(n for _, size in pairs for n in (1, size)))
    assert split is not None
    repeated = split.broadcast(tuple(n for pair in pairs for n in pair))
    whole = reshape_view(lowering, repeated, shape, node)
    lowering.add_view(node, node.outputs[0], whole, "copies side by side: repeated elements have stride 0")


@moves({"DepthToSpace": (6, 11, 13, 28)}, batch=batch.by_image, values=(), folds=NEVER, shapes=shapes.blocks)
@moves({"SpaceToDepth": (6, 13, 28)}, batch=batch.by_image, values=(), folds=NEVER, shapes=shapes.blocks)
def lower_blocks(lowering: Lowering, node: ir.Node) -> None:
    """Channels to pixels and back: a transpose of six dimensions."""
    view = can_move(lowering, node.inputs[0])
    if len(view.shape) != 4:
        raise Blocked(f"{node.op_type} of {len(view.shape)} dimensions; only images (N, C, H, W) are supported", WRONG)
    n, c, h, w = view.shape
    b = int(attribute(node, "blocksize", 1))
    mode = attribute(node, "mode", "DCR")
    order: tuple[int, ...]
    if node.op_type == "SpaceToDepth":
        split, order = (n, c, h // b, b, w // b, b), (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    elif mode == "CRD":
        split, order = (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, order = (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2)
    turned = reshape_view(lowering, view, split).permute(order)
    whole = reshape_view(lowering, turned, lowering.shape(node.outputs[0]), node)
    lowering.add_view(node, node.outputs[0], whole, "pixels and channels exchanged: an access pattern")


@moves(
    {"Concat": (6, 11, 13)},
    batch=batch.concat,
    order=order.concat,
    bound=bound_concat,
    values=(),
    folds=CHEAP | COUNTS,
)
def lower_concat(lowering: Lowering, node: ir.Node) -> None:
    """Tensors joined along an axis: DMA copies each to its place."""
    shape = lowering.shape(node.outputs[0])
    axis = attribute(node, "axis", 1) % len(shape)
    whole = View.whole(value_name(node.outputs[0]), shape)
    parts, start = [], 0
    for value in node.inputs:
        view = can_move(lowering, value)
        size = view.shape[axis]
        parts.append((view, whole.slice(axis, start, size)))
        start += size
    add_move(lowering, node, parts, "tensors side by side: DMA brings each to its place")


@moves(
    {"Pad": (6, 11, 13, 18, 19, 21, 23, 24, 25)},
    batch=batch.pad,
    order=order.pad,
    bound=bound_pad,
    values=(1, 2, 3),
    folds=CHEAP,
)
def lower_pad(lowering: Lowering, node: ir.Node) -> None:
    """Constant padding is written first; edge, reflect and wrap copy the elements that they repeat."""
    view = can_move(lowering, node.inputs[0])
    shape = lowering.shape(node.outputs[0])
    begins, ends = paddings(node, len(view.shape), partial(integers, lowering, node))
    mode = attribute(node, "mode", "constant")
    if mode != "constant":
        _pad_by_index(lowering, node, view, begins, ends, mode)
        return
    whole = View.whole(value_name(node.outputs[0]), shape)
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        cut = (max(0, -begin), max(0, -end))
        kept = max(0, view.shape[axis] - sum(cut))
        view = view.slice(axis, cut[0] if kept else 0, kept)
        whole = whole.slice(axis, max(0, begin) if kept else 0, kept)
    fill = _pad_value(lowering, node)
    add_move(lowering, node, [(view, whole)], "DMA into a tensor filled with the padding", fill=fill)


def _pad_value(lowering: Lowering, node: ir.Node) -> float:
    if lowering.opset < 11:
        return float(attribute(node, "value", 0.0))
    value = constant_numbers(lowering, node, 2, "constant_value")
    fill = float(value[0]) if value is not None and value.size else 0.0
    if np.isnan(fill):
        raise Blocked(f"the padding's value {fill}; numbers and infinity are supported")
    return fill


_PAD_MODES = ("edge", "reflect", "wrap")


def _pad_by_index(lowering: Lowering, node: ir.Node, view: View, begins: list[int], ends: list[int], mode: str) -> None:
    """Edge, reflect and wrap: one dimension after the other, each by the indices that it takes."""
    if mode not in _PAD_MODES:
        raise Blocked(f"mode={mode}; ONNX knows constant, {', '.join(_PAD_MODES)}", WRONG)
    picks = {}
    for axis, (size, begin, end) in enumerate(zip(view.shape, begins, ends, strict=True)):
        if begin or end:
            kept = np.arange(size)[max(0, -begin) : size - max(0, -end)]
            picks[axis] = np.pad(kept, (max(0, begin), max(0, end)), mode)  # type: ignore[call-overload]
    if picks:
        add_takes(lowering, node, view, picks, "the repeated elements are taken by DMA")
    else:
        lowering.add_view(node, node.outputs[0], view, "nothing is padded")
