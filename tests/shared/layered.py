"""Small nets of several kinds of layers, with random weights, for comparisons layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
OPSET = 18


class Net:
    """A graph in the making: each call of ``add`` appends a node and gives its output's name."""

    def __init__(self, name: str, shape: Sequence[int], seed: int = 0) -> None:
        self.name = name
        self.shape = list(shape)
        self.random = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, *shape: int, around: float = 0.0, scale: float | None = None) -> str:
        """A random constant; ``scale`` defaults to one that keeps a product's result near 1."""
        size = scale if scale is not None else prod(shape[1:]) ** -0.5
        array = (around + size * self.random.standard_normal(shape)).astype(np.float32)
        return self.constant(array)

    def constant(self, array: Array) -> str:
        """A constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node, called after its operator and number."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(self, x: str, channels: int, outputs: int, kernel: int = 3, **attributes: Any) -> str:
        """A convolution that keeps the size of the image, with a bias."""
        groups = attributes.get("group", 1)
        weight = self.weight(outputs, channels // groups, kernel, kernel)
        pads = [kernel // 2] * 4
        return self.add("Conv", x, weight, self.weight(outputs, scale=0.1), pads=pads, **attributes)

    def model(self, *outputs: str) -> bytes:
        """The model as a file."""
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, [given], made, self.weights)
        opset = helper.make_opsetid("", OPSET)
        stored = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[opset], ir_version=9), strict_mode=True
        )
        onnx.checker.check_model(stored)
        content: bytes = stored.SerializeToString()
        return content


def residual() -> bytes:
    """Two residual blocks, as in a ResNet, and a classifier."""
    net = Net("residual", [2, 3, 12, 12])
    x = net.add("Relu", net.conv("x", 3, 16))
    for _ in range(2):
        y = net.add("Relu", net.conv(x, 16, 16))
        x = net.add("Relu", net.add("Add", net.conv(y, 16, 16), x))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(net.add("Gemm", x, net.weight(16, 10), net.weight(10, scale=0.1)))


def grouped() -> bytes:
    """Grouped and depthwise convolutions with a channel shuffle between them."""
    net = Net("grouped", [2, 4, 9, 9], seed=1)
    x = net.add("Relu", net.conv("x", 4, 24, group=4))
    shape, back = (np.array(s, np.int64) for s in ([2, 4, 6, 9, 9], [2, 24, 9, 9]))
    x = net.add("Transpose", net.add("Reshape", x, net.constant(shape)), perm=[0, 2, 1, 3, 4])
    x = net.add("Reshape", x, net.constant(back))
    x = net.add("Clip", net.conv(x, 24, 24, group=24), *(net.constant(np.array(v, np.float32)) for v in (0, 6)))
    pooled = net.add("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2])
    return net.model(net.add("Concat", net.conv(pooled, 24, 8, kernel=1), pooled, axis=1))


def mixing() -> bytes:
    """LayerNormalization, products, Gelu and Softmax, as in a transformer's feed-forward half."""
    net = Net("mixing", [6, 48], seed=2)
    scale, shift = net.weight(48, around=1, scale=0.2), net.weight(48, scale=0.1)
    x = net.add("LayerNormalization", "x", scale, shift, axis=-1)
    y = net.add("MatMul", x, net.weight(48, 96, scale=0.15))
    y = net.add("Mul", y, net.add("Sigmoid", net.add("Mul", y, net.constant(np.array(1.702, np.float32)))))
    x = net.add("Add", net.add("MatMul", y, net.weight(96, 48, scale=0.1)), "x")
    return net.model(net.add("Softmax", x, axis=-1))


def pointwise() -> bytes:
    """Element-wise arithmetic with weights, reductions and a transposed convolution."""
    net = Net("pointwise", [2, 5, 8, 8], seed=3)
    x = net.add("Mul", "x", net.weight(5, 1, 1, around=1, scale=0.3))
    x = net.add("Tanh", net.add("Add", x, net.weight(1, 5, 8, 8, scale=0.5)))
    x = net.add("ConvTranspose", x, net.weight(5, 6, 2, 2), strides=[2, 2])
    mean = net.add("ReduceMean", x, net.constant(np.array([2, 3], np.int64)), keepdims=1)
    return net.model(net.add("Sub", net.add("LeakyRelu", x, alpha=0.2), mean))


NETS: dict[str, Callable[[], bytes]] = {
    "residual": residual,
    "grouped": grouped,
    "mixing": mixing,
    "pointwise": pointwise,
}
