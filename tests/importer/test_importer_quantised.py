"""Quantised operators become plain ones on whole numbers, with the results of onnxruntime.

Scales are powers of two: then no float is rounded on the way, and every result must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from rewritten import ops, run

from trnrt.importer import GraphView, import_model

Array = np.ndarray[Any, np.dtype[Any]]
DRAWN = {"int8": (-128, 128), "uint8": (0, 256), "int32": (-3000, 3000), "int64": (0, 2)}
QUANTISED = {"ConvInteger", "DequantizeLinear", "MatMulInteger", "QGemm", "QuantizeLinear", "DynamicQuantizeLinear"}


def modelled(text: str, constants: dict[str, Array], opset: int = 21) -> onnx.ModelProto:
    """The model of a text; its constants are given."""
    domains = f'"" : {opset}, "com.microsoft" : 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> g {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return proto


def drawn(proto: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Random inputs: floats in quarters, and all integers of a type."""
    rng, feeds = np.random.default_rng(seed), {}
    for info in import_model(proto.SerializeToString()).inputs:
        shape = tuple(int(dim or 0) if not isinstance(dim, str) else 3 for dim in info.shape)
        limits = DRAWN.get(info.dtype)
        array = rng.integers(-200, 200, shape) / 4 if limits is None else rng.integers(*limits, shape)
        feeds[info.name] = np.asarray(array, info.dtype)
    return feeds


def check_rewriting(proto: onnx.ModelProto, seed: int = 0, *, whole: bool = True) -> GraphView:
    """The rewritten model, after a comparison of its answers with the original's."""
    feeds = drawn(proto, seed)
    view = import_model(proto.SerializeToString()).bind({name: array.shape for name, array in feeds.items()})
    rewritten = ir.to_proto(view.model)
    onnx.checker.check_model(rewritten)
    for expected, got in zip(run(proto, feeds), run(rewritten, feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        assert len(np.unique(got)) > 3
    left = {op for op in ops(view) if op in QUANTISED or op.startswith("QLinear")}
    assert bool(left) != whole
    return view


RANDOM = np.random.default_rng(0)


def bytes_of(kind: str, *shape: int, low: int = -8, high: int = 8) -> Array:
    return RANDOM.integers(max(low, DRAWN[kind][0]), high, shape).astype(kind)


def scales(*exponents: int) -> Array:
    """Powers of two: one as a scalar, several as a list."""
    return np.asarray(2.0 ** np.array(exponents if len(exponents) > 1 else exponents[0]), np.float32)


S, T = scales(-2), scales(2)
U8, I8 = np.array(131, np.uint8), np.array(-3, np.int8)
KERNEL = bytes_of("int8", 4, 3, 3, 3)
DATA = {"s": S, "z": U8, "t": T, "u": np.array(7, np.uint8)}
BY_CHANNEL = scales(-2, -3, -1, 0)
CONV = """(float[2,3,6,6] x) => (uint8[2,4,3,3] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis=0>(w, ws, wz)
    b = DequantizeLinear<axis=0>(bias, bs, bz) c = Conv<pads=[1,1,1,1], strides=[2,2]>(d, v, b)
    r = Relu(c) y = QuantizeLinear(r, t, u) }"""
BIAS = bytes_of("int32", 4, low=-300, high=300)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_a_convolution_between_quantised_tensors(kind: str, by_channel: bool) -> None:
    weights = {"w": KERNEL.astype(kind), "ws": S, "wz": np.array(3, kind), "bias": BIAS, "bs": S * S}
    weights |= {"bz": np.array(0, np.int32)}
    if by_channel:
        weights |= {
            "ws": BY_CHANNEL,
            "wz": np.arange(4).astype(kind),
            "bs": S * BY_CHANNEL,
            "bz": np.zeros(4, np.int32),
        }
    view = check_rewriting(modelled(CONV, DATA | weights))
    assert ops(view) == ["Div", "Round", "Clip", "Conv", "Mul", "Round", "Clip", "Add", "Cast"]
    constants = {c.name: c.const_value.numpy() for c in view.model.graph.initializers.values() if c.const_value}
    kernel = next(array for array in constants.values() if array.shape == KERNEL.shape)
    np.testing.assert_array_equal(kernel, KERNEL.astype(kind) - weights["wz"].astype(np.float32).reshape(-1, 1, 1, 1))


def test_weights_alone_are_floats() -> None:
    text = "(float[2,6] x) => (float[2,4] y) { v = DequantizeLinear(w, s) y = MatMul(x, v) }"
    view = check_rewriting(modelled(text, {"w": bytes_of("int8", 6, 4), "s": S}))
    assert ops(view) == ["MatMul"]


MATMULS = {
    "QLinearMatMul": """(uint8[2,5,6] x, int8[2,6,4] w) => (uint8[2,5,4] y)
        { y = QLinearMatMul(x, s, z, w, s, i, c, z) }""",
    "QLinearMatMul by column": "(int8[5,6] x) => (int8[5,4] y) { y = QLinearMatMul(x, s, i, k, ks, kz, t, i) }",
    "MatMul": """(int8[2,5,6] x, uint8[2,6,4] w) => (float[2,5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear(w, t, z) y = MatMul(a, b) }""",
    "MatMul by column": """(int8[5,6] x) => (int8[5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear(k, ks, kz) c = MatMul(a, b)
        y = QuantizeLinear(c, t, i) }""",
    "MatMul by row": """(int8[5,6] x) => (float[5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear<axis=0>(k, rs) y = MatMul(a, b) }""",
    "Gemm": """(int8[5,6] x) => (float[5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear<axis=0>(kt, ks, kz)
        y = Gemm<transB=1, alpha=2.0>(a, b) }""",
    "Gemm with a float": """(int8[5,6] x) => (int8[5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear<axis=1>(k, ks, kz) 
        c = Gemm<beta=0.5>(a, b, f) y = QuantizeLinear(c, t, i) }""",
    "Gemm with a bias": """(int8[5,6] x) => (int8[5,4] y)
        { a = DequantizeLinear(x, s, i) b = DequantizeLinear<axis=1>(k, ks, kz) e = DequantizeLinear<axis=0>(o, os)
        c = Gemm(a, b, e) y = QuantizeLinear(c, t, i) }""",
    "QGemm": "(int8[5,6] x) => (int8[5,4] y) { y = com.microsoft.QGemm<transB=1>(x, s, i, kt, ks, kz, o, t, i) }",
}  # fmt: skip


@pytest.mark.parametrize("name", MATMULS)
def test_products_of_matrices(name: str) -> None:
    k = bytes_of("int8", 6, 4)
    constants = {"s": S, "t": T, "i": I8, "z": U8, "k": k, "kt": np.ascontiguousarray(k.T), "ks": BY_CHANNEL}
    constants |= {
        "kz": np.arange(4).astype(np.int8),
        "f": np.arange(4, dtype=np.float32),
        "rs": scales(0, 1, 2, 0, 1, 2),
    }
    constants |= {"c": scales(5), "o": BIAS, "os": S * BY_CHANNEL}
    check_rewriting(modelled(MATMULS[name], constants, 19))


def test_a_quantised_convolution_with_integers_at_both_ends() -> None:
    text = """(uint8[2,3,6,6] x) => (uint8[2,4,3,3] y)
        { y = QLinearConv<pads=[1,1,1,1], strides=[2,2]>(x, s, z, w, ws, wz, t, u, bias) }"""
    weights = {"w": KERNEL, "ws": BY_CHANNEL, "wz": np.zeros(4, np.int8), "bias": BIAS}
    assert ops(check_rewriting(modelled(text, DATA | weights))) == [
        "Cast", "Sub", "Conv", "Mul", "Round", "Clip", "Add", "Cast",
    ]  # fmt: skip
