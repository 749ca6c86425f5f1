"""OneHot, OneHotEncoder and LabelEncoder as scikit-learn's exporter writes them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from planning import compare, drawn, modelled

from trnrt import InferenceSession
from trnrt.errors import InputError, UnsupportedModelError

Array = NDArray[Any]
KINDS = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT, "string": TensorProto.STRING}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["int64", "float"])
@pytest.mark.parametrize("values", ["constant", "input"])
def test_one_hot(axis: int, kind: str, values: str) -> None:
    """Indices from the end, and beyond, which hit nothing."""
    dims = ["3", "4"]
    dims.insert(axis % 3, "5")
    extra = ", float[2] v" if values == "input" else ""
    graph = f"({kind}[3, 4] i{extra}) => (float[{', '.join(dims)}] y) {{ y = OneHot<axis={axis}>(i, depth, v) }}"
    numbers = np.random.default_rng(0).integers(-7, 8, (3, 4))
    indices = numbers.astype(np.float32 if kind == "float" else kind)
    both: Array = np.array([-0.5, 2.0], np.float32)
    constants: dict[str, Array] = {"depth": np.array(5, np.float32 if kind == "float" else np.int64)} | (
        {"v": both} if values == "constant" else {}
    )
    compare(modelled(graph, constants), {"i": indices} | ({"v": both} if values == "input" else {}))


def test_one_hot_of_a_search() -> None:
    """Of integers that were limited, as integers."""
    graph = """(int64[N] i) => (int64[N, 6] y) { c = Clip(i, low, high)  y = OneHot(c, depth, v) }"""
    constants = {"low": np.array(0, np.int64), "high": np.array(5, np.int64), "depth": np.array(6, np.int64)}
    compare(modelled(graph, constants | {"v": np.array([3, 7], np.int64)}), {"i": np.arange(-4, 9)})


def pipeline(kind: str, encoder: str, **attributes: Any) -> onnx.ModelProto:
    """Each column of rows encoded by itself, joined, and multiplied: an encoder with a linear model."""
    columns, width = 2, 4 if encoder == "OneHotEncoder" else 1
    nodes = []
    for k in range(columns):
        nodes.append(helper.make_node("ArrayFeatureExtractor", ["x", f"k{k}"], [f"c{k}"], domain="ai.onnx.ml"))
        nodes.append(helper.make_node(encoder, [f"c{k}"], [f"e{k}"], domain="ai.onnx.ml", **attributes))
        nodes.append(helper.make_node("Reshape", [f"e{k}", "flat"], [f"r{k}"]))
    nodes.append(helper.make_node("Concat", [f"r{k}" for k in range(columns)], ["joined"], axis=1))
    nodes.append(helper.make_node("Cast", ["joined"], ["floats"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("MatMul", ["floats", "w"], ["y"]))
    constants: dict[str, Array] = {f"k{k}": np.array([k], np.int64) for k in range(columns)}
    constants |= {"flat": np.array([-1, width], np.int64), "w": drawn(columns * width, 3)}
    graph = helper.make_graph(
        nodes,
        "pipeline",
        [helper.make_tensor_value_info("x", KINDS[kind], ["N", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


ROWS: dict[str, Array] = {
    "int64": np.array([[2, 5], [7, 2], [5, 2**40], [2, 7], [-1, 5]]),
    "float32": np.array([[2, 5], [7, 2], [5, 11], [2, 7], [9, 5]], np.float32),
    "string": np.array([["b", "e"], ["g", "b"], ["e", "unknown"], ["b", "g"], ["", "e"]], object),
}
CATEGORIES: dict[str, Any] = {"int64": [2, 5, 7, 11], "float32": [2, 5, 7, 11], "string": ["b", "e", "g", "k"]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_categories(kind: str, dtype: str) -> None:
    name = "cats_strings" if kind == "string" else "cats_int64s"
    plan = compare(pipeline(kind, "OneHotEncoder", zeros=1, **{name: CATEGORIES[kind]}), {"x": ROWS[kind]}, dtype=dtype)
    assert not plan.host


@pytest.mark.parametrize("kind", KINDS)
def test_categories_as_numbers(kind: str) -> None:
    """scikit-learn's OrdinalEncoder."""
    keys = {"int64": "keys_int64s", "float32": "keys_floats", "string": "keys_strings"}[kind]
    given = [float(c) for c in CATEGORIES[kind]] if kind == "float32" else CATEGORIES[kind]
    model = pipeline(kind, "LabelEncoder", values_int64s=[0, 1, 2, 3], default_int64=-1, **{keys: given})
    plan = compare(model, {"x": ROWS[kind]})
    assert not plan.host


def test_an_unknown_category_stops_where_the_encoder_does() -> None:
    model = pipeline("int64", "OneHotEncoder", zeros=0, cats_int64s=[2, 5, 7, 11])
    session = InferenceSession(model.SerializeToString(), cache=False)
    session.run(None, {"x": ROWS["int64"][:2]})
    with pytest.raises(InputError, match=r"input 'x' holds (-1|1099511627776), which is no category of"):
        session.run(None, {"x": ROWS["int64"]})


@pytest.mark.parametrize("missing", [False, True])
def test_numbers_that_a_step_made(missing: bool) -> None:
    """Compared on the device."""
    graph = """(float[N, 3] x) => (float[N, 3] y) { s = Add(x, x)  e = ai.onnx.ml.LabelEncoder
        <keys_floats=[2.0, 4.0, 6.0], values_floats=[0.25, -1.5, 1000.5], default_float=7.5>(s)  y = Neg(e) }"""
    model = modelled(graph)
    x = np.random.default_rng(0).integers(0, 5, (9, 3)).astype(np.float32)
    if missing:
        encoder = model.graph.node[1]
        for attribute, more in (("keys_floats", float("nan")), ("values_floats", -3.0)):
            next(a for a in encoder.attribute if a.name == attribute).floats.append(more)
        x[::2, 1] = np.nan
        model.opset_import[1].version = 4  # before, onnxruntime finds no NaN
    compare(model, {"x": x})


def test_computed_categories() -> None:
    graph = """(float[N, 3] x) => (float[N, 3, 3] y) {
        s = Add(x, x)  c = Cast<to=7>(s)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[2, 4, 6], zeros=1>(c) }"""
    compare(modelled(graph), {"x": np.random.default_rng(0).integers(0, 5, (9, 3)).astype(np.float32)})
    strict = graph.replace("zeros=1", "zeros=0")
    with pytest.raises(UnsupportedModelError, match="zeros=0, which stops at a category"):
        compare(modelled(strict), {"x": drawn(2, 3)})
