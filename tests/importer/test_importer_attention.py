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
