"""Scales, shifts, normalisation and padding go into the layer before or after them, where that is right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewritten import checked, ops, parsed

from trnrt.importer import import_model

CONV = "float[N,2,6,5] x, float[3,2,3,3] p1, float[3] p2"
NORM = "float[3] p3, float[3] p4, float[3] p5, float[3] p6"


def of_channels(op: str) -> str:
    return f"g ({CONV}, float[3,1,1] p3, float[1,3,1,1] p4, float[1] p5) => (float[N,3,4,3] y) {{ {op} }}"


@pytest.mark.parametrize("bias", ["", ", p2"])
@pytest.mark.parametrize(
    "after",
    ["Add(c, p3)", "Add(p4, c)", "Sub(c, p3)", "Sub(p4, c)", "Mul(c, p4)", "Mul(p5, c)", "Div(c, p3)", "Add(c, p5)"],
)
def test_a_number_a_channel_goes_into_convolution(after: str, bias: str) -> None:
    view = checked(parsed(of_channels(f"c = Conv(x, p1{bias})  y = {after}")))
    assert ops(view) == ["Conv"]
    op = after.split("(")[0]
    assert view.notes[-1] == f"{op} '{op}_1' folded into Conv 'Conv_0'"
    assert view.model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    "after",
    [
        # A number divided by each: no scale. A number a column, not a channel. A larger result.
        "y = Div(p3, c)",
        "y = Add(c, p7)",
        "y = Mul(c, p8)",
        # Wanted by others as it is.
        "r = Relu(c)  s = Add(c, p3)  y = Mul(r, s)",
    ],
)
def test_what_is_no_scale_stays(after: str) -> None:
    view = checked(
        parsed(
            f"""g ({CONV}, float[3,1,1] p3, float[1,1,1,3] p7, float[1,3,4,3] p8) => (float[N,3,4,3] y)
            {{ c = Conv(x, p1, p2)  {after} }}"""
        )
    )
    assert len(ops(view)) == 1 + after.count("=")


def test_a_result_that_is_asked_for_stays() -> None:
    text = f"g ({CONV}, float[3,1,1] p3) => (float[N,3,4,3] y, float[N,3,4,3] c) {{ c = Conv(x, p1)  y = Add(c, p3) }}"
    assert ops(checked(parsed(text))) == ["Conv", "Add"]


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
def test_numbers_that_are_not_finite_stay_where_they_are(number: float) -> None:
    """A weight that is NaN would make every sum NaN; a factor of infinity, sums of infinities."""
    proto = parsed(of_channels("c = Conv(x, p1, p2)  y = Div(c, p3)"))
    constant = np.array([1, number, 2], np.float32).reshape(3, 1, 1)
    next(t for t in proto.graph.initializer if t.name == "p3").CopyFrom(numpy_helper.from_array(constant, "p3"))
    assert ops(checked(proto)) == ["Conv", "Div"]


def test_grouped_transposed_convolution() -> None:
    view = checked(
        parsed(
            """g (float[N,4,5,5] x, float[4,3,3,3] p1, float[6,1,1] p2, float[6,1,1] p3) => (float[N,6,7,7] y)
            { c = ConvTranspose<group=2>(x, p1)  m = Mul(c, p2)  y = Add(m, p3) }"""
        )
    )
    assert ops(view) == ["ConvTranspose"]


def test_one_dimension() -> None:
    view = checked(
        parsed(
            """g (float[N,4,9] x, float[6,2,3] p1, float[6,1] p2, float[6] p3) => (float[N,6,7] y)
            { c = Conv<group=2>(x, p1)  m = Mul(c, p2)  y = BatchNormalization(m, p3, p3, p3, p3) }"""
        )
    )
    assert ops(view) == ["Conv"]


@pytest.mark.parametrize(
    "product",
    [
        "Gemm(x, p1)",
        "Gemm(x, p1, p3)",
        "Gemm<alpha=0.5, beta=2.0>(x, p1, p3)",
        "Gemm<transB=1>(x, p2, p4)",
        "Gemm<transB=1, beta=0.25>(x, p2)",
        "Gemm<transA=1>(xt, p1, p5)",
    ],
)
@pytest.mark.parametrize("after", ["Mul(c, p3)", "Add(c, p4)", "Sub(p3, c)", "Div(c, p5)", "Add(p5, c)"])
def test_a_number_a_column_goes_into_gemm(product: str, after: str) -> None:
    view = checked(
        parsed(
            f"""g (float[3,4] x, float[4,3] xt, float[4,5] p1, float[5,4] p2, float[5] p3, float[1,5] p4, float p5)
            => (float[3,5] y) {{ c = {product}  y = {after} }}"""
        )
    )
    assert ops(view) == ["Gemm"]


def test_a_column_of_summands_stays_right() -> None:
    text = "g (float[3,4] x, float[4,5] p1, float[3,1] p2) => (float[3,5] y) { c = Gemm(x, p1)  y = Add(c, p2) }"
    assert ops(checked(parsed(text))) == ["Gemm", "Add"]


def test_a_factor_goes_into_a_matrix_of_any_rank() -> None:
    text = "g (float[N,2,4] x, float[4,5] p1, float[5] p2) => (float[N,2,5] y) { c = MatMul(x, p1)  y = Mul(c, p2) }"
    assert ops(checked(parsed(text))) == ["MatMul"]
    text = "g (float[N,2,4] x, float[4,5] p1, float[5] p2) => (float[N,2,5] y) { c = MatMul(x, p1)  y = Add(c, p2) }"
    assert ops(checked(parsed(text))) == ["MatMul", "Add"]


@pytest.mark.parametrize("biased", ["Add(c, p2)", "Add(p3, c)"])
@pytest.mark.parametrize("scaled", ["Mul(b, p4)", "Mul(p5, b)", "Div(b, p5)"])
def test_a_factor_goes_through_the_bias_of_a_linear_layer(biased: str, scaled: str) -> None:
    """As a layer scale of DINOv2 or CaiT, whose linear layers have three dimensions."""
    inputs = "float[N,2,4] x, float[4,5] p1, float[5] p2, float[1,1,1] p3, float[1,1,5] p4, float p5"
    text = f"g ({inputs}) => (float[N,2,5] y) {{ c = MatMul(x, p1)  b = {biased}  y = {scaled} }}"
    assert ops(checked(parsed(text))) == ["MatMul", "Add"]


@pytest.mark.parametrize(
    "nodes", ["b = Add(c, p2)  y = Add(b, p2)", "b = Add(c, c)  y = Mul(b, p2)", "b = Add(c, p2)  y = Mul(b, b)"]
)
def test_a_sum_that_is_no_linear_layer_with_a_factor_stays(nodes: str) -> None:
    text = f"g (float[N,2,4] x, float[4,5] p1, float[5] p2) => (float[N,2,5] y) {{ c = MatMul(x, p1)  {nodes} }}"
    assert len(ops(checked(parsed(text)))) == 3


def test_a_vector_times_a_matrix() -> None:
    checked(parsed("g (float[4] x, float[4,5] p1, float[5] p2) => (float[5] y) { c = MatMul(x, p1)  y = Mul(c, p2) }"))


def test_weights_that_two_layers_share() -> None:
    view = checked(
        parsed(
            """g (float[N,3,5,5] x, float[3,3,1,1] p1, float[3,1,1] p2) => (float[N,3,5,5] y)
            { a = Conv(x, p1)  b = Mul(a, p2)  c = Conv(b, p1)  y = Add(c, p2) }"""
        )
    )
    assert ops(view) == ["Conv", "Conv"]


# -- normalisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 8, 9, 14, 15])
@pytest.mark.parametrize("layer", ["Conv(x, p1)", "Conv(x, p1, p2)", "ConvTranspose(x, p7)"])
def test_normalisation_of_every_opset(opset: int, layer: str) -> None:
    spatial = "<spatial=1>" if opset < 9 else ""
    view = checked(
        parsed(
            f"""g ({CONV}, {NORM}, float[2,3,3,3] p7) => (float[N,3,H,W] y)
            {{ c = {layer}  y = BatchNormalization{spatial}(c, p3, p4, p5, p6) }}""",
            opset,
        )
    )
    assert ops(view) == [layer.split("(")[0]]


@pytest.mark.parametrize("opset", [7, 9, 15])
def test_normalisation_after_a_matrix(opset: int) -> None:
    view = checked(
        parsed(
            f"""g (float[N,4] x, float[4,3] p1, float[3] p2, {NORM}) => (float[N,3] y)
            {{ c = Gemm(x, p1, p2)  y = BatchNormalization(c, p3, p4, p5, p6) }}""",
            opset,
        )
    )
    assert ops(view) == ["Gemm"]


@pytest.mark.parametrize("columns", [3, 5])
@pytest.mark.parametrize("biased", ["Identity(c)", "Add(c, p7)"])
def test_normalisation_of_other_dimensions_than_the_columns_stays(biased: str, columns: int) -> None:
    """Its channels are dimension 1, here the rows of a product."""
    model = parsed(
        f"""g (float[N,3,4] x, float[4,{columns}] p1, float[3] p3, float[{columns}] p7)
        => (float[N,3,{columns}] y)
        {{ c = MatMul(x, p1)  b = {biased}  y = BatchNormalization(b, p3, zero, zero, variance) }}"""
    )
    for name, numbers in (("zero", [0, 0, 0]), ("variance", [1, 4, 9])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float32), name))
    assert ops(checked(model))[-1] == "BatchNormalization"


@pytest.mark.parametrize("opset", [7, 8])
def test_normalisation_of_each_number_by_itself(opset: int) -> None:
    each = ", ".join(f"float[3,2,2] p{k}" for k in range(1, 5))
    view = checked(
        parsed(
            f"""g (float[N,3,2,2] x, {each}) => (float[N,3,2,2] y)
            {{ y = BatchNormalization<spatial=0>(x, p1, p2, p3, p4) }}""",
            opset,
        )
    )
    assert ops(view) == ["Mul", "Add"]


def test_a_scale_layer_after_normalisation() -> None:
    """As Caffe2 and DenseNets write it: BatchNormalization without its own scale, then Mul and Add."""
    view = checked(
        parsed(
            f"""g (float[N,3,6,5] x, {NORM}, float[3,1,1] p7, float[1,3,1,1] p8) => (float[N,3,6,5] y)
            {{ r = Relu(x)  n = BatchNormalization(r, p3, p4, p5, p6)  m = Mul(n, p7)  a = Add(m, p8)  y = Relu(a) }}"""
        )
    )
    assert ops(view) == ["Relu", "BatchNormalization", "Relu"]
    assert view.notes == (
        "Mul 'Mul_2' folded into BatchNormalization 'BatchNormalization_1'",
        "Add 'Add_3' folded into BatchNormalization 'BatchNormalization_1'",
    )


def test_normalisation_in_training_stays() -> None:
    """Of opset 6 without is_test, and of any with its further outputs in use."""
    old = parsed(
        f"g ({CONV}, {NORM}) => (float[N,3,4,3] y) {{ c = Conv(x, p1)  y = BatchNormalization(c, p3, p4, p5, p6) }}", 6
    )
    assert ops(import_model(old.SerializeToString()).bind({"x": (2, 2, 6, 5)})) == ["Conv", "BatchNormalization"]


# -- opset 6 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "same"),
    [
        ("Add<broadcast=1, axis=1>(x, p1)", "Add(x, q1)"),
        ("Mul<broadcast=1, axis=1>(x, z)", "Mul(x, w)"),
        ("Sub<broadcast=1>(x, p2)", "Sub(x, p2)"),
        ("Div<broadcast=1, axis=2>(x, p3)", "Div(x, p3)"),
        ("Add<broadcast=1>(x, p4)", "Add(x, p4)"),
        ("Add(x, x)", "Add(x, x)"),
        ("PRelu(x, p1)", "PRelu(x, q1)"),
        ("Sub<broadcast=1, axis=-3>(x, p1)", "Sub(x, q1)"),
        ("Mul<broadcast=1, axis=0>(x, p5)", "Mul(x, q5)"),
    ],
)
def test_broadcasting_of_opset_6(node: str, same: str) -> None:
    text = """g (float[2,3,4,5] x, float[3] z, float[3] p1, float[5] p2, float[4,5] p3, float p4, float[2,3] p5)
    => (float[2,3,4,5] y)"""
    more = "<int64[3] s1 = {3,1,1}, int64[4] s5 = {2,3,1,1}>"
    reshapes = "q1 = Reshape(p1, s1)  w = Reshape(z, s1)  q5 = Reshape(p5, s5)"
    view = checked(
        parsed(f"{text} {{ y = {node} }}", 6), original=parsed(f"{text} {more} {{ {reshapes}  y = {same} }}", 7)
    )
    assert view.model.opset_imports[""] == 7
    assert not {"axis", "broadcast"} & {name for n in view.model.graph for name in n.attributes}


def test_a_network_of_opset_6() -> None:
    text = f"g (float[N,2,6,5] x, float[3,2,3,3] p1, {NORM}, float[36,4] p7, float[4] p8) => (float[N,4] y)"
    old = f"""{text} {{ c = Conv(x, p1)  n = BatchNormalization<is_test=1>(c, p3, p4, p5, p6)
    m = Mul<broadcast=1, axis=1>(n, p3)  a = Add<broadcast=1, axis=1>(m, p4)  r = Relu(a)
    d = Dropout<is_test=1>(r)  f = Flatten(d)  g = Gemm<broadcast=1>(f, p7, p8)  y = Softmax(g) }}"""
    new = f"""{text} <int64[3] s = {{3,1,1}}>
    {{ c = Conv(x, p1)  n = BatchNormalization(c, p3, p4, p5, p6)  q3 = Reshape(p3, s)  q4 = Reshape(p4, s)
    m = Mul(n, q3)  a = Add(m, q4)  r = Relu(a)  f = Flatten(r)  g = Gemm(f, p7, p8)  y = Softmax(g) }}"""
    view = checked(parsed(old, 6), original=parsed(new, 7))
    assert ops(view) == ["Conv", "Relu", "Flatten", "Gemm", "Softmax"]


# -- padding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("r = Relu(x)  a = Pad(r, pads)  y = MaxPool<kernel_shape=[3,3], strides=[2,2]>(a)", "Relu MaxPool"),
        ("r = Clip(x, zero)  a = Pad(r, pads)  y = MaxPool<kernel_shape=[3,3]>(a)", "Clip MaxPool"),
        ("a = Pad(x, pads, least)  y = MaxPool<kernel_shape=[3,3], pads=[1,0,0,1]>(a)", "MaxPool"),
        ("a = Pad(x, pads)  y = AveragePool<kernel_shape=[3,3]>(a)", "AveragePool"),
        (
            "a = Pad(x, pads)  y = AveragePool<kernel_shape=[3,3], pads=[1,1,0,1], count_include_pad=1>(a)",
            "AveragePool",
        ),
        # A negative number might be the largest; the true elements' mean would change; a window of nothing.
        ("a = Pad(x, pads)  y = MaxPool<kernel_shape=[3,3]>(a)", "Pad MaxPool"),
        ("a = Pad(x, pads)  y = AveragePool<kernel_shape=[3,3], pads=[1,1,0,1]>(a)", "Pad AveragePool"),
        ("a = Pad(x, pads)  y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(a)", "Pad AveragePool"),
        ("r = Relu(x)  a = Pad(r, pads)  y = MaxPool<kernel_shape=[2,2]>(a)", "Relu Pad MaxPool"),
        ("r = Relu(x)  a = Pad(r, pads)  b = MaxPool<kernel_shape=[3,3]>(a)  y = Identity(b)", "Relu MaxPool"),
    ],
)
def test_padding_before_pooling(nodes: str, left: str) -> None:
    view = checked(
        parsed(
            f"""g (float[N,2,6,5] x) => (float[N,2,H,W] y)
            <int64[8] pads = {{0,0,1,0,0,0,2,1}}, float least = {{-inf}}, float zero = {{0}}> {{ {nodes} }}"""
            if "least" not in nodes
            else f"""g (float[N,2,6,5] x, float p1) => (float[N,2,H,W] y) <int64[8] pads = {{0,0,1,0,0,0,2,1}}>
            {{ {nodes.replace("least", "p1")} }}"""
        )
        if "least" not in nodes
        else _lowest(nodes)
    )
    assert " ".join(ops(view)) == left


def _lowest(nodes: str) -> onnx.ModelProto:
    proto = parsed(
        f"""g (float[N,2,6,5] x, float p1) => (float[N,2,H,W] y) <int64[8] pads = {{0,0,1,0,0,0,2,1}}>
        {{ {nodes.replace("least", "p1")} }}"""
    )
    proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array(-np.inf, np.float32), "p1"))
    return proto


def test_padding_of_some_axes() -> None:
    view = checked(
        parsed(
            """g (float[N,2,6,5] x, float[3,2,3,3] p1) => (float[N,3,H,W] y)
            <int64[4] pads = {1,2,0,1}, int64[2] axes = {-1,2}> { a = Pad(x, pads, , axes)  y = Conv(a, p1) }""",
            18,
        )
    )
    assert ops(view) == ["Conv"]
    assert list(view.model.graph[0].attributes["pads"].as_ints()) == [2, 1, 1, 0]


# -- dropout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_the_mask_of_dropout_is_constant(opset: int) -> None:
    kind = "bool" if opset >= 10 else "float"
    view = checked(parsed(f"g (float[N,4] x) => (float[N,4] y, {kind}[N,4] m) {{ y, m = Dropout(x) }}", opset))
    assert "Dropout" not in ops(view)
    assert any("'Dropout_0'" in note for note in view.notes)
