"""Ten layers with few enough choices to try all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser


@dataclass(frozen=True)
class Layer:
    """A small network: its graph in ONNX's text, whose inputs after ``x`` are weights, and the batch to plan for."""

    name: str
    graph: str
    batch: int = 1

    def build(self) -> onnx.ModelProto:
        """The model, with random weights."""
        graph = parser.parse_graph(f"layer {self.graph}")
        weights, data = list(graph.input)[1:], graph.input[0]
        del graph.input[:]
        graph.input.append(data)
        random = np.random.default_rng(0)
        for number, node in enumerate(graph.node):
            node.name = node.name or f"{node.op_type}_{number}"
        for info in weights:
            assert info.type.tensor_type.elem_type == TensorProto.FLOAT
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            drawn = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
            graph.initializer.append(numpy_helper.from_array(drawn, info.name))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _conv(outputs: int, channels: int, size: int, kernel: int, *, stride: int = 1, then: str = "Relu(a)") -> str:
    pads, out = kernel // 2, size // stride
    return (
        f"(float[N,{channels},{size},{size}] x, float[{outputs},{channels},{kernel},{kernel}] w)"
        f" => (float[N,{outputs},{out},{out}] y) {{"
        f" a = Conv<pads=[{pads},{pads},{pads},{pads}], strides=[{stride},{stride}]>(x, w)  y = {then} }}"
    )


_POOLED = """(float[N,24,56,56] x, float[48,24,3,3] w) => (float[N,48,28,28] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(a)  y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) }"""
_RESIDUAL = """(float[N,128,28,28] x, float[128,128,3,3] w, float[128,128,3,3] u) => (float[N,128,28,28] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(a)  b = Conv<pads=[1,1,1,1]>(r, u)  s = Add(b, x)  y = Relu(s) }"""
_BOTTLENECK = """(float[N,256,14,14] x, float[64,256,1,1] w, float[256,64,1,1] u) => (float[N,256,14,14] y) {
    a = Conv(x, w)  r = Relu(a)  b = Conv(r, u)  s = Add(b, x)  y = Relu(s) }"""
_DEPTHWISE = """(float[N,96,28,28] x, float[96,1,3,3] w) => (float[N,96,28,28] y) {
    a = Conv<pads=[1,1,1,1], group=96>(x, w)  y = Relu(a) }"""
_TWO_LINEAR = """(float[N,4096] x, float[4096,1024] w, float[1024,10] u) => (float[N,10] y) {
    a = MatMul(x, w)  r = Relu(a)  y = MatMul(r, u) }"""
_CLASSIFIER = """(float[N,64,14,14] x, float[128,64,3,3] w, float[128,1000] u) => (float[N,1000] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)  r = Relu(a)  g = GlobalAveragePool(r)  f = Flatten(g)  y = MatMul(f, u) }"""

LAYERS = (
    Layer("conv 3x3", _conv(64, 64, 56, 3)),
    Layer("conv 1x1", _conv(64, 256, 28, 1)),
    Layer("first conv 7x7", _conv(32, 3, 112, 7, stride=2)),
    Layer("sigmoid after conv", _conv(32, 32, 28, 3, then="Sigmoid(a)")),
    Layer("conv and pool", _POOLED),
    Layer("residual block", _RESIDUAL),
    Layer("bottleneck of 4", _BOTTLENECK, batch=4),
    Layer("depthwise", _DEPTHWISE),
    Layer("two linear", _TWO_LINEAR),
    Layer("classifier of 2", _CLASSIFIER, batch=2),
)


def layer_called(name: str) -> Layer | None:
    """The layer of this name, in any case and with any spaces."""
    return next((layer for layer in LAYERS if _plain(layer.name) == _plain(name)), None)


def _plain(name: str) -> str:
    return re.sub(r"\W", "", name.lower())
