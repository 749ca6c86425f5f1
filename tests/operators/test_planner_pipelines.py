"""Pipelines of scikit-learn and the operators of ai.onnx.ml that they are made of, against onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from planning import Array, compare, drawn, modelled, onnxruntimes, planned

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.importer import import_model
from trnrt.planner import Plan, PlanOptions
from trnrt.planner.parts.partitioning import make_partition
from trnrt.planner.saving.partitions import decode, encode

FILES = sorted((Path(__file__).parents[1] / "data" / "sklearn").glob("*.onnx"))
COLUMNS = 6


def run(model: onnx.ModelProto, x: Array, dtype: str = "float32") -> tuple[list[Any], list[Any]]:
    """What trnrt and onnxruntime answer."""
    session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype)
    (name,) = (info.name for info in session.get_inputs())
    return session.run(None, {name: x}), onnxruntimes(model, {name: x})


def check(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Equal labels and types; equal numbers to a rounding."""
    if isinstance(theirs, list):
        assert isinstance(mine, list) and len(mine) == len(theirs)
        for my_row, their_row in zip(mine, theirs, strict=True):
            assert list(my_row) == list(their_row)
            assert {type(k) for k in my_row} == {type(k) for k in their_row}
            assert {type(v) for v in my_row.values()} == {float}
            np.testing.assert_allclose(list(my_row.values()), list(their_row.values()), rtol=tolerance, atol=tolerance)
        return
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    if theirs.dtype.kind == "f":
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    else:
        assert mine.tolist() == theirs.tolist()


def test_there_are_pipelines() -> None:
    assert len(FILES) == 18


@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pipeline(path: Path, rows: int) -> None:
    x = drawn(rows, COLUMNS)
    if rows > 1:
        x[0] = 0
    if path.stem.startswith("imputed"):
        x[rows // 2, 1] = np.nan
    got, expected = run(onnx.load(path), x)
    for mine, theirs in zip(got, expected, strict=True):
        check(mine, theirs)


def test_a_list_of_a_model_with_a_fixed_batch_is_joined() -> None:
    model = onnx.load(next(path for path in FILES if path.stem == "standard_mlp_zipmap"))
    fixed = [info.type.tensor_type.shape.dim[0] for info in (model.graph.input[0], model.graph.output[0])]
    for dim in fixed:
        dim.dim_value = 4
    x = drawn(10, COLUMNS)
    label, dicts = trnrt.InferenceSession(model.SerializeToString()).run(None, {"columns": x})
    for dim in fixed:
        dim.Clear()
    assert len(dicts) == len(label) == 10
    for mine, theirs in zip((label, dicts), onnxruntimes(model, {"columns": x}), strict=True):
        check(mine, theirs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_host_does_can_be_saved(path: Path) -> None:
    shapes = {"columns": (3, COLUMNS)}
    partition = make_partition(import_model(path), shapes, PlanOptions("trn2", "float32"))
    encoded, arrays = encode(partition)
    read = decode(json.loads(json.dumps(encoded)), arrays)
    assert [on_host(plan) for plan in partition.plans] == [on_host(plan) for plan in read.plans]


def on_host(plan: Plan) -> list[Any]:
    """What the host makes of results of the device: indices 1, and drawn numbers."""
    known: dict[str, Any] = dict(plan.constants)
    for tensor in plan.results:
        known[tensor.name] = np.ones(tensor.shape, np.uint32) if tensor.dtype == "uint32" else drawn(*tensor.shape)
    for node in plan.host:
        known[node.output] = node.compute(*(known[name] for name in node.inputs))
    made = [known[node.output] for node in plan.host]
    return [value if isinstance(value, list) else value.tolist() for value in made]


def ml(
    op: str, x: Array, outputs: list[tuple[str, int]] | None = None, **attributes: Any
) -> tuple[list[Any], list[Any]]:
    """What both answer for one operator of ai.onnx.ml."""
    kinds = outputs or [("y", TensorProto.FLOAT)]
    node = helper.make_node(op, ["x"], [name for name, _ in kinds], domain="ai.onnx.ml", **attributes)
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype) if x.dtype != object else TensorProto.STRING
    made = [helper.make_tensor_value_info(name, kind, ["a", "b"][: x.ndim]) for name, kind in kinds]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", dtype, list(x.shape))], made)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4 if op == "LabelEncoder" else 1)]
    return run(helper.make_model(graph, opset_imports=opsets, ir_version=8), x)


def check_ml(op: str, x: Array, outputs: list[tuple[str, int]] | None = None, **attributes: Any) -> None:
    """Both answer the same."""
    got, expected = ml(op, x, outputs, **attributes)
    for mine, theirs in zip(got, expected, strict=True):
        check(mine, theirs)


def test_scaler() -> None:
    x = drawn(5, 3)
    check_ml("Scaler", x, offset=[1.0, 2.0, 3.0], scale=[0.5, -1.0, 100.0])
    check_ml("Scaler", x, offset=[1.5], scale=[0.5])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = drawn(6, 5)
    x[1], x[2], x[3, 2] = 0, -np.abs(x[2]), 0
    check_ml("Normalizer", x, norm=norm)


def test_imputer() -> None:
    x = drawn(6, 3)
    x[1, 1], x[2, 0], x[5, 2] = np.nan, np.nan, 7
    check_ml("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    check_ml("Imputer", x, imputed_value_floats=[5.0], replaced_value_float=7.0)


def test_binarizer() -> None:
    x = drawn(6, 3)
    x[0, 0] = 0.5
    check_ml("Binarizer", x, threshold=0.5)


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(targets: int) -> None:
    coefficients = drawn(targets, 4).reshape(-1).tolist()
    check_ml("LinearRegressor", drawn(5, 4), coefficients=coefficients, intercepts=[0.5] * targets, targets=targets)
    check_ml("LinearRegressor", drawn(5, 4), coefficients=coefficients, targets=targets)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("labels", [[3, 5], [7, 8, 9], ["a", "b", "c", "d"]], ids=str)
def test_linear_classifier(labels: list[Any], transform: str) -> None:
    is_text = isinstance(labels[0], str)
    outputs = [("label", TensorProto.STRING if is_text else TensorProto.INT64), ("scores", TensorProto.FLOAT)]
    check_ml(
        "LinearClassifier",
        drawn(40, 4),
        outputs,
        coefficients=drawn(len(labels), 4, seed=1).reshape(-1).tolist(),
        intercepts=drawn(len(labels), seed=2).tolist(),
        post_transform=transform,
        multi_class=0,
        **{"classlabels_strings" if is_text else "classlabels_ints": labels},
    )


def test_the_label_of_scores_that_saturate() -> None:
    """Behind the logistic function both are 1; the label is that of the larger score."""
    x = np.array([[1, 2], [2, 1]], np.float32)
    outputs = [("label", TensorProto.INT64), ("scores", TensorProto.FLOAT)]
    attributes = {"coefficients": [200.0, 0.0, 0.0, 200.0], "intercepts": [0.0, 0.0], "post_transform": "LOGISTIC"}
    check_ml("LinearClassifier", x, outputs, classlabels_ints=[3, 4], **attributes)


LABELS: list[tuple[Array, int, dict[str, Any]]] = [
    (
        np.array([["b", "a"], ["c", "b"]], object),
        TensorProto.INT64,
        {"keys_strings": ["a", "b"], "values_int64s": [5, 6], "default_int64": -7},
    ),
    (np.array([2, 1, 9]), TensorProto.STRING, {"keys_int64s": [1, 2], "values_strings": ["one", "two"]}),
    (np.array([2, 1, 9]), TensorProto.FLOAT, {"keys_int64s": [1, 2], "values_floats": [0.5, 1.5]}),
    (
        np.array([0.5, np.nan, 2], np.float32),
        TensorProto.INT64,
        {"keys_floats": [0.5, float("nan")], "values_int64s": [10, 20]},
    ),
]


@pytest.mark.parametrize(("x", "kind", "attributes"), LABELS, ids=["text", "numbers", "floats", "nan"])
def test_label_encoder_of_an_input(x: Array, kind: int, attributes: dict[str, Any]) -> None:
    check_ml("LabelEncoder", x, [("y", kind)], **attributes)


def test_label_encoder_of_a_final_index() -> None:
    graph = """(float[N,4] x) => (string[N] y) {
        i = ArgMax<axis=1, keepdims=0>(x)
        y = ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2], values_strings=["a","b","c"], default_string="?">(i) }"""
    plan = compare(modelled(graph), {"x": drawn(20, 4)})
    assert [node.op for node in plan.host] == ["ai.onnx.ml.LabelEncoder"]


def test_features_are_extracted_by_constant_indices() -> None:
    graph = "(float[N,4] x) => (float[N,3] y) { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }"
    compare(modelled(graph, {"i": np.array([3, 0, 1])}), {"x": drawn(5, 4)})


@pytest.mark.parametrize("given", ["i = ArgMax<axis=1>(e)", "i = Cast<to=7>(e)", "i = Constant<value_ints=[2, 0]>()"])
def test_label_encoder_of_constants(given: str) -> None:
    graph = f"""(float[N,4] x) => (string y, float[N,4] z) {{ e = Exp(t)  {given}
        y = ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2], values_strings=["a","b","c"], default_string="?">(i)
        z = Relu(x) }}"""
    model = modelled(graph, {"t": drawn(2, 3)})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for rows in (5, 1):
        mine, theirs = run(model, drawn(rows, 4))
        assert mine[0].tolist() == theirs[0].tolist() and np.array_equal(mine[1], theirs[1])


@pytest.mark.parametrize("table", [np.array([7, 8, 9]), np.array([[7, 8, 9]], np.int32), np.array(["a", "b", "c"])])
def test_labels_are_extracted_of_constants(table: Array) -> None:
    graph = """(float[N,4] x) => (int64 y, float[N,4] z) {
        i = ArgMax<axis=1>(t)  y = ai.onnx.ml.ArrayFeatureExtractor(table, i)  z = Relu(x) }"""
    model = modelled(graph, {"t": drawn(2, 3), "table": table})
    made = model.graph.output[0].type.tensor_type
    made.elem_type = helper.np_dtype_to_tensor_dtype(table.dtype) if table.dtype.kind == "i" else TensorProto.STRING
    made.ClearField("shape")
    mine, theirs = run(model, drawn(5, 4))
    assert mine[0].tolist() == theirs[0].tolist() and mine[0].shape == theirs[0].shape


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)])
def test_features_are_extracted_of_constants(shape: tuple[int, ...]) -> None:
    graph = """(float[N,4] x) => (float y, float[N,4] z) {
        e = Exp(t)  y = ai.onnx.ml.ArrayFeatureExtractor(e, i)  z = Relu(x) }"""
    model = modelled(graph, {"t": drawn(*shape), "i": np.array([2, 0, 1, 1])})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    mine, theirs = run(model, drawn(5, 4))
    for got, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, strict=True)


REFUSED = [
    ("float[N,4] x", "y = ai.onnx.ml.LinearRegressor<post_transform=\"PROBIT\", coefficients=[1.0,1.0,1.0,1.0]>(x)",
     "post_transform='PROBIT'"),
    ("float[N,4] x", "y = ai.onnx.ml.LinearRegressor<coefficients=[1.0,1.0]>(x)", "2 coefficients for 1 results of 4"),
    ("float[N,4] x", "y = ai.onnx.ml.Scaler<offset=[1.0,1.0]>(x)", "offset has 2 numbers for 4 columns"),
    ("float[N,4] x", "r = Relu(x) y = ai.onnx.ml.LabelEncoder<keys_floats=[1.0], values_strings=[\"a\"]>(r)",
     "a look-up of computed numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "nodes", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_is_refused(inputs: str, nodes: str, message: str) -> None:
    kind = "string" if "values_strings" in nodes else "float"
    model = modelled(f"({inputs}) => ({kind}[a,b] y) {{ {nodes} }}")
    with pytest.raises(UnsupportedModelError, match=message):
        planned(model, {"x": (3, 4)})
