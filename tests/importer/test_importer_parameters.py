"""Inputs that are really attributes: found, bound as constants, part of what a session compiles for."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from rewritten import ops, run

from trnrt import InferenceSession
from trnrt.errors import InputError
from trnrt.importer import ImportedModel, import_model
from trnrt.planner import PlanOptions, make_plan


def model(text: str, opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def imported(text: str, opset: int = 18) -> ImportedModel:
    return import_model(model(text, opset).SerializeToString())


@pytest.mark.parametrize(
    ("inputs", "node", "opset"),
    [
        ("int64[2] p", "Reshape(x, p)", 18),
        ("int64[1] p, int64[1] q", "Slice(x, p, q)", 18),
        ("int64[1] p, int64[1] q, int64[1] r, int64[1] s", "Slice(x, p, q, r, s)", 18),
        ("int64[4] p, float q, int64[2] r", "Pad(x, p, q, r)", 18),
        ("int64[2] p", "Expand(x, p)", 18),
        ("int64[2] p", "Tile(x, p)", 18),
        ("float[0] p, float[2] q", "Resize(x, p, q)", 18),
        ("int64[2] p", "Resize(x, , , p)", 18),
        ("float[2] p", "Resize<mode='nearest'>(x, p)", 10),
        ("float[2] p", "Upsample(x, p)", 9),
        ("int64[1] p", "ReduceSum(x, p)", 13),
        ("int64[1] p", "ReduceMax(x, p)", 18),
        ("int64[1] p", "Squeeze(x, p)", 13),
        ("int64[1] p", "Unsqueeze(x, p)", 13),
        ("float p, float q", "Clip(x, p, q)", 18),
        ("float p, bool q", "Dropout(x, p, q)", 18),
        ("int32[2,2] p", "Gather(x, p)", 18),
        ("int64[2] p", "Gather(x, p)", 18),
    ],
)
def test_what_is_read_as_attributes_is_a_parameter(inputs: str, node: str, opset: int) -> None:
    found = imported(f"g (float[4,4] x, {inputs}) => (float y) {{ y = {node} }}".replace("'", '"'), opset)
    assert found.parameters == tuple(part.split()[-1] for part in inputs.split(", "))


@pytest.mark.parametrize(
    "text",
    [
        # Read by other operators, too; an output; a table's index; of two dimensions; of numbers to compute with.
        "g (float[4] x, int64[1] p) => (float y, int64[1] z) { y = Reshape(x, p)  z = Add(p, p) }",
        "g (float[4] x, int64[1] p) => (float y, int64[1] p) { y = Reshape(x, p) }",
        "g (float[4] x, int64[2] p) => (float y) <float[9,4] table> { e = Gather(table, p)  y = Add(e, x) }",
        "g (float[4,4] x, float[4,4] p) => (float y) { y = Add(x, p) }",
        "g (float[4,4] x, float[4] p) => (float y) { y = Mul(x, p) }",
    ],
)
def test_what_is_data_is_no_parameter(text: str) -> None:
    proto = model(text.replace("<float[9,4] table>", "<float[1,4] table = {1,2,3,4}>"))
    assert import_model(proto.SerializeToString()).parameters == ()


@pytest.mark.parametrize(
    "table",
    [
        "t = Constant<value = float[3,2] {1,2,3,4,5,6}>()",
        """i = Constant<value = int8[3,2] {1,2,3,4,5,6}>()  s = Constant<value = float {1}>()
        t = DequantizeLinear(i, s)""",
    ],
)
def test_indices_into_a_constant_table_are_data_however_it_is_written(table: str) -> None:
    proto = model(f"g (int64[2,3] p) => (float[2,3,2] y) {{ {table}  y = Gather(t, p) }}")
    session = InferenceSession(proto.SerializeToString())
    assert session.model.parameters == ()
    indices = np.random.default_rng(0).integers(0, 3, (4, 3))  # twice the model's batch
    rows = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(session.run(None, {"p": indices})[0], rows[indices])


def test_a_model_that_has_nothing_else_is_a_constant() -> None:
    proto = model("g (int64[2] p) => (float[A,B] y) { y = ConstantOfShape(p) }")
    session = InferenceSession(proto.SerializeToString())
    for shape in ((2, 3), (4, 1)):
        np.testing.assert_array_equal(session.run(None, {"p": np.array(shape)})[0], np.zeros(shape, np.float32))


def test_values_may_be_computed_on_the_way() -> None:
    found = imported(
        """g (float[N,4,6] x, int64 h, int64[1] w) => (float y)
        <int64[1] axis = {0}, int64[1] all = {-1}, int64 two = {2}>
        { d = Div(h, two)  u = Unsqueeze(d, axis)  s = Concat<axis=0>(all, u, w)  y = Reshape(x, s) }"""
    )
    assert found.parameters == ("h", "w")
    view = found.bind({"x": (2, 4, 6), "h": (), "w": (1,)}, {"h": np.array(6), "w": np.array([4])})
    assert ops(view) == ["Reshape"]
    assert str(view.model.graph.outputs[0].shape) == "[4,3,4]"


def test_parameters_do_not_count_for_the_batch() -> None:
    found = imported("g (float[N,4] x, int64[2] p) => (float[M,2] y) { y = Reshape(x, p) }")
    assert found.batch == "N"
    assert imported("g (float[3,4] x, int64[2] p) => (float[3,4] y) { y = Expand(x, p) }").batch == 3


def test_a_value_that_is_missing_or_wrong() -> None:
    found = imported("g (float[N,4] x, int64[2] p) => (float[M,2] y) { y = Reshape(x, p) }")
    shapes = {"x": (2, 4), "p": (2,)}
    with pytest.raises(InputError, match="'p': the plan depends on its value, and none is given") as caught:
        make_plan(found, shapes, PlanOptions("trn2", "float32"))
    assert "--input" in str(caught.value.hint)
    for value in (np.array([4, 2], np.int32), np.array([4, 2, 1]), np.array([4.0, 2.0])):
        with pytest.raises(InputError, match=r"'p': expected int64 of shape \(2,\)"):
            found.bind(shapes, {"p": value})


def test_indices_beyond_what_a_plan_takes() -> None:
    found = imported("g (float[9] x, int64[M] p) => (float[K] y) { y = Gather(x, p) }")
    with pytest.raises(InputError, match="'p' has 5000 numbers"):
        found.bind({"x": (9,), "p": (5000,)}, {"p": np.zeros(5000, np.int64)})


def test_a_session_compiles_for_values() -> None:
    proto = model("g (float[N,4] x, int64[2] p, float low) => (float[A,B] y) { c = Clip(x, low)  y = Reshape(c, p) }")
    session = InferenceSession(proto.SerializeToString())
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    for shape, low in (((2, 8), 0.0), ((8, 2), 0.0), ((8, 2), -0.5), ((-1, 8), -0.5)):
        feeds = {"x": x, "p": np.array(shape), "low": np.array(low, np.float32)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], run(proto, feeds)[0])
    with pytest.raises(InputError, match="'p' holds an operator's shape"):
        session.random_inputs(4)
    with pytest.raises(InputError, match="depends on its value"):
        session.plan(4)


def test_a_fixed_batch_is_sliced_without_its_parameters() -> None:
    proto = model("g (float[2,4] x, int64[2] p) => (float[2,4] y) { y = Expand(x, p) }")
    session = InferenceSession(proto.SerializeToString())
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "p": np.array([2, 4])})[0], x)


def test_empty_values() -> None:
    proto = model(
        "g (float[2,4] x, int64[E] p) => (float y) { r = ReduceMax<noop_with_empty_axes=1>(x, p)  y = Relu(r) }"
    )
    session = InferenceSession(proto.SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "p": np.zeros(0, np.int64)})[0], np.maximum(x, 0))
