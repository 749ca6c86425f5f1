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
from open_batches import reference

import trnrt
from trnrt.importer import import_model
from trnrt.importer.rows.batching import mixing

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
    options.intra_op_num_threads = 1
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


CHOSEN: dict[str, Array] = {"a": np.array([1]), "z": np.array(0, np.float32)}

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
    "with a token": ("(float[N,5,4] x) => (float[N,6,4] y) { s = Shape<start=0, end=1>(x) t = Concat<axis=0>(s, r) "
                     "c = Expand(k, t) y = Concat<axis=1>(c, x) }", {"r": np.array([1, 4]), "k": drawn(1, 1, 4)}),
    "other columns": ("(float[N,4] x) => (float[N,4] y) { y = Slice(x, s, e, a, t) }",
                      {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([1]), "t": np.array([-1])}),
    "all rows": ("(float[N,4] x) => (float[N,3] y) { y = Slice(x, s, e, a) }",
                 {"s": np.array([0, -3]), "e": np.array([2**62, 2**31 - 1]), "a": np.array([0, 1])}),
    "as many rows as there are": ("(float[N,4] x) => (float[N,4] y) { n = Shape<start=0, end=1>(x) "
                                  "y = Slice(x, z, n, z) }", {"z": np.array([0])}),
    "times a vector": ("(float[N,4] x) => (float[N] y) { y = MatMul(x, w) }", {"w": drawn(4)}),
    "on the right": ("(float[N,4,5] x) => (float[N,3,5] y) { y = MatMul(w, x) }", {"w": drawn(3, 4)}),
    "padded columns": ("(float[N,4] x) => (float[N,5] y) { y = Pad(x, p) }", {"p": np.array([0, 1, 0, 0])}),
    "centred columns": ("(float[N,2,3,3] x) => (float[N,2,3,3] y) { y = MeanVarianceNormalization<axes=[2,3]>(x) }",
                        {}),
    "normalized": ("(float[N,4] x) => (float[N,4] y) { y = LayerNormalization(x, s) }", {"s": drawn(4)}),
    "chosen elements": ("""(float[N,4] x) => (float[N,1] y) { s = ReduceSum(x, a) c = Greater(s, z)
            i = Cast<to=7>(c) y = GatherElements<axis=1>(x, i) }""", CHOSEN),
    "chosen of turned rows": ("""(float[N,3,4] x) => (float[N,3,4] y) { t = Transpose<perm=[1,0,2]>(x) c = Greater(t, z)
            i = Cast<to=7>(c) g = GatherElements<axis=2>(t, i) y = Transpose<perm=[1,0,2]>(g) }""", CHOSEN),
    "looked up": ("""(float[N,4] x) => (float[N,1] y) { s = ReduceSum(x, a) c = Greater(s, z) i = Cast<to=7>(c)
            y = GatherElements<axis=0>(w, i) }""", CHOSEN | {"w": drawn(4, 1)}),
    "chosen channel": ("""(float[N,3,4] x) => (float[N,4] y) { s = ReduceSum(x, a) q = Squeeze(s, a)
            f = Slice(q, zero, one, one) c = Greater(f, z) i = Cast<to=7>(c) y = GatherND<batch_dims=1>(x, i) }""",
            {"a": np.array([2]), "zero": np.array([0]), "one": np.array([1]), "z": np.array(0, np.float32)}),
    "one channel": ("""(float[N,3,4] x) => (float[N,4] y) { t = Transpose<perm=[1,0,2]>(x) g = GatherND(t, i)
            y = Squeeze(g, a) }""", {"i": np.array([[2]]), "a": np.array([0])}),
}  # fmt: skip

# Each row's number, as a matrix of one column: p.
POSITIONS = """(float[N,4] x) => (float[N,k] y) { s = Shape<start=0, end=1>(x) n = Squeeze(s) r = Range(zero, n, one)
            f = Cast<to=1>(r) p = Unsqueeze(f, axis) """
PLACES: dict[str, Array] = {"zero": np.array(0), "one": np.array(1), "axis": np.array([1])}

TOGETHER: dict[str, tuple[str, dict[str, Array]]] = {
    "elements of other rows": ("""(float[N,4] x) => (float[N,1] y) { i = ArgMax<axis=1>(x)
            y = GatherElements<axis=0>(x, i) }""", {}),
    "other rows": ("(float[N,4] x) => (float[N,4] y) { i = ArgMax<axis=1>(x) y = GatherND(x, i) }", {}),
    "rows that a number tells": ("(float[N,4] x) => (float[1,4] y) { y = GatherND(x, i) }", {"i": np.array([[2]])}),
    "mean of all": ("(float[N,4] x) => (float[1,4] y) { y = ReduceMean<axes=[0]>(x) }", {}),
    "centred": ("(float[N,4] x) => (float[N,4] y) { m = ReduceMean<axes=[0]>(x) y = Sub(x, m) }", {}),
    "softmax of columns": ("(float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }", {}),
    "gram": ("(float[N,4] x) => (float[N,N] y) { t = Transpose(x) y = MatMul(x, t) }", {}),
    "turned": ("(float[N,4] x) => (float[N,4] y) { y = Slice(x, s, e, a, t) }",
               {"s": np.array([-1]), "e": np.array([-100]), "a": np.array([0]), "t": np.array([-1])}),
    "doubled": ("(float[N,4] x) => (float[n,4] y) { y = Concat<axis=0>(x, x) }", {}),
    "all rows in one": ("(float[N,4] x) => (float[1,k] y) { y = Flatten<axis=0>(x) }", {}),
    "sums along": ("(float[N,4] x) => (float[N,4] y) { y = CumSum(x, a) }", {"a": np.array(0)}),
    "the last rows": ("(float[N,4] x) => (float[M,4] y) { y = Slice(x, s, e, a) }",
                      {"s": np.array([-3]), "e": np.array([2**62]), "a": np.array([0])}),
    "the first rows": ("(float[N,4] x) => (float[M,4] y) { y = Slice(x, s, e, a) }",
                       {"s": np.array([0]), "e": np.array([5]), "a": np.array([0])}),
    "moved down": ("(float[N,4] x) => (float[N,4] y) { y = Pad(x, p) }", {"p": np.array([1, 0, -1, 0])}),
    "halved": ("(float[N,4] x) => (float[M,4] a, float[M,4] y) { a, y = Split(x) }", {}),
    "more rows": ("(float[N,4] x) => (float[M,4] y) { y = Resize(x, r, s) }",
                  {"r": np.array([], np.float32), "s": np.array([1.2, 1], np.float32)}),
    "repeated": ("(float[N,4] x) => (float[M,4] y) { y = Tile(x, t) }", {"t": np.array([2, 1])}),
    "centred with all": ("(float[N,2,3,3] x) => (float[N,2,3,3] y) { y = MeanVarianceNormalization(x) }", {}),
    "where it is largest": ("(float[N,1,2,2] x) => (float[N,1,1,1] a, int64[N,1,1,1] y) "
                            "{ a, y = MaxPool<kernel_shape=[2,2]>(x) }", {}),
    "positions, by Gemm": (POSITIONS + "y = Gemm(x, w, p) }", {**PLACES, "w": np.eye(4, dtype=np.float32)}),
    "positions, by MatMul": ("(float[N,4,4] x) => (float[N,4,4] y) { s = Shape<start=0, end=1>(x) n = Squeeze(s) "
                             "r = Range(zero, n, one) f = Cast<to=1>(r) p = Unsqueeze(f, columns) q = Add(p, w) "
                             "y = MatMul(x, q) }",
                             {**PLACES, "columns": np.array([1, 2]), "w": np.eye(4, dtype=np.float32)}),
    "positions beside": (POSITIONS + "y = Concat<axis=1>(x, p) }", {**PLACES}),
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


# What is done with a row depends on how many rows there are, at some number beyond the first few.
COUNTED: dict[str, tuple[str, dict[str, Array]]] = {
    "times their number": ("{ n = Shape<start=0, end=1>(x) f = Cast<to=1>(n) y = Mul(x, f) }", {}),
    "never more than 5": ("{ n = Shape<start=0, end=1>(x) m = Min(n, c) y = Slice(x, z, m, z) }",
                          {"c": np.array([5]), "z": np.array([0])}),
    "otherwise beyond 6": ("{ n = Shape<start=0, end=1>(x) l = Less(n, c) m = Neg(x) y = Where(l, x, m) }",
                           {"c": np.array([7])}),
    "the last three": ("{ y = Slice(x, s, e, z) }", {"s": np.array([-3]), "e": np.array([2**62]), "z": np.array([0])}),
    "up to the third last": ("{ y = Slice(x, s, e, z) }",
                             {"s": np.array([-4]), "e": np.array([7]), "z": np.array([0])}),
    "the first five": ("{ y = Slice(x, s, e, z) }", {"s": np.array([0]), "e": np.array([5]), "z": np.array([0])}),
    "down by one": ("{ y = Pad(x, p) }", {"p": np.array([1, 0, -1, 0])}),
    "half of them more": ("{ y = Resize<mode=\"linear\">(x, r, s) }",
                     {"r": np.array([], np.float32), "s": np.array([1.5, 1], np.float32)}),
    "a dimension less for one": ("{ u = Unsqueeze(x, o) y = Squeeze(u) }", {"o": np.array([1])}),
}  # fmt: skip


@pytest.mark.parametrize("buckets", [None, [8], [3]], ids=str)
@pytest.mark.parametrize("name", COUNTED)
def test_answers_that_depend_on_the_number_of_rows(name: str, buckets: list[int] | None) -> None:
    graph, constants = COUNTED[name]
    stored = modelled(f"(float[N,4] x) => (float[n,k] y) {graph}", constants).SerializeToString()
    session = trnrt.InferenceSession(stored, buckets=buckets)
    for rows in (1, 2, 3, 7, 8, 20):
        x = drawn(rows, 4)
        (expected,) = reference(stored, x)
        if not expected.size:  # which is refused
            continue
        (found,) = session.run(None, {"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert found.shape == expected.shape
    assert session.mixing({"x": drawn(2, 4)}, rows=20) is not None


def test_more_rows_than_the_largest_bucket_are_looked_at_together() -> None:
    """12 rows are cut into slices of 4, of each of which all would be taken."""
    graph = "(float[N,4] x) => (float[M,4] y) { n = Shape<start=0, end=1>(x) m = Min(n, c) y = Slice(x, z, m, z) }"
    session = trnrt.InferenceSession(
        modelled(graph, {"c": np.array([9]), "z": np.array([0])}).SerializeToString(), buckets=[4]
    )
    for rows in (3, 12):
        x = drawn(rows, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[:9])


def test_a_constant_of_each_row_is_no_reason() -> None:
    """A token before each row's own: padded, it gives what it gives alone."""
    model = modelled(*APART["with a token"])
    session = trnrt.InferenceSession(model.SerializeToString(), buckets=[8])
    x = drawn(5, 5, 4)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert session.last_run.notes == ("5 rows ran in 1 slice of 8, padded with 3 rows",)


@pytest.mark.parametrize(
    "name", ["chosen elements", "chosen of turned rows", "looked up", "chosen channel", "one channel"]
)
def test_elements_are_picked_in_padded_batches(name: str) -> None:
    model = modelled(*APART[name])
    session = trnrt.InferenceSession(model.SerializeToString(), buckets=[8])
    dims = model.graph.input[0].type.tensor_type.shape.dim[1:]
    x = drawn(5, *(dim.dim_value for dim in dims))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)
    assert session.last_run.notes == ("5 rows ran in 1 slice of 8, padded with 3 rows",)


def test_a_branch_that_reads_the_batch_is_seen() -> None:
    """What the body of an If reads is no input of the node."""
    body = """g (float[N,4] x, bool c) => (float[N,4] y) {
        m = If(c)<then_branch = t () => (float[1,4] a) { a = ReduceMean<axes=[0]>(x) },
                  else_branch = e () => (float[1,4] b) { b = ReduceMax<axes=[0]>(x) }>
        y = Sub(x, m) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{body}')
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime", buckets=[8])
    x = drawn(3, 4)
    found = session.run(None, {"x": x, "c": np.array(True)})[0]
    np.testing.assert_allclose(found, x - x.mean(axis=0), atol=1e-6)
