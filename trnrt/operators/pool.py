"""Pooling over rows, images and volumes: MaxPool, AveragePool, LpPool, and all of them over whole images."""

from __future__ import annotations

from functools import partial
from math import prod

import onnx_ir as ir

from trnrt.importer.folding.spatial import Span, pool_spans
from trnrt.importer.rewriting import pool_indices
from trnrt.importer.values import is_used
from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import sums
from trnrt.operators.pool_steps import AveragePoolStep, PoolStep
from trnrt.operators.programs import Program, add_compute, add_program
from trnrt.operators.record import NEVER, Declaration
from trnrt.operators.volume_pools import Averages, pool_volumes, read_axes
from trnrt.operators.windows import Pair, Window, pixel_rows, read_pair
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.steps import Operand

# Before this opset onnxruntime divides by the whole window if padding counts and ceil_mode is 0. Otherwise elements
# beyond the padding don't count: windows may reach there if they are larger than their image.
_CUT_SINCE = 19


def read_pool(lowering: Lowering, node: ir.Node) -> Window:
    """The window of a pooling node; blocks those that no kernel computes."""
    shape = _source_shape(lowering, node)
    dimensions = len(shape) - 2
    if dimensions not in (1, 2):
        hint = "pool up to three dimensions at a time, with a Reshape before and after"
        raise Blocked(f"{node.op_type} over {dimensions} dimensions", hint)
    _check_outputs(node)
    kernel = tuple(int(k) for k in attribute(node, "kernel_shape", ()))
    if len(kernel) != dimensions:
        raise Blocked(f"kernel_shape={list(kernel)}: {dimensions} numbers are expected", WRONG)
    for name in ("strides", "dilations"):
        read_pair(node, name, dimensions)
    return _window(node, shape[2:])[0]


def _check_outputs(node: ir.Node) -> None:
    if any(map(is_used, node.outputs[1:])):
        raise Blocked(
            f"the Indices output is used, which needs opset {pool_indices.SINCE}, float32 or float16 images, windows of"
            f" up to {pool_indices.MOST_TAPS} elements, and at most {pool_indices.MOST_ELEMENTS} in all windows",
            "export the model without return_indices, or for smaller images and windows",
        )


def _window(node: ir.Node, sizes: tuple[int, ...]) -> tuple[Window, Pair]:
    """The window of a pooling node over images of ``sizes``, and the padding (bottom, right)."""
    spans = pool_spans(node, sizes)
    if spans is None:
        raise Blocked(f"kernel_shape, strides, dilations and pads don't fit {len(sizes)} dimensions", WRONG)
    if len(sizes) == 1:
        spans = [Span(0, 0, 1), *spans]
    taps = attribute(node, "kernel_shape", ())
    kernel = (int(taps[0]), int(taps[1])) if len(taps) == 2 else (1, int(taps[0]))
    strides, dilations = (read_pair(node, name, len(sizes)) for name in ("strides", "dilations"))
    rows, columns = spans
    return Window(kernel, strides, dilations, (rows.before, columns.before)), (rows.after, columns.after)


def counts_alike(lowering: Lowering, node: ir.Node) -> bool:
    """True if all windows of a pooling node divide by the same number; maxima don't divide."""
    if node.op_type != "AveragePool":
        return True
    window, _ = _window(node, _source_shape(lowering, node)[2:])
    ends, needed = _counted_padding(lowering, node, window), _needed_padding(lowering, node, window)
    if attribute(node, "count_include_pad", 0):
        return needed[0] <= max(0, ends[0]) and needed[1] <= max(0, ends[1])
    return max(window.pads) <= 0 and needed == (0, 0)


def _source_shape(lowering: Lowering, node: ir.Node) -> tuple[int, ...]:
    """The shape of a pooling node's input."""
    shape = lowering.shape(node.inputs[0])
    if len(shape) < 2:
        raise Blocked(f"{node.op_type} of a tensor of {len(shape)} dimensions; images (N, C, H, W) are expected", WRONG)
    return shape


_pool = partial(Declaration, batch=batch.by_image, order=order.keep_order, values=(), folds=NEVER)


@_pool({"MaxPool": (6, 8, 10, 11, 12, 22)}, bound=sums.largest, shapes=shapes.pooling)
def lower_max_pool(lowering: Lowering, node: ir.Node) -> None:
    """The maxima of sliding windows."""
    if _is_volume(lowering, node):
        _check_outputs(node)
        source = lowering.operand(node.inputs[0], short_integers=True)
        pooled = pool_volumes(lowering, node, source, read_axes(lowering, node))
        lowering.set_view(node.outputs[0], View.whole(pooled.value, pooled.shape))
        lowering.mark_whole_numbers(node.outputs[0])
        return
    _add_maxima(lowering, node, read_pool(lowering, node))


@_pool({"AveragePool": (6, 7, 10, 11, 19, 22)}, bound=sums.average, shapes=shapes.pooling)
def lower_average_pool(lowering: Lowering, node: ir.Node) -> None:
    """The averages of sliding windows, with or without the padding."""
    counts = bool(attribute(node, "count_include_pad", 0))
    if _is_volume(lowering, node):
        axes = read_axes(lowering, node, needed=counts and _counts_beyond(lowering, node))
        source = _drop_uncounted(lowering, node.inputs[0], [axis.end for axis in axes])
        pooled = pool_volumes(lowering, node, source, axes, Averages(counts))
        lowering.set_view(node.outputs[0], View.whole(pooled.value, pooled.shape))
        return
    window = read_pool(lowering, node)
    _add_averages(lowering, node, window, _counted_padding(lowering, node, window), counts)


@_pool({"LpPool": (6, 11, 18, 22)}, bound=sums.norm, shapes=shapes.pooling)
def lower_lp_pool(lowering: Lowering, node: ir.Node) -> None:
    """The p-norms of sliding windows."""
    _add_norms(lowering, node, None if _is_volume(lowering, node) else read_pool(lowering, node))


@_pool({"GlobalMaxPool": (6, 22)}, bound=sums.largest, shapes=shapes.by_onnx)
def lower_global_max_pool(lowering: Lowering, node: ir.Node) -> None:
    """The maximum of each channel."""
    _add_maxima(lowering, node, _whole_window(lowering, node))


@_pool({"GlobalAveragePool": (6, 22)}, bound=sums.average, shapes=shapes.by_onnx)
def lower_global_average_pool(lowering: Lowering, node: ir.Node) -> None:
    """The average of each channel."""
    _add_averages(lowering, node, _whole_window(lowering, node), (0, 0), True)


@_pool({"GlobalLpPool": (6, 22)}, bound=sums.norm, shapes=shapes.by_onnx)
def lower_global_lp_pool(lowering: Lowering, node: ir.Node) -> None:
    """The p-norm of each channel."""
    _add_norms(lowering, node, _whole_window(lowering, node))


def _whole_window(lowering: Lowering, node: ir.Node) -> Window:
    """The window that is all of an image, of any rank."""
    return Window(pixel_rows(_source_shape(lowering, node)), (1, 1), (1, 1), (0, 0))


def _counted_padding(lowering: Lowering, node: ir.Node, window: Window) -> Pair:
    """The padding (bottom, right) that counts in averages, if padding does."""
    if attribute(node, "count_include_pad", 0) and _counts_beyond(lowering, node):
        return _needed_padding(lowering, node, window)
    return _window(node, _source_shape(lowering, node)[2:])[1]


def _counts_beyond(lowering: Lowering, node: ir.Node) -> bool:
    """True if elements beyond the padding count, if padding does."""
    return lowering.opset < _CUT_SINCE and not attribute(node, "ceil_mode", 0)


def _needed_padding(lowering: Lowering, node: ir.Node, window: Window) -> Pair:
    """The padding (bottom, right) that the last windows see."""
    image, result = pixel_rows(_source_shape(lowering, node)), pixel_rows(lowering.shape(node.outputs[0]))
    ends = [
        (result[d] - 1) * window.stride[d] + (window.kernel[d] - 1) * window.dilation[d] + 1 - image[d] - window.pads[d]
        for d in (0, 1)
    ]
    return max(0, ends[0]), max(0, ends[1])


def _add_maxima(lowering: Lowering, node: ir.Node, window: Window) -> None:
    """A step of maxima, of whole numbers as well."""
    source, made = lowering.operand(node.inputs[0], short_integers=True), node.outputs[0]
    step = PoolStep(
        name=node_name(node),
        sources=[source],
        output=value_name(made),
        shape=lowering.shape(made),
        window=window,
    )
    lowering.add(step, [node], "window maxima on the vector engine")
    lowering.mark_whole_numbers(made)


def _add_averages(lowering: Lowering, node: ir.Node, window: Window, ends: Pair, count_include_pad: bool) -> None:
    """A step of averages; negative padding at the end leaves pixels out."""
    step = AveragePoolStep(
        name=node_name(node),
        sources=[_drop_uncounted(lowering, node.inputs[0], list(ends))],
        output=value_name(node.outputs[0]),
        shape=lowering.shape(node.outputs[0]),
        window=window,
        ends=(max(0, ends[0]), max(0, ends[1])),
        count_include_pad=count_include_pad,
    )
    lowering.add(step, [node], "window sums on the vector engine, divided by how many elements count")


def _drop_uncounted(lowering: Lowering, value: ir.Value | None, ends: list[int]) -> Operand:
    """Images without the pixels that negative padding at the end of the last axes leaves out."""
    view = lowering.view_of(value)
    for axis, end in enumerate(ends, len(view.shape) - len(ends)):
        if end < 0:
            view = view.slice(axis, 0, view.shape[axis] + end)
    return lowering.operand_of(view)


def _is_volume(lowering: Lowering, node: ir.Node) -> bool:
    """True if a node pools volumes (N, C, D, H, W)."""
    return len(_source_shape(lowering, node)) == 5


def _add_norms(lowering: Lowering, node: ir.Node, window: Window | None) -> None:
    """Steps of powers, of their averages with all padding counted, and of the root of the window's size times these;
    without a window, those of volumes.

    Tensors between them are float32: float16 holds no cube above 40 or below 0.002.
    """
    p = int(attribute(node, "p", 2))
    if p < 1:
        raise Blocked(f"p={p}; norms of 1 and more are supported")
    source, made = lowering.operand(node.inputs[0]), value_name(node.outputs[0])
    before = Program()
    value = before.source(source)
    if p == 2:
        before.apply("square", value)
    else:
        magnitude = before.apply("abs", value)
        if p > 1:
            before.apply("power", magnitude, float(p))
    powers = add_program(lowering, node, before, lowering.spare_name(f"{made}.powers"), source.shape, dtype="float32")
    if window is None:
        axes = read_axes(lowering, node, needed=True)
        averages = pool_volumes(lowering, node, powers, axes, Averages(True, "float32"))
        size = prod(axis.kernel for axis in axes)
    else:
        averages, size = _average_powers(lowering, node, window, powers), prod(window.kernel)
    after = Program()
    total = after.apply("multiply", after.source(averages), float(size))
    if p == 2:
        after.apply("sqrt", total)
    elif p > 1:
        after.apply("power", total, 1.0 / p)
    add_compute(lowering, node, after, "norms of windows: powers, sums and roots")


def _average_powers(lowering: Lowering, node: ir.Node, window: Window, powers: Operand) -> Operand:
    """A step of the averages of powers."""
    output = lowering.spare_name(f"{value_name(node.outputs[0])}.averages")
    averages = AveragePoolStep(
        name=lowering.spare_name(f"{output}.step"),
        sources=[powers],
        output=output,
        shape=lowering.shape(node.outputs[0]),
        dtype="float32",
        window=window,
        ends=_needed_padding(lowering, node, window),
        count_include_pad=True,
    )
    lowering.add(averages, [node], "window sums on the vector engine")
    return Operand(output, averages.shape)
