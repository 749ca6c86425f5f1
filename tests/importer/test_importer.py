"""The importer's hand-over: signatures, batches, bound shapes, static graphs, listings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from trnrt.errors import InputError, ModelFileError, UnsupportedModelError
from trnrt.importer import GraphView, ImportedModel, TensorInfo, describe, import_model

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))

LINEAR = """
<ir_version: 9, opset_import: ["" : 17]>
linear (float[N,4] x) => (float[N,3] y)
<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] b = {1,2,3}>
{ h = MatMul(x, w)  y = Add(h, b) }
"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def imported(text: str, name: str | None = None) -> ImportedModel:
    return import_model(parsed(text).SerializeToString(), name=name)


def unstatic(view: GraphView) -> list[str]:
    """Names of values whose shape or type isn't known."""
    values = [*view.model.graph.inputs, *view.model.graph.initializers.values()]
    values += [value for node in view.model.graph for value in node.outputs if value.name]
    return [
        value.name or ""
        for value in values
        if value.dtype is None or value.shape is None or not all(isinstance(dim, int) for dim in value.shape)
    ]


def ops(view: GraphView) -> list[str]:
    return [node.op_type for node in view.model.graph]


# -- what the file says ------------------------------------------------------------------------------


def test_signature_of_a_small_model() -> None:
    model = imported(LINEAR, "small")
    assert model.name == "small"
    assert model.inputs == (TensorInfo("x", "float32", ("N", 4)),)
    assert model.outputs == (TensorInfo("y", "float32", ("N", 3)),)
    assert (model.batch, model.opset, model.metadata) == ("N", 17, {})


def test_name_is_the_file_stem(tmp_path: Path) -> None:
    path = tmp_path / "a model.v2.onnx"
    path.write_bytes(parsed(LINEAR).SerializeToString())
    assert import_model(path).name == "a model.v2"
    assert import_model(str(path), name="other").name == "other"
    assert import_model(path.read_bytes()).name == "model"


def test_metadata() -> None:
    proto = parsed(LINEAR)
    helper.set_model_props(proto, {"labels": '["a"]'})
    assert import_model(proto.SerializeToString()).metadata == {"labels": '["a"]'}


def test_inputs_that_are_initializers_are_none() -> None:
    proto = parsed(LINEAR)
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    proto.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]))
    model = import_model(proto.SerializeToString())
    assert [info.name for info in model.inputs] == ["x"]
    view = model.bind({"x": (2, 4)})
    assert [value.name for value in view.model.graph.inputs] == ["x"]
    assert ops(view) == ["Gemm"]
    onnx.checker.check_model(ir.to_proto(view.model))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("float", "float32"),
        ("double", "float64"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("int64", "int64"),
        ("uint8", "uint8"),
        ("bool", "bool"),
        ("string", "str"),
    ],
)
def test_dtype_names(code: str, name: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g ({code}[N] x) => ({code}[N] y) {{ y = Identity(x) }}"""
    assert imported(text).inputs[0].dtype == name


def test_an_output_that_is_no_tensor() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, scores))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_value_info("y", kind)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = import_model(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    assert model.outputs == (TensorInfo("y", "seq(map(str, float32))", ()),)
    view = model.bind({"x": (3, 2)})
    assert view.unresolved == ()  # the host makes the list


def test_an_input_that_is_no_tensor() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])]
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", kind)], outputs)
    opsets = [helper.make_opsetid("", 17)]
    model = import_model(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    assert model.inputs[0].dtype == "seq(float32)"
    with pytest.raises(UnsupportedModelError, match="not a tensor"):
        model.bind({})


@pytest.mark.parametrize(
    ("inputs", "output", "batch"),
    [
        ("float[N,4] a", "float[N,4] y", "N"),
        ("float[N] a", "float[N] y", "N"),
        ("float[N,4] a, float[N,4] b", "float[N,4] y", "N"),
        ("float[N,4] a, float b", "float[N,4] y", "N"),
        ("float[?,4] a", "float[?,4] y", "batch"),
        ("float[N,4] a, float[M,4] b", "float[N,4] y", None),
        ("float[8,4] a", "float[8,4] y", 8),
        ("float[8,4] a", "float[9,4] y", None),
        ("float[8] a", "float[8] y", None),
        ("float a", "float y", None),
    ],
)
def test_batch(inputs: str, output: str, batch: int | str | None) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => ({output}) {{ y = Relu(a) }}"""
    assert imported(text).batch == batch


# -- binding shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "input 'a' has no shape"),
        ({"a": (2, 4), "b": (2, 3), "c": (1,)}, "the model has no input 'c'"),
        (
            {"a": (2, 4, 1), "b": (2, 3)},
            r"input 'a': expected shape \[N, 4\], got \[2, 4, 1\]: it has 3 dimensions, not 2",
        ),
        ({"a": (2, 5), "b": (2, 3)}, r"got \[2, 5\]: dimension 1 must be 4"),
        ({"a": (2, 4), "b": (3, 3)}, "dimension 0 must be 2, as 'N' is already 2 elsewhere"),
        ({"a": (0, 4), "b": (0, 3)}, "dimension 0 is 0, so there is nothing to compute"),
        ({"a": (-1, 4), "b": (2, 3)}, "dimension 0 is -1"),
        ({"a": (2.0, 4), "b": (2, 3)}, "not a whole number"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, message: str) -> None:
    model = imported(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[N,4] a, float[N,K] b) => (float[N,M] y)
        { y = Concat<axis=1>(a, b) }"""
    )
    with pytest.raises(InputError, match=message):
        model.bind(shapes)


def test_shapes_may_come_from_numpy() -> None:
    view = imported(LINEAR).bind({"x": tuple(np.array([2, 4]))})
    assert view.model.graph.outputs[0].shape == ir.Shape([2, 3])


def test_shapes_that_contradict_the_graph() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,H,W] x) => (float[N,3] y)
    <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { f = Flatten(x)  y = MatMul(f, w) }"""
    assert imported(text).bind({"x": (5, 2, 2)}).unresolved == ()
    with pytest.raises(InputError, match=r"can't take the input shapes 'x' \(5, 3, 2\): MatMul 'MatMul_1' contradicts"):
        imported(text).bind({"x": (5, 3, 2)})


def test_a_graph_that_contradicts_itself() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[2,4] x) => (float[N] y)
    <int64[1] s = {7}> { y = Reshape(x, s) }"""
    with pytest.raises(
        ModelFileError, match=r"Reshape 'Reshape_0' can't give the shape \(7,\) to a tensor of shape \(2, 4\)"
    ):
        imported(text).bind({"x": (2, 4)})


@pytest.mark.parametrize("size", [3, 5])
def test_a_kernel_larger_than_its_image(size: int) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,1,H,W] x) => (float[N,1,K,L] y)
    { y = MaxPool<kernel_shape=[6,6]>(x) }"""
    imported(text).bind({"x": (1, 1, 6, 6)})
    with pytest.raises(InputError, match=r"MaxPool 'MaxPool_0' doesn't fit its input of shape \(1, 1, 6, \d\)"):
        imported(text).bind({"x": (1, 1, 6, size)})


def test_empty_tensors_are_named() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,K] y)
    <int64[1] from = {2}, int64[1] to = {2}, int64[1] axis = {1}> { y = Slice(x, from, to, axis) }"""
    assert imported(text).bind({"x": (2, 4)}).unresolved == ("Slice 'Slice_0': its output is empty",)


def test_an_output_declared_with_the_wrong_type() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[2,4] x) => (int64[2,4] y) { y = Relu(x) }"""
    with pytest.raises(ModelFileError, match="output 'y' is declared as INT64, but the node that makes it gives FLOAT"):
        imported(text).bind({"x": (2, 4)})


def test_binding_leaves_the_imported_model_as_it_was() -> None:
    model = imported(LINEAR)
    before = describe(model.model)
    for rows in (1, 5):
        view = model.bind({"x": (rows, 4)})
        assert view.model.graph.outputs[0].shape == ir.Shape([rows, 3])
    assert describe(model.model) == before


def test_stale_shapes_in_the_file_are_not_believed() -> None:
    proto = parsed(LINEAR)
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 3]))
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    view = import_model(proto.SerializeToString()).bind({"x": (6, 4)})
    assert view.model.graph.outputs[0].shape == ir.Shape([6, 3])


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
@pytest.mark.parametrize("rows", [1, 33])
def test_sample_models_become_static(path: Path, rows: int) -> None:
    model = import_model(path)
    assert model.batch == "batch"
    view = model.bind(
        {info.name: (rows, *(dim for dim in info.shape[1:] if isinstance(dim, int))) for info in model.inputs}
    )
    assert unstatic(view) == []
    assert view.unresolved == ()
    assert [value.name for value in view.model.graph.outputs] == [info.name for info in model.outputs]


def test_unknown_operators_keep_the_shapes_that_the_file_declares() -> None:
    proto = parsed(
        """<ir_version: 9, opset_import: ["" : 17, "com.example" : 1]> g (float[N,4] x) => (float[N,4] y)
        { h = com.example.Strange(x)  y = Relu(h) }"""
    )
    assert import_model(proto.SerializeToString()).bind({"x": (3, 4)}).unresolved == (
        "Strange 'Strange_0': 'com.example' doesn't have this operator in ONNX, so its output shape is not known",
        "Relu 'Relu_1': its input 'h' has no static shape",
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 4]))
    view = import_model(proto.SerializeToString()).bind({"x": (3, 4)})
    assert view.unresolved == ()
    assert unstatic(view) == []


def test_shapes_that_depend_on_data_are_named() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N] x) => (int64[1,M] y) { y = NonZero(x) }"""
    unresolved = imported(text).bind({"x": (3,)}).unresolved
    assert unresolved == ("NonZero 'NonZero_0': the shape of its output depends on the data",)


# -- names -------------------------------------------------------------------------------------------


def test_node_names_are_unique() -> None:
    proto = parsed(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[N] x) => (float[N] y)
        { a = Relu(x)  b = Relu(a)  c = Exp(b)  y = Relu(c) }"""
    )
    for node, name in zip(proto.graph.node, ["same", "same", "", "Exp_2"], strict=True):
        node.name = name
    model = import_model(proto.SerializeToString())
    assert [node.name for node in model.model.graph] == ["same", "Relu_1", "Exp_2_2", "Exp_2"]
    names = [node.name for node in model.bind({"x": (3,)}).model.graph]
    assert names == ["same", "Relu_1", "Exp_2_2", "Exp_2"]


def test_constants_that_share_a_name_with_what_a_rule_makes() -> None:
    """A rule calls the bias that it adds 'w_bias'; here the model calls something else so."""
    proto = parsed(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[N,1,2,2] x) => (float[N,1,2,2] y)
        <float[1,1,1,1] w = {2}, float[1] s = {3}, float[1] o = {4}, float[1] m = {5}, float[1] v = {1},
         float w_bias = {100}>
        { c = Conv(x, w)  n = BatchNormalization(c, s, o, m, v)  r = Relu(n)  y = Add(r, w_bias) }"""
    )
    view = import_model(proto.SerializeToString()).bind({"x": (1, 1, 2, 2)})
    assert ops(view) == ["Conv", "Relu", "Add"]
    value = view.model.graph.initializers["w_bias"].const_value
    assert value is not None
    assert value.numpy() == 100


# -- the listing -------------------------------------------------------------------------------------


def test_describe() -> None:
    model = imported(LINEAR)
    assert describe(model.model) == (
        "graph 'linear', opset ai.onnx 17\n"
        "input 'x' float32[N, 4]\n"
        "constant 'w' float32[4, 3]\n"
        "constant 'b' float32[3]\n"
        "node 'MatMul_0' MatMul('x' float32[N, 4], 'w' float32[4, 3]) -> 'h' ?\n"
        "node 'Add_1' Add('h' ?, 'b' float32[3]) -> 'y' float32[N, 3]\n"
        "output 'y' float32[N, 3]\n"
    )
    assert (
        "node 'MatMul_0' Gemm('x' float32[2, 4], 'w' float32[4, 3], 'b' float32[3]) -> 'y' float32[2, 3]\n"
        in describe(model.bind({"x": (2, 4)}).model)
    )


def test_describe_shows_attributes_and_left_out_inputs() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,1,4] x, float m) => (float[N,1,4] y)
    { a = Clip(x, , m)  b = Conv<kernel_shape=[1], auto_pad="VALID">(a, a)  y = LeakyRelu<alpha=0.5>(b) }"""
    listing = describe(imported(text).model)
    assert "Clip('x' float32[N, 1, 4], -, 'm' float32[])" in listing
    assert " auto_pad='VALID' kernel_shape=[1]\n" in listing
    assert " alpha=0.5\n" in listing


def test_hostile_names_stay_on_their_line() -> None:
    evil = "a\nnode 'b' Relu()\x1b[31m'; import os; \u202e"
    proto = parsed(LINEAR)
    proto.graph.name = evil
    proto.graph.node[0].name = evil
    proto.graph.node[1].name = "long" * 1000
    for node in proto.graph.node:
        node.input[:] = [name.replace("w", evil) for name in node.input]
    proto.graph.initializer[0].name = evil
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = evil
    model = import_model(proto.SerializeToString())
    view = model.bind({"x": (2, 4)})
    for text in (describe(model.model), describe(view.model), "\n".join(view.notes) + "\n"):
        lines = text.removesuffix("\n").split("\n")
        assert all(line.isprintable() and len(line) < 1000 for line in lines)
    assert len(describe(view.model).splitlines()) == 6


# -- cost --------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, trnrt.importer; print([m for m in ('numpy', 'onnx', 'onnx_ir', 'onnxscript') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_importer_can_be_the_first_room_that_is_imported() -> None:
    """The operators' records import the planner, which imports the importer: no circle may be left half done."""
    code = "from trnrt.importer import import_model; import_model('models/digits_cnn.onnx')"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr


def test_an_operator_that_tf2onnx_keeps_has_its_own_hint() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Erf(x) }'
    )
    proto.graph.node[0].op_type = "Erfc"
    with pytest.raises(ModelFileError, match="'Erfc', which ONNX's opset 17 doesn't have") as caught:
        import_model(proto.SerializeToString())
    assert "gelu with approximate=True" in (caught.value.hint or "")
