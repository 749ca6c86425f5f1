"""Conv over images, with the activation and pooling that follow it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.kernels import conv2d
from trnrt.planner import weights
from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.ops.fusing import next_activation
from trnrt.planner.ops.pool import read_pool
from trnrt.planner.ops.windows import Window, read_window
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Step, Tensors, WeightName

_NO_POOL = Window((1, 1), (1, 1), (1, 1), (0, 0))
# conv2d's own defaults: what equals them is left out of the call.
_DEFAULTS = {
    "stride": (1, 1),
    "pads": (0, 0),
    "dilation": (1, 1),
    "act": "none",
    "pool": (1, 1),
    "pool_stride": (1, 1),
    "pool_pads": (0, 0),
    "pool_dilation": (1, 1),
}


@dataclass(kw_only=True)
class ConvStep(Step):
    """``max_pool(act(conv(source, weight) + bias))``; ``size`` is the convolution's (rows, columns) before pooling."""

    weight: Array
    bias: Array
    window: Window
    size: tuple[int, int]
    act: str
    pool: Window

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.sources[0].shape
        return (Layout.CHANNELS, Layout.HBM) if same else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM)

    def call(self, tensors: Tensors) -> Call:
        window, pool = self.window, self.pool
        given = {
            "channels": self.weight.shape[1],
            "size": self.size,
            "kernel": window.kernel,
            "stride": window.stride,
            "pads": window.pads,
            "dilation": window.dilation,
            "act": self.act,
            "pool": pool.kernel,
            "pool_stride": pool.stride,
            "pool_pads": pool.pads,
            "pool_dilation": pool.dilation,
        }
        return Call(
            module="conv2d",
            kernel="conv2d",
            args=(WeightName("w"), WeightName("b")),
            options={key: value for key, value in given.items() if value != _DEFAULTS.get(key)},
            weights={"w": weights.conv_weight(self.weight)},
            biases={"b": weights.columns(self.bias)},
        )


def _fits(channels: int, size: tuple[int, int], window: Window, pool: Window, width: int) -> bool:
    """Whether conv2d can compute rows of ``width`` results, pooled from a convolution of ``size``."""
    shape = (channels, size, window.kernel, window.stride, window.pads, window.dilation)
    return bool(conv2d.conv_fits(width, shape, (pool.kernel, pool.stride, pool.pads, pool.dilation)))


def _weights(lowering: Lowering, node: ir.Node) -> tuple[Array, Array]:
    """Weight (O, C, KH, KW) and bias (O,), both float32."""
    weight = lowering.constant(node.inputs[1])
    if weight is None:
        raise Blocked("the weight is computed; the kernel needs a constant", "export the weights as initializers")
    if weight.ndim != 4:
        raise Blocked(f"a convolution over {weight.ndim - 2} dimensions; only images (N, C, H, W) are supported")
    group = attribute(node, "group", 1)
    if group != 1:
        raise Blocked(f"group={group}: grouped and depthwise convolutions are not supported yet")
    bias = lowering.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        raise Blocked("the bias is computed; the kernel needs a constant")
    zeros = np.zeros(weight.shape[0], np.float32)
    return weight.astype(np.float32), zeros if bias is None else bias.astype(np.float32)


@lowers("Conv")
def lower_conv(lowering: Lowering, node: ir.Node) -> None:
    """A convolution; a following activation and MaxPool are computed in the same pass."""
    weight, bias = _weights(lowering, node)
    source = lowering.operand(node.inputs[0])
    shape = lowering.shape(node.outputs[0])
    window = read_window(node, (weight.shape[2], weight.shape[3]), source.shape[2:], shape[2:])
    size = (shape[2], shape[3])
    if not _fits(weight.shape[1], size, window, _NO_POOL, size[1]):
        raise Blocked(f"the input of one result row, {weight.shape[1]} channels wide {source.shape[3]}, exceeds SBUF")
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    pool, pooling = _following_pool(lowering, nodes, weight.shape[1], size, window)
    nodes += pooling
    if pooling and act == "none":
        # Every activation here is monotonic: the largest of the activated is the activated largest.
        act, activation = next_activation(lowering, nodes[-1].outputs[0], node)
        nodes += activation
    step = ConvStep(
        name=node_name(node),
        nodes=[node_name(n) for n in nodes],
        sources=[source],
        output=value_name(nodes[-1].outputs[0]),
        shape=lowering.shape(nodes[-1].outputs[0]),
        weight=weight,
        bias=bias,
        window=window,
        size=size,
        act=act,
        pool=pool,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine, one matmul a kernel tap")


def _following_pool(
    lowering: Lowering, nodes: list[ir.Node], channels: int, size: tuple[int, int], window: Window
) -> tuple[Window, list[ir.Node]]:
    """The MaxPool that can be computed in the same pass; a note says why one was left out."""
    value = nodes[-1].outputs[0]
    follower, why_not = lowering.sole_consumer(value)
    pools = [reader for reader, _ in value.uses() if reader.op_type == "MaxPool" and reader.domain == ""]
    if not pools:
        return _NO_POOL, []
    if follower is not None:
        try:
            pool = read_pool(lowering, follower)
        except Blocked:
            return _NO_POOL, []  # its own lowering says why
        if _fits(channels, size, window, pool, lowering.shape(follower.outputs[0])[3]):
            return pool, [follower]
        why_not = "the rows that one pooled row needs do not fit SBUF"
    for reader in pools:
        lowering.notes.append(
            f"MaxPool {node_name(reader)!r} is not fused into Conv {node_name(nodes[0])!r}: {why_not}"
        )
    return _NO_POOL, []
