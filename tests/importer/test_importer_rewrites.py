"""What the clean-up does to graphs, and that the answers stay what onnxruntime computes from the original."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from rewritten import checked, ops, parsed

from trnrt.importer import import_model

# -- linear layers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("add", ["Add(h, p2)", "Add(p2, h)"])
@pytest.mark.parametrize("bias", ["[5]", "[1,5]", "[1]", "[1,1]", ""])
def test_matmul_and_add_become_gemm(add: str, bias: str) -> None:
    view = checked(
        parsed(f"g (float[N,4] x, float[4,5] p1, float{bias} p2) => (float[N,5] y) {{ h = MatMul(x, p1)  y = {add} }}")
    )
    assert ops(view) == ["Gemm"]
    assert view.notes == ("MatMul 'MatMul_0' and Add 'Add_1' made one Gemm",)
    assert view.model.graph[0].name == "MatMul_0"


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        # A bias that makes the product larger, or has a higher rank, is none.
        ("float[1,4] x, float[4,5] p1, float[3,5] p2", "float[3,5] y"),
        ("float[2,4] x, float[4,5] p1, float[1,1,5] p2", "float[1,2,5] y"),
        # Ranks other than 2.
        ("float[4] x, float[4,5] p1, float[5] p2", "float[5] y"),
        ("float[N,2,4] x, float[4,5] p1, float[5] p2", "float[N,2,5] y"),
        # Operands that are no constants.
        ("float[2,4] x, float[4,5] z, float[5] p2", "float[2,5] y"),
        ("float[2,4] x, float[4,5] p1, float[5] z", "float[2,5] y"),
        # A product that is needed by itself, too.
        ("float[2,4] x, float[4,5] p1, float[5] p2", "float[2,5] y, float[2,5] h"),
    ],
)
def test_what_is_no_linear_layer_stays(inputs: str, outputs: str) -> None:
    weight, bias = (name.split()[-1] for name in inputs.split(", ")[1:])
    view = checked(parsed(f"g ({inputs}) => ({outputs}) {{ h = MatMul(x, {weight})  y = Add(h, {bias}) }}"))
    assert ops(view) == ["MatMul", "Add"]


def test_a_transposed_weight_is_transposed_once() -> None:
    view = checked(
        parsed(
            """g (float[N,4] x, float[5,4] p1, float[5] p2) => (float[N,5] y)
            { w = Transpose<perm=[1,0]>(p1)  h = MatMul(x, w)  y = Add(h, p2) }"""
        )
    )
    assert ops(view) == ["Gemm"]
    assert view.notes[0] == "computed beforehand: Transpose 'Transpose_0'"


def test_integers_stay_as_they_are() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (int64[2,2] x) => (int64[2,2] y)
    <int64[2,2] w = {1,2,3,4}, int64[2] b = {5,6}> { h = MatMul(x, w)  y = Add(h, b) }"""
    assert ops(checked(onnx.parser.parse_model(text))) == ["MatMul", "Add"]


# -- normalisation and padding -----------------------------------------------------------------------

NORM = "float[3] p3, float[3] p4, float[3] p5, float[3] p6"


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("bias", ["", ", p2"])
def test_normalisation_goes_into_convolution(opset: int, bias: str) -> None:
    view = checked(
        parsed(
            f"""g (float[N,2,6,5] x, float[3,2,3,3] p1, float[3] p2, {NORM}) => (float[N,3,4,3] y)
            {{ c = Conv(x, p1{bias})  y = BatchNormalization<epsilon=0.01>(c, p3, p4, p5, p6) }}""",
            opset,
        )
    )
    assert ops(view) == ["Conv"]
    assert view.notes[-1] == "BatchNormalization 'BatchNormalization_1' folded into Conv 'Conv_0'"
    assert view.model.graph[0].name == "Conv_0"
    assert view.model.graph.outputs[0].name == "y"


def test_normalisation_goes_into_grouped_and_transposed_convolution() -> None:
    view = checked(
        parsed(
            """g (float[N,4,5,5] x, float[4,2,3,3] p1, float[4] p3, float[4] p4, float[4] p5, float[4] p6,
            float[4,1,3,3] p7) => (float[N,4,5,5] y)
            { c = ConvTranspose<group=2>(x, p1)  n = BatchNormalization(c, p3, p4, p5, p6)
              d = Conv<group=4>(n, p7)  y = BatchNormalization(d, p3, p4, p5, p6) }"""
        )
    )
    assert ops(view) == ["ConvTranspose", "Conv"]


@pytest.mark.parametrize("gemm", ["Gemm(x, p1)", "Gemm<transB=1, alpha=0.5, beta=2.0>(x, p7, p2)"])
def test_normalisation_goes_into_gemm(gemm: str) -> None:
    view = checked(
        parsed(
            f"""g (float[N,4] x, float[4,3] p1, float[3] p2, {NORM}, float[3,4] p7) => (float[N,3] y)
            {{ c = {gemm}  y = BatchNormalization(c, p3, p4, p5, p6) }}"""
        )
    )
    assert ops(view) == ["Gemm"]


def test_a_whole_chain_folds() -> None:
    """MatMul and Add become the Gemm that the normalisation then goes into."""
    view = checked(
        parsed(
            f"""g (float[N,4] x, float[4,3] p1, float[3] p2, {NORM}) => (float[N,3] y)
            {{ h = MatMul(x, p1)  a = Add(h, p2)  n = BatchNormalization(a, p3, p4, p5, p6)  y = Relu(n) }}"""
        )
    )
    assert ops(view) == ["Gemm", "Relu"]
    assert len(view.notes) == 2


def test_normalisation_that_must_stay() -> None:
    shared = parsed(
        f"""g (float[N,2,6,5] x, float[3,2,3,3] p1, {NORM}) => (float[N,3,4,3] y, float[N,3,4,3] c)
        {{ c = Conv(x, p1)  y = BatchNormalization(c, p3, p4, p5, p6) }}"""
    )
    assert ops(checked(shared)) == ["Conv", "BatchNormalization"]
    training = parsed(
        f"""g (float[N,2,6,5] x, float[3,2,3,3] p1, {NORM}) => (float[N,3,4,3] y)
        {{ c = Conv(x, p1)  y, m, v = BatchNormalization<training_mode=1>(c, p3, p4, p5, p6) }}"""
    )
    view = import_model(training.SerializeToString()).bind({"x": (2, 2, 6, 5)})
    assert ops(view) == ["Conv", "BatchNormalization"]


def test_two_convolutions_that_share_weights_stay_right() -> None:
    view = checked(
        parsed(
            f"""g (float[N,3,5,5] x, float[3,3,1,1] p1, {NORM}) => (float[N,3,5,5] y)
            {{ a = Conv(x, p1)  b = BatchNormalization(a, p3, p4, p5, p6)
               c = Conv(b, p1)  y = BatchNormalization(c, p6, p5, p4, p3) }}"""
        )
    )
    assert ops(view).count("Conv") == 2


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_padding_goes_into_convolution(opset: int) -> None:
    view = checked(
        parsed(
            """g (float[N,2,6,5] x, float[3,2,3,3] p1) => (float[N,3,9,6] y)
            <int64[8] pads = {0,0,1,0,0,0,2,1}>
            { a = Pad(x, pads)  y = Conv<pads=[1,1,1,1]>(a, p1) }""",
            opset,
        )
    )
    assert ops(view) == ["Conv"]
    assert view.notes[-1] == "Pad 'Pad_0' folded into Conv 'Conv_1'"
    assert list(view.model.graph[0].attributes["pads"].as_ints()) == [2, 1, 3, 2]


@pytest.mark.parametrize(
    ("pads", "rest"),
    [("{0,1,0,0,0,0,0,0}", ""), ("{0,0,-1,0,0,0,0,0}", ""), ("{0,0,1,0,0,0,0,0}", ", one"), ("reflect", "")],
)
def test_padding_that_must_stay(pads: str, rest: str) -> None:
    """Of channels, cropping, with another value than 0, by reflection."""
    mode, values = ('<mode="reflect">', "{0,0,1,1,0,0,1,1}") if pads == "reflect" else ("", pads)
    channels = 3 if pads.startswith("{0,1") else 2
    view = checked(
        parsed(
            f"""g (float[N,2,6,5] x, float[3,{channels},3,3] p1) => (float[N,3,H,W] y)
            <int64[8] pads = {values}, float one = {{1}}>
            {{ a = Pad{mode}(x, pads{rest})  y = Conv(a, p1) }}"""
        )
    )
    assert ops(view) == ["Pad", "Conv"]


@pytest.mark.parametrize("opset", [2, 7, 10])
def test_padding_as_attribute_goes_into_convolution(opset: int) -> None:
    view = checked(
        parsed(
            """g (float[N,2,6,5] x, float[3,2,3,3] p1) => (float[N,3,H,W] y)
            { a = Pad<pads=[0,0,1,1,0,0,2,1]>(x)  y = Conv(a, p1) }""",
            opset,
        )
    )
    assert ops(view) == ["Conv"]
    assert list(view.model.graph[0].attributes["pads"].as_ints()) == [1, 1, 2, 1]


@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("size", [(7, 8), (6, 5)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_padding_by_rule_is_written_out(rule: str, size: tuple[int, int], stride: int, op: str) -> None:
    weight = ", p1" if op == "Conv" else ""
    view = checked(
        parsed(
            f"""g (float[N,1,{size[0]},{size[1]}] x, float[1,1,3,2] p1) => (float[N,1,H,W] y)
            {{ y = {op}<auto_pad="{rule}", kernel_shape=[3,2], strides=[{stride},{stride}]>(x{weight}) }}"""
        )
    )
    attributes = view.model.graph[0].attributes
    assert "auto_pad" not in attributes
    assert len(attributes["pads"].as_ints()) == 4


def test_padding_by_rule_counts_dilation() -> None:
    """Onnxruntime doesn't do this at all, so the numbers are ONNX's formula."""
    proto = parsed(
        """g (float[N,1,9,9] x, float[1,1,3,3] p1) => (float[N,1,9,9] y)
        { y = Conv<auto_pad="SAME_UPPER", dilations=[2,2]>(x, p1) }"""
    )
    view = import_model(proto.SerializeToString()).bind({"x": (1, 1, 9, 9)})
    assert list(view.model.graph[0].attributes["pads"].as_ints()) == [2, 2, 2, 2]
    assert view.notes == ("Conv 'Conv_0': auto_pad SAME_UPPER written out as pads [2, 2, 2, 2]",)


# -- what changes nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("Identity(h)", 17),
        ("Dropout(h)", 7),
        ("Dropout(h)", 10),
        ("Dropout(h)", 17),
        ("Dropout(h, half)", 17),
        ("Dropout(h, half, no)", 17),
        ("Cast<to=1>(h)", 17),
        ("Transpose<perm=[0,1]>(h)", 17),
        ("Reshape(h, minus)", 17),
        ("Reshape(h, zeros)", 17),
        ("Flatten(h)", 17),
        ("Expand(h, ones)", 17),
        ("Squeeze(h, none)", 17),
        ("Concat<axis=1>(h)", 17),
    ],
)
def test_idle_nodes_go(node: str, opset: int) -> None:
    view = checked(
        parsed(
            f"""g (float[N,4] x) => (float[N,4] y)
            <float half = {{0.5}}, bool no = {{0}}, int64[2] minus = {{-1,4}}, int64[2] zeros = {{0,0}},
             int64[2] ones = {{1,4}}, int64[0] none = {{}}>
            {{ h = Relu(x)  i = {node}  y = Exp(i) }}""",
            opset,
        )
    )
    assert ops(view) == ["Relu", "Exp"]
    op = node.split("(")[0].split("<")[0]
    assert view.notes == (f"removed, as it changes nothing: {op} '{op}_1'",)


def test_idle_nodes_at_an_output_keep_its_name() -> None:
    view = checked(parsed("g (float[N,4] x) => (float[N,4] y) { h = Relu(x)  y = Identity(h) }"))
    assert ops(view) == ["Relu"]
    assert view.model.graph.outputs[0].name == "y"


def test_two_names_for_one_value_stay_two_outputs() -> None:
    view = checked(
        parsed(
            """g (float[N,4] x) => (float[N,4] a, float[N,4] b, float[N,4] c)
            { a = Relu(x)  b = Identity(a)  c = Flatten(a) }"""
        )
    )
    assert [value.name for value in view.model.graph.outputs] == ["a", "b", "c"]
    assert len({id(value) for value in view.model.graph.outputs}) == 3


def test_an_input_that_goes_straight_to_an_output() -> None:
    view = checked(parsed("g (float[N,4] x) => (float[N,4] y) { y = Dropout(x) }"))
    assert ops(view) == ["Identity"]
    same = parsed("g (float[N,4] x) => (float[N,4] x, float[N,4] y) { y = Relu(x) }")
    view = checked(same)
    assert [value.name for value in view.model.graph.outputs] == ["x", "y"]
    assert view.model.graph.outputs[0] is view.model.graph.inputs[0]


def test_transposes_merge_or_cancel() -> None:
    view = checked(
        parsed(
            """g (float[N,2,3,4] x) => (float[N,2,3,4] y, float[2,N,3,4] z)
            { a = Transpose<perm=[0,2,3,1]>(x)  b = Transpose<perm=[0,3,1,2]>(a)  y = Relu(b)
              c = Transpose<perm=[1,2,3,0]>(x)  d = Transpose<perm=[0,3,1,2]>(c)  z = Relu(d) }"""
        )
    )
    assert ops(view) == ["Relu", "Transpose", "Relu"]
    assert "Transpose 'Transpose_1' merged with Transpose 'Transpose_0'" in view.notes


def test_reshapes_merge() -> None:
    view = checked(
        parsed(
            """g (float[N,2,6] x) => (float[N,3,4] y) <int64[2] s = {0,-1}, int64[3] t = {0,3,4}>
            { a = Reshape(x, s)  b = Reshape(a, t)  y = Relu(b) }"""
        )
    )
    assert ops(view) == ["Reshape", "Relu"]
    assert view.notes == ("Reshape 'Reshape_1' merged with Reshape 'Reshape_0'",)


def test_nodes_that_no_output_needs_go() -> None:
    view = checked(parsed("g (float[N,4] x) => (float[N,4] y) { a = Exp(x)  b = Exp(a)  y = Relu(x) }"))
    assert ops(view) == ["Relu"]
    assert view.notes == ("left out, as no output needs it: Exp 'Exp_0', Exp 'Exp_1'",)


# -- constants ---------------------------------------------------------------------------------------


def test_shape_arithmetic_vanishes() -> None:
    view = checked(
        parsed(
            """g (float[N,2,3,4] x) => (float[N,24] y) <int64 zero = {0}, int64[1] ax = {0}, int64[1] rest = {-1}>
            { s = Shape(x)  n = Gather<axis=0>(s, zero)  u = Unsqueeze(n, ax)  t = Concat<axis=0>(u, rest)
              h = Reshape(x, t)  y = Relu(h) }"""
        ),
        rows=5,
    )
    assert ops(view) == ["Reshape", "Relu"]
    assert view.notes[0] == (
        "computed beforehand: Shape 'Shape_0', Gather 'Gather_1', Unsqueeze 'Unsqueeze_2', Concat 'Concat_3'"
    )


def test_arithmetic_of_constants_is_done_as_onnxruntime_does_it() -> None:
    view = checked(
        parsed(
            """g (int64[2] x) => (int64[2] y, float[2] z, bool[2] c)
            <int64[2] a = {-7,7}, int64[2] b = {2,-2}, float[2] f = {0.1,-3.5}>
            { d = Div(a, b)  y = Add(x, d)  c = Less(a, b)
              e = Exp(f)  r = Round(f)  g = Pow(e, r)  z = Reciprocal(g) }"""
        )
    )
    assert ops(view) == ["Add"]
    assert [value.is_initializer() for value in view.model.graph.outputs] == [False, True, True]


def test_constant_nodes_become_initializers() -> None:
    view = checked(
        parsed(
            """g (float[N,2] x) => (float[N,2] y, float[2] k, string[1] s)
            { c = Constant<value_floats=[1.0,2.0]>()  y = Add(x, c)  k = Constant<value = float[2] {3,4}>()
              s = Constant<value_strings=["é\\n"]>() }"""
        )
    )
    assert ops(view) == ["Add"]
    assert view.notes == ()


def test_strings_pass_through() -> None:
    proto = parsed(
        """g (float[N,3] x) => (string[N] label, float[N,3] scores)
        <string[3] names = {"a","b","c"}, int64[1] flat = {-1}>
        { scores = Softmax(x)  best = ArgMax<axis=1>(scores)
          picked = ai.onnx.ml.ArrayFeatureExtractor(names, best)  label = Reshape(picked, flat) }"""
    )
    view = checked(proto)
    assert view.unresolved == ()
    label = view.model.graph.outputs[0]
    assert (label.dtype, label.shape) == (ir.DataType.STRING, ir.Shape([3]))


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("ai.onnx.ml.Scaler<offset=[1.0,2.0,3.0], scale=[0.5,0.5,2.0]>(x)", (3, 3)),
        ('ai.onnx.ml.Normalizer<norm="L2">(x)', (3, 3)),
        ("ai.onnx.ml.Binarizer<threshold=0.5>(x)", (3, 3)),
        ("ai.onnx.ml.Imputer<imputed_value_floats=[1.0], replaced_value_float=0.0>(x)", (3, 3)),
        ("ai.onnx.ml.ArrayFeatureExtractor(x, picks)", (3, 2)),
        ("ai.onnx.ml.FeatureVectorizer<inputdimensions=[3,3]>(x, x)", (3, 6)),
        ("ai.onnx.ml.LinearRegressor<coefficients=[1.0,2.0,3.0,4.0,5.0,6.0], targets=2>(x)", (3, 2)),
    ],
)
def test_shapes_of_classical_operators(node: str, shape: tuple[int, ...]) -> None:
    view = checked(
        parsed(f"g (float[N,3] x) => (float[N,K] y) <int64[2] picks = {{2,0}}> {{ h = {node}  y = Relu(h) }}")
    )
    assert view.unresolved == ()
    assert view.model.graph.outputs[0].shape == ir.Shape(shape)


def test_a_branch_with_a_known_condition_is_taken() -> None:
    text = """g (float[N,4] x) => (float[N,4] y) <bool yes = {1}>
    { y = If(yes) <then_branch = a () => (float[N,4] t) { t = Exp(x) },
                   else_branch = b () => (float[N,4] e) { e = Relu(x) }> }"""
    assert ops(checked(parsed(text))) == ["Exp"]


def test_functions_are_expanded() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[N,4] x) => (float[N,4] y) { h = local.twice(x)  y = local.twice(h) }
    <domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }"""
    view = checked(onnx.parser.parse_model(text))
    assert ops(view) == ["Add", "Add"]


# -- types -------------------------------------------------------------------------------------------


def test_float16_stays_float16() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": (3, 2, 1, 1), "s": (3,), "o": (3,), "m": (3,), "v": (3,)}
    tensors = [numpy_helper.from_array(rng.uniform(0.5, 1, s).astype(np.float16), n) for n, s in weights.items()]
    kind = onnx.TensorProto.FLOAT16
    inputs = [helper.make_tensor_value_info("x", kind, ["N", 2, 4, 4])]
    outputs = [helper.make_tensor_value_info("y", kind, ["N", 3, 4, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    view = checked(proto, rtol=1e-2, atol=1e-2)
    assert ops(view) == ["Conv"]
    assert all(value.dtype == ir.DataType.FLOAT16 for value in view.model.graph.initializers.values())
