"""Transposes around operators of another layout cancel out, and what is left gives the same answers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from rewritten import checked, ops, parsed

TO_NCHW, TO_NHWC = "Transpose<perm=[0,3,1,2]>", "Transpose<perm=[0,2,3,1]>"


def keras(opset: int = 17, tail: str = "mean") -> onnx.ModelProto:
    """What tf2onnx writes for two convolutions with biases, normalisation, a residual sum and pooling in NHWC."""
    squeeze = "Squeeze<axes=[1,2]>(h)" if opset < 13 else "Squeeze(h, hw)"
    axes = "<axes=[1,2], keepdims=0>(p)" if opset < 18 else "<keepdims=0>(p, hw)"
    ends = {
        "mean": f"f = ReduceMean{axes}",
        "flatten": "f = Flatten(p)",
        "reshape": "f = Reshape(p, rows)",
        "pool": f"g = GlobalAveragePool(d)  h = {TO_NHWC}(g)  f = {squeeze}",
    }
    features = 4 if tail in ("mean", "pool") else 4 * 3 * 3
    text = f"""g (float[N,7,7,3] x, float[4,3,3,3] p1, float[4] p2, float[1,1,1,4] p3, float[4] p4, float[4,4,1,1] p5,
    float[4] p6, float[{features},2] p7, float[2] p8) => (float[N,2] y)
    <int64[2] hw = {{1,2}}, int64[2] rows = {{-1,{features}}}, int64[8] pads = {{0,1,1,0,0,1,1,0}}>
    {{ t1 = {TO_NCHW}(x)  c1 = Conv<pads=[1,1,1,1]>(t1, p1)  b1 = {TO_NHWC}(c1)
       a1 = Add(b1, p2)  m1 = Mul(a1, p3)  n1 = Add(m1, p4)  r1 = Relu(n1)
       t2 = {TO_NCHW}(r1)  c2 = Conv(t2, p5)  b2 = {TO_NHWC}(c2)  a2 = Add(b2, p6)  s = Add(a2, r1)  r2 = Relu(s)
       t3 = {TO_NCHW}(r2)  d = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t3)  p = {TO_NHWC}(d)
       {ends[tail]}  q = MatMul(f, p7)  y = Add(q, p8) }}"""
    return parsed(text, opset)


@pytest.mark.parametrize("opset", [9, 12, 13, 18])
@pytest.mark.parametrize("tail", ["mean", "flatten", "reshape", "pool"])
def test_a_keras_graph_keeps_the_transpose_of_its_input_only(opset: int, tail: str) -> None:
    view = checked(keras(opset, tail))
    assert ops(view).count("Transpose") == 1
    assert view.model.graph[0].op_type == "Transpose"
    # Biases and normalisation went into the convolutions: what is left of element-wise work is the sum and two Relus.
    assert [op for op in ops(view) if op in ("Add", "Mul", "Relu")] == ["Relu", "Add", "Relu"]
    assert any(note.startswith("Transpose ") for note in view.notes)


def test_every_transpose_that_went_has_a_note() -> None:
    proto = keras()
    notes = "\n".join(checked(proto).notes)
    for index, node in enumerate(proto.graph.node):
        if node.op_type == "Transpose" and index > 0:
            assert f"'Transpose_{index}'" in notes, index


@pytest.mark.parametrize(
    "node",
    [
        "r = Clip(t, low)",
        "r = PRelu(t, p1)",
        "r = PRelu(t, p2)",
        "r = LeakyRelu<alpha=0.3>(t)",
        "r = Mul(num, t)",
        "r = Sub(p1, t)",
        "r = Div(t, p2)",
        "r = Add(t, t)",
        "c = Greater(t, p1)  r = Where(c, t, num)",
        "r = Pad(t, pads)",
        "r = Pad(t, some, num, two)",
        'r = Pad<mode="reflect">(t, some, , two)',
        "r = Concat<axis=3>(t, t)",
        "r = Concat<axis=-2>(t, t)",
        "r = Softmax(t)",
        "r = Softmax<axis=1>(t)",
        "r = LogSoftmax<axis=-2>(t)",
        "r = ReduceMean<axes=[1,-2]>(t)",
        "r = ReduceSum(t, two)",
        "r = ReduceMax<axes=[3]>(t)",
        "r = ReduceL2(t)",
        "i = ArgMax<axis=-1>(t)  r = Cast<to=1>(i)",
        "i = ArgMin<axis=1>(t)  r = Cast<to=1>(i)",
        "r = Slice(t, zero, far, two)",
        "r = Slice(t, zero, far)",
        "a, b = Split<axis=2>(t, parts)  r = Concat<axis=2>(b, a)",
        "r = Exp(t)",
        "n = BatchNormalization(x, p1, p1, p1, p1)  m = Transpose<perm=[0,2,3,1]>(n)  r = Mul(t, m)",
    ],
)
def test_operators_that_work_in_any_order(node: str) -> None:
    proto = parsed(
        f"""g (float[N,3,5,6] x, float[3] p1, float[1,1,6,3] p2) => (float[A,B,C,D] y)
        <int64[2] two = {{-2,1}}, int64[2] zero = {{0,1}}, int64[2] far = {{3,4}}, int64[8] pads = {{0,1,0,0,0,2,1,0}},
         int64[4] some = {{1,2,0,1}}, int64[2] parts = {{2,4}}, float low = {{-0.5}}, float[1] num = {{0.7}}>
        {{ t = {TO_NHWC}(x)  {node}  y = {TO_NCHW}(r) }}""",
        18 if "some" in node else 17,
    )
    view = checked(proto)
    assert "Transpose" not in ops(view)


@pytest.mark.parametrize(
    ("node", "opset"),
    [
        ("r = ReduceMean<axes=[1,2], keepdims=0>(t)", 11),
        ("r = ReduceMean<axes=[2,1], keepdims=0>(t)", 13),
        ("r = ReduceSum<keepdims=0>(t, hw)", 13),
        ("r = ReduceMax<keepdims=0>(t, hw)", 18),
        ("m = ReduceMin<axes=[1,2]>(t)  r = Squeeze(m, hw)", 13),
        ("m = ReduceMin<axes=[1,2]>(t)  r = Squeeze<axes=[1,2]>(m)", 11),
        ("g = GlobalMaxPool(x)  m = Transpose<perm=[0,2,3,1]>(g)  r = Squeeze(m, hw)", 13),
    ],
)
def test_what_leaves_out_the_axes_in_question_ends_the_matter(node: str, opset: int) -> None:
    view = checked(
        parsed(f"g (float[N,3,5,6] x) => (float[N,3] r) <int64[2] hw = {{1,2}}> {{ t = {TO_NHWC}(x)  {node} }}", opset)
    )
    assert "Transpose" not in ops(view)


def test_reduction_without_the_batch_keeps_an_order() -> None:
    """What is left after a mean over channels is (N, H, W) from (N, H, W, C) or (N, C, H, W) alike; over H it's not."""
    body = f"t = {TO_NHWC}(x)  r = ReduceMean<axes=[1], keepdims=0>(t)  y = Relu(r)"
    text = f"g (float[N,3,5,6] x) => (float[N,6,3] y) {{ {body} }}"
    assert "Transpose" in ops(checked(parsed(text)))


@pytest.mark.parametrize(
    "body",
    [
        # The transposed tensor is wanted by the caller, too.
        "t = {n}(x)  y = Relu(t)  z = {c}(y)",
        "t = {n}(x)  y = Add(t, p1)  z = Relu(y)",
        # An operator that works in one layout only.
        "t = {n}(x)  y = LRN<size=3>(t)  z = {c}(y)",
        "t = {n}(x)  y = Flatten(t)  z = Relu(y)",
    ],
)
def test_what_must_keep_its_transposes_stays_right(body: str) -> None:
    checked(
        parsed(
            f"g (float[N,3,5,6] x, float[3] p1) => (float[N,5,6,3] y, float[N,3,5,6] z) "
            f"{{ {body.format(n=TO_NHWC, c=TO_NCHW)} }}"
        )
    )


def test_names_of_outputs_stay() -> None:
    view = checked(
        parsed(
            f"""g (float[N,3,5,6] x, float[3] p1) => (float[N,5,6,3] y, float[N,3,5,6] z)
            {{ t = {TO_NHWC}(x)  y = Add(t, p1)  u = {TO_NCHW}(y)  v = Relu(u)  w = {TO_NHWC}(v)  s = Sigmoid(w)
               z = {TO_NCHW}(s) }}"""
        )
    )
    assert [value.name for value in view.model.graph.outputs] == ["y", "z"]


@pytest.mark.parametrize("gemm", ["q = Gemm(f, p1, p3)", "q = Gemm<transB=1>(f, p2, p3)", "q = MatMul(f, p1)"])
@pytest.mark.parametrize("flat", ["Flatten(t)", "Reshape(t, rows)", "Reshape(t, zero)"])
def test_a_transpose_before_flattening_goes_into_the_weight(gemm: str, flat: str) -> None:
    view = checked(
        parsed(
            f"""g (float[N,3,5,2] x, float[30,4] p1, float[4,30] p2, float[4] p3) => (float[N,4] q)
            <int64[2] rows = {{-1,30}}, int64[2] zero = {{0,30}}> {{ t = {TO_NHWC}(x)  f = {flat}  {gemm} }}"""
        )
    )
    assert "Transpose" not in ops(view)


@pytest.mark.parametrize("flat", ["Flatten<axis=2>(t)", "Reshape(t, other)"])
def test_flattening_that_mixes_rows_stays(flat: str) -> None:
    view = checked(
        parsed(
            f"""g (float[2,3,5,6] x, float[18,4] p1) => (float[10,4] y) <int64[2] other = {{10,18}}>
            {{ t = {TO_NHWC}(x)  f = {flat}  y = MatMul(f, p1) }}"""
        )
    )
    assert "Transpose" in ops(view)


def test_infinities_and_nan_pass() -> None:
    proto = parsed(
        f"""g (float[N,2,2,3] x, float[1,2,3,2] p1) => (float[N,2,2,3] y)
        {{ t = {TO_NHWC}(x)  a = Mul(t, p1)  r = Relu(a)  y = {TO_NCHW}(r) }}"""
    )
    constant = np.array([1, np.inf, -np.inf, np.nan, 0, 2, 3, 4, 5, 6, -1, 7], np.float32).reshape(1, 2, 3, 2)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(constant, "p1"))
    assert "Transpose" not in ops(checked(proto))


FURTHEST = 100.0
Shape = tuple[int, ...]
Made = tuple[onnx.NodeProto, Shape, list[onnx.TensorProto]]


def transpose(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    perm = draw(st.permutations(range(len(shape))))
    return helper.make_node("Transpose", [source], [made], perm=perm), tuple(shape[axis] for axis in perm), []


def unary(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    op = draw(st.sampled_from(["Relu", "Sigmoid", "Neg", "Abs", "Tanh"]))
    return helper.make_node(op, [source], [made]), shape, []


def constant(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    rank = draw(st.integers(0, len(shape)))
    size = [draw(st.sampled_from([1, size])) for size in shape[len(shape) - rank :]]
    array = np.asarray(np.random.default_rng(len(made)).uniform(-1, 1, size).astype(np.float32))
    pair = draw(st.permutations([source, f"c{made}"]))
    node = helper.make_node(draw(st.sampled_from(["Add", "Sub", "Mul"])), pair, [made])
    return node, shape, [numpy_helper.from_array(array, f"c{made}")]


def concat(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    axis = draw(st.integers(0, len(shape) - 1))
    node = helper.make_node("Concat", [source, source], [made], axis=axis)
    return node, tuple(size * 2 if k == axis else size for k, size in enumerate(shape)), []


def softmax(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    return helper.make_node("Softmax", [source], [made], axis=draw(st.integers(0, len(shape) - 1))), shape, []


def mean(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True))
    keeps = draw(st.booleans()) or len(shape) <= 2
    node = helper.make_node("ReduceMean", [source], [made], axes=axes, keepdims=int(keeps))
    return node, tuple(1 if k in axes else size for k, size in enumerate(shape) if keeps or k not in axes), []


def pad(draw: st.DrawFn, source: str, shape: Shape, made: str) -> Made:
    rank = len(shape)
    pads = draw(st.lists(st.integers(0, 1), min_size=2 * rank, max_size=2 * rank))
    node = helper.make_node("Pad", [source, f"c{made}"], [made])
    tensor = numpy_helper.from_array(np.array(pads, np.int64), f"c{made}")
    return node, tuple(size + pads[k] + pads[k + rank] for k, size in enumerate(shape)), [tensor]


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Transposes, element-wise operators, sums, concatenations and reductions, wired at random.

    Each value has a bound, of its size and of how far it spreads what sums in another order differ by: what is beyond
    ``FURTHEST`` is left out, and nothing overflows.
    """
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    shapes: dict[str, Shape] = {"x": (2, 3, 4, 5)}
    bounds = {"x": 6.0}
    outputs: list[str] = []
    for index in range(draw(st.integers(3, 14))):
        source, made = draw(st.sampled_from(sorted(shapes))), f"v{index}"
        twins = sorted(name for name in shapes if shapes[name] == shapes[source])
        if draw(st.integers(0, 6)) == 0:
            op, other = draw(st.sampled_from(["Add", "Mul", "Max"])), draw(st.sampled_from(twins))
            node, shape = helper.make_node(op, [source, other], [made]), shapes[source]
            one, two = bounds[source], bounds[other]
            bound = {"Add": one + two, "Mul": 2 * one * two, "Max": max(one, two)}[op]
        else:
            make = draw(st.sampled_from([transpose] * 4 + [unary, constant, concat, softmax, mean, pad]))
            node, shape, more = make(draw, source, shapes[source], made)
            bound = bounds[source] + 1
            tensors += more
        if np.prod(shape) > 20_000 or bound > FURTHEST:
            continue
        nodes.append(node)
        shapes[made], bounds[made] = shape, bound
        outputs += [made] * (draw(st.integers(0, 4)) == 0)
    last = nodes[-1].output[0] if nodes else "x"
    infos = [helper.make_tensor_value_info(name, 1, shapes[name]) for name in dict.fromkeys([*outputs, last])]
    inputs = [helper.make_tensor_value_info("x", 1, shapes["x"])]
    graph = helper.make_graph(nodes, "g", inputs, infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@given(graphs())
@settings(max_examples=60)
def test_random_graphs_give_the_same_answers(proto: onnx.ModelProto) -> None:
    checked(proto)


CONVNEXT = f"""g (float[N,3,6,5] x, float[8,3,3,3] p1, float[8] p2, float[8] p3, float[8,6] p4, float[6] p5,
    float[6,8] p6, float[8] p7, float[8] p8) => (float[N,8,6,5] y)
    {{ c = Conv<pads=[1,1,1,1]>(x, p1)  t = {TO_NHWC}(c)  n = LayerNormalization<epsilon=1e-6>(t, p2, p3)
       m = MatMul(n, p4)  a = Add(m, p5)  s = Sigmoid(a)  g = Mul(a, s)
       o = MatMul(g, p6)  b = Add(o, p7)  l = Mul(p8, b)  u = {TO_NCHW}(l)  y = Add(c, u) }}"""


def test_products_behind_a_normalisation_of_channels_become_convolutions() -> None:
    """Only the normalisation has Transposes around it, which move nothing: its kernel works on either order."""
    view = checked(parsed(CONVNEXT, 17))
    found = ops(view)
    assert found == ["Conv", "Transpose", "LayerNormalization", "Transpose", "Conv", "Sigmoid", "Mul", "Conv", "Add"]
    assert any("turned" in note or "moved past" in note for note in view.notes)


@pytest.mark.parametrize("tail", ["y = Neg(a)", "f = Flatten(a)  y = Relu(f)"])
def test_products_whose_results_stay_channels_last_stay(tail: str) -> None:
    """More would be moved behind the product than before it."""
    declared = "float[N,6,5,9] y" if "Neg" in tail else "float[N,270] y"
    text = CONVNEXT.replace("float[N,8,6,5] y", declared).replace("float[8,6] p4, float[6]", "float[8,9] p4, float[9]")
    graph = text[: text.index("  s = Sigmoid")] + f"  {tail} }}"
    view = checked(parsed(graph, 17))
    assert "MatMul" in ops(view)
    assert ops(view).count("Transpose") == 1


def test_a_region_that_is_turned_back_ends() -> None:
    """A reduction behind the normalisation makes fewer elements to move: each of two rules undoes the other's work."""
    text = CONVNEXT[: CONVNEXT.index("  n = Layer")].replace("float[N,8,6,5] y", "float[N,8,1,1] y")
    norm = "n = LayerNormalization<epsilon=1e-6>(t, p2, p3)"
    tail = f"k = {TO_NCHW}(n)  z = Relu(k)  v = ReduceMean<axes=[2,3]>(z)  y = Neg(v) }}"
    checked(parsed(f"{text}  {norm}  {tail}", 17))
