"""Which models keep the rows of a batch apart: each verdict is checked by running onnxruntime on changed neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import trnrt
from trnrt.importer import import_model
from trnrt.importer.batching import mixing

Array = NDArray[Any]
ROWS = 6
MODELS = Path(__file__).parents[2] / "models"


def modelled(graph: str, constants: dict[str, Array]) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["" : 17]>\ng {graph}'
    model: onnx.ModelProto = parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def verdict(model: onnx.ModelProto, rows: int = ROWS) -> str | None:
    imported = import_model(model.SerializeToString())
    shapes = {i.name: tuple(d if isinstance(d, int) else rows for d in i.shape) for i in imported.inputs}
    return mixing(imported.bind(shapes).model.graph, shapes, rows)


def changes_with_neighbours(model: onnx.ModelProto) -> bool:
    """Whether row 2 of any output changes with the other rows, its place, or the number of rows."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shapes = {i.name: [d if isinstance(d, int) else ROWS for d in i.shape] for i in session.get_inputs()}
    first = {name: drawn(*shape) for name, shape in shapes.items()}
    second = {name: drawn(*shape, seed=1) for name, shape in shapes.items()}
    turned = {name: array[::-1].copy() for name, array in first.items()}
    for name, array in second.items():
        array[2] = first[name][2]
    a, b, c = (session.run(None, feeds) for feeds in (first, second, turned))
    for one, two, three in zip(a, b, c, strict=True):
        if one.shape[:1] != (ROWS,) or not np.allclose(one[2], two[2], atol=1e-5):
            return True
        if not np.allclose(one[2], three[ROWS - 3], atol=1e-5):
            return True
    return False


APART: dict[str, tuple[str, dict[str, Array]]] = {
    "mlp": ("(float[N,4] x) => (float[N,3] y) { h = Gemm(x, w, b) r = Relu(h) y = Softmax(r) }",
            {"w": drawn(4, 3), "b": drawn(3)}),
    "cnn": ("""(float[N,2,6,6] x) => (float[N,3] y) { c = Conv(x, w) p = MaxPool<kernel_shape=[2,2]>(c)
            g = GlobalAveragePool(p) y = Flatten(g) }""", {"w": drawn(3, 2, 3, 3)}),
    "merged rows": ("""(float[N,5,4] x) => (float[N,5,3] y) { m = Reshape(x, s) g = Gemm(m, w) r = Relu(g)
            y = Reshape(r, t) }""",
            {"s": np.array([-1, 4]), "t": np.array([-1, 5, 3]), "w": drawn(4, 3)}),
    "mixer": ("""(float[N,5,4] x) => (float[N,5,4] y) { t = Transpose<perm=[0,2,1]>(x) m = MatMul(t, w)
            u = Transpose<perm=[0,2,1]>(m) y = Add(x, u) }""", {"w": drawn(5, 5)}),
    "attention": ("""(float[N,5,4] x) => (float[N,5,4] y) { t = Transpose<perm=[0,2,1]>(x) s = MatMul(x, t)
            p = Softmax(s) y = MatMul(p, x) }""", {}),
    "reduced": ("(float[N,5,4] x) => (float[N,4] y) { y = ReduceMean<axes=[1], keepdims=0>(x) }", {}),
    "gated": ("""(float[N,2,6,6] x) => (float[N,2,6,6] y) { g = GlobalAveragePool(x) s = Sigmoid(g) y = Mul(x, s) }""",
              {}),
    "concatenated": ("(float[N,4] x) => (float[N,8] y) { r = Relu(x) y = Concat<axis=1>(x, r) }", {}),
    "nhwc": ("""(float[N,6,6,2] x) => (float[N,3] y) { t = Transpose<perm=[0,3,1,2]>(x) c = Conv(t, w)
            y = ReduceMean<axes=[2,3], keepdims=0>(c) }""", {"w": drawn(3, 2, 3, 3)}),
    "best": ("(float[N,4] x) => (int64[N] y) { y = ArgMax<axis=1, keepdims=0>(x) }", {}),
    "quantized": ("""(float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
                  {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}),
    "normalized": ("(float[N,4] x) => (float[N,4] y) { y = LayerNormalization(x, s) }", {"s": drawn(4)}),
}  # fmt: skip

TOGETHER: dict[str, tuple[str, dict[str, Array]]] = {
    "mean of all": ("(float[N,4] x) => (float[1,4] y) { y = ReduceMean<axes=[0]>(x) }", {}),
    "centred": ("(float[N,4] x) => (float[N,4] y) { m = ReduceMean<axes=[0]>(x) y = Sub(x, m) }", {}),
    "softmax of columns": ("(float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }", {}),
    "gram": ("(float[N,4] x) => (float[N,N] y) { t = Transpose(x) y = MatMul(x, t) }", {}),
    "turned": ("(float[N,4] x) => (float[N,4] y) { y = Slice(x, s, e, a, t) }",
               {"s": np.array([-1]), "e": np.array([-100]), "a": np.array([0]), "t": np.array([-1])}),
    "doubled": ("(float[N,4] x) => (float[n,4] y) { y = Concat<axis=0>(x, x) }", {}),
    "all rows in one": ("(float[N,4] x) => (float[1,k] y) { y = Flatten<axis=0>(x) }", {}),
    "sums along": ("(float[N,4] x) => (float[N,4] y) { y = CumSum(x, a) }", {"a": np.array(0)}),
    "picked": ("(float[N,4] x) => (float[2,4] y) { y = Gather(x, i) }", {"i": np.array([0, 1])}),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart(name: str) -> None:
    model = modelled(*APART[name])
    assert verdict(model) is None
    assert not changes_with_neighbours(model)


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_that_come_together(name: str) -> None:
    model = modelled(*TOGETHER[name])
    assert verdict(model)
    assert changes_with_neighbours(model)


def test_what_depends_on_the_place() -> None:
    """Positions made from the batch's size: each row is treated by its number."""
    graph = """(float[N,4] x) => (float[N,4] y) { s = Shape<start=0, end=1>(x) n = Squeeze(s)
        r = Range(zero, n, one) f = Cast<to=1>(r) p = Unsqueeze(f, axis) y = Add(x, p) }"""
    model = modelled(graph, {"zero": np.array(0), "one": np.array(1), "axis": np.array([1])})
    assert "place" in (verdict(model) or "")
    assert changes_with_neighbours(model)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_the_sample_models_are_apart(path: Path) -> None:
    model = onnx.load(path)
    assert verdict(model) is None


@pytest.mark.parametrize("held", [2, 3])
def test_a_number_that_the_model_holds_is_not_the_batch(held: int) -> None:
    """For a batch of as many rows it would look like it: an open batch is asked with two counts."""
    graph = "(float[N, 4] x) => (float[M, 4] y) { a = Reshape(x, s)  b = Softmax<axis=1>(a)  y = Reshape(b, r) }"
    constants = {"s": np.array([held, -1]), "r": np.array([-1, 4])}
    session = trnrt.InferenceSession(modelled(graph, constants).SerializeToString(), buckets=[6])
    assert session.mixing({"x": drawn(2, 4)}) is not None
    x = drawn(2 * held, 4)
    grouped = x.reshape(held, 8)
    exponents = np.exp(grouped - grouped.max(axis=1, keepdims=True))
    expected = (exponents / exponents.sum(axis=1, keepdims=True)).reshape(-1, 4)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
