"""Reductions against onnxruntime: every operator, any axes, all ways of naming them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from planning import Array, compare, drawn, modelled, planned, steps

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.operators.reduce import REDUCTIONS

OPERATORS = [*REDUCTIONS, "ReduceLogSumExp"]
Shape = tuple[int, ...]


def declared(shape: Shape) -> str:
    """A shape in ONNX's textual form."""
    return f"[{','.join(map(str, shape))}]" if shape else ""


def reduced(shape: Shape, axes: Shape | None, keepdims: int) -> Shape:
    """The shape of a result."""
    gone = set(range(len(shape))) if axes is None else {a % len(shape) for a in axes}
    kept = ((1 if d in gone else n) if keepdims else (None if d in gone else n) for d, n in enumerate(shape))
    return tuple(n for n in kept if n is not None)


def data(op: str, shape: Shape) -> Array:
    """Positive where a logarithm follows, near 1 where many are multiplied."""
    x = drawn(*shape)
    if op == "ReduceLogSum":
        return np.abs(x) + np.float32(0.1)
    return (1 + x / 10).astype(np.float32) if op == "ReduceProd" else x


def run(
    op: str, shape: Shape, axes: Shape | None, *, keepdims: int = 1, opset: int = 18, dtype: str = "float32"
) -> set[str]:
    """Compare one operator between two others with onnxruntime; returns the kernels of its plan."""
    by_input = opset >= (13 if op == "ReduceSum" else 18)
    given = f"keepdims={keepdims}" + (
        f", axes=[{','.join(map(str, axes))}]" if axes is not None and not by_input else ""
    )
    second = ", axes" if axes is not None and by_input else ""
    made = reduced(shape, axes, keepdims)
    graph = f"""(float{declared(shape)} x) => (float{declared(made)} y) {{ y = {op}<{given}>(x{second}) }}"""
    constants = {"axes": np.array(axes, np.int64)} if second else {}
    plan = compare(modelled(graph, constants, opset=opset), {"x": data(op, shape)}, dtype=dtype)
    return {step.kernel for step in plan.steps}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("axes", [None, (1,), (-1,), (0, 2), (2, 3), (1, -1), (0,), (3, 1, 0)], ids=str)
def test_every_operator(op: str, axes: Shape | None) -> None:
    run(op, (3, 4, 5, 6), axes)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 20])
def test_every_way_of_naming_axes(op: str, opset: int) -> None:
    run(op, (3, 4, 5), (0, -1), keepdims=0, opset=opset)
    run(op, (3, 4), None, keepdims=0, opset=opset)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((7,), (0,)), ((1, 1), (1,)), ((2, 1, 3), (1,)), ((2, 1, 3), (0, 1)), ((2, 3, 2, 3, 2), (0, 2, 4))],
    ids=str,
)
def test_odd_shapes(op: str, shape: Shape, axes: Shape) -> None:
    run(op, shape, axes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("axes", [(1,), (0, 2)], ids=str)
def test_sixteen_bits(axes: Shape, dtype: str) -> None:
    for op in ("ReduceMean", "ReduceMax", "ReduceL2"):
        run(op, (4, 6, 8), axes, dtype=dtype)


@pytest.mark.parametrize(("op", "kernel"), [("ReduceMean", "avg_pool2d"), ("ReduceMax", "max_pool2d")])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_all_of_an_image_is_a_window_on_chip(op: str, kernel: str, keepdims: int) -> None:
    result = "[2,4,1,1]" if keepdims else "[2,4]"
    graph = f"""(float[2,3,9,9] x) => (float{result} y) {{
        c = Conv<kernel_shape=[3,3]>(x, w)  p = {op}<axes=[2,3], keepdims={keepdims}>(c)  y = Relu(p) }}"""
    plan = compare(modelled(graph, {"w": drawn(4, 3, 3, 3)}), {"x": drawn(2, 3, 9, 9)})
    assert [step.kernel for step in plan.steps[:2]] == ["conv2d_stacked", kernel]
    assert plan.steps[0].layout == "channels"


def test_runs_of_axes_are_reduced_one_after_the_other() -> None:
    graph = "(float[2,3,4,5] x) => (float[3,5] y) { y = ReduceSum<keepdims=0>(x, axes) }"
    plan = compare(modelled(graph, {"axes": np.array([0, 2])}), {"x": drawn(2, 3, 4, 5)})
    assert [step.kernel for step in plan.steps] == ["reduce", "reduce"]


def test_a_transpose_before_a_reduction_moves_nothing() -> None:
    graph = """(float[2,5,6,3] x) => (float[2,3] y) {
        t = Transpose<perm=[0,3,1,2]>(x)  y = ReduceMean<axes=[2,3], keepdims=0>(t) }"""
    plan = compare(modelled(graph), {"x": drawn(2, 5, 6, 3)})
    assert set(steps(plan)) == {"reduce"}


def test_a_transpose_that_changes_the_order_of_a_result_is_copied() -> None:
    graph = """(float[2,5,6,3] x) => (float[3,2] y) {
        t = Transpose<perm=[3,0,1,2]>(x)  y = ReduceMean<axes=[2,3], keepdims=0>(t) }"""
    compare(modelled(graph), {"x": drawn(2, 5, 6, 3)})


@pytest.mark.parametrize("op", OPERATORS)
def test_no_axes_and_nothing_reduced(op: str) -> None:
    """onnxruntime returns the input itself; ONNX applies what stands before and behind the reduction."""
    graph = f"(float[3,4] x) => (float[3,4] y) {{ y = {op}<noop_with_empty_axes=1>(x) }}"
    x = data(op, (3, 4))
    rest = {"ReduceL1": np.abs, "ReduceL2": np.abs, "ReduceSumSquare": np.square, "ReduceLogSum": np.log}
    expected = rest[op](x) if op in rest else x
    got = answer(modelled(graph, opset=18), x)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def answer(model: onnx.ModelProto, x: Array) -> Array:
    """What trnrt answers."""
    return trnrt.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_truth(op: str) -> None:
    graph = f"(bool[3,4] x) => (bool[3] y) {{ y = {op}<keepdims=0>(x, axes) }}"
    x = drawn(3, 4) > np.array([[-9], [0], [9]])
    model = modelled(graph, {"axes": np.array([1])}, opset=20)
    np.testing.assert_array_equal(answer(model, x), x.max(axis=1) if op == "ReduceMax" else x.min(axis=1))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_short_integers(dtype: str) -> None:
    graph = f"({dtype}[3,40] x) => ({dtype}[3,1] y) {{ y = ReduceMax(x, axes) }}"
    x = np.random.default_rng(0).integers(0, 120, (3, 40)).astype(dtype)
    compare(modelled(graph, {"axes": np.array([1])}, opset=18), {"x": x})


def test_exponentials_that_would_overflow() -> None:
    graph = "(float[6,3] x) => (float[6,1] y) { y = ReduceLogSumExp<axes=[1]>(x) }"
    inf = np.inf
    x = [[1000, 999, -inf], [-1000, -1000, -1000], [inf, 0, 1], [-inf, -inf, -inf], [-inf, 5, 5], [np.nan, 1, 2]]
    compare(modelled(graph), {"x": np.array(x, np.float32)})


def test_nan_and_infinity_pass_on() -> None:
    x = drawn(4, 9)
    x[0, 3], x[1, 2], x[2, 1] = np.nan, np.inf, -np.inf
    for op in ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"):
        graph = f"(float[4,9] x) => (float[4] y) {{ y = {op}<keepdims=0>(x, axes) }}"
        compare(modelled(graph, {"axes": np.array([1])}, opset=18), {"x": x})


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_nan_is_the_largest_and_the_smallest_as_in_numpy(op: str) -> None:
    """onnxruntime gives whatever the order of its comparisons leaves."""
    x = drawn(4, 9)
    x[0, 3], x[1, 2], x[2, 1] = np.nan, np.inf, -np.inf
    graph = f"(float[4,9] x) => (float[4] y) {{ y = {op}<keepdims=0>(x, axes) }}"
    got = answer(modelled(graph, {"axes": np.array([1])}, opset=18), x)
    np.testing.assert_array_equal(got, x.max(axis=1) if op == "ReduceMax" else x.min(axis=1))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("(int64[2,3] x) => (int64[2,1] y) { y = ReduceMean<axes=[1]>(x) }", "arithmetic on int64 tensors"),
    ],
)
def test_what_is_refused(graph: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        planned(modelled(graph), {"x": (2, 3)})
