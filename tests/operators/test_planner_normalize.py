"""Normalisations against onnxruntime, with constant and with computed scales, in several opsets."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from planning import Array, compare, drawn, modelled, planned

import trnrt
from trnrt.errors import UnsupportedModelError

Shape = tuple[int, ...]


def declared(shape: Shape) -> str:
    """A shape in ONNX's textual form."""
    return f"[{','.join(map(str, shape))}]"


def run(
    node: str, x: Array, given: Mapping[str, Array], *, opset: int = 17, constant: bool = True, dtype: str = "float32"
) -> set[str]:
    """Compare ``node``, which reads x and what is given and makes y, with onnxruntime; returns its plan's kernels."""
    inputs = "" if constant else "".join(f", float{declared(a.shape)} {name}" for name, a in given.items())
    graph = f"(float{declared(x.shape)} x{inputs}) => (float{declared(x.shape)} y) {{ {node} }}"
    feeds = {"x": x} | ({} if constant else dict(given))
    plan = compare(modelled(graph, given if constant else {}, opset=opset), feeds, dtype=dtype)
    return {step.kernel for step in plan.steps}


def channel_statistics(channels: int) -> dict[str, Array]:
    """Scale, bias, mean and variance."""
    scale, bias, mean = (drawn(channels, seed=k) for k in (1, 2, 3))
    return {"s": scale, "b": bias, "m": mean, "v": np.abs(drawn(channels, seed=4)) + np.float32(0.1)}


BATCH = "y = BatchNormalization<epsilon=0.01>(x, s, b, m, v)"


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 5, 7), (2, 5, 3, 4), (1, 130, 6, 6), (2, 3, 2, 3, 2)], ids=str)
def test_batch_normalization(shape: Shape, constant: bool) -> None:
    kernels = run(BATCH, drawn(*shape), channel_statistics(shape[1]), constant=constant)
    assert kernels == {"compute"}


@pytest.mark.parametrize("opset", [7, 8, 9, 13, 14, 15])
def test_batch_normalization_of_each_opset(opset: int) -> None:
    run(BATCH, drawn(2, 5, 3, 4), channel_statistics(5), opset=opset)


def test_batch_normalization_of_opset_6() -> None:
    """onnxruntime has no kernel for it."""
    x, given = drawn(2, 5, 3, 4), channel_statistics(5)
    got = answer(BATCH.replace("<", "<is_test=1, "), x, given, opset=6)
    s, b, m, v = (a.reshape(5, 1, 1) for a in given.values())
    np.testing.assert_allclose(got, (x - m) / np.sqrt(v + 0.01) * s + b, rtol=1e-5, atol=1e-5)


def test_batch_normalization_of_each_element_before_opset_9() -> None:
    shapes = {name: np.stack([a] * 6, axis=1).reshape(5, 2, 3) for name, a in channel_statistics(5).items()}
    statistics = {name: a + np.abs(drawn(5, 2, 3)) for name, a in shapes.items()}
    node = BATCH.replace("<", "<spatial=0, ")
    got = answer(node, drawn(2, 5, 2, 3), statistics, opset=8)
    x, s = drawn(2, 5, 2, 3).astype(np.float64), statistics
    expected = (x - s["m"]) / np.sqrt(s["v"] + 0.01) * s["s"] + s["b"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def answer(node: str, x: Array, given: Mapping[str, Array], *, opset: int) -> Array:
    """What trnrt answers."""
    graph = f"(float{declared(x.shape)} x) => (float{declared(x.shape)} y) {{ {node} }}"
    return trnrt.InferenceSession(modelled(graph, given, opset=opset).SerializeToString()).run(None, {"x": x})[0]


LAYER = "y = LayerNormalization<axis={axis}, epsilon=0.001>(x, s, b)"


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("axis", [-1, 1, 2, -3])
def test_layer_normalization(axis: int, constant: bool) -> None:
    shape = (3, 4, 5)
    row = shape[axis:]
    kernels = run(
        LAYER.format(axis=axis), drawn(*shape), {"s": drawn(*row), "b": drawn(*row, seed=2)}, constant=constant
    )
    assert "normalize_rows" in kernels


def test_layer_normalization_of_long_rows_far_from_zero() -> None:
    x = (drawn(3, 9000) + 1000).astype(np.float32)
    x64 = x.astype(np.float64)
    expected = (x64 - x64.mean(axis=1, keepdims=True)) / np.sqrt(x64.var(axis=1, keepdims=True) + 1e-5)
    got = answer("y = LayerNormalization(x, s)", x, {"s": np.ones(9000, np.float32)}, opset=17)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_layer_normalization_with_all_its_outputs() -> None:
    graph = """(float[2,3,4] x) => (float[2,3,4] y, float[2,1,1] mean, float[2,1,1] inverse) {
        y, mean, inverse = LayerNormalization<axis=1>(x, s) }"""
    compare(modelled(graph, {"s": drawn(3, 4)}), {"x": drawn(2, 3, 4)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype: str) -> None:
    run(LAYER.format(axis=-1), drawn(5, 70), {"s": drawn(70), "b": drawn(70, seed=2)}, dtype=dtype)
    run("y = LRN<size=3, alpha=0.5>(x)", drawn(2, 5, 3, 3), {}, dtype=dtype)
    given = {"s": drawn(5), "b": drawn(5, seed=2)}
    run("y = InstanceNormalization(x, s, b)", drawn(2, 5, 30), given, dtype=dtype, constant=False)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (1,)], ids=str)
def test_layer_normalization_with_a_scale_that_broadcasts(shape: Shape) -> None:
    for constant in (True, False):
        run("y = LayerNormalization<axis=1>(x, s)", drawn(2, 3, 4), {"s": drawn(*shape)}, constant=constant)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 5, 3, 4), (3, 5, 2, 2, 2), (1, 5, 80, 80)], ids=str)
def test_instance_normalization(shape: Shape, constant: bool) -> None:
    given = {"s": drawn(5), "b": drawn(5, seed=2)}
    kernels = run("y = InstanceNormalization<epsilon=0.01>(x, s, b)", drawn(*shape), given, constant=constant)
    assert "normalize_rows" in kernels


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 4), (1, 6, 70, 80)], ids=str)
def test_group_normalization(shape: Shape, constant: bool) -> None:
    given = {"s": drawn(6), "b": drawn(6, seed=2)}
    node = "y = GroupNormalization<num_groups=3, epsilon=0.01>(x, s, b)"
    kernels = run(node, drawn(*shape), given, opset=21, constant=constant)
    assert "normalize_rows" in kernels


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int, constant: bool) -> None:
    x, s = drawn(3, 4, 5), drawn(*(3, 4, 5)[axis:], seed=1)
    kernels = run(f"y = RMSNormalization<axis={axis}>(x, s)", x, {"s": s}, opset=23, constant=constant)
    assert "normalize_rows_rms" in kernels


@pytest.mark.parametrize("opset", [12, 22])
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p: int, axis: int, opset: int) -> None:
    x = drawn(3, 4, 5)
    x[1, :, 2], x[1, 2], x[:, 2, 2] = 0, 0, 0
    node = f"y = LpNormalization<p={p}, axis={axis}>(x)"
    if opset < 22:
        run(node, x, {}, opset=opset)
        return
    norm = np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt(np.square(x).sum(axis=axis, keepdims=True))
    expected = x / np.where(norm == 0, 1, norm)
    np.testing.assert_allclose(answer(node, x, {}, opset=opset), expected, rtol=1e-5, atol=1e-6)


NORM = "n = ReduceL2<keepdims=1>(x, last)"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "nodes",
    [
        f"{NORM} l = Clip(n, least)  y = Div(x, l)",
        f"{NORM} l = Max(n, least)  y = Div(x, l)",
        f"{NORM} l = Clip(n, least)  e = Expand(l, sizes)  y = Div(x, e)",
        f"{NORM} y = Div(x, n)",
    ],
)
def test_rows_over_their_norms(nodes: str, dtype: str) -> None:
    """As torch.nn.functional.normalize and a division by the norm are exported."""
    given = {"last": np.array([-1]), "least": np.array(1e-12, np.float32), "sizes": np.array([3, 4, 70])}
    x = drawn(3, 4, 70)
    if "least" in nodes:
        x[1, 2], x[0, 1, :] = 0, 1e-14
    assert run(nodes, x, given, opset=18, dtype=dtype) == {"divide_rows_by_norm"}


@pytest.mark.parametrize(
    "nodes",
    [
        "n = ReduceL2<keepdims=1>(x, first)  y = Div(x, n)",
        f"{NORM} y = Div(n, x)",
        f"{NORM} l = Clip(n, least)  z = Exp(x)  y = Div(z, l)",
        f"{NORM} l = Clip(n, least, most)  y = Div(x, l)",
        f"{NORM} l = Clip(n, tiny)  y = Div(x, l)",
        f"{NORM} l = Add(n, least)  y = Div(x, l)",
        f"{NORM} q = Div(x, n)  y = Add(q, n)",
    ],
)
def test_quotients_that_are_no_unit_rows(nodes: str) -> None:
    numbers = {"least": 0.25, "most": 2.0, "tiny": 1e-30}
    given = {name: np.array(number, np.float32) for name, number in numbers.items()}
    x = np.abs(drawn(3, 4, 70)) + np.float32(0.1)
    kernels = run(nodes, x, given | {"last": np.array([-1]), "first": np.array([0])}, opset=18)
    assert "divide_rows_by_norm" not in kernels


@pytest.mark.parametrize("axes", ["", "<axes=[0,2,3]>", "<axes=[2,3]>", "<axes=[1]>", "<axes=[-1]>"])
def test_mean_variance_normalization(axes: str) -> None:
    run(f"y = MeanVarianceNormalization{axes}(x)", (drawn(2, 3, 4, 5) + 10).astype(np.float32), {}, opset=13)


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 200, 5, 5), (2, 3, 40, 41)], ids=str)
@pytest.mark.parametrize("opset", [6, 13])
def test_lrn(shape: Shape, opset: int) -> None:
    kernels = run("y = LRN<size=5, alpha=0.3, beta=0.6, bias=2.0>(x)", drawn(*shape), {}, opset=opset)
    assert kernels == {"lrn"}


def test_lrn_of_other_numbers_of_dimensions() -> None:
    """onnxruntime takes four only; onnx's reference, too."""
    x = drawn(2, 5, 7)
    squares = np.square(x.astype(np.float64))
    window = np.stack([squares[:, max(0, c - 1) : c + 2].sum(axis=1) for c in range(5)], axis=1)
    expected = x / (1 + 0.0001 / 3 * window) ** 0.75
    np.testing.assert_allclose(answer("y = LRN<size=3>(x)", x, {}, opset=13), expected, rtol=1e-6)


def test_lrn_stays_on_chip_behind_a_convolution() -> None:
    graph = """(float[2,3,9,9] x) => (float[2,4,1,1] y) {
        c = Conv<kernel_shape=[3,3]>(x, w)  n = LRN<size=3>(c)  y = GlobalAveragePool(n) }"""
    plan = compare(modelled(graph, {"w": drawn(4, 3, 3, 3)}), {"x": drawn(2, 3, 9, 9)})
    assert {step.kernel: step.layout for step in plan.steps}["lrn"] == "channels"


@pytest.mark.parametrize("eps", ["nan", "inf"])
def test_an_epsilon_that_is_no_number(eps: str) -> None:
    """A kernel module has no name for it."""
    model = modelled("(float[2,5] x) => (float[2,5] y) { y = LayerNormalization<epsilon=0.5>(x, s) }", {"s": drawn(5)})
    model.graph.node[0].attribute[0].f = float(eps)
    compare(model, {"x": drawn(2, 5)})


REFUSED = [
    (f"y, mean, variance = {BATCH[4:].replace('<', '<training_mode=1, ')}", (2, 5, 3), 15, "training_mode=1"),
    ("y = LayerNormalization<axis=1>(x, wide)", (2, 5, 3), 17, r"Scale of shape \(2, 5, 3\) for rows of \(5, 3\)"),
    ("y = LpNormalization<p=3>(x)", (2, 5), 17, "p=3; ONNX knows 1 and 2"),
    ("y = GroupNormalization<num_groups=2>(x, s, b)", (2, 5, 3), 21, "num_groups=2 of 5 channels"),
]


@pytest.mark.parametrize(("node", "shape", "opset", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_is_refused(node: str, shape: Shape, opset: int, message: str) -> None:
    graph = f"(float{declared(shape)} x) => (float{declared(shape)} y) {{ {node} }}"
    model = modelled(graph, channel_statistics(5) | {"wide": drawn(2, 5, 3)}, opset=opset)
    with pytest.raises(UnsupportedModelError, match=message):
        planned(model, {"x": shape})


CHANNELS = """c = Conv<pads=[1,1,1,1]>(x, w) t = Transpose<perm=[0,2,3,1]>(c)
    n = LayerNormalization<epsilon=1e-6>(t, s, b) """


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_channels_of_images_are_normalised_where_they_lie(dtype: str, target: str) -> None:
    """A block of ConvNeXt: everything stays in SBUF, and nothing is transposed."""
    nodes = """m = MatMul(n, e) a = Add(m, f) g = Sigmoid(a) h = Mul(a, g) o = MatMul(h, p) q = Add(o, r) l = Mul(s, q)
        u = Transpose<perm=[0,3,1,2]>(l) y = Add(c, u)"""
    constants = {"w": drawn(8, 3, 3, 3) / 3, "s": drawn(8), "b": drawn(8, seed=1), "e": drawn(8, 12) / 3}
    constants |= {"f": drawn(12), "p": drawn(12, 8) / 4, "r": drawn(8, seed=2)}
    model = modelled(f"(float[2,3,6,5] x) => (float[2,8,6,5] y) {{ {CHANNELS} {nodes} }}", constants)
    plan = compare(model, {"x": drawn(2, 3, 6, 5)}, dtype=dtype, target=target)
    assert "normalize_channels" in [step.kernel for step in plan.steps]
    assert not any("transpose" in step.kernel or "copy" in step.name for step in plan.steps)


@pytest.mark.parametrize(
    ("nodes", "made"),
    [
        ("y = Neg(n)", "2,6,5,8"),
        ("k = Transpose<perm=[0,3,1,2]>(n) y = Relu(k)", "2,8,6,5"),
        ("y = Flatten(n)", "2,240"),
        ("k = Transpose<perm=[0,3,1,2]>(n) z = Relu(k) v = ReduceMean<axes=[2,3]>(z) y = Neg(v)", "2,8,1,1"),
    ],
)
def test_readers_of_normalised_channels(nodes: str, made: str) -> None:
    constants = {"w": drawn(8, 3, 3, 3) / 3, "s": drawn(8), "b": drawn(8, seed=1)}
    model = modelled(f"(float[2,3,6,5] x) => (float[{made}] y) {{ {CHANNELS} {nodes} }}", constants)
    plan = compare(model, {"x": drawn(2, 3, 6, 5)})
    assert "normalize_channels" in [step.kernel for step in plan.steps]
