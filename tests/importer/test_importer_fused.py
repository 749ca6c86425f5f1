"""onnxruntime's own operators become ONNX's, with onnxruntime's answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from rewritten import run

from trnrt.importer import import_model
from trnrt.importer.quantised.forms import LEFT

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)


def modelled(text: str, constants: dict[str, Array], opset: int = 17) -> onnx.ModelProto:
    """The model of a text; its constants are given."""
    domains = f'"" : {opset}, "com.microsoft" : 1'
    proto = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> g {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return proto


def numbers(*shape: int, scale: float = 1.0) -> Array:
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


def feeds_of(proto: onnx.ModelProto, rows: int = 2) -> dict[str, Array]:
    """Random inputs; integers are below 3."""
    feeds = {}
    for info in import_model(proto.SerializeToString()).inputs:
        shape = tuple(dim if isinstance(dim, int) else rows for dim in info.shape)
        drawn = numbers(*shape) if "float" in info.dtype else RANDOM.integers(0, 3, shape)
        feeds[info.name] = np.asarray(drawn, info.dtype)
    return feeds


def operators(model: ir.Model) -> set[str]:
    return {f"{node.domain}.{node.op_type}".removeprefix(".") for node in model.graph}


def check_rewriting(proto: onnx.ModelProto, feeds: dict[str, Array] | None = None, rtol: float = 1e-4) -> ir.Model:
    """The rewritten model, in which no operator of onnxruntime is left and whose answers are the original's."""
    feeds = feeds_of(proto) if feeds is None else feeds
    model = import_model(proto.SerializeToString()).model
    assert not any(node.domain for node in model.graph), operators(model)
    for expected, got in zip(run(proto, feeds), run(ir.to_proto(model), feeds), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=2e-5 * max(1.0, float(np.abs(expected).max())))
        assert len(np.unique(got)) > 3
    return model


# -- products --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize(
    "activation",
    [
        'activation="Relu"',
        'activation="LeakyRelu", activation_params=[0.2]',
        'activation="Clip", activation_params=[-0.5, 0.75]',
        'activation="HardSigmoid", activation_params=[0.3, 0.4]',
        'activation="Tanh"',
        'activation="Sigmoid"',
    ],
)
@pytest.mark.parametrize("added", ["", ", b", ", b, z"])
def test_fused_conv(activation: str, added: str, opset: int) -> None:
    text = f"""(float[N,3,6,6] x, float[N,4,3,3] z) => (float[N,4,3,3] y, float[N,4,3,3] u)
        {{ y = com.microsoft.FusedConv<strides=[2,2], pads=[1,1,1,1], {activation}>(x, w{added}) u = Abs(z) }}"""
    check_rewriting(modelled(text, {"w": numbers(4, 3, 3, 3), "b": numbers(4)}, opset))


def test_names_stay() -> None:
    text = """(float[N,3,6,6] x) => (float[N,4,4,4] y)
        { [first] t = com.microsoft.FusedConv<activation="Relu">(x, w) [second] y = com.microsoft.Gelu(t) }"""
    model = check_rewriting(modelled(text, {"w": numbers(4, 3, 3, 3)}))
    names = {node.name: node.op_type for node in model.graph}
    assert (names["first"], names["second"]) == ("Conv", "Mul")


@pytest.mark.parametrize(("activation", "parameters"), [("Relu", ""), ("LeakyRelu", ", activation_alpha=0.3")])
def test_fused_gemm(activation: str, parameters: str) -> None:
    text = f"""(float[N,6] x) => (float[N,4] y)
        {{ y = com.microsoft.FusedGemm<alpha=0.5, transB=1, activation="{activation}"{parameters}>(x, w, b) }}"""
    check_rewriting(modelled(text, {"w": numbers(4, 6), "b": numbers(4)}))


@pytest.mark.parametrize("moves", range(4))
@pytest.mark.parametrize("turns", range(4))
def test_fused_matmul(turns: int, moves: int) -> None:
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(40.0).reshape(2, 4, 5)
    if turns & 1:
        a = a.swapaxes(1, 2)
    if turns & 2:
        b = b.swapaxes(1, 2)
    if moves & 1:
        a = np.moveaxis(a, 1, 0)
    if moves & 2:
        b = np.moveaxis(b, 1, 0)
    sizes = [",".join(map(str, array.shape)) for array in (a, b)]
    text = f"""(float[{sizes[0]}] x, float[{sizes[1]}] z) => (float[2,3,5] y)
        {{ t = Neg(x) y = com.microsoft.FusedMatMul<alpha=0.25, transA={turns & 1}, transB={turns >> 1},
        transBatchA={moves & 1}, transBatchB={moves >> 1}>(t, z) }}"""
    check_rewriting(modelled(text, {}))


def test_fused_matmul_of_open_shapes() -> None:
    text = """(float[A,B,C] x, int64[2] s) => (float[D,E] y)
        { t = Reshape(x, s) u = com.microsoft.FusedMatMul<transA=1, transB=1>(t, w) y = Neg(u) }"""
    feeds = {"x": numbers(2, 3, 4), "s": np.array([4, 6])}
    check_rewriting(modelled(text, {"w": numbers(5, 4)}), feeds)


# -- activations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize(
    "call", ["Gelu(x)", "BiasGelu(x, b)", "FastGelu(x)", "FastGelu(x, b)", "QuickGelu(x)", "QuickGelu<alpha=1.0>(x)"]
)
def test_gelu(call: str, opset: int) -> None:
    text = f"(float[N,5,8] x) => (float[N,5,8] y) {{ t = Neg(x) y = com.microsoft.{call.replace('(x', '(t')} }}"
    check_rewriting(modelled(text, {"b": numbers(8)}, opset))


@pytest.mark.parametrize("call", ["Gelu", "QuickGelu"])
def test_gelu_of_float16(call: str) -> None:
    text = f"(float16[N,8] x) => (float16[N,8] y) {{ t = Neg(x) y = com.microsoft.{call}(t) }}"
    proto = modelled(text, {})
    model = import_model(proto.SerializeToString()).model
    kinds = {v.const_value.dtype for v in model.graph.initializers.values() if v.const_value is not None}
    assert kinds == {ir.DataType.FLOAT16} and not any(node.domain for node in model.graph)


def test_split_gelu_and_bias() -> None:
    """onnxruntime has them for other processors only."""
    text = """(float[2,3,8] x, float[2,3,4] s) => (float[2,3,4] y)
        { t = com.microsoft.BiasSplitGelu(x, b) y = com.microsoft.BiasAdd(t, c, s) }"""
    constants = {"b": numbers(8), "c": numbers(4)}
    proto = modelled(text, constants)
    plain = """(float[2,3,8] x, float[2,3,4] s) => (float[2,3,4] y)
        { a = Add(x, b) l, r = Split<axis=2>(a) g = com.microsoft.Gelu(r) t = Mul(l, g) u = Add(t, c) y = Add(u, s) }"""
    feeds = feeds_of(proto)
    model = import_model(proto.SerializeToString()).model
    assert not any(node.domain for node in model.graph)
    np.testing.assert_allclose(
        run(ir.to_proto(model), feeds)[0], run(modelled(plain, constants), feeds)[0], rtol=1e-4, atol=1e-5
    )


# -- normalisations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("inputs", ["", ", b", ", b, c", ', "", c'])
def test_skip_layer_norm(inputs: str, opset: int) -> None:
    text = f"""(float[N,5,8] x, float[N,5,8] s) => (float[N,5,8] y, float[N,5,8] u)
        {{ y, "", "", t = com.microsoft.SkipLayerNormalization<epsilon=0.001>(x, s, g{inputs}) u = Neg(t) }}"""
    check_rewriting(modelled(text, {"g": numbers(8), "b": numbers(8), "c": numbers(8)}, opset))


@pytest.mark.parametrize("inputs", ["", ", c"])
def test_simplified_layer_norm(inputs: str) -> None:
    text = f"""(float[N,5,8] x, float[N,5,8] s) => (float[N,5,8] y, float[N,5,8] u)
        {{ t = SimplifiedLayerNormalization<axis=-1, epsilon=0.001>(x, g)
           y, "", "", u = com.microsoft.SkipSimplifiedLayerNormalization(t, s, g{inputs}) }}"""
    check_rewriting(modelled(text, {"g": numbers(8), "c": numbers(8)}))


@pytest.mark.parametrize("inputs", ['i, "", w, p, "", g, b', "i, k, w, p, s, g, b", "i, k, w, p, s, g, b, m, q"])
def test_embedding(inputs: str) -> None:
    text = f"""(int32[N,5] i, int32[N,5] k, int32[N,5] q, int32[N,5] m) => (float[N,5,8] y, float[N,5,8] u)
        {{ y, l, u = com.microsoft.EmbedLayerNormalization<epsilon=0.001>({inputs}) }}"""
    constants = {"w": numbers(30, 8), "p": numbers(9, 8), "s": numbers(3, 8), "g": numbers(8), "b": numbers(8)}
    proto = modelled(text, constants)
    shape = (2, 5)
    feeds = {
        name: RANDOM.integers(0, top, shape).astype(np.int32) for name, top in zip("ikqm", (30, 3, 9, 2), strict=True)
    }
    check_rewriting(proto, feeds)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last: int, activation: int) -> None:
    """onnxruntime has it for other processors only; its meaning is written out here."""
    sizes = (2, 4, 5, 6) if last else (2, 6, 4, 5)
    dims = ",".join(map(str, sizes))
    text = f"""(float[{dims}] x) => (float[{dims}] y)
        {{ y = com.microsoft.GroupNorm<groups=3, channels_last={last}, activation={activation}>(x, g, b) }}"""
    constants = {"g": numbers(6), "b": numbers(6)}
    model = import_model(modelled(text, constants).SerializeToString()).model
    x = numbers(*sizes)
    images = x.transpose(0, 3, 1, 2) if last else x
    rows = images.reshape(2, 3, -1).astype(np.float64)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    wanted = rows.reshape(images.shape) * constants["g"].reshape(-1, 1, 1) + constants["b"].reshape(-1, 1, 1)
    wanted = wanted / (1 + np.exp(-wanted)) if activation else wanted
    got = run(ir.to_proto(model), {"x": x})[0]
    np.testing.assert_allclose(got, wanted.transpose(0, 2, 3, 1) if last else wanted, rtol=1e-3, atol=1e-4)


# -- attention -------------------------------------------------------------------------------------------

HEADS = {"w": numbers(8, 24, scale=0.5), "b": numbers(24)}


@pytest.mark.parametrize(
    ("inputs", "attributes", "extra", "feeds"),
    [
        ("x, w, b", "", "", {}),
        ("x, w", ", scale=0.3", "", {}),
        ("x, w, b", ", unidirectional=1", "", {}),
        ("x, w, b, m", "", ", int32[2] m", {"m": np.array([3, 5], np.int32)}),
        ("x, w, b, m", "", ", int32[2,5] m", {"m": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)}),
        ("x, w, b, m", ", mask_filter_value=-3.0", ", int32[2,5,5] m", {"m": RANDOM.integers(0, 2, (2, 5, 5))}),
        ('x, w, b, "", "", a', "", ", float[1,2,5,5] a", {"a": numbers(1, 2, 5, 5)}),
    ],
)
def test_attention(inputs: str, attributes: str, extra: str, feeds: dict[str, Array]) -> None:
    text = f"""(float[2,5,8] x{extra}) => (float[2,5,8] y)
        {{ y = com.microsoft.Attention<num_heads=2{attributes}>({inputs}) }}"""
    given = {name: array.astype(np.int32) if array.dtype.kind == "i" else array for name, array in feeds.items()}
    check_rewriting(modelled(text, HEADS), {"x": numbers(2, 5, 8), **given})


def test_weights_may_be_constant_nodes() -> None:
    text = """(float[2,5,8] x) => (float[2,5,8] y)
        { y = com.microsoft.Attention<num_heads=2>(x, w, b) }"""
    proto = modelled(text, HEADS)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in ("w", "b"):
        proto.graph.initializer.remove(tensors[name])
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensors[name]))
    check_rewriting(proto, {"x": numbers(2, 5, 8)})


def test_attention_of_other_sizes() -> None:
    text = """(float[N,S,8] x) => (float[N,S,12] y)
        { y = com.microsoft.Attention<num_heads=2, qkv_hidden_sizes=[8, 8, 12]>(x, w, b) }"""
    check_rewriting(modelled(text, {"w": numbers(8, 28, scale=0.5), "b": numbers(28)}), {"x": numbers(2, 5, 8)})


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_past(causal: int) -> None:
    text = f"""(float[N,S,8] x, float[2,N,2,P,4] p) => (float[N,S,8] y, float[2,N,2,T,4] q)
        {{ y, q = com.microsoft.Attention<num_heads=2, unidirectional={causal}>(x, w, b, "", p) }}"""
    check_rewriting(modelled(text, HEADS), {"x": numbers(2, 3, 8), "p": numbers(2, 2, 2, 4, 4)})


@pytest.mark.parametrize(
    ("inputs", "attributes", "declared", "shapes"),
    [
        ("q, k, v", "", "float[N,5,8] q, float[N,7,8] k, float[N,7,12] v", {}),
        ("q, k, v, b", ", scale=0.4", "float[N,5,8] q, float[N,5,8] k, float[N,5,8] v", {}),
        ("q, k, v", ", unidirectional=1", "float[N,5,8] q, float[N,5,8] k, float[N,5,8] v", {}),
        ("q, k, v", ", unidirectional=1", "float[N,5,8] q, float[N,7,8] k, float[N,7,8] v", {}),
        ("q, k, v", "", "float[N,5,8] q, float[N,2,7,4] k, float[N,2,7,4] v", {}),
        ('q, k, v, "", m', "", "float[2,5,8] q, float[2,7,8] k, float[2,7,8] v, int32[2] m", {"m": (2, 7)}),
        ('q, k, v, "", m', "", "float[2,5,8] q, float[2,7,8] k, float[2,7,8] v, int32[2,7] m", {}),
        ('q, k, v, "", "", a', "", "float[N,5,8] q, float[N,7,8] k, float[N,7,8] v, float[1,2,5,7] a", {}),
    ],
)
def test_multi_head_attention(inputs: str, attributes: str, declared: str, shapes: dict[str, Any]) -> None:
    width = 12 if "12] v" in declared else 8
    text = f"""({declared}) => (float[N,5,{width}] y)
        {{ y = com.microsoft.MultiHeadAttention<num_heads=2{attributes}>({inputs}) }}"""
    proto = modelled(text, {"b": numbers(24)})
    feeds = feeds_of(proto) | {name: np.array(array, np.int32) for name, array in shapes.items()}
    check_rewriting(proto, feeds)


def test_packed_heads() -> None:
    """onnxruntime takes them on other processors only."""
    packed = numbers(2, 5, 2, 3, 4)
    apart = {name: np.ascontiguousarray(packed[:, :, :, k]).reshape(2, 5, 8) for k, name in enumerate("qkv")}
    declared = ", ".join(f"float[N,5,8] {name}" for name in "qkv")
    ends = "=> (float[N,5,8] y) { y = com.microsoft.MultiHeadAttention<num_heads=2>"
    wanted = run(modelled(f"({declared}) {ends}(q, k, v) }}", {}), apart)[0]
    whole = modelled(f"(float[N,5,2,3,4] p) {ends}(p) }}", {})
    halves = modelled(f"(float[N,5,8] q, float[N,5,2,2,4] p) {ends}(q, p) }}", {})
    for proto, feeds in ((whole, {"p": packed}), (halves, {"q": apart["q"], "p": packed[:, :, :, 1:]})):
        model = import_model(proto.SerializeToString()).model
        np.testing.assert_allclose(run(ir.to_proto(model), feeds)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_past(causal: int) -> None:
    text = f"""(float[N,5,8] q, float[N,5,8] k, float[N,5,8] v, float[N,2,3,4] p, float[N,2,3,4] r)
        => (float[N,5,8] y, float[N,2,8,4] s, float[N,2,8,4] t)
        {{ y, s, t = com.microsoft.MultiHeadAttention<num_heads=2, unidirectional={causal}>
            (q, k, v, "", "", "", p, r) }}"""
    check_rewriting(modelled(text, {}))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", ["int64[N,5] p", "int64[1] p"])
def test_rotary_embedding(interleaved: int, places: str) -> None:
    constants = {"c": numbers(9, 4), "s": numbers(9, 4)}
    if "[1]" in places:
        constants["p"] = np.zeros(1, np.int64)
        places = "float[1] unused"
    text = f"""(float[N,5,16] x, {places}) => (float[N,5,16] y)
        {{ y = com.microsoft.RotaryEmbedding<interleaved={interleaved}>(x, p, c, s) }}"""
    check_rewriting(modelled(text, constants))


# -- other operators --------------------------------------------------------------------------------------


def test_max_pool_of_channels_last() -> None:
    text = """(int8[N,7,7,5] x) => (int8[N,4,4,5] y)
        { y = com.microsoft.NhwcMaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }"""
    feeds = {"x": RANDOM.integers(-128, 128, (2, 7, 7, 5)).astype(np.int8)}
    assert operators(check_rewriting(modelled(text, {}), feeds)) == {"Transpose", "MaxPool"}


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("value", ["", ", v"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad(mode: str, value: str, opset: int) -> None:
    text = f"""(float[N,3,4] x) => (float[N,5,7] y) {{ y = com.microsoft.Pad<mode="{mode}">(x, p{value}) }}"""
    constants = {"p": np.array([[0, 1, 2, 0, 1, 1]]), "v": np.array([1.5], np.float32)}
    given = {name: array for name, array in constants.items() if name in f"p{value}"}
    assert operators(check_rewriting(modelled(text, given, opset))) == {"Pad"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('y = com.microsoft.FusedConv<activation="Cube">(x, w)', "activation='Cube'"),
        ("y, y1 = com.microsoft.SkipLayerNormalization(x, x, g) z = Neg(y1)", "its output 1 is used"),
        ("y = com.microsoft.FusedMatMul<transA=1>(x, g)", "a transposed matrix with a vector"),
        ("y = com.microsoft.Pad(x, n)", "3 pads for 4 dimensions"),
        ("y = com.microsoft.Attention<num_heads=2>(x, x, g)", "the weight is not a constant"),
        ("y = com.microsoft.Attention<num_heads=5>(x, h, g)", "num_heads=5 for weights of shape"),
    ],
)
def test_what_cannot_be_rewritten_has_a_reason(text: str, reason: str) -> None:
    proto = modelled(
        f"(float[1,8,8,8] x) => (float y, float z) {{ {text} z = Abs(x) }}".replace("z = Neg(y1) z", "z = Neg(y1) z2"),
        {"w": numbers(4, 8, 3, 3), "g": numbers(8), "h": numbers(8, 24), "n": np.array([1, 2, 3])},
    )
    left = [node for node in import_model(proto.SerializeToString()).model.graph if LEFT in node.meta]
    assert len(left) == 1 and reason in left[0].meta[LEFT]
