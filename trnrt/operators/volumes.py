"""Convolutions over volumes (N, C, D, H, W), and over images whose input does not fit SBUF."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.operators.arranging import arrange_parameter
from trnrt.operators.conv_steps import ConvLayer
from trnrt.operators.fusing import following_sum, next_activation
from trnrt.operators.volume_steps import STACKED, VolumeConvStep, as_volumes, choose_kernel, transposed_fits
from trnrt.operators.windows import VolumeWindow, Window, read_transposed_volume, read_volume_window
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.walk import Blocked, Lowering, node_name, value_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Operand

_WHY = {
    STACKED: "a convolution over volumes on the tensor engine, as one of images: their slices are channels",
    "conv3d_streamed": "a convolution on the tensor engine whose input comes a block of channels at a time",
}


def lower_volume_conv(lowering: Lowering, node: ir.Node, layer: ConvLayer) -> None:
    """A convolution over volumes, or one of images that conv2d has no room for; a following sum and activation are
    computed in the same pass."""
    source, shape = lowering.operand(node.inputs[0]), lowering.shape(node.outputs[0])
    window = read_volume_window(node, lowering.shape(node.inputs[1])[2:])
    kernel = choose_kernel(layer, window, source.shape, shape)
    if not kernel:
        raise too_large(layer.channels_at_once, window)
    weight, bias = _parameters(lowering, node, layer, kernel)
    act, nodes = next_activation(lowering, node.outputs[0], node, limits=True)
    added, adding = (None, []) if act != "none" or layer.groups > 1 else following_sum(lowering, node)
    if adding:
        act, nodes = next_activation(lowering, adding[-1].outputs[0], node, limits=True)
    nodes = [node, *adding, *nodes]
    step = VolumeConvStep(
        name=node_name(node),
        sources=[source, *(p for p in (added, weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        kernel=kernel,
        weight=weight,
        bias=bias,
        window=window,
        act=act,
        groups=layer.groups,
        added=added,
    )
    lowering.add(step, nodes, _WHY[kernel])


def _parameters(
    lowering: Lowering, node: ir.Node, layer: ConvLayer, kernel: str
) -> tuple[Array | Operand, Array | Operand]:
    """Weight and bias in the kernel's layout: constants, or tensors that a movement step makes."""
    groups, together = layer.groups, 1
    depth = (1, 1, 1, *lowering.shape(node.inputs[1])[2:])[-3]
    if kernel == STACKED:
        together = ConvLayer(layer.channels * depth, layer.outputs, layer.kernel, groups).together

    def prepare_weight(weight: Array) -> Array:
        volumes = weight.reshape(as_volumes(weight.shape))
        if kernel == STACKED:
            return weights.stacked_volume_weight(volumes, groups, together)
        return weights.volume_weight(volumes, groups)

    return _arrange(lowering, node, prepare_weight, layer.outputs, together * layer.outputs // groups)


def _arrange(
    lowering: Lowering, node: ir.Node, prepare_weight: weights.Prepare, outputs: int, each: int
) -> tuple[Array | Operand, Array | Operand]:
    """Weight and bias of a node; columns of the bias have ``each`` outputs."""
    value = node.inputs[1]
    assert value is not None
    weight = arrange_parameter(lowering, node, value, prepare_weight, "weight")
    columns, added = partial(weights.columns, each=each), input_at(node, 2)
    if added is None:
        return weight, columns(np.zeros(outputs, np.float32))
    return weight, arrange_parameter(lowering, node, added, columns, "bias", "float32")


def lower_volume_transpose(lowering: Lowering, node: ir.Node, layer: ConvLayer) -> None:
    """A transposed convolution over volumes; a following activation is computed in the same pass."""
    source, made = lowering.operand(node.inputs[0]), lowering.shape(node.outputs[0])
    depth, rows, columns = lowering.shape(node.inputs[1])[2:]
    window = read_transposed_volume(node, (depth, rows, columns), source.shape[2:], made[2:])
    if not transposed_fits(layer.channels, window):
        raise too_large(layer.channels, window)
    phases = (made[2], window.stride[0], window.pads[0], window.dilation[0])

    def prepare_weight(weight: Array) -> Array:
        return weights.volume_transpose_weight(weight, layer.groups, *phases)

    weight, bias = _arrange(lowering, node, prepare_weight, layer.outputs, layer.outputs)
    act, activation = next_activation(lowering, node.outputs[0], node, limits=True)
    nodes = [node, *activation]
    step = VolumeConvStep(
        name=node_name(node),
        sources=[source, *(p for p in (weight, bias) if isinstance(p, Operand))],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        kernel="conv_transpose3d",
        weight=weight,
        bias=bias,
        window=window,
        act=act,
    )
    lowering.add(step, nodes, "a transposed convolution of images for each remainder of a slice by the stride")


def too_large(channels: int, window: Window | VolumeWindow) -> Blocked:
    """The refusal of a convolution that no kernel has room for."""
    seen = f"a kernel of {window.kernel} with dilation {window.dilation} over {channels} channels"
    return Blocked(
        f"{seen} needs more input for one result than SBUF holds", f"use a smaller kernel, or less dilation; {FALLBACK}"
    )
