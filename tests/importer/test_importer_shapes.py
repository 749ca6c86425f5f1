"""Shape arithmetic of exporters folds away wholly once input shapes are bound; and operators that are cut or kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rewritten import checked, ops, parsed

from trnrt.importer import import_model
from trnrt.importer.values import static_shape

PATTERNS = {
    "flatten by view": """s = Shape(x)  n = Gather(s, zero)  u = Unsqueeze(n, first)  t = Concat<axis=0>(u, rest)
    y = Reshape(x, t)""",
    "the halves of a dimension": """s = Shape(x)  c = Gather(s, one)  h = Div(c, two)  n = Gather(s, zero)
    a = Unsqueeze(n, first)  b = Unsqueeze(h, first)  t = Concat<axis=0>(a, b, rest)  y = Reshape(x, t)""",
    "interpolation by a factor": """s = Shape(x)  t = Slice(s, tail, end)  f = Cast<to=1>(t)  m = Mul(f, factor)
    g = Floor(m)  i = Cast<to=7>(g)  h = Slice(s, first, tail)  z = Concat<axis=0>(h, i)
    y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , , z)""",
    "expand as": """s = Shape(x)  o = ConstantOfShape<value = int64[1] {1}>(rank)  e = Equal(s, o)  w = Where(e, o, s)
    m = ReduceMax(x, axes)  q = Expand(m, w)  y = Relu(q)""",
    "a grid": """s = Shape(x)  n = Gather(s, three)  r = Range(zero, n, one)  f = Cast<to=1>(r)  y = Add(x, f)""",
    "ones of the same shape": """s = Shape(x)  o = ConstantOfShape<value = float[1] {1}>(s)  y = Mul(x, o)""",
    "a shape in pieces": """h = Shape<start=2>(x)  n = Shape<end=1>(x)  p = ReduceProd<keepdims=1>(h)
    t = Concat<axis=0>(n, rest, p)  y = Reshape(x, t)""",
    "slicing to the middle": """s = Shape(x)  n = Gather(s, two)  h = Div(n, two)  e = Unsqueeze(h, first)
    y = Slice(x, first, e, tail)""",
    "size": """n = Size(x)  d = Div(n, two)  u = Unsqueeze(d, first)  t = Concat<axis=0>(u, rest)  y = Reshape(x, t)""",
    "a comparison": """s = Shape(x)  n = Gather(s, two)  c = Greater(n, three)
    y = If(c) <then_branch = a () => (float[A,B,C,D] p) { p = Exp(x) },
        else_branch = b () => (float[A,B,C,D] q) { q = Relu(x) }>""",
}
LEFT = {
    "flatten by view": ["Reshape"],
    "the halves of a dimension": ["Reshape"],
    "interpolation by a factor": ["Resize"],
    "expand as": ["ReduceMax", "Expand", "Relu"],
    "a grid": ["Add"],
    "ones of the same shape": ["Mul"],
    "a shape in pieces": ["Reshape"],
    "slicing to the middle": ["Slice"],
    "size": ["Reshape"],
    "a comparison": ["Exp"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_shape_arithmetic_folds_away(pattern: str) -> None:
    output = {"a grid": "float[N,4,6,5] y"}.get(pattern, "float y")
    proto = parsed(
        f"""g (float[N,4,6,5] x) => ({output})
        <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 three = {{3}}, int64[1] first = {{0}},
        int64[1] rest = {{-1}}, int64[1] tail = {{2}}, int64[1] end = {{4}}, int64[1] rank = {{4}},
        int64[2] axes = {{2,3}}, float[2] factor = {{2.0,1.5}}> {{ {PATTERNS[pattern]} }}""",
        18,
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert ops(checked(proto)) == LEFT[pattern]


def test_reshape_of_caffe2_and_old_opsets() -> None:
    view = checked(
        parsed(
            """g (float[N,4,6,5] x, float[120,3] p1, float[3] p2) => (float[N,3] y) <int64[2] s = {0,-1}>
            { a = Reshape(x, s)  d = Dropout<ratio=0.5>(a)  g = Gemm(d, p1, p2)  y = Softmax<axis=1>(g) }""",
            7,
        )
    )
    assert ops(view) == ["Reshape", "Gemm", "Softmax"]


@pytest.mark.parametrize(("opset", "how"), [(7, "attribute"), (8, "attribute"), (9, "input")])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_becomes_static(opset: int, how: str, mode: str) -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    if how == "attribute":
        node = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=scales.tolist())
    else:
        node = helper.make_node("Upsample", ["x", "s"], ["y"], mode=mode)
    tensors = [numpy_helper.from_array(scales, "s")] if how == "input" else []
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 2, 3, 4])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 2, "H", "W"])]
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    view = checked(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
    assert view.unresolved == ()
    assert str(view.model.graph.outputs[0].shape) == "[3,2,6,12]"


@pytest.mark.parametrize("op", ["Sum", "Max", "Min", "Mean"])
def test_operators_of_many_inputs_are_cut(op: str) -> None:
    inputs = ", ".join(f"float[{'N,3' if k % 2 else '1,3'}] x{k}" for k in range(17))
    names = ", ".join(f"x{k}" for k in range(17))
    view = checked(parsed(f"g ({inputs}) => (float[N,3] y) {{ y = {op}({names}) }}"))
    assert set(ops(view)) == ({op} if op != "Mean" else {"Sum", "Mul"})
    assert max(len(node.inputs) for node in view.model.graph) == 6
    assert view.model.graph.outputs[0].name == "y"
    assert "of 17 inputs made a chain" in view.notes[0]


def test_weights_that_the_file_describes_wrongly() -> None:
    """A tensor is what its data says, not what a remark elsewhere in the file says about it."""
    proto = parsed("g (float[N,4] x, float[4,3] p1) => (float[N,3] y) { y = MatMul(x, p1) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("p1", onnx.TensorProto.FLOAT, [3, 4]))
    model = import_model(proto.SerializeToString())
    assert str(model.model.graph.initializers["p1"].shape) == "[4,3]"
    checked(proto)


@pytest.mark.parametrize("op", ["GroupNormalization", "MeanVarianceNormalization"])
def test_outputs_of_functions_need_not_state_their_shapes(op: str) -> None:
    """onnx's inference gives up at these: their results have the shape of their input."""
    inputs, given = (["x", "s", "s"], {"num_groups": 2}) if op == "GroupNormalization" else (["x"], {})
    nodes = [helper.make_node(op, inputs, ["g"], **given), helper.make_node("Relu", ["g"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 4, 3, 3))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(4, np.float32), "s")] if len(inputs) > 1 else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)
    imported = import_model(model.SerializeToString())
    assert imported.outputs[0].shape == (2, 4, 3, 3)
    assert ops(imported.bind({"x": (2, 4, 3, 3)})) == [op, "Relu"]


def test_outputs_whose_shape_nobody_knows() -> None:
    """A Reshape to what an input says, without a word on the output's shape."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "t"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3)),
            helper.make_tensor_value_info("t", onnx.TensorProto.INT64, ("n",)),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)
    imported = import_model(model.SerializeToString())
    bound = imported.bind({"x": (2, 3), "t": (1,)}, {"t": np.array([6])})
    assert static_shape(bound.model.graph.outputs[0]) == (6,)


def test_what_follows_a_resize_by_scales_has_its_size() -> None:
    """10 pixels by 0.7 are 7 in float32, also where a shape is read from them; ONNX's inference says 6."""
    graph = """(float[1,1,1,10] x) => (float[a] y) {
        r = Relu(x)  z = Resize<mode="nearest">(r, , f)  s = Shape(z)  n = ReduceProd<keepdims=1>(s)
        y = Reshape(z, n) }"""
    factors = numpy_helper.from_array(np.array([1, 1, 1, 0.7], np.float32), "f")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\ng {graph}')
    model.graph.initializer.append(factors)
    bound = import_model(model.SerializeToString()).bind({"x": (1, 1, 1, 10)})
    assert static_shape(bound.model.graph.outputs[0]) == (7,)
