"""A channels-last graph as tf2onnx writes one for a Keras model, before any of its optimizers: full of Transposes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 15
SIZE = 64
CLASSES = 10
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
Floats = NDArray[np.float32]


class Writer:
    """A graph that grows by one node at a time; every value is in NHWC, except between a pair of Transposes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """An initializer."""
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: Sequence[str], layer: str, **attributes: object) -> str:
        """A node; its output has a TensorFlow tensor name, which is no identifier."""
        name = f"model/{layer}__{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}:0"], name=name, **attributes))
        return f"{name}:0"

    def channels_first(self, op: str, inputs: Sequence[str], layer: str, **attributes: object) -> str:
        """A node that only exists in NCHW, between two Transposes."""
        turned = self.node("Transpose", inputs[:1], layer, perm=TO_NCHW)
        result = self.node(op, [turned, *inputs[1:]], layer, **attributes)
        return self.node("Transpose", [result], layer, perm=TO_NHWC)

    def draw(self, *shape: int) -> Floats:
        """Numbers near 1."""
        return self.random.uniform(0.8, 1.2, shape).astype(np.float32)

    def conv(self, x: str, layer: str, weights: tuple[int, ...], **attributes: object) -> str:
        """Conv2D without its bias."""
        filters = self.constant(f"model/{layer}/kernel", self.draw(*weights))
        return self.channels_first("Conv", [x, filters], layer, kernel_shape=weights[2:], **attributes)

    def bias(self, x: str, layer: str, channels: int) -> str:
        """A layer's bias: an Add in NHWC, which Keras calls BiasAdd."""
        added = self.constant(f"model/{layer}/bias", self.draw(channels))
        return self.node("Add", [x, added], f"{layer}/BiasAdd")

    def normalize(self, x: str, layer: str, channels: int) -> str:
        """BatchNormalization, as the Mul and Add that TensorFlow folds it to."""
        scaled = self.node("Mul", [x, self.constant(f"model/{layer}/scale", self.draw(channels))], f"{layer}/mul")
        return self.node("Add", [scaled, self.constant(f"model/{layer}/shift", self.draw(channels))], f"{layer}/add")

    def pad(self, x: str, layer: str, before: int, after: int) -> str:
        """ZeroPadding2D."""
        pads = np.array([0, before, before, 0, 0, after, after, 0], np.int64)
        return self.node("Pad", [x, self.constant(f"model/{layer}/pads", pads)], layer)


def keras_style() -> onnx.ModelProto:
    """(N, 64, 64, 3) -> probabilities (N, 10): padded, depthwise, residual and concatenated convolutions, two pools."""
    write = Writer()
    one, same = [1, 1], [1, 1, 1, 1]
    x = write.conv(write.pad("input_1:0", "conv1_pad", 0, 1), "conv1", (32, 3, 3, 3), strides=[2, 2])
    x = write.node("Clip", [write.normalize(x, "conv1_bn", 32), *limits(write)], "conv1_relu6")
    x = write.conv(x, "conv_dw_2", (32, 1, 3, 3), group=32, pads=same, strides=one)
    x = write.node("Relu", [write.normalize(x, "conv_dw_2_bn", 32)], "conv_dw_2_relu")
    x = write.bias(write.conv(x, "conv_pw_2", (64, 32, 1, 1), strides=one), "conv_pw_2", 64)
    x = write.node("Relu", [x], "conv_pw_2_relu")
    x = write.channels_first("MaxPool", [x], "max_pooling2d", kernel_shape=[2, 2], strides=[2, 2])
    shortcut = x
    x = write.normalize(write.conv(x, "conv3a", (64, 64, 3, 3), pads=same, strides=one), "bn3a", 64)
    x = write.node("Relu", [x], "relu3a")
    x = write.normalize(write.conv(x, "conv3b", (64, 64, 3, 3), pads=same, strides=one), "bn3b", 64)
    x = write.node("Relu", [write.node("Add", [x, shortcut], "add")], "relu3b")
    x = write.channels_first(
        "AveragePool", [x], "average_pooling2d", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"
    )
    wide = write.bias(write.conv(x, "conv4a", (96, 64, 3, 3), auto_pad="SAME_UPPER", strides=one), "conv4a", 96)
    narrow = write.bias(write.conv(x, "conv4b", (32, 64, 1, 1), auto_pad="VALID", strides=one), "conv4b", 32)
    x = write.node("Relu", [write.node("Concat", [wide, narrow], "concatenate", axis=3)], "relu4")
    x = write.node("ReduceMean", [x], "global_average_pooling2d", axes=[1, 2], keepdims=0)
    x = write.node("MatMul", [x, write.constant("model/dense/kernel", write.draw(128, CLASSES))], "dense/MatMul")
    x = write.node("Add", [x, write.constant("model/dense/bias", write.draw(CLASSES))], "dense/BiasAdd")
    write.nodes.append(helper.make_node("Softmax", [x], ["dense"], name="model/dense/Softmax", axis=-1))
    return make_model(write)


def limits(write: Writer) -> list[str]:
    """The two numbers of a ReLU6."""
    return [write.constant(f"const_{limit}", np.array(limit, np.float32)) for limit in (0, 6)]


def make_model(write: Writer) -> onnx.ModelProto:
    """The model; tf2onnx calls an unknown batch unk__ and a number."""
    image = helper.make_tensor_value_info("input_1:0", TensorProto.FLOAT, ["unk__61", SIZE, SIZE, 3])
    output = helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["unk__62", CLASSES])
    graph = helper.make_graph(write.nodes, "keras_style", [image], [output], write.initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, producer_name="tf2onnx", opset_imports=[opset], ir_version=8)
