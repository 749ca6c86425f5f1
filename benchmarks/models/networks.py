"""ResNets and VGGs as torchvision has them, as ONNX models with random weights and an open batch.

The architectures are those of "Deep Residual Learning for Image Recognition" (arXiv:1512.03385, table 1), with the
stride of a bottleneck in its 3x3 convolution as in torchvision ("v1.5"), and of "Very Deep Convolutional Networks for
Large-Scale Image Recognition" (arXiv:1409.1556, table 1, columns A and D), without its average pooling to 7x7, which
has no effect at 224x224. As in an export for evaluation, BatchNormalization is folded into the convolution before it,
which then has a bias, and Dropout is removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

SIDE, CLASSES = 224, 1000
BRANCH_GAIN = 0.25
"""The scale of a residual branch's last convolution: 50 blocks in sequence raise the activations' variance 20-fold, not
2**50."""

_OPSET, _IR_VERSION = 17, 8
_DRAWN = 1_000_000


class _Builder:
    """A graph that grows node by node; methods take and return names of values. Weights are float32 and seeded."""

    def __init__(self, name: str, seed: int = 0) -> None:
        # Build in place: helper.make_graph would copy a VGG's weights, half a gigabyte.
        opset = helper.make_opsetid("", _OPSET)
        self.model = onnx.ModelProto(ir_version=_IR_VERSION, opset_import=[opset])
        self._graph = self.model.graph
        self._graph.name = name
        self._graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, SIDE, SIDE]))
        self._drawn = np.random.default_rng(seed).standard_normal(_DRAWN, np.float32)
        self._taken = 0

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, which has the node's name."""
        name = f"{operator.lower()}_{len(self._graph.node)}"
        self._graph.node.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(self, source: str, channels: int, outputs: int, kernel: int, stride: int = 1, gain: float = 1.0) -> str:
        """A convolution with bias, padded so that stride 1 keeps the size. Weights (O, C, K, K), bias (O,)"""
        w = self._weight((outputs, channels, kernel, kernel), gain)
        b = self._bias(outputs)
        shape: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.node("Conv", source, w, b, **shape)

    def gemm(self, source: str, features: int, outputs: int) -> str:
        """A fully connected layer. Weights (O, F), bias (O,)"""
        return self.node("Gemm", source, self._weight((outputs, features)), self._bias(outputs), transB=1)

    def relu(self, source: str) -> str:
        return self.node("Relu", source)

    def pool(self, source: str, kernel: int, stride: int, pad: int = 0) -> str:
        """The largest of each window."""
        shape: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node("MaxPool", source, **shape)

    def ending(self, last: str) -> onnx.ModelProto:
        """The model from ``image`` (N, 3, 224, 224) to ``last`` (N, 1000)."""
        self._graph.output.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, ["N", CLASSES]))
        return self.model

    def _weight(self, shape: tuple[int, ...], gain: float = 1.0) -> str:
        """Normally distributed with He's variance, 2 / inputs, times ``gain`` squared."""
        return self._store_tensor(shape, gain * math.sqrt(2 / math.prod(shape[1:])))

    def _bias(self, outputs: int) -> str:
        return self._store_tensor((outputs,), 0.1)

    def _store_tensor(self, shape: tuple[int, ...], spread: float) -> str:
        """A tensor of the next random numbers, starting over at their end: drawing new ones for a VGG would take
        seconds."""
        name, count = f"weight_{len(self._graph.initializer)}", math.prod(shape)
        start, self._taken = self._taken, (self._taken + count) % _DRAWN
        times, rest = divmod(count, _DRAWN)
        block = (np.roll(self._drawn, -start)[: None if times else count] * np.float32(spread)).astype("<f4").tobytes()
        raw = b"".join([*[block] * times, block[: rest * 4]])
        self._graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=shape, raw_data=raw)
        return name


def _basic(b: _Builder, source: str, channels: int, width: int, stride: int) -> str:
    """Two 3x3 convolutions, up to the addition."""
    inner = b.relu(b.conv(source, channels, width, 3, stride))
    return b.conv(inner, width, width, 3, gain=BRANCH_GAIN)


def _bottleneck(b: _Builder, source: str, channels: int, width: int, stride: int) -> str:
    """1x1, 3x3 with the stride, and 1x1 to four times the width."""
    inner = b.relu(b.conv(source, channels, width, 1))
    inner = b.relu(b.conv(inner, width, width, 3, stride))
    return b.conv(inner, width, 4 * width, 1, gain=BRANCH_GAIN)


def _resnet(name: str, bottleneck: bool, blocks: Sequence[int]) -> onnx.ModelProto:
    b = _Builder(name)
    branch, expansion = (_bottleneck, 4) if bottleneck else (_basic, 1)
    source, channels = b.pool(b.relu(b.conv("image", 3, 64, 7, 2)), 3, 2, pad=1), 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            outputs = width * expansion
            beside = source
            if stride != 1 or channels != outputs:
                beside = b.conv(source, channels, outputs, 1, stride)
            source = b.relu(b.node("Add", branch(b, source, channels, width, stride), beside))
            channels = outputs
    flat = b.node("Flatten", b.node("GlobalAveragePool", source))
    return b.ending(b.gemm(flat, channels, CLASSES))


def _vgg(name: str, stages: Sequence[int]) -> onnx.ModelProto:
    """``stages``: the number of convolutions before each pooling."""
    b = _Builder(name)
    source, channels, side = "image", 3, SIDE
    for count, width in zip(stages, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            source, channels = b.relu(b.conv(source, channels, width, 3)), width
        source, side = b.pool(source, 2, 2), side // 2
    source = b.relu(b.gemm(b.node("Flatten", source), channels * side * side, 4096))
    source = b.relu(b.gemm(source, 4096, 4096))
    return b.ending(b.gemm(source, 4096, CLASSES))


@dataclass(frozen=True)
class Network:
    """One architecture: ``build`` gives a new model at each call."""

    name: str
    build: Callable[[], onnx.ModelProto]


def _resnet_of(name: str, bottleneck: bool, *blocks: int) -> Network:
    return Network(name, partial(_resnet, name, bottleneck, blocks))


def _vgg_of(name: str, *stages: int) -> Network:
    return Network(name, partial(_vgg, name, stages))


NETWORKS: tuple[Network, ...] = (
    _resnet_of("resnet18", False, 2, 2, 2, 2),
    _resnet_of("resnet34", False, 3, 4, 6, 3),
    _resnet_of("resnet50", True, 3, 4, 6, 3),
    _resnet_of("resnet101", True, 3, 4, 23, 3),
    _resnet_of("resnet152", True, 3, 8, 36, 3),
    _vgg_of("vgg11", 1, 1, 2, 2, 2),
    _vgg_of("vgg16", 2, 2, 3, 3, 3),
)


def light_networks() -> tuple[Network, ...]:
    """The nine networks shipped in the onnx package, with ConstantOfShape nodes for weights: one image each.

    Their weights stay constant: a prediction doesn't depend on the numbers.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return tuple(Network(path.stem, partial(onnx.load, path)) for path in sorted(folder.glob("light_*.onnx")))
