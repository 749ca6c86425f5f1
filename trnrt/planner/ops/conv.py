"""Conv over images and rows, with the activation and pooling that follow it."""

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

_POOLS = {"MaxPool": "max", "AveragePool": "average"}
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
    "pool_op": "max",
    "groups": 1,
}


@dataclass(kw_only=True)
class ConvStep(Step):
    """``pool(act(conv(source, weight) + bias))``; ``size`` is the convolution's (rows, columns) before pooling.

    A row of pixels (N, C, W) is an image of one row, in HBM.
    """

    weight: Array
    bias: Array
    window: Window
    size: tuple[int, int]
    act: str
    pool: Window
    pool_op: str
    groups: int

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.sources[0].shape
        return (Layout.CHANNELS, Layout.HBM) if same and self._on_chip() else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if self._on_chip() else (Layout.HBM,)

    def _on_chip(self) -> bool:
        """Whether the kernel can have its images in SBUF."""
        return self.groups == 1 and len(self.shape) == 4

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = super().hbm_view(position)
        return shape if len(shape) == 4 else (*shape[:2], 1, shape[2])

    def call(self, tensors: Tensors) -> Call:
        window, pool = self.window, self.pool
        given = {
            "channels": self.weight.shape[1] * self.groups,
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
            "pool_op": self.pool_op,
            "groups": self.groups,
        }
        together = _together(self.weight, self.groups)
        return Call(
            module="conv2d",
            kernel="conv2d",
            args=(WeightName("w"), WeightName("b")),
            options={key: value for key, value in given.items() if value != _DEFAULTS.get(key)},
            weights={"w": weights.conv_weight(self.weight, self.groups, together)},
            biases={"b": weights.columns(self.bias, together * len(self.bias) // self.groups)},
        )


def _together(weight: Array, groups: int) -> int:
    """How many groups the kernel computes as one convolution; ``weight`` is (O, channels of a group, KH, KW)."""
    return int(conv2d.groups_together(weight.shape[1] * groups, weight.shape[0], groups))


def _fits(channels: int, size: tuple[int, int], window: Window, pool: Window) -> bool:
    """Whether conv2d can compute results that are pooled from a convolution of ``size``."""
    shape = (channels, size, window.kernel, window.stride, window.pads, window.dilation)
    return bool(conv2d.conv_fits(shape, ("max", pool.kernel, pool.stride, pool.pads, pool.dilation)))


def _weights(lowering: Lowering, node: ir.Node) -> tuple[Array, Array]:
    """Weight (O, C, KH, KW) and bias (O,), both float32."""
    weight = lowering.constant(node.inputs[1])
    if weight is None:
        raise Blocked("the weight is computed; the kernel needs a constant", "export the weights as initializers")
    if weight.ndim not in (3, 4):
        raise Blocked(f"a convolution over {weight.ndim - 2} dimensions; images (N, C, H, W) and rows are supported")
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    bias = lowering.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        raise Blocked("the bias is computed; the kernel needs a constant")
    zeros = np.zeros(weight.shape[0], np.float32)
    return weight.astype(np.float32), zeros if bias is None else bias.astype(np.float32)


@lowers("Conv")
def lower_conv(lowering: Lowering, node: ir.Node) -> None:
    """A convolution; a following activation and pooling are computed in the same pass."""
    weight, bias = _weights(lowering, node)
    groups = int(attribute(node, "group", 1))
    source = lowering.operand(node.inputs[0])
    shape = lowering.shape(node.outputs[0])
    window = read_window(node, (weight.shape[2], weight.shape[3]), source.shape[2:], shape[2:])
    size = (shape[2], shape[3]) if len(shape) == 4 else (1, shape[2])
    channels = weight.shape[1] * _together(weight, groups)
    if not _fits(channels, size, window, _NO_POOL):
        raise Blocked(f"the input of one result, {channels} channels under a kernel of {window.kernel}, exceeds SBUF")
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    pool_op, pool, pooling = _following_pool(lowering, nodes, channels, size, window)
    nodes += pooling
    if pooling and act == "none" and pool_op == "max":
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
        pool_op=pool_op,
        groups=groups,
    )
    lowering.add(step, nodes, "a convolution on the tensor engine")


def _following_pool(
    lowering: Lowering, nodes: list[ir.Node], channels: int, size: tuple[int, int], window: Window
) -> tuple[str, Window, list[ir.Node]]:
    """The pooling that can be computed in the same pass; a note says why one was left out."""
    value = nodes[-1].outputs[0]
    follower, why_not = lowering.sole_consumer(value)
    pools = [reader for reader, _ in value.uses() if reader.op_type in _POOLS and reader.domain == ""]
    if not pools:
        return "max", _NO_POOL, []
    if follower is not None:
        try:
            pool = read_pool(lowering, follower)
        except Blocked:
            return "max", _NO_POOL, []  # its own lowering says why
        if not _fits(channels, size, window, pool):
            why_not = "what one pooled result needs does not fit SBUF"
        elif not _averages_all(follower):
            why_not = "its windows at the edges are averages of less than others"
        else:
            return _POOLS[follower.op_type], pool, [follower]
    for reader in pools:
        lowering.notes.append(
            f"{reader.op_type} {node_name(reader)!r} is not fused into Conv {node_name(nodes[0])!r}: {why_not}"
        )
    return "max", _NO_POOL, []


def _averages_all(node: ir.Node) -> bool:
    """Whether all windows of a pooling node count alike, if they are averages."""
    if node.op_type == "MaxPool":
        return True
    if attribute(node, "ceil_mode", 0):
        return False
    if attribute(node, "count_include_pad", 0):
        return True
    return not any(attribute(node, "pads", (0, 0, 0, 0))) and attribute(node, "auto_pad", "NOTSET") in (
        "NOTSET",
        "VALID",
    )
