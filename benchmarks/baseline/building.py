"""A graph that grows node by node, written as PyTorch's exporter writes a network in evaluation mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

PARAMETER = "weight"
"""The prefix of names of trained numbers. Constants of formulas have another prefix."""

_OPSET, _IR_VERSION = 17, 8


class Builder:
    """Methods take and return names of values. Weights are float32, random and seeded. ``batch``: the first dimension
    of the input ``image``, open if it is a name. ``eps``: of normalisations."""

    def __init__(self, name: str, side: int, batch: int | str = "N", eps: float = 1e-5) -> None:
        opset = helper.make_opsetid("", _OPSET)
        self.model = onnx.ModelProto(ir_version=_IR_VERSION, opset_import=[opset])
        self._graph = self.model.graph
        self._graph.name = name
        self._graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, side, side]))
        self._random = np.random.default_rng(0)
        self._batch, self._eps = batch, eps

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, which has the node's name."""
        return self.nodes(operator, 1, *inputs, **attributes)[0]

    def nodes(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """One node with several outputs."""
        name = f"{operator.lower()}_{len(self._graph.node)}"
        names = [name] if outputs == 1 else [f"{name}_{k}" for k in range(outputs)]
        self._graph.node.append(helper.make_node(operator, inputs, names, name, **attributes))
        return names

    def parameter(self, *shape: int, spread: float = 1.0, mean: float = 0.0) -> str:
        """Normally distributed numbers in place of trained ones."""
        drawn = self._random.standard_normal(shape, np.float32) * np.float32(spread) + np.float32(mean)
        return self._store(PARAMETER, drawn)

    def constant(self, array: NDArray[Any] | Sequence[int] | float) -> str:
        """Numbers that belong to a formula; floats become float32, integers int64."""
        made = np.asarray(array)
        return self._store("constant", made.astype(np.int64 if made.dtype.kind == "i" else np.float32))

    def conv(
        self, source: str, shape: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1, bias: bool = True
    ) -> str:
        """A convolution of ``shape`` (channels, outputs), padded so that stride 1 keeps the size. Weights (O, I, K, K),
        bias (O,)"""
        channels, outputs = shape
        inner = channels // groups
        w = self.parameter(outputs, inner, kernel, kernel, spread=math.sqrt(2 / (inner * kernel**2)))
        biases = [self.parameter(outputs, spread=0.1)] if bias else []
        # A patch embedding, whose stride is its kernel, has no padding.
        pads = [0 if stride == kernel else kernel // 2] * 4
        size: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
        return self.node("Conv", source, w, *biases, group=groups, **size)

    def normalise(self, source: str, channels: int) -> str:
        """BatchNormalization, which has its running mean and variance from training."""
        scale, bias = self.parameter(channels, spread=0.05, mean=1.0), self.parameter(channels, spread=0.1)
        mean = self._store("running", self._random.normal(0, 0.1, channels).astype(np.float32))
        variance = self._store("running", self._random.uniform(0.8, 1.2, channels).astype(np.float32))
        return self.node("BatchNormalization", source, scale, bias, mean, variance, epsilon=self._eps)

    def layer_norm(self, source: str, features: int) -> str:
        """LayerNormalization of the last dimension."""
        scale, bias = self.parameter(features, spread=0.05, mean=1.0), self.parameter(features, spread=0.1)
        return self.node("LayerNormalization", source, scale, bias, axis=-1, epsilon=self._eps)

    def linear(self, source: str, features: int, outputs: int) -> str:
        """A fully connected layer of rows (N, F). Weights (O, F), bias (O,)"""
        w = self.parameter(outputs, features, spread=math.sqrt(1 / features))
        return self.node("Gemm", source, w, self.parameter(outputs, spread=0.1), transB=1)

    def dense(self, source: str, features: int, outputs: int) -> str:
        """A fully connected layer of the last of several dimensions. Weights (F, O), bias (O,)"""
        product = self.node("MatMul", source, self.parameter(features, outputs, spread=math.sqrt(1 / features)))
        return self.node("Add", self.parameter(outputs, spread=0.1), product)

    def transpose(self, source: str, *order: int) -> str:
        return self.node("Transpose", source, perm=list(order))

    def silu(self, source: str) -> str:
        return self.node("Mul", source, self.node("Sigmoid", source))

    def relu6(self, source: str) -> str:
        return self.node("Clip", source, self.constant(0.0), self.constant(6.0))

    def gelu(self, source: str) -> str:
        """With the error function."""
        erf = self.node("Erf", self.node("Div", source, self.constant(math.sqrt(2))))
        shifted = self.node("Add", erf, self.constant(1.0))
        return self.node("Mul", self.node("Mul", source, shifted), self.constant(0.5))

    def pool(self, source: str, kernel: int, stride: int, pad: int = 0) -> str:
        """The largest of each window."""
        size: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return self.node("MaxPool", source, **size)

    def concat(self, *sources: str, axis: int = 1) -> str:
        return self.node("Concat", *sources, axis=axis)

    def mean(self, source: str) -> str:
        """The mean of each channel, as (N, C, 1, 1)."""
        return self.node("GlobalAveragePool", source)

    def flatten(self, source: str) -> str:
        return self.node("Flatten", source, axis=1)

    def ending(self, last: str, *shape: int) -> onnx.ModelProto:
        """The model from ``image`` to ``last`` (batch, *shape)."""
        self._graph.output.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, [self._batch, *shape]))
        return self.model

    def _store(self, kind: str, array: NDArray[Any]) -> str:
        name = f"{kind}_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name
