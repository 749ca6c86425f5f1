"""What exporters write around attention, made simpler: transposes of joined dimensions, repeated constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewritten import checked, ops, parsed


def with_constants(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    model = parsed(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def test_a_transpose_of_joined_dimensions() -> None:
    text = """g (float[2,3,4,5] x) => (float[2,3,5,4] y) {
        j = Reshape(x, joined)  t = Transpose<perm=[0,2,1]>(j)  y = Reshape(t, apart) }"""
    view = checked(with_constants(text, joined=np.array([-1, 4, 5]), apart=np.array([2, 3, 5, 4])))
    assert ops(view) == ["Transpose"]
    assert view.model.graph[0].attributes["perm"].as_ints() == (0, 1, 3, 2)


@pytest.mark.parametrize(
    ("joined", "perm", "made", "left"),
    [
        ([6, 4, 5], [0, 2, 1], [3, 2, 5, 4], ["Reshape", "Transpose"]),  # split in another way
        ([6, 4, 5], [1, 0, 2], [4, 2, 3, 5], ["Transpose"]),  # the joined dimensions move
        ([6, 20], [1, 0], [4, 5, 2, 3], ["Transpose"]),  # others are joined, too
        ([2, 12, 5], [1, 0, 2], [3, 4, 2, 5], ["Transpose"]),  # heads, as nn.MultiheadAttention joins them
        ([2, 12, 5], [1, 0, 2], [6, 2, 2, 5], ["Reshape", "Transpose"]),
        ([6, 4, 5], [0, 2, 1], [6, 20], ["Reshape", "Transpose", "Reshape"]),  # joined again
        ([6, 4, 5], [0, 2, 1], [4, 5, 6], ["Reshape", "Transpose", "Reshape"]),  # across the dimensions
        ([6, 4, 5], [0, 2, 1], [2, 15, 4], ["Reshape", "Transpose", "Reshape"]),
    ],
)
def test_other_reshapes(joined: list[int], perm: list[int], made: list[int], left: list[str]) -> None:
    sizes = ",".join(map(str, made))
    text = f"""g (float[2,3,4,5] x) => (float[{sizes}] y) {{
        j = Reshape(x, joined)  t = Transpose<perm={perm}>(j)  y = Reshape(t, apart) }}"""
    view = checked(with_constants(text, joined=np.array(joined), apart=np.array(made)))
    assert ops(view) == left


def test_a_joined_value_that_is_an_output_stays() -> None:
    text = """g (float[2,3,4,5] x) => (float[2,3,5,4] y, float[6,4,5] j) {
        j = Reshape(x, joined)  t = Transpose<perm=[0,2,1]>(j)  y = Reshape(t, apart) }"""
    view = checked(with_constants(text, joined=np.array([-1, 4, 5]), apart=np.array([2, 3, 5, 4])))
    assert sorted(ops(view)) == ["Reshape", "Transpose"]


def repeated(shape: tuple[int, ...]) -> np.ndarray:
    part = np.random.default_rng(0).standard_normal((1, *shape[1:])).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(part, shape))


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_a_constant_is_kept_once(op: str) -> None:
    text = f"g (float[4,30,40] x) => (float[4,30,40] y) {{ y = {op}(x, c) }}"
    view = checked(with_constants(text, c=repeated((4, 30, 40))))
    (kept,) = (value for value in view.model.graph[0].inputs if value is not None and value.const_value is not None)
    assert kept.const_value is not None and kept.const_value.shape.numpy() == (1, 30, 40)


def test_a_constant_that_makes_the_result_larger_stays() -> None:
    text = "g (float[1,30,40] x) => (float[4,30,40] y) { y = Add(x, c) }"
    view = checked(with_constants(text, c=repeated((4, 30, 40))))
    assert view.notes == ()


def test_parts_that_differ_in_one_bit_stay() -> None:
    """0 and -0 are equal, but x / 0 and x / -0 are not."""
    constant = np.zeros((4, 30, 40), np.float32)
    constant[3, 7, 7] = -0.0
    text = "g (float[4,30,40] x) => (float[4,30,40] y) { y = Div(x, c) }"
    assert checked(with_constants(text, c=constant)).notes == ()


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 1, 6), (3, 1), (1,)], ids=str)
def test_a_rotation_has_its_signs_in_the_sines(shape: tuple[int, ...]) -> None:
    text = """g (float[2,3,6] x, float[2,3,6] c) => (float[2,3,6] y) {
        a, b = Split<axis=2>(x, halves)  n = Neg(b)  r = Concat<axis=-1>(n, a)  s = Mul(r, sine)  t = Mul(x, c)
        y = Add(t, s) }"""
    sine = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    view = checked(with_constants(text, sine=sine, halves=np.array([3, 3])))
    assert "Neg" not in ops(view)


def test_signs_stay_where_others_read_the_concatenation() -> None:
    text = """g (float[2,6] x) => (float[2,6] y, float[2,6] r) {
        a, b = Split<axis=1>(x, halves)  n = Neg(b)  r = Concat<axis=1>(n, a)  y = Mul(r, sine) }"""
    view = checked(with_constants(text, sine=np.arange(6, dtype=np.float32), halves=np.array([3, 3])))
    assert "Neg" in ops(view)


def test_signs_of_a_concatenation_along_another_axis_stay() -> None:
    text = """g (float[2,6] x) => (float[4,6] y) { n = Neg(x)  r = Concat<axis=0>(n, x)  y = Mul(r, sine) }"""
    assert "Neg" in ops(checked(with_constants(text, sine=np.arange(6, dtype=np.float32))))


BATCH_FIRST = """g (float[2,5,8] x) => (float[2,5,8] y) {{
    t = Transpose<perm=[1,0,2]>(x)  m = MatMul(t, w)  a = Add(m, b)  r = Reshape(a, heads)
    u = Transpose<perm=[1,2,0,3]>(r)  k = Transpose<perm=[1,2,3,0]>(r)  s = MatMul(u, k)  p = Softmax<axis=-1>(s)
    e = MatMul(p, u)  v = Transpose<perm=[2,0,1,3]>(e)  {joined} }}"""
PROJECTED_BACK = {
    "rows in two dimensions": """j = Reshape(v, rows)  o = Gemm(j, w, b)  z = Reshape(o, back)
        y = Transpose<perm=[1,0,2]>(z)""",
    "rows in three": "j = Reshape(v, back)  o = MatMul(j, w)  z = Add(b, o)  y = Transpose<perm=[1,0,2]>(z)",
}


@pytest.mark.parametrize("name", PROJECTED_BACK)
def test_rows_are_not_turned_around_projections(name: str) -> None:
    """nn.MultiheadAttention with batch_first: only heads are."""
    generator = np.random.default_rng(2)
    given = {
        "w": generator.standard_normal((8, 8)).astype(np.float32),
        "b": generator.standard_normal(8).astype(np.float32),
        "heads": np.array([5, 2, 4, 2]),
        "rows": np.array([10, 8]),
        "back": np.array([5, 2, 8]),
    }
    view = checked(with_constants(BATCH_FIRST.format(joined=PROJECTED_BACK[name]), **given))
    operators = ops(view)
    assert operators[0] == "MatMul" and operators[-1] != "Transpose"


@pytest.mark.parametrize("reader", ["s = Softmax<axis=0>(a)", "s = Relu(a)"])
def test_rows_that_others_read_stay_turned(reader: str) -> None:
    text = f"""g (float[2,5,8] x) => (float[5,2,8] s) {{
        t = Transpose<perm=[1,0,2]>(x)  m = MatMul(t, w)  a = Add(m, b)  {reader} }}"""
    given = {"w": np.eye(8, dtype=np.float32), "b": np.arange(8, dtype=np.float32)}
    view = checked(with_constants(text, **given))
    assert ops(view)[0] == "Transpose"


def test_rows_of_other_sizes_stay_turned() -> None:
    """The projection sums over items, too: 2 rows of 2 * 8 numbers, which are split into items behind it."""
    text = """g (float[2,2,2,4] x) => (float[2,2,8] y) {
        v = Transpose<perm=[2,0,1,3]>(x)  j = Reshape(v, rows)  o = Gemm(j, w)  z = Reshape(o, back)
        y = Transpose<perm=[1,0,2]>(z) }"""
    weight = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32)
    view = checked(with_constants(text, w=weight, rows=np.array([2, 16]), back=np.array([2, 2, 8])))
    assert ops(view)[-1] == "Transpose"
