"""Gemm and MatMul of computed, turned, batched and repeated factors, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import Array, compare, drawn, modelled, steps

import trnrt
from trnrt.planner import Plan

Shape = tuple[int, ...]


def listed(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]" if shape else ""


def result(left: Shape, right: Shape) -> Shape:
    """The shape of a product, as numpy has it."""
    return (np.zeros(left, np.int8) @ np.zeros(right, np.int8)).shape


def multiplied(left: Shape, right: Shape, constants: str = "", *, dtype: str = "float32", opset: int = 17) -> Plan:
    """MatMul of x and y, of which ``constants`` names those that are; the others are computed."""
    feeds = {"x": drawn(*left), "y": drawn(*right, seed=1)}
    held = {name: feeds.pop(name) for name in constants}
    inputs = ", ".join(f"float{listed(array.shape)} {name}" for name, array in feeds.items())
    made = {name: name if name in held else f"{name}t" for name in "xy"}
    tanh = "".join(f"{name}t = Tanh({name}) " for name in feeds)
    graph = f"({inputs}) => (float{listed(result(left, right))} z) {{ {tanh} z = MatMul({made['x']}, {made['y']}) }}"
    return compare(modelled(graph, held, opset), feeds, dtype=dtype)


SHAPES: dict[str, tuple[Shape, Shape]] = {
    "matrices": ((3, 4), (4, 5)),
    "batches": ((2, 3, 4), (2, 4, 5)),
    "two batch dimensions": ((2, 3, 4, 5), (2, 3, 5, 6)),
    "a shared right": ((2, 3, 4), (4, 5)),
    "a shared left": ((3, 4), (2, 4, 5)),
    "batches that repeat": ((2, 1, 3, 4), (5, 4, 6)),
    "batches that repeat crosswise": ((2, 1, 3, 4), (1, 5, 4, 6)),
    "one batch": ((1, 3, 4), (1, 4, 5)),
    "a vector on the left": ((4,), (4, 5)),
    "a vector on the right": ((3, 4), (4,)),
    "two vectors": ((4,), (4,)),
    "a vector and batches": ((4,), (2, 4, 5)),
    "batches and a vector": ((2, 3, 4), (4,)),
    "large": ((2, 200, 150), (2, 150, 140)),
    "a long contraction": ((3, 1100), (1100, 5)),
}


@pytest.mark.parametrize("constants", ["", "x", "y"])
@pytest.mark.parametrize("name", SHAPES)
def test_matmul(name: str, constants: str) -> None:
    multiplied(*SHAPES[name], constants)


@pytest.mark.parametrize("opset", [6, 9, 13, 22, 26])
def test_matmul_in_every_opset(opset: int) -> None:
    multiplied(*SHAPES["batches"], opset=opset)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_matmul_of_16_bits(dtype: str) -> None:
    multiplied(*SHAPES["batches"], dtype=dtype)


def test_a_constant_matrix_keeps_the_linear_kernel() -> None:
    assert "linear_rows" in {step.kernel for step in multiplied((2, 3, 4), (4, 5), "y").steps}
    assert "linear_rows" in {step.kernel for step in multiplied((2, 3, 4), (1, 4, 5), "y").steps}
    assert "batched_matmul" in {step.kernel for step in multiplied((2, 3, 4), (2, 4, 5), "y").steps}


def test_a_tensor_with_itself() -> None:
    graph = "(float[3,3] x) => (float[3,3] y) { y = MatMul(x, x) }"
    assert steps(compare(modelled(graph), {"x": drawn(3, 3)})) == {"batched_matmul": ("MatMul_0",)}


@pytest.mark.parametrize("act", ["Relu", "Sigmoid", "Tanh"])
def test_an_activation_is_computed_with_it(act: str) -> None:
    graph = f"(float[2,3,4] x, float[2,4,5] w) => (float[2,3,5] y) {{ p = MatMul(x, w) y = {act}(p) }}"
    plan = compare(modelled(graph), {"x": drawn(2, 3, 4), "w": drawn(2, 4, 5)})
    assert steps(plan) == {"batched_matmul": ("MatMul_0", f"{act}_1")}


def test_attention_moves_nothing() -> None:
    """Heads are cut out of the projections, and turned, by access patterns."""
    graph = """(float[2,7,12] x) => (float[2,7,12] y) {
        q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
        q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
        q = Transpose<perm=[0,2,1,3]>(q1) k = Transpose<perm=[0,2,3,1]>(k1) v = Transpose<perm=[0,2,1,3]>(v1)
        s = MatMul(q, k) t = Mul(s, half) p = Softmax<axis=-1>(t) a = MatMul(p, v)
        b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(b, flat) y = MatMul(c, wo) }"""
    constants: dict[str, Array] = {name: drawn(12, 12, seed=k) / 4 for k, name in enumerate(("wq", "wk", "wv", "wo"))}
    constants |= {"heads": np.array([2, 7, 3, 4]), "flat": np.array([2, 7, 12]), "half": np.array(0.5, np.float32)}
    plan = compare(modelled(graph, constants), {"x": drawn(2, 7, 12)})
    kernels = [step.kernel for step in plan.steps]
    assert kernels.count("attend") == 1
    assert not {"move", "permute_dims", "transpose_matrices"} & set(kernels)


def test_factors_of_which_no_dimension_is_dense() -> None:
    graph = """(float[3,8,10] x, float[3,10,8] w) => (float[3,4,4] y) {
        a = Slice(x, zero, end, axes, two) b = Slice(w, zero, end, axes, two) y = MatMul(a, b) }"""
    constants = {
        "zero": np.array([0, 0]), "end": np.array([99, 99]), "axes": np.array([1, 2]), "two": np.array([2, 2]),
    }  # fmt: skip
    compare(modelled(graph, constants), {"x": drawn(3, 8, 10), "w": drawn(3, 10, 8)})


SIZES = st.integers(1, 4)


@settings(max_examples=40)
@given(
    batch=st.lists(SIZES, max_size=3),
    ones=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    ranks=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    sizes=st.tuples(SIZES, SIZES, SIZES),
)
def test_any_batch(
    batch: list[int], ones: tuple[int, int], ranks: tuple[int, int], sizes: tuple[int, int, int]
) -> None:
    """Batch dimensions that are missing, 1, or the same."""
    shapes = []
    for k, matrix in enumerate((sizes[:2], sizes[1:])):
        dims = [1 if ones[k] >> d & 1 else size for d, size in enumerate(batch)]
        shapes.append((*dims[len(dims) - min(ranks[k], len(dims)) :], *matrix))
    multiplied(shapes[0], shapes[1])


# -- Gemm -------------------------------------------------------------------------------------------------

SCALES = ["", "alpha=0.5", "beta=2.0", "alpha=0.25, beta=0.5"]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("turned", ["", "transA=1", "transB=1", "transA=1, transB=1"])
@pytest.mark.parametrize("computed", ["x", "xw", "xc", "xwc", "wc", "c"])
def test_gemm(computed: str, turned: str, scales: str) -> None:
    """A, B and C, each a constant or computed."""
    shapes: dict[str, Shape] = {
        "x": (3, 4) if "transA" not in turned else (4, 3),
        "w": (4, 5) if "transB" not in turned else (5, 4),
        "c": (3, 5),
    }
    gemm(shapes, computed, ", ".join(part for part in (turned, scales) if part))


def gemm(shapes: dict[str, Shape], computed: str, attributes: str, opset: int = 17) -> Plan:
    feeds = {name: drawn(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
    held = {name: feeds.pop(name) for name in shapes if name not in computed}
    inputs = ", ".join(f"float{listed(array.shape)} {name}" for name, array in feeds.items())
    terms = ", ".join(f"{name}t" if name in feeds else name for name in shapes)
    tanh = "".join(f"{name}t = Tanh({name}) " for name in feeds)
    given = f"<{attributes}>" if attributes else ""
    return compare(modelled(f"({inputs}) => (float[3,5] y) {{ {tanh} y = Gemm{given}({terms}) }}", held, opset), feeds)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("added", [(), (1,), (5,), (1, 5), (3, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("computed", ["x", "xw", "xc", "xwc"])
def test_every_c(added: Shape, computed: str, scales: str) -> None:
    gemm({"x": (3, 4), "w": (4, 5), "c": added}, computed, scales)


@pytest.mark.parametrize("computed", ["x", "xw", "w"])
@pytest.mark.parametrize("scales", SCALES[:2])
def test_gemm_without_c(scales: str, computed: str) -> None:
    gemm({"x": (3, 4), "w": (4, 5)}, computed, scales)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 22, 26])
def test_gemm_in_every_opset(opset: int) -> None:
    gemm({"x": (3, 4), "w": (4, 5), "c": (5,)}, "xwc", "alpha=0.5", opset)


@pytest.mark.parametrize("constants", ["w", "wc", ""])
def test_gemm_of_opset_6(constants: str) -> None:
    """Its C broadcasts where the attribute says so; onnxruntime has no Gemm that old."""
    feeds = {"x": drawn(3, 4), "w": drawn(4, 5), "c": drawn(5)}
    expected = feeds["x"] @ feeds["w"] + feeds["c"]
    held = {name: feeds.pop(name) for name in constants}
    inputs = ", ".join(f"float{listed(array.shape)} {name}" for name, array in feeds.items())
    model = modelled(f"({inputs}) => (float[3,5] y) {{ y = Gemm<broadcast=1>(x, w, c) }}", held, 6)
    (got,) = trnrt.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
