"""Softmax, LogSoftmax, ArgMax, ArgMin, activations, and the boundary nodes behind them, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from planning import Array, compare, drawn, modelled, steps


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (130, 7), (2, 3, 4, 5), (2, 1, 3, 2, 2)], ids=str)
def test_activation_alone(op: str, shape: tuple[int, ...]) -> None:
    declared = f"[{','.join(map(str, shape))}]" if shape else ""
    plan = compare(modelled(f"(float{declared} x) => (float{declared} y) {{ y = {op}(x) }}"), {"x": drawn(*shape)})
    assert set(steps(plan)) == {"compute"}


SHAPES = [(7,), (2, 7), (2, 3, 7), (2, 3, 4, 7), (2, 1), (130, 10)]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", ["default", "-1", "last"])
def test_softmax_along_the_last_axis(shape: tuple[int, ...], axis: str, op: str) -> None:
    given = {"default": "", "-1": "<axis=-1>", "last": f"<axis={len(shape) - 1}>"}[axis]
    declared = ",".join(map(str, shape))
    compare(modelled(f"(float[{declared}] x) => (float[{declared}] y) {{ y = {op}{given}(x) }}"), {"x": drawn(*shape)})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_rows_longer_than_sbuf(op: str) -> None:
    graph = f"(float[N,70001] x) => (float[N,70001] y) {{ a = Relu(x)  y = {op}(a) }}"
    compare(modelled(graph), {"x": drawn(3, 70001)})


@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 4), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2])
def test_softmax_before_opset_13_takes_everything_from_the_axis_on(shape: tuple[int, ...], axis: int | None) -> None:
    given = "" if axis is None else f"<axis={axis}>"
    declared = ",".join(map(str, shape))
    graph = f"(float[{declared}] x) => (float[{declared}] y) {{ y = Softmax{given}(x) }}"
    compare(modelled(graph, opset=11), {"x": drawn(*shape)})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape", [(2, 1), (3, 8), (3, 9), (130, 10), (2, 3, 4), (2, 3, 1, 5), (6,)], ids=str)
@pytest.mark.parametrize("negative", [False, True], ids=["axis=last", "axis=-1"])
def test_argmax(shape: tuple[int, ...], keepdims: int, negative: bool, op: str) -> None:
    axis = -1 if negative else len(shape) - 1
    made = (*shape[:-1], 1) if keepdims else shape[:-1]
    declared = ",".join(map(str, shape))
    result = f"[{','.join(map(str, made))}]" if made else ""
    graph = f"""(float[{declared}] x) => (int64{result} y) {{
        y = {op}<axis={axis}, keepdims={keepdims}>(x) }}"""
    compare(modelled(graph), {"x": drawn(*shape)})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_argmax_of_equals_is_the_first(op: str) -> None:
    graph = f"(float[N,9] x) => (int64[N] y) {{ y = {op}<axis=1, keepdims=0>(x) }}"
    x = np.zeros((4, 9), np.float32)
    x[1, [4, 7]] = 1
    x[2, 8] = 1
    x[3] = [np.nan, 5, 5, 1, 1, 1, 1, 1, 1]
    compare(modelled(graph), {"x": x if op == "ArgMax" else -x})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(5, 1), (2, 7), (2, 3, 4), (2, 3, 4, 5), (1, 3, 1, 5)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_softmax_along_any_axis(shape: tuple[int, ...], axis: int, op: str) -> None:
    declared = ",".join(map(str, shape))
    graph = f"(float[{declared}] x) => (float[{declared}] y) {{ y = {op}<axis={axis}>(x) }}"
    compare(modelled(graph), {"x": drawn(*shape)})


def test_transposes_about_a_softmax_cancel() -> None:
    graph = """(float[2,5,6,3] x) => (float[2,5,6,3] y) {
        t = Transpose<perm=[0,3,1,2]>(x)  s = Softmax<axis=1>(t)  u = Transpose<perm=[0,2,3,1]>(s)  y = Relu(u) }"""
    plan = compare(modelled(graph), {"x": drawn(2, 5, 6, 3)})
    assert set(steps(plan)) == {"softmax", "compute"}


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((2, 7), 0), ((2, 3, 4), 1), ((2, 3, 4), -3), ((2, 9), 1)], ids=str
)
def test_argmax_along_any_axis(shape: tuple[int, ...], axis: int, keepdims: int, last: int, op: str) -> None:
    made = [1 if d == axis % len(shape) else n for d, n in enumerate(shape) if keepdims or d != axis % len(shape)]
    result = f"[{','.join(map(str, made))}]" if made else ""
    graph = f"""(float[{",".join(map(str, shape))}] x) => (int64{result} y) {{
        y = {op}<axis={axis}, keepdims={keepdims}, select_last_index={last}>(x) }}"""
    compare(modelled(graph), {"x": np.round(2 * drawn(*shape))})


TOPK = "y, i = TopK<axis={axis}, largest={largest}>(x, k)"


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [((9,), 0, 9), ((3, 20), 1, 11), ((3, 20), 0, 2), ((2, 5, 4), 1, 3), ((2, 5, 4), -3, 1), ((2, 20000), 1, 5)],
    ids=str,
)
def test_topk(shape: tuple[int, ...], axis: int, k: int, largest: int) -> None:
    result = ",".join(str(k if d == axis % len(shape) else n) for d, n in enumerate(shape))
    graph = f"""(float[{",".join(map(str, shape))}] x) => (float[{result}] y, int64[{result}] i) {{
        {TOPK.format(axis=axis, largest=largest)} }}"""
    compare(modelled(graph, {"k": np.array([k])}), {"x": np.round(4 * drawn(*shape)) if k < 10 else drawn(*shape)})


@pytest.mark.parametrize("opset", [9, 10, 11, 20])
def test_topk_of_each_opset(opset: int) -> None:
    node = "TopK<axis=1, k=3>(x)" if opset < 10 else "TopK<axis=1>(x, k)"
    graph = f"(float[4,9] x) => (float[4,3] y, int64[4,3] i) {{ y, i = {node} }}"
    compare(modelled(graph, {} if opset < 10 else {"k": np.array([3])}, opset=opset), {"x": drawn(4, 9)})


@pytest.mark.parametrize("wanted", ["float[4,3] y", "int64[4,3] i"])
def test_one_result_of_a_topk_is_one_search(wanted: str) -> None:
    graph = f"(float[4,9] x) => ({wanted}) {{ y, i = TopK(x, k) }}"
    plan = compare(modelled(graph, {"k": np.array([3])}), {"x": drawn(4, 9)})
    assert set(steps(plan)) == {"topk_values" if "y" in wanted else "topk_indices"}


def test_both_results_of_a_topk_of_long_rows_are_one_search() -> None:
    graph = "(float[3,1003] x) => (float[3,11] z, int64[3,11] i) { y, i = TopK(x, k)  z = Relu(y) }"
    x = np.round(9 * drawn(3, 1003))
    plan = compare(modelled(graph, {"k": np.array([11])}), {"x": x})
    assert [step.kernel for step in plan.steps if step.kernel.startswith("topk")] == ["topk_pairs"]


def test_the_values_of_a_topk_are_computed_with() -> None:
    graph = """(float[4,9] x) => (float[4,3] z, int32[4,3] j) {
        y, i = TopK(x, k)  z = Relu(y)  j = Cast<to=6>(i) }"""
    compare(modelled(graph, {"k": np.array([3])}), {"x": drawn(4, 9)})


@pytest.mark.parametrize("to", ["INT32", "INT64", "FLOAT", "DOUBLE", "FLOAT16", "UINT8", "BOOL"])
def test_an_index_is_cast_on_the_host(to: str) -> None:
    graph = f"""(float[N,4] x) => ({to.lower()}[N,1] y) {{
        i = ArgMax<axis=1>(x)  y = Cast<to={getattr(TensorProto, to)}>(i) }}"""
    plan = compare(modelled(graph), {"x": drawn(5, 4)})
    assert [node.op for node in plan.host] == (["Cast"] if to != "INT64" else [])


@pytest.mark.parametrize(("perm", "axis"), [((0, 2, 1), 2), ((2, 0, 1), 1), ((1, 2, 0), 0)])
def test_an_index_of_a_transposed_tensor(perm: tuple[int, ...], axis: int) -> None:
    """A Transpose that goes behind the ArgMax turns its indices, on the host."""
    order, inverse = list(perm), [int(k) for k in np.argsort(perm)]
    graph = f"""(float[2,3,4] x) => (int64[a,b,c] i, float[d,e,f] y, int64[g,h,k] j) {{
        t = Transpose<perm={order}>(x)  i = ArgMax<axis={axis}>(t)  y = Relu(x)  j = Transpose<perm={inverse}>(i) }}"""
    compare(modelled(graph), {"x": drawn(2, 3, 4)})


@pytest.mark.parametrize("labels", [np.array([3, 5, 8, 9]), np.array([[3, 5, 8, 9]]), np.array(["a", "b", "c", "d"])])
def test_a_label_is_looked_up_on_the_host(labels: Array) -> None:
    kind = "string" if labels.dtype.kind == "U" else "int64"
    graph = f"""(float[N,4] x) => ({kind}[N] label, float[N,4] p) {{
        p = Softmax(x)
        i = ArgMax<axis=1>(x)
        found = ai.onnx.ml.ArrayFeatureExtractor(labels, i)
        label = Reshape(found, shape) }}"""
    constants = {"labels": labels.astype(object) if kind == "string" else labels, "shape": np.array([-1])}
    plan = compare(modelled(graph, constants), {"x": drawn(5, 4)})
    assert [node.op for node in plan.host] == ["ai.onnx.ml.ArrayFeatureExtractor"]


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "double", "float16"])
def test_an_input_is_cast_by_the_host(dtype: str) -> None:
    graph = f"""({dtype}[N,4] x) => (float[N,2,2] y) {{
        v = Reshape(x, shape)  f = Cast<to=1>(v)  y = Relu(f) }}"""
    held = {"double": "float64"}.get(dtype, dtype)
    x = (10 * drawn(3, 4)).astype(held)
    plan = compare(modelled(graph, {"shape": np.array([-1, 2, 2])}), {"x": x})
    assert plan.host == () and plan.inputs[0].dtype == "float32"


def test_casts_between_floats_are_views() -> None:
    graph = "(float[N,4] x) => (float16[N,4] y) { r = Relu(x)  h = Cast<to=10>(r)  y = Tanh(h) }"
    plan = compare(modelled(graph), {"x": np.array([[-1, 0, 0.5, 2]], np.float32)}, dtype="float16")
    assert {node.op: node.place for node in plan.nodes} == {"Relu": "core", "Cast": "view", "Tanh": "core"}


BINS = st.tuples(st.integers(1, 3), st.integers(2, 20), st.integers(1, 5), st.integers(16, 200))


@settings(max_examples=25, deadline=None)
@given(shape=BINS, biased=st.booleans(), turned=st.booleans(), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_means_of_bins(shape: tuple[int, int, int, int], biased: bool, turned: bool, dtype: str) -> None:
    """A softmax over channels and the 1x1 convolution to one channel behind it are one step."""
    rows, bins, height, width = shape
    given_shape = (rows, height, bins, width) if turned else shape
    size = ", ".join(map(str, given_shape[1:]))
    turn = "t = Transpose<perm=[0, 2, 1, 3]>(x)" if turned else "t = Neg(x)"
    conv = "y = Conv(s, w, b)" if biased else "y = Conv(s, w)"
    text = f"(float[N, {size}] x) => (float[N, 1, {height}, {width}] y) {{ {turn} s = Softmax<axis=1>(t) {conv} }}"
    constants = {"w": drawn(1, bins, 1, 1, seed=1)} | ({"b": drawn(1, seed=2)} if biased else {})
    plan = compare(modelled(text, constants), {"x": drawn(*given_shape, seed=3)}, dtype=dtype)
    assert "weighted_softmax(" in plan.source


@pytest.mark.parametrize(
    "rest", ["y = Conv(s, v)", "y = Conv<strides=[2, 2]>(s, w)", "y = Conv(s, w) z = Relu(s)", "y = Conv(s, k)"]
)
def test_other_readers_of_bins(rest: str) -> None:
    """A convolution to more channels, with strides or a larger window, or a second reader: two steps."""
    outputs = {"v": 2}.get(rest.split(", ")[-1][0], 1)
    size = {"y = Conv(s, k)": (1, 18), "y = Conv<strides=[2, 2]>(s, w)": (2, 10)}.get(rest, (3, 20))
    more = ", float[N, 5, 3, 20] z" if "z = " in rest else ""
    text = f"(float[N, 5, 3, 20] x) => (float[N, {outputs}, {size[0]}, {size[1]}] y{more})"
    weights = {"w": (1, 5, 1, 1), "v": (2, 5, 1, 1), "k": (1, 5, 3, 3)}
    constants = {name: drawn(*shape, seed=1) for name, shape in weights.items() if f"s, {name})" in rest}
    model = modelled(f"{text} {{ s = Softmax<axis=1>(x) {rest} }}", constants)
    plan = compare(model, {"x": drawn(2, 5, 3, 20, seed=3)})
    assert "weighted_softmax(" not in plan.source
