"""Quantised operators become plain ones on whole numbers, with the results of onnxruntime.

Scales are powers of two: then no float is rounded on the way, and every result must be equal. Zero points are even:
onnxruntime's own operators round ties after they have added the zero point, QuantizeLinear before.
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
# int8 of 7 bits: on CPUs without VNNI, onnxruntime adds pairs of products with uint8 in 16 bits, which saturate.
DRAWN = {"int8": (-64, 64), "uint8": (0, 256), "int32": (-3000, 3000), "int64": (0, 2), "bool": (0, 2)}
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
    view = compare(proto, drawn(proto, seed))
    left = {op for op in ops(view) if op in QUANTISED or op.startswith("QLinear")}
    assert bool(left) != whole
    return view


def compare(proto: onnx.ModelProto, feeds: dict[str, Array], original: onnx.ModelProto | None = None) -> GraphView:
    """The rewritten model, whose answers are the original's."""
    view = import_model(proto.SerializeToString()).bind({name: array.shape for name, array in feeds.items()})
    rewritten = ir.to_proto(view.model)
    onnx.checker.check_model(rewritten)
    for expected, got in zip(run(original or proto, feeds), run(rewritten, feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
        assert got.size == 1 or len(np.unique(got)) > 3
    return view


RANDOM = np.random.default_rng(0)


def bytes_of(kind: str, *shape: int, low: int = -8, high: int = 8) -> Array:
    return RANDOM.integers(max(low, DRAWN[kind][0]), high, shape).astype(kind)


def scales(*exponents: int) -> Array:
    """Powers of two: one as a scalar, several as a list."""
    return np.asarray(2.0 ** np.array(exponents if len(exponents) > 1 else exponents[0]), np.float32)


S, T = scales(-2), scales(2)
U8, I8 = np.array(130, np.uint8), np.array(-4, np.int8)
KERNEL = bytes_of("int8", 4, 3, 3, 3)
DATA = {"s": S, "z": U8, "t": scales(5), "u": np.array(8, np.uint8)}
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
        { y = QLinearMatMul(x, s, z, w, s, i, ys, z) }""",
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
    constants |= {"ys": scales(5), "o": BIAS, "os": S * BY_CHANNEL}
    check_rewriting(modelled(MATMULS[name], constants, 19))


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("last", [0, 1])
def test_onnxruntimes_own_quantised_convolution(last: int, opset: int) -> None:
    """At the level all, onnxruntime writes it for channels last."""
    x, y = ("2,6,6,3", "2,3,3,4") if last else ("2,3,6,6", "2,4,3,3")
    text = f"""(uint8[{x}] x) => (uint8[{y}] y) {{ y = com.microsoft.QLinearConv
        <channels_last={last}, pads=[1,1,1,1], strides=[2,2]>(x, s, z, w, ws, wz, t, u, bias) }}"""
    weights = {"w": KERNEL, "ws": BY_CHANNEL, "wz": np.zeros(4, np.int8), "bias": BIAS}
    check_rewriting(modelled(text, DATA | weights, opset))


def test_a_quantised_convolution_with_integers_at_both_ends() -> None:
    text = """(uint8[2,3,6,6] x) => (uint8[2,4,3,3] y)
        { y = QLinearConv<pads=[1,1,1,1], strides=[2,2]>(x, s, z, w, ws, wz, t, u, bias) }"""
    weights = {"w": KERNEL, "ws": BY_CHANNEL, "wz": np.zeros(4, np.int8), "bias": BIAS}
    assert ops(check_rewriting(modelled(text, DATA | weights))) == [
        "Cast", "Sub", "Conv", "Mul", "Round", "Clip", "Add", "Cast",
    ]  # fmt: skip


# x: (2,3,4,4) uint8, w: the same in int8, c: a condition.
FUNCTIONS = {
    "QLinearAdd": "(uint8[2,3,4,4] x, uint8[3,1,4] v) => (uint8[2,3,4,4] y) {{ y = {}(x, s, z, v, t, u, ys, z) }}",
    "QLinearMul": "(int8[2,3,4,4] x, int8[4] v) => (int8[2,3,4,4] y) {{ y = {}(x, s, i, v, s, i, ys, i) }}",
    "QLinearAveragePool": """(uint8[2,3,4,4] x) => (uint8[2,3,2,2] y)
        {{ y = {}<kernel_shape=[2,2], strides=[2,2]>(x, s, z, s, u) }}""",
    "QLinearGlobalAveragePool": "(uint8[2,9,4,4] x) => (uint8[2,9,1,1] y) {{ y = {}(x, s, z, s, u) }}",
    "QLinearAveragePool of channels last": """(uint8[2,4,4,3] x) => (uint8[2,2,2,3] y)
        {{ y = {}<kernel_shape=[2,2], strides=[2,2], channels_last=1>(x, s, z, s, u) }}""",
    "QLinearGlobalAveragePool of channels last": """(int8[2,4,8,9] x) => (int8[2,1,1,9] y)
        {{ y = {}<channels_last=1>(x, s, i, s, i) }}""",
    "QLinearLeakyRelu": "(int8[2,3,4,4] x) => (int8[2,3,4,4] y) {{ y = {}<alpha=0.25>(x, s, i, s, i) }}",
    "QLinearConcat": "(uint8[2,3] x, uint8[2,2] v) => (uint8[2,5] y) {{ y = {}<axis=1>(s, z, x, t, u, v, s, z) }}",
    "QLinearWhere": """(bool[2,4] c, uint8[2,4] x, uint8[2,4] v) => (uint8[2,4] y)
        {{ y = {}(c, x, s, z, v, t, u, s, z) }}""",
    "QLinearSigmoid": "(int8[2,30] x) => (int8[2,30] y) {{ y = {}(x, s, i, q, i) }}",
    "QLinearSoftmax": "(uint8[4,9] x) => (uint8[4,9] y) {{ y = {}<axis=-1, opset=13>(x, r, z, q, o) }}",
}  # fmt: skip


NUMBERS = {"s": S, "t": T, "z": U8, "u": DATA["u"], "i": I8, "ys": scales(4), "q": scales(-8), "r": scales(-5)}
NUMBERS |= {"o": np.array(0, np.uint8)}


@pytest.mark.parametrize("opset", [11, 13, 19])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_between_dequantising_and_quantising(name: str, opset: int) -> None:
    check_rewriting(modelled(FUNCTIONS[name].format(f"com.microsoft.{name.split()[0]}"), NUMBERS, opset))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "QLinearWhere"])
def test_shapes_of_quantised_operators_are_known(name: str) -> None:
    """Paddle computes the shape of a flattened image from the image's Shape."""
    kind = "uint8" if "(uint8[" in FUNCTIONS[name].split("=>")[1] else "int8"
    zero = "z" if kind == "uint8" else "i"
    flatten = f"""g = DequantizeLinear(h, s, {zero})  n = Shape(g)  b = Slice(n, zero, one)  m = Concat<axis=0>(b, rest)
        f = Reshape(g, m)  y = QuantizeLinear(f, s, {zero}) }}}}"""
    head, body = FUNCTIONS[name].replace("{{ y =", "{{ h =").split("=>")
    body = f"({kind}[R,E] y) " + body[body.index("{{") :].replace("}}", flatten)
    sizes = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}
    proto = modelled(f"{head}=> {body}".format(f"com.microsoft.{name.split()[0]}"), NUMBERS | sizes, 19)
    view = check_rewriting(proto)
    assert "Shape" not in ops(view)


DYNAMIC = {
    "MatMul": """(float[5,6] x) => (float[5,4] y) { q, qs, qz = DynamicQuantizeLinear(x)
        m = MatMulInteger(q, w, qz, kz) f = Cast<to=1>(m) a = Mul(qs, s) y = Mul(f, a) }""",
    "Conv": """(float[2,3,6,6] x) => (float[2,4,6,6] y) { q, qs, qz = DynamicQuantizeLinear(x)
        m = ConvInteger<pads=[1,1,1,1]>(q, k, qz) f = Cast<to=1>(m) a = Mul(qs, s) y = Mul(f, a) }""",
    "MatMulIntegerToFloat": """(float[5,6] x) => (float[5,4] y) { q, qs, qz = DynamicQuantizeLinear(x)
        y = com.microsoft.MatMulIntegerToFloat(q, w, qs, ws, qz, kz, b) }""",
    "DynamicQuantizeMatMul": """(float[5,6] x) => (float[5,4] y)
        { y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, kz, b) }""",
    "DynamicQuantizeLinear": """(float[5,6] x) => (uint8[5,6] y, float s, uint8 z)
        { y, s, z = DynamicQuantizeLinear(x) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_scale_of_the_tensor_itself(name: str) -> None:
    constants = {"w": bytes_of("int8", 6, 4), "k": KERNEL, "kz": np.array(3, np.int8), "ws": BY_CHANNEL}
    proto = modelled(DYNAMIC[name], constants | {"s": S, "b": np.arange(4, dtype=np.float32)}, 19)
    if name == "DynamicQuantizeLinear":
        del proto.graph.initializer[:]
    feeds = drawn(proto, 0)
    feeds = {"x": feeds["x"].clip(-127, 128)}  # the scale is 1, if both ends occur
    feeds["x"].reshape(-1)[:2] = -127, 128
    compare(proto, feeds)


MOVED = {
    "MaxPool": "m = MaxPool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0]>(q)",
    "Transpose": "m = Transpose<perm=[0,2,3,1]>(q)",
    "Reshape": "m = Reshape(q, minus)",
    "Slice": "m = Slice(q, ones, twos)",
    "Concat": "m = Concat<axis=2>(q, q)",
    "Pad": "m = Pad(q, pads)",
    "Pad with a number": "m = Pad(q, pads, u)",
    "Clip": "m = Clip(q, u, z)",
    "Max": "m = Max(q, u)",
    "Resize": 'm = Resize<mode="nearest">(q, , doubled)',
    "Resize by means": 'm = Resize<mode="linear">(q, , doubled)',
    "Gather": "m = Gather<axis=1>(q, twos)",
}  # fmt: skip
AROUND = "(float[2,3,4,4] x) => (float[a,b,c,d] y) {{ q = QuantizeLinear(x, s, z) {} y = DequantizeLinear(m, s, z) }}"


@pytest.mark.parametrize("name", MOVED)
def test_integers_are_moved_as_they_are(name: str) -> None:
    constants = DATA | {"ones": np.array([0, 0, 1]), "twos": np.array([2, 2, 2]), "minus": np.array([2, 4, 12, 1])}
    constants |= {"pads": np.array([0, 0, 1, 1, 0, 0, 0, 2]), "doubled": np.array([1, 1, 2, 2], np.float32)}
    check_rewriting(modelled(AROUND.format(MOVED[name]), constants, 19))


def test_the_scale_of_a_column_turns_with_the_weights() -> None:
    text = """(float[5,6] x) => (float[5,4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        v = QuantizeLinear<axis=0>(w, ws, wz) f = DequantizeLinear<axis=0>(v, ws, wz)
        g = Transpose<perm=[1,0]>(f) y = MatMul(d, g) }"""
    constants = DATA | {"w": RANDOM.integers(-20, 20, (4, 6)).astype(np.float32), "ws": BY_CHANNEL}
    view = check_rewriting(modelled(text, constants | {"wz": np.zeros(4, np.int8)}))
    assert ops(view) == ["Div", "Round", "Clip", "MatMul", "Mul"]


@pytest.mark.parametrize("opset", [10, 11, 13, 21, 23])
def test_every_opset_since_10(opset: int) -> None:
    text = """(float[2,3,6,6] x) => (float[2,4,a,b] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, wz) c = Conv(d, v) %s y = MaxPool<kernel_shape=[2,2]>(r) }"""
    limited = {10: "p = Pad<pads=[0,0,1,1,0,0,1,1]>(c) r = Clip<min=-20.0, max=500.0>(p)"}
    constants = {
        "w": KERNEL,
        "wz": np.array(0, np.int8),
        "low": np.array(-20, np.float32),
        "pads": np.array([0, 0, 1, 1] * 2),
    }
    proto = modelled(text % limited.get(opset, "p = Pad(c, pads) r = Clip(p, low)"), DATA | constants, opset)
    check_rewriting(proto)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scales", [(2, 2), (0.7, 0.5), (2.3, 0.6)])
def test_a_resize_of_opset_10_becomes_one_of_opset_11(mode: str, scales: tuple[float, float]) -> None:
    """Opset 11 has none without a roi; opset 10 rounds down along axes that grow, and up along those that shrink."""
    text = f"""(float[2,3,7,6] x) => (float[2,3,a,b] y, float[2,3,a,b] w) {{ q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z) k = Constant<value = float[4] {{1, 1, {scales[0]:f}, {scales[1]:f}}}>()
        y = Resize<mode="{mode}">(d, k) w = Resize<mode="{mode}">(x, k) }}"""
    check_rewriting(modelled(text, DATA, 10))


def test_the_mean_along_an_axis() -> None:
    """onnxruntime has no kernel of this operator of its own."""
    text = """(int8[2,3,4,4] x) => (int8[2,3,4] y)
        { y = com.microsoft.QLinearReduceMean<axes=[2], keepdims=0>(x, s, i, t, i) }"""
    written = """(int8[2,3,4,4] x) => (int8[2,3,4] y) { d = DequantizeLinear(x, s, i)
        m = ReduceMean<keepdims=0>(d, axes) y = QuantizeLinear(m, t, i) }"""
    proto, other = (modelled(each, {"s": S, "t": scales(-3), "i": I8}) for each in (text, written))
    other.graph.initializer.append(numpy_helper.from_array(np.array([2]), "axes"))
    compare(proto, drawn(proto, 0), original=other)


def test_a_zero_point_that_differs_between_the_ends() -> None:
    """Odd, but allowed: the numbers are moved."""
    text = "(float[2,9] x) => (float[2,9] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, u) }"
    assert ops(check_rewriting(modelled(text, DATA))) == ["Div", "Round", "Clip", "Sub", "Mul"]


def test_a_relu_limits_the_integers() -> None:
    text = """(float[2,9] x) => (uint8[2,9] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        r = Clip(d, low, high) y = QuantizeLinear(r, s, u) }"""
    limits = {"low": np.array(-1.5, np.float32), "high": np.array(7.25, np.float32)}
    view = check_rewriting(modelled(text, DATA | limits))
    assert ops(view) == ["Div", "Round", "Clip", "Clip", "Add", "Cast"]


@pytest.mark.parametrize("terms", [8, 2000])
def test_sums_that_are_read_as_integers_are_exact_or_left(terms: int) -> None:
    proto = modelled(f"(uint8[2,{terms}] x) => (int32[2,4] y) {{ y = MatMulInteger(x, w) }}",
                     {"w": np.full((terms, 4), 63, np.int8) - np.arange(4, dtype=np.int8)})  # fmt: skip
    check_rewriting(proto, whole=terms == 8)
