"""Gemm, MatMul and Add against onnxruntime, attribute by attribute."""

from __future__ import annotations

import numpy as np
import pytest
from planning import Array, compare, drawn, modelled, renamed, steps

ROWS = 3


def gemm(attributes: str, features: int, constants: dict[str, Array]) -> None:
    inputs = ", ".join(["x", *constants])
    outputs = constants["w"].shape[0 if "transB=1" in attributes else 1]
    graph = f"(float[N,{features}] x) => (float[N,{outputs}] y) {{ y = Gemm<{attributes}>({inputs}) }}"
    compare(modelled(graph.replace("<>", ""), constants), {"x": drawn(ROWS, features)})


@pytest.mark.parametrize(
    "attributes", ["", "alpha=0.5", "beta=-2.0", "alpha=-1.5, beta=0.25", "beta=0.0", "transA=0", "alpha=0.0"]
)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transB"])
def test_gemm_attributes(attributes: str, transposed: bool) -> None:
    weight = drawn(6, 4).T if transposed else drawn(4, 6)
    weight = np.ascontiguousarray(drawn(6, 4)) if transposed else weight
    given = ", ".join(part for part in (attributes, "transB=1" if transposed else "") if part)
    gemm(given, 4, {"w": weight, "c": drawn(6)})


@pytest.mark.parametrize("shape", [(6,), (1, 6), (1,), (), (1, 1)], ids=str)
def test_gemm_biases(shape: tuple[int, ...]) -> None:
    gemm("beta=0.5", 4, {"w": drawn(4, 6), "c": drawn(*shape)})


@pytest.mark.parametrize("shape", [(3, 6), (3, 1)], ids=str)
@pytest.mark.parametrize("act", ["", "Relu"])
def test_gemm_that_adds_no_row(shape: tuple[int, ...], act: str) -> None:
    """C is added in a step of its own, which takes the activation along; names of the model's stay apart from ours."""
    nodes = "[m] g = Gemm<beta=0.5>(x, w, c) [s] y = Tanh(g)" if act else "[m] y = Gemm<beta=0.5>(x, w, c)"
    graph = f"(float[3,4] x) => (float[3,6] y, float[3,4] p, float[3,4] q) {{ {nodes} p = Relu(x) [t] q = Tanh(x) }}"
    model = modelled(graph, {"w": drawn(4, 6), "c": drawn(*shape)})
    model = renamed(model, {"p": "y.product", "q": "g.product", "s": "m.sum", "t": "m.sum_"})
    plan = compare(model, {"x": drawn(3, 4)})
    assert [s.kernel for s in plan.steps] == ["linear_rows", "compute", "compute", "compute"]
    assert next(s for s in plan.steps if s.name == "m").nodes == ("m",)


@pytest.mark.parametrize("shape", [(3, 6), (3, 1), (6,), (1,)], ids=str)
def test_gemm_that_adds_what_is_computed(shape: tuple[int, ...]) -> None:
    declared = ",".join(map(str, shape))
    graph = f"(float[3,4] x, float[{declared}] c) => (float[3,6] y) {{ r = Relu(c) y = Gemm<alpha=0.5>(x, w, r) }}"
    compare(modelled(graph, {"w": drawn(4, 6)}), {"x": drawn(3, 4), "c": drawn(*shape, seed=1)})


def test_gemm_with_one_output() -> None:
    gemm("", 4, {"w": drawn(4, 1), "c": drawn(1, 1)})


def test_gemm_without_bias() -> None:
    gemm("", 130, {"w": drawn(130, 6)})


def test_gemm_whose_bias_is_left_out_by_name() -> None:
    graph = '(float[N,4] x) => (float[N,6] y) { y = Gemm(x, w, "") }'
    model = modelled(graph.replace('""', "none"), {"w": drawn(4, 6)})
    model.graph.node[0].input[2] = ""
    compare(model, {"x": drawn(ROWS, 4)})


@pytest.mark.parametrize("left", [(4,), (3, 4), (2, 3, 4), (2, 1, 3, 4)], ids=str)
def test_matmul(left: tuple[int, ...]) -> None:
    declared, made = ",".join(map(str, left)), ",".join(map(str, (*left[:-1], 5)))
    graph = f"(float[{declared}] x) => (float[{made}] y) {{ y = MatMul(x, w) }}"
    plan = compare(modelled(graph, {"w": drawn(4, 5)}), {"x": drawn(*left)})
    assert set(steps(plan)) == {"linear_rows"}


@pytest.mark.parametrize("left", [(4,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("bias", [(5,), (1,), ()], ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["product first", "bias first"])
def test_matmul_with_bias_and_activation_is_one_step(
    left: tuple[int, ...], bias: tuple[int, ...], swapped: bool
) -> None:
    declared, made = ",".join(map(str, left)), ",".join(map(str, (*left[:-1], 5)))
    sides = "b, m" if swapped else "m, b"
    graph = f"(float[{declared}] x) => (float[{made}] y) {{ m = MatMul(x, w) a = Add({sides}) y = Tanh(a) }}"
    plan = compare(modelled(graph, {"w": drawn(4, 5), "b": drawn(*bias)}), {"x": drawn(*left)})
    assert set(steps(plan)) == {"linear_rows"}


@pytest.mark.parametrize("bias", [(3, 5), (3, 1), (2, 3, 5)], ids=str)
def test_what_is_added_to_matmul_but_is_no_bias(bias: tuple[int, ...]) -> None:
    made = ",".join(map(str, np.broadcast_shapes((3, 5), bias)))
    graph = f"(float[3,4] x) => (float[{made}] y) {{ m = MatMul(x, w) y = Add(m, b) }}"
    plan = compare(modelled(graph, {"w": drawn(4, 5), "b": drawn(*bias)}), {"x": drawn(3, 4)})
    assert set(steps(plan)) == {"linear_rows", "compute"}


def test_matmul_added_to_itself() -> None:
    graph = "(float[N,4] x) => (float[N,5] y) { m = MatMul(x, w) y = Add(m, m) }"
    compare(modelled(graph, {"w": drawn(4, 5)}), {"x": drawn(3, 4)})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_layers_in_every_dtype(dtype: str, target: str) -> None:
    graph = "(float[N,9] x) => (float[N,3] y) { h = Gemm(x, v, c) r = Relu(h) y = Gemm(r, w) }"
    constants = {"v": drawn(9, 130) / 3, "c": drawn(130), "w": drawn(130, 3) / 12}
    compare(modelled(graph, constants), {"x": drawn(33, 9)}, dtype=dtype, target=target)


# Shapes of both sides: equal, a row, a column, one number, a channel's, four groups that broadcast differently.
SIDES = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 3), (2, 1)),
    ((2, 3), ()),
    ((2, 3), (1, 1, 1)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 5)),
    ((2, 3, 4, 5), (2, 1, 4, 1)),
    ((3, 1), (1, 4)),
    ((130, 300), (300,)),
    ((2, 1, 3, 1, 4), (1, 5, 1, 1, 1)),
    ((7,), (1,)),
]


def shown(shape: tuple[int, ...]) -> str:
    """A shape in ONNX's textual form."""
    return f"[{','.join(map(str, shape))}]" if shape else ""


@pytest.mark.parametrize(("one", "other"), SIDES, ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize("act", ["", "Relu"])
def test_add_of_computed_tensors(one: tuple[int, ...], other: tuple[int, ...], swapped: bool, act: str) -> None:
    made = shown(np.broadcast_shapes(one, other))
    sides = "b, a" if swapped else "a, b"
    nodes = f"s = Add({sides}) y = {act}(s)" if act else f"y = Add({sides})"
    model = modelled(f"(float{shown(one)} a, float{shown(other)} b) => (float{made} y) {{ {nodes} }}")
    plan = compare(model, {"a": drawn(*one), "b": drawn(*other, seed=1)})
    assert set(steps(plan)) == {"compute"}


@pytest.mark.parametrize(("one", "other"), SIDES, ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_add_of_a_constant(one: tuple[int, ...], other: tuple[int, ...], swapped: bool) -> None:
    made = shown(np.broadcast_shapes(one, other))
    for shape, constant in ((one, other), (other, one)):
        sides = "c, x" if swapped else "x, c"
        model = modelled(f"(float{shown(shape)} x) => (float{made} y) {{ y = Add({sides}) }}", {"c": drawn(*constant)})
        compare(model, {"x": drawn(*shape, seed=1)})


def test_add_of_a_tensor_to_itself() -> None:
    plan = compare(modelled("(float[N,4] x) => (float[N,4] y) { s = Add(x, x) y = Sigmoid(s) }"), {"x": drawn(3, 4)})
    assert steps(plan) == {"compute": ("Add_0", "Sigmoid_1")}


def test_a_residual_connection() -> None:
    graph = """(float[N,8] x) => (float[N,8] y) {
        h = Gemm(x, v)  r = Relu(h)  m = Gemm(r, w)  s = Add(m, r)  y = Relu(s) }"""
    compare(modelled(graph, {"v": drawn(8, 8), "w": drawn(8, 8, seed=1)}), {"x": drawn(5, 8)})
