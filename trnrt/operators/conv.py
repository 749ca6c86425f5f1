"""Conv and ConvTranspose, with the activation and pooling that follow."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.kernels.conv import conv_transpose
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.operators import batch, order, shapes
from trnrt.operators.arranging import arrange_parameter
from trnrt.operators.bounds import sums
from trnrt.operators.conv_steps import NO_POOL, ConvLayer, ConvStep, ConvTransposeStep, fits_kernel, is_cramped
from trnrt.operators.fusing import MONOTONIC, following_rounding, following_sum, next_activation
from trnrt.operators.patches import add_patches
from trnrt.operators.pool import counts_alike, read_pool
from trnrt.operators.record import NEVER, Declaration
from trnrt.operators.volumes import lower_volume_conv, lower_volume_transpose, too_large
from trnrt.operators.windows import Pair, Window, image_size, read_transposed, read_volume_window, read_window
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.blocked import FALLBACK, WRONG
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Operand

_POOLS = {"MaxPool": "max", "AveragePool": "average"}
_convolution = partial(
    Declaration,
    batch=batch.by_image,
    order=order.keep_order,
    bound=sums.convolution,
    values=(),
    folds=NEVER,
    shapes=shapes.conv,
)


def _layer(lowering: Lowering, node: ir.Node, transposed: bool) -> ConvLayer:
    """The sizes of a node, from its source and weight (O, C, KH, KW), or (C, O, KH, KW). Over volumes, the kernel is
    that of images (D, H*W)."""
    source, weight = node.inputs[0], node.inputs[1]
    assert source is not None and weight is not None
    shape, seen = lowering.shape(weight), lowering.shape(source)
    groups = int(attribute(node, "group", 1))
    if len(shape) not in (3, 4, 5):
        hint = f"rows (N, C, W), images (N, C, H, W) and volumes (N, C, D, H, W) are supported; {FALLBACK}"
        raise Blocked(f"a convolution over {len(shape) - 2} dimensions", hint)
    kernel = image_size(shape)
    outputs = shape[1] * groups if transposed else shape[0]
    inner = shape[0] // groups if transposed else shape[1]
    if seen[1] != inner * groups or outputs % groups:
        raise Blocked(f"{groups} groups of {seen[1]} channels, with weights of shape {shape}", WRONG)
    return ConvLayer(seen[1], outputs, kernel, groups)


def _parameters(
    lowering: Lowering, node: ir.Node, layer: ConvLayer, transposed: bool
) -> tuple[Array | Operand, Array | Operand]:
    """Weight and bias in the kernels' layout: constants, or tensors that a movement step makes."""
    groups = int(attribute(node, "group", 1))
    together = groups if layer.groups == 1 else layer.together

    def prepare_weight(weight: Array) -> Array:
        images = weight.reshape(*weight.shape[:2], *image_size(weight.shape))
        made = weights.conv_transpose_weight if transposed else weights.conv_weight
        return made(images, groups, together)

    value = node.inputs[1]
    assert value is not None
    weight = arrange_parameter(lowering, node, value, prepare_weight, "weight")
    columns = partial(weights.columns, each=layer.together * layer.outputs // layer.groups)
    added = input_at(node, 2)
    if added is None:
        return weight, columns(np.zeros(layer.outputs, np.float32))
    return weight, arrange_parameter(lowering, node, added, columns, "bias", "float32")


@_convolution({"Conv": (6, 11, 22)})
def lower_conv(lowering: Lowering, node: ir.Node) -> None:
    """A convolution; a following activation and pooling are computed in the same pass."""
    given = _layer(lowering, node, False)
    window = _image_window(lowering, node, given.kernel)
    if add_patches(lowering, node, window):
        return
    source, shape = lowering.operand(node.inputs[0]), lowering.shape(node.outputs[0])
    size = image_size(shape)
    layer = None if window is None else _choose_layer(given, as_dtype(lowering.dtype).itemsize, shape[0], size, window)
    if window is None or layer is None:
        lower_volume_conv(lowering, node, given)
        return
    weight, bias = _parameters(lowering, node, layer, False)
    act, activation = next_activation(lowering, node.outputs[0], node, limits=True)
    rounding: list[ir.Node] = []
    if act == "none" and layer.groups == 1 and not isinstance(bias, Operand) and not isinstance(weight, Operand):
        numbers, rounding = following_rounding(lowering, node.outputs[0], layer.outputs)
        if numbers is not None:
            act, bias = "whole", weights.whole_columns(bias, *numbers)
    nodes = [node, *activation, *rounding]
    pool_op, pool, pooling = _following_pool(lowering, nodes, layer.channels_at_once, size, window)
    nodes += pooling
    if pooling and act == "none" and pool_op == "max":
        later, activation = next_activation(lowering, nodes[-1].outputs[0], node, limits=True)
        # The kernel computes it before the maximum.
        if later in MONOTONIC:
            act = later
            nodes += activation
    added, adding = (None, []) if pooling or act != "none" or layer.groups > 1 else following_sum(lowering, node)
    if adding:
        act, activation = next_activation(lowering, adding[-1].outputs[0], node, limits=True)
        nodes += [*adding, *activation]
    step = ConvStep(
        name=node_name(node),
        sources=[source, *(p for p in (added, weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        weight=weight,
        bias=bias,
        channels=layer.channels,
        window=window,
        size=size,
        itemsize=as_dtype(lowering.dtype).itemsize,
        act=act,
        pool=pool,
        pool_op=pool_op,
        groups=layer.groups,
        added=added,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine")


def _choose_layer(layer: ConvLayer, itemsize: int, images: int, size: Pair, window: Window) -> ConvLayer | None:
    """The layer as conv2d computes it: with fewer groups, if that fits. None if conv2d has no room, or too little."""
    dense = layer.dense(itemsize)
    if fits_kernel(dense.channels_at_once, size, window, NO_POOL):
        layer = dense
    fits = fits_kernel(layer.channels_at_once, size, window, NO_POOL)
    return layer if fits and not is_cramped(layer, images, size, window) else None


def _image_window(lowering: Lowering, node: ir.Node, kernel: Pair) -> Window | None:
    """The window of a Conv over images or rows. One over volumes is one over images (D, H*W) if each result sees its
    own pixel of some slices; None if not."""
    source, made = lowering.shape(node.inputs[0]), lowering.shape(node.outputs[0])
    if len(made) < 5:
        return read_window(node, kernel, len(made) - 2)
    volume = read_volume_window(node, lowering.shape(node.inputs[1])[2:])
    if source[3:] != made[3:] or not volume.is_deep:
        return None
    return Window(kernel, (volume.stride[0], 1), (volume.dilation[0], 1), (volume.pads[0], 0))


@_convolution({"ConvTranspose": (6, 11, 22)})
def lower_conv_transpose(lowering: Lowering, node: ir.Node) -> None:
    """A transposed convolution; a following activation is computed in the same pass."""
    layer = _layer(lowering, node, True)
    source = lowering.operand(node.inputs[0])
    if len(source.shape) == 5:
        lower_volume_transpose(lowering, node, layer)
        return
    window = read_transposed(node, layer.kernel, source.shape[2:], lowering.shape(node.outputs[0])[2:])
    taps = conv_transpose.Taps(**window.options)
    if not conv_transpose.transpose_fits(layer.channels_at_once, taps):
        raise too_large(layer.channels_at_once, window)
    weight, bias = _parameters(lowering, node, layer, True)
    act, activation = next_activation(lowering, node.outputs[0], node, limits=True)
    nodes = [node, *activation]
    step = ConvTransposeStep(
        name=node_name(node),
        sources=[source, *(p for p in (weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        weight=weight,
        bias=bias,
        channels=layer.channels,
        window=window,
        act=act,
        groups=layer.groups,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine for each remainder of row and column by the stride")


def _following_pool(
    lowering: Lowering, nodes: list[ir.Node], channels: int, size: tuple[int, int], window: Window
) -> tuple[str, Window, list[ir.Node]]:
    """The pooling that can be computed in the same pass; a note says why one is not fused."""
    value = nodes[-1].outputs[0]
    follower, why_not = lowering.sole_consumer(value)
    pools = [reader for reader, _ in value.uses() if reader.op_type in _POOLS and reader.domain == ""]
    if not pools:
        return "max", NO_POOL, []
    if follower is not None:
        try:
            pool = read_pool(lowering, follower)
        except Blocked:
            return "max", NO_POOL, []  # its own lowering says why
        if not fits_kernel(channels, size, window, pool):
            why_not = "the input of one pooled result does not fit SBUF"
        elif not counts_alike(lowering, follower):
            why_not = "its windows at the edges are averages of fewer elements"
        else:
            return _POOLS[follower.op_type], pool, [follower]
    for reader in pools:
        lowering.notes.append(
            f"{reader.op_type} {node_name(reader)!r} is not fused into Conv {node_name(nodes[0])!r}: {why_not}"
        )
    return "max", NO_POOL, []
