"""Small networks of the kinds that read volumes, and DeepLabV3's head, with random weights, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from planning import compare, drawn, onnxruntimes

Shape = tuple[int, ...]


class Network:
    """A network in the making: every method adds a node and returns the name of what it makes. Weights are random, of
    such a size that answers neither vanish nor grow."""

    def __init__(self, image: Shape) -> None:
        self.image = image
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, inputs: Sequence[str], **settings: object) -> str:
        made = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], name=f"node_{made}", **settings))
        return made

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x: str, channels: int, outputs: int, kernel: Shape, act: str = "Relu", **settings: object) -> str:
        """A convolution of padding "same" unless ``pads`` are given, with a normalisation and an activation."""
        settings = {"pads": [k // 2 for k in kernel] * 2, "strides": [1] * len(kernel)} | settings
        weight = drawn(outputs, channels, *kernel, seed=len(self.nodes)) * (2 / (channels * prod(kernel))) ** 0.5
        made = self.add("Conv", [x, self.constant(weight)], **settings)
        gain, variance = (drawn(outputs, seed=seed) ** 2 / 2 + 0.5 for seed in (1, 2))
        more = [self.constant(array) for array in (gain, drawn(outputs) / 4, drawn(outputs) / 4, variance)]
        made = self.add("BatchNormalization", [made, *more])
        return self.add(act, [made]) if act else made

    def linear(self, x: str, features: int, outputs: int) -> str:
        weight = drawn(features, outputs, seed=features) * (0.5 / features) ** 0.5
        return self.add("Gemm", [x, self.constant(weight), self.constant(drawn(outputs))])

    def model(self, result: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.image])
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", 17)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def c3d() -> onnx.ModelProto:
    net = Network((3, 8, 20, 20))
    x = net.add("MaxPool", [net.conv("x", 3, 8, (3, 3, 3))], kernel_shape=[1, 2, 2], strides=[1, 2, 2])
    x = net.add("MaxPool", [net.conv(x, 8, 16, (3, 3, 3))], kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = net.conv(net.conv(x, 16, 128, (3, 3, 3)), 128, 32, (3, 3, 3))
    x = net.add("MaxPool", [x], kernel_shape=[2, 2, 2], strides=[2, 2, 2], pads=[0, 1, 1, 0, 1, 1])
    x = net.add("Relu", [net.linear(net.add("Flatten", [x]), 32 * 2 * 3 * 3, 40)])
    return net.model(net.linear(x, 40, 7))


def r2plus1d() -> onnx.ModelProto:
    net = Network((3, 6, 20, 20))
    x = net.conv("x", 3, 12, (1, 7, 7), strides=[1, 2, 2])
    x = net.conv(x, 12, 16, (3, 1, 1))
    for channels, outputs, step in ((16, 16, 1), (16, 24, 2)):
        y = net.conv(x, channels, 20, (1, 3, 3), strides=[1, step, step])
        y = net.conv(y, 20, outputs, (3, 1, 1), strides=[step, 1, 1])
        y = net.conv(net.conv(y, outputs, 30, (1, 3, 3)), 30, outputs, (3, 1, 1), act="")
        if step > 1:
            x = net.conv(x, channels, outputs, (1, 1, 1), act="", strides=[step] * 3, pads=[0] * 6)
        x = net.add("Relu", [net.add("Add", [y, x])])
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    return net.model(net.linear(x, 24, 7))


def unet3d() -> onnx.ModelProto:
    net = Network((1, 8, 12, 10))

    def double(x: str, channels: int, outputs: int) -> str:
        """nnU-Net's blocks: InstanceNormalization and LeakyRelu."""
        for _ in range(2):
            x = net.conv(x, channels, outputs, (3, 3, 3), act="")
            x = net.add("InstanceNormalization", [x, *(net.constant(drawn(outputs, seed=s) + 1) for s in (3, 4))])
            x, channels = net.add("LeakyRelu", [x], alpha=0.01), outputs
        return x

    first = double("x", 1, 6)
    low = double(net.add("MaxPool", [first], kernel_shape=[2, 2, 2], strides=[2, 2, 2]), 6, 12)
    weight = net.constant(drawn(12, 6, 2, 2, 2) / 4)
    up = net.add("ConvTranspose", [low, weight, net.constant(drawn(6))], strides=[2, 2, 2])
    x = double(net.add("Concat", [up, first], axis=1), 12, 6)
    return net.model(net.add("Softmax", [net.conv(x, 6, 3, (1, 1, 1), act="")], axis=1))


def lambdanet() -> onnx.ModelProto:
    """A lambda layer: its positions' lambdas are a convolution of 1 x 5 x 5 over values as depth."""
    keys, values, pixels = 4, 6, 100
    net = Network((3, 10, 10))

    def shaped(x: str, *shape: int) -> str:
        return net.add("Reshape", [x, net.constant(np.array(shape, np.int64))])

    x = net.conv("x", 3, 16, (3, 3))
    queries = shaped(net.conv(x, 16, keys, (1, 1), act=""), 0, keys, pixels)
    value = net.conv(x, 16, values, (1, 1), act="")
    key = net.add("Softmax", [shaped(net.conv(x, 16, keys, (1, 1), act=""), 0, keys, pixels)], axis=2)
    turned = net.add("Transpose", [shaped(value, 0, values, pixels)], perm=[0, 2, 1])
    queries = net.add("Transpose", [queries], perm=[0, 2, 1])
    content = net.add("MatMul", [queries, net.add("MatMul", [key, turned])])
    position = net.conv(shaped(value, 0, 1, values, 10, 10), 1, keys, (1, 5, 5), act="")
    position = net.add("Transpose", [shaped(position, 0, keys, values, pixels)], perm=[0, 3, 1, 2])
    position = net.add("MatMul", [shaped(queries, 0, pixels, 1, keys), position])
    made = net.add("Add", [content, shaped(position, 0, pixels, values)])
    return net.model(net.linear(net.add("Flatten", [net.add("Relu", [made])]), pixels * values, 5))


def deeplab() -> onnx.ModelProto:
    """Features of 960 channels, and atrous convolutions of dilation 6, 12 and 24 over them: the last does not fit
    SBUF."""
    net = Network((3, 34, 34))
    x = net.conv(net.conv("x", 3, 12, (3, 3), strides=[2, 2]), 12, 960, (1, 1))
    parts = [net.conv(x, 960, 10, (1, 1))]
    for dilation in (6, 12, 24):
        pads = [dilation] * 4
        parts.append(net.conv(x, 960, 10, (3, 3), dilations=[dilation] * 2, pads=pads))
    pooled = net.conv(net.add("GlobalAveragePool", [x]), 960, 10, (1, 1))
    sizes = net.constant(np.array([1, 1, 17, 17], np.float32))
    parts.append(net.add("Resize", [pooled, "", sizes], mode="nearest"))
    x = net.conv(net.add("Concat", parts, axis=1), 50, 10, (1, 1))
    x = net.conv(net.conv(x, 10, 10, (3, 3)), 10, 4, (1, 1), act="")
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    return net.model(net.add("Resize", [x, "", scales], mode="linear", coordinate_transformation_mode="half_pixel"))


NETWORKS = {"C3D": c3d, "R(2+1)D": r2plus1d, "U-Net 3-D": unet3d, "LambdaNet": lambdanet, "DeepLabV3": deeplab}
CALLED = {
    "C3D": {"conv3d_stacked", "conv3d_streamed", "max_pool2d", "linear_features", "linear_rows"},
    "R(2+1)D": {"conv3d_stacked", "conv2d"},
    "U-Net 3-D": {"conv3d_stacked", "conv_transpose3d", "conv2d"},
    "LambdaNet": {"conv3d_stacked", "conv2d"},
    "DeepLabV3": {"conv3d_streamed", "conv2d"},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, dtype: str) -> None:
    model = NETWORKS[name]()
    feeds = {"x": drawn(2, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:]))}
    if dtype == "float32":
        (answer,) = onnxruntimes(model, feeds)
        assert answer.std() > 0.02 and np.abs(answer).max() < 30
        assert np.abs(answer[0] - answer[1]).max() > 0.02 * np.abs(answer).max()
    plan = compare(model, feeds, dtype=dtype)
    assert {step.kernel for step in plan.steps} >= CALLED[name] - {"linear_features", "linear_rows"}
