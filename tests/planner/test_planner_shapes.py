"""Operators that move nothing or only the order, and what may be a model's output, against onnxruntime."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from planning import Array, compare, drawn, modelled, steps

Shape = tuple[int, ...]


def listed(values: Shape) -> str:
    """A shape, or a list of ints, in ONNX's textual form."""
    return f"[{','.join(map(str, values))}]"


def between(op: str, source: Shape, result: Shape, constants: dict[str, Array] | None = None, opset: int = 17) -> None:
    """``op`` on a computed tensor whose result is read by a step again, and is an output as well."""
    graph = f"""(float{listed(source)} x) => (float{listed(result)} y, float{listed(result)} v) {{
        r = Tanh(x)  v = {op}  y = Relu(v) }}"""
    compare(modelled(graph, constants, opset), {"x": drawn(*source)})


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, 4, -1, -2, -3, -4])
def test_flatten(axis: int | None) -> None:
    shape = (2, 3, 4, 5)
    at = 1 if axis is None else axis
    result = (int(np.prod(shape[:at])), int(np.prod(shape[at:])))
    between("Flatten(r)" if axis is None else f"Flatten<axis={axis}>(r)", shape, result)


@pytest.mark.parametrize("source", [(5,), (1, 1), (2, 3)], ids=str)
def test_flatten_of_few_dimensions(source: Shape) -> None:
    between("Flatten<axis=0>(r)", source, (1, int(np.prod(source))))


@pytest.mark.parametrize(
    ("target", "result"),
    [
        ((24,), (24,)),
        ((-1,), (24,)),
        ((0, -1), (2, 12)),
        ((0, 0, -1), (2, 3, 4)),
        ((-1, 6), (4, 6)),
        ((4, 3, 2), (4, 3, 2)),
        ((1, 2, 1, 12, 1), (1, 2, 1, 12, 1)),
    ],
    ids=str,
)
def test_reshape(target: Shape, result: Shape) -> None:
    between("Reshape(r, s)", (2, 3, 4), result, {"s": np.array(target)})
    if 0 not in target:
        between("Reshape<allowzero=1>(r, s)", (2, 3, 4), result, {"s": np.array(target)})


def test_reshape_to_a_shape_that_is_computed_from_the_input() -> None:
    graph = """(float[N,2,3] x) => (float[N,6] y) {
        s = Shape(x)  n = Gather<axis=0>(s, zero)  m = Constant<value_ints=[-1]>()
        t = Concat<axis=0>(n, m)  r = Relu(x)  y = Reshape(r, t) }"""
    plan = compare(modelled(graph, {"zero": np.array([0])}), {"x": drawn(5, 2, 3)})
    assert set(steps(plan)) == {"compute"}


@pytest.mark.parametrize(("axes", "result"), [([0], (3, 1, 4)), ([2], (1, 3, 4)), ([0, -2], (3, 4)), (None, (3, 4))])
def test_squeeze(axes: list[int] | None, result: Shape) -> None:
    constants = {} if axes is None else {"a": np.array(axes)}
    between("Squeeze(r)" if axes is None else "Squeeze(r, a)", (1, 3, 1, 4), result, constants)


def test_squeeze_and_unsqueeze_with_attributes() -> None:
    between("Squeeze<axes=[0]>(r)", (1, 3, 4), (3, 4), opset=11)
    for axes in ("[2, 0]", "[2, 3, 0]"):  # in any order, which ONNX's inference can't do before opset 11
        between(f"Squeeze<axes={axes}>(r)", (1, 3, 1, 1), (3, 1) if axes == "[2, 0]" else (3,), opset=10)
    between("Unsqueeze<axes=[1]>(r)", (3, 4), (3, 1, 4), opset=11)


@pytest.mark.parametrize(("axes", "result"), [([0], (1, 3, 4)), ([-1], (3, 4, 1)), ([1, 3], (3, 1, 4, 1))], ids=str)
def test_unsqueeze(axes: list[int], result: Shape) -> None:
    between("Unsqueeze(r, a)", (3, 4), result, {"a": np.array(axes)})


def test_identities_and_dropout() -> None:
    graph = """(float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] x2) {
        a = Identity(x)  b = Identity(a)  c = Relu(b)  d = Identity(c)  e = Dropout(d, ratio)
        f = Identity(e)  y = Gemm(f, w)  z = Identity(f)  x2 = Identity(a) }"""
    compare(modelled(graph, {"ratio": np.array(0.5, np.float32), "w": drawn(4, 4)}), {"x": drawn(3, 4)})


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 17])
def test_dropout(opset: int) -> None:
    op = "Dropout<ratio=0.25>(r)" if opset < 12 else "Dropout(r, ratio)"
    between(op, (3, 4), (3, 4), {} if opset < 12 else {"ratio": np.array(0.25, np.float32)}, opset)


ORDERS = [order for rank in (2, 3, 4) for order in permutations(range(rank))]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_transpose(order: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 5)[: len(order)]
    between(f"Transpose<perm={listed(order)}>(r)", shape, tuple(shape[d] for d in order))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (130, 3, 150)], ids=str)
def test_transpose_without_perm_reverses(shape: Shape) -> None:
    between("Transpose(r)", shape, shape[::-1])


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_any_transpose(drawn_case: tuple[list[int], list[int]]) -> None:
    """Ones in every place: they vanish, and what stays together moves as one."""
    shape, order = drawn_case
    between(f"Transpose<perm={listed(tuple(order))}>(r)", tuple(shape), tuple(shape[d] for d in order))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_transpose_between_layers(target: str, dtype: str) -> None:
    """From images to channels last, and a product along the channels."""
    graph = """(float[N,3,4,5] x) => (float[N,4,5,2] y) {
        c = Conv(x, v)  t = Transpose<perm=[0,2,3,1]>(c)  y = MatMul(t, w) }"""
    constants = {"v": drawn(6, 3, 1, 1) / 2, "w": drawn(6, 2) / 3}
    compare(modelled(graph, constants), {"x": drawn(2, 3, 4, 5)}, target=target, dtype=dtype)


def test_outputs_that_are_inputs_constants_and_each_other() -> None:
    graph = """(float[N,4] x, int64[N] n) => (
        float[N,4] x2, int64[N] n2, float[2] c, float[N,4] y, float[N,4] y2, float[k] flat, float[k,1] column) {
        x2 = Identity(x)  n2 = Identity(n)  c = Constant<value_floats=[1.0, 2.0]>()
        y = Relu(x)  y2 = Identity(y)  flat = Reshape(y, minus)  column = Unsqueeze(flat, one) }"""
    constants = {"minus": np.array([-1]), "one": np.array([1])}
    plan = compare(modelled(graph, constants), {"x": drawn(3, 4), "n": np.array([3, 1, 2])})
    assert len(plan.results) == 1


def test_outputs_on_the_way() -> None:
    """An intermediate value that is an output is computed once and is not fused away."""
    graph = """(float[N,1,6,6] x) => (float[N,3] y, float[N,2,4,4] c, float[N,2,2,2] m, float[N,8] f) {
        c = Conv(x, v)  r = Relu(c)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        f = Flatten(m)  y = Gemm(f, w) }"""
    plan = compare(modelled(graph, {"v": drawn(2, 1, 3, 3), "w": drawn(8, 3)}), {"x": drawn(2, 1, 6, 6)})
    assert [s.kernel for s in plan.steps] == ["conv2d_stacked", "compute", "max_pool2d", "linear_rows"]


@pytest.mark.parametrize(
    "nodes",
    ["y = Identity(x)", "y = Reshape(x, s)", "y = Constant<value_floats=[1.0]>()", "z = Identity(x) y = Flatten(z)"],
)
def test_a_model_without_arithmetic(nodes: str) -> None:
    plan = compare(modelled(f"(float[N,4] x) => (float y) {{ {nodes} }}", {"s": np.array([-1])}), {"x": drawn(3, 4)})
    assert plan.steps == () and plan.results == ()


def test_a_string_that_is_passed_through() -> None:
    graph = "(string[N] x, float[N] a) => (string[N] y, float[N] b) { y = Identity(x)  b = Relu(a) }"
    compare(modelled(graph), {"x": np.array(["a", "ü\n"], dtype=object), "a": drawn(2)})


def test_string_constants() -> None:
    tensor = helper.make_tensor("t", TensorProto.STRING, [2], ["a", "ü"])
    model = modelled("(float[N] a) => (string[2] y, float[N] b) { b = Relu(a) }")
    model.graph.node.append(helper.make_node("Constant", [], ["y"], value=tensor))
    compare(model, {"a": drawn(2)})


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_a_model_without_a_batch(shape: Shape) -> None:
    declared = listed(shape) if shape else ""
    plan = compare(modelled(f"(float{declared} x) => (float{declared} y) {{ y = Relu(x) }}"), {"x": drawn(*shape)})
    assert plan.inputs[0].shape == (shape or (1,))


def test_several_inputs_and_unused_ones() -> None:
    graph = """(float[N,4] a, float[N,3] unused, int64[N,2] ids, float[N,4] b) => (float[N,2] y) {
        s = Add(a, b)  y = Gemm(s, w) }"""
    feeds = {"a": drawn(3, 4), "unused": drawn(3, 3), "ids": np.ones((3, 2), np.int64), "b": drawn(3, 4, seed=1)}
    plan = compare(modelled(graph, {"w": drawn(4, 2)}), feeds)
    assert [tensor.name for tensor in plan.inputs] == ["a", "b"]
