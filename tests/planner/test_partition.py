"""A model in parts: which nodes go where, and that the numbers are onnxruntime's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from dividing import CORE, CPU, MIDDLE, Parts, checked, divided, value
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from planning import Array, drawn, modelled, onnxruntimes

import trnrt

CASES: list[tuple[str, str, Parts]] = [
    ("in the middle", MIDDLE, [(CORE, ["Relu"]), (CPU, ["Hardmax"]), (CORE, ["Sigmoid"])]),
    (
        "first",
        "(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  y = Relu(a) }",
        [(CPU, ["Hardmax"]), (CORE, ["Relu"])],
    ),
    (
        "last",
        "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Hardmax(a) }",
        [(CORE, ["Relu"]), (CPU, ["Hardmax"])],
    ),
    ("alone", "(float[2,3] x) => (float[2,3] y) { y = Hardmax(x) }", [(CPU, ["Hardmax"])]),
    (
        "two apart",
        "(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  b = Relu(a)  c = Hardmax(b)  y = Sigmoid(c) }",
        [(CPU, ["Hardmax"]), (CORE, ["Relu"]), (CPU, ["Hardmax"]), (CORE, ["Sigmoid"])],
    ),
    (
        "two that could run at once, in one part",
        "(float[2,3] x, float[2,3] z) => (float[2,3] y)"
        "{ a = Relu(x)  b = Hardmax(a)  c = Hardmax(z)  d = Exp(c)  y = Add(b, d) }",
        [(CORE, ["Relu"]), (CPU, ["Hardmax", "Hardmax"]), (CORE, ["Exp", "Add"])],
    ),
    (
        "beside a branch on the device, which stays with its reader",
        "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  c = Exp(x)  d = Tanh(c)  y = Add(b, d) }",
        [(CORE, ["Relu"]), (CPU, ["Hardmax"]), (CORE, ["Exp", "Tanh", "Add"])],
    ),
    (
        "beside a branch that begins where it does",
        "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  c = Exp(a)  y = Add(b, c) }",
        [(CORE, ["Relu", "Exp"]), (CPU, ["Hardmax"]), (CORE, ["Add"])],
    ),
    (
        "with outputs of every part",
        "(float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] y) { a = Relu(x)  b = Hardmax(a)  y = Sigmoid(b) }",
        [(CORE, ["Relu"]), (CPU, ["Hardmax"]), (CORE, ["Sigmoid"])],
    ),
    (
        "with a value that passes it by",
        "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  y = Add(a, b) }",
        [(CORE, ["Relu"]), (CPU, ["Hardmax"]), (CORE, ["Add"])],
    ),
    (
        "next to what only moves elements",
        "(float[2,3] x) => (float[3,2] y) { t = Transpose(x)  a = Hardmax(t)  b = Concat<axis=0>(a, a)  c = Hardmax(b)"
        "  y = Slice(c, starts, ends) } ",
        [(CPU, ["Transpose", "Hardmax", "Concat", "Hardmax", "Slice"])],
    ),
    (
        "with indices that cross",
        "(float[2,3] x) => (int64[2,1] i, float[2,3] y) { a = Relu(x)  i = ArgMax<axis=1>(a)"
        "  c = ReverseSequence<batch_axis=0, time_axis=1>(i, lengths)  f = Cast<to=1>(c)  y = Add(a, f) }",
        [(CORE, ["Relu", "ArgMax"]), (CPU, ["ReverseSequence"]), (CORE, ["Cast", "Add"])],
    ),
]
CONSTANTS = {
    "lengths": np.array([1, 1]),
    "starts": np.array([0]),
    "ends": np.array([3]),
}


@pytest.mark.parametrize(("graph", "parts"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_nodes_go_to_as_few_parts_as_their_order_allows(graph: str, parts: Parts) -> None:
    used = {name: value for name, value in CONSTANTS.items() if f" {name})" in graph or f" {name}," in graph}
    model = modelled(graph, used)
    feeds = {info.name: drawn(2, 3, seed=k) for k, info in enumerate(model.graph.input)}
    assert checked(model, feeds) == parts


def test_truth_crosses_as_truth() -> None:
    graph = """(float[2,3] x) => (bool[2,3] u, float[2,3] y)
        { p = Greater(x, zero)  u = ReverseSequence<batch_axis=0, time_axis=1>(p, lengths)
        y = Where(u, x, zero) }"""
    model = modelled(graph, {"zero": np.array(0, np.float32), "lengths": np.array([3, 2])})
    feeds = {"x": drawn(2, 3)}
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    session.run(None, feeds)
    assert checked(model, feeds) == [(CORE, ["Greater"]), (CPU, ["ReverseSequence"]), (CORE, ["Where"])]
    assert session.last_run.partition is not None
    (cpu,) = session.last_run.partition.cpu_parts
    inner = onnx.load_model_from_string(cpu.model)
    assert inner.graph.input[0].type.tensor_type.elem_type == TensorProto.BOOL
    assert (cpu.crossing.to_host, cpu.crossing.to_device) == (6, 6)


def test_what_follows_a_shape_that_depends_on_the_data_is_on_the_cpu_until_it_is_known_again() -> None:
    graph = """(float[2,3] x) => (int64[2,k] i, float[n] v, float[1] r)
        { a = Relu(x)  i = NonZero(a)  t = Transpose(i)  g = GatherND(a, t)  v = Exp(g)
          s = ReduceSum(v, axes)  r = Tanh(s) }"""
    model = modelled(graph, {"axes": np.array([0])})
    parts = checked(model, {"x": drawn(2, 3)})
    assert parts == [
        (CORE, ["Relu"]),
        (CPU, ["NonZero", "Transpose", "GatherND", "Exp", "ReduceSum"]),
        (CORE, ["Tanh"]),
    ]
    # Another input, another number of elements, in the same compiled session.
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    for seed in (1, 2, 3):
        feeds = {"x": drawn(2, 3, seed=seed)}
        for mine, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_rows_whose_results_have_a_shape_of_the_datas_are_not_padded() -> None:
    model = modelled("(float[N,3] x) => (int64[2,k] i, float[N,3] y) { a = Relu(x)  i = NonZero(a)  y = Sigmoid(a) }")
    for rows in (1, 3, 5):
        assert checked(model, {"x": drawn(rows, 3)}) == [(CORE, ["Relu", "Sigmoid"]), (CPU, ["NonZero"])]


def test_control_flow_that_reads_values_from_outside_itself() -> None:
    body = helper.make_graph([helper.make_node("Add", ["a", "b"], ["t"])], "then", [], [value("t", [2, 3])])
    # Of branches with results of one shape both would be computed, by the device.
    least = helper.make_node("ReduceMin", ["a"], ["e"], axes=[1])
    other = helper.make_graph([least], "else", [], [value("e", [2, 1])])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["d"], then_branch=body, else_branch=other),
        helper.make_node("Tanh", ["d"], ["y"]),
    ]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "k"])
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3])], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    parts = checked(model, {"x": drawn(2, 3)})
    # Which branch runs is known at run time only, and so is the shape of what it makes.
    assert parts == [(CORE, ["Relu", "Exp", "ReduceSum", "Cast"]), (CPU, ["If", "Tanh"])]


def made(
    nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], constants: dict[str, Array] | None = None
) -> onnx.ModelProto:
    """A model of x, (2, 3)."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3])], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_loop_that_reads_a_constant_and_a_value_of_the_device() -> None:
    truth, count = TensorProto.BOOL, TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "a"], ["s"]),
            helper.make_node("Mul", ["s", "w"], ["after"]),
            helper.make_node("ReduceMax", ["after"], ["most"], keepdims=0),
            helper.make_node("Less", ["most", "limit"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", count, []),
            helper.make_tensor_value_info("go", truth, []),
            value("v", [2, 3]),
        ],
        [helper.make_tensor_value_info("on", truth, []), value("after", [2, 3])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Loop", ["n", "", "a"], ["l"], body=body),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    constants = {"n": np.array(3), "w": drawn(2, 3, seed=1), "limit": np.array(1e9, np.float32)}
    model = made(nodes, [value("l", [2, 3]), value("y", [2, 3])], constants)
    assert checked(model, {"x": drawn(2, 3)}) == [(CORE, ["Relu", "Add"]), (CPU, ["Loop"])]


def test_sequences_stay_on_the_cpu_until_they_are_tensors_again() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        helper.make_node("SequenceLength", ["s"], ["n"]),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ArgMax", ["e"], ["i"], axis=0, keepdims=0),
        helper.make_node("ReduceMax", ["i"], ["j"], keepdims=0),
        helper.make_node("SequenceAt", ["s", "j"], ["b"]),
    ]
    length = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    parts = checked(made(nodes, [value("b", [1, 3]), length]), {"x": drawn(2, 3)})
    assert parts[0] == (CORE, ["Exp", "ArgMax", "ReduceMax"])
    assert parts[1] == (CPU, ["SplitToSequence", "SequenceAt"])  # the length is a constant


def test_outputs_that_are_an_input_and_a_constant() -> None:
    nodes = [
        helper.make_node("Hardmax", ["x"], ["y"]),
        helper.make_node("Identity", ["w"], ["k"]),
        helper.make_node("Identity", ["x"], ["p"]),
    ]
    model = made(nodes, [value(name, [2, 3]) for name in "ykp"], {"w": drawn(2, 3, seed=1)})
    checked(model, {"x": drawn(2, 3)})


def test_whole_numbers_that_the_device_made_are_its_own_to_add() -> None:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1),
        helper.make_node("Add", ["i", "i"], ["j"]),
        helper.make_node("Relu", ["v"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("j", TensorProto.INT64, [2, 2]), value("y", [2, 2])]
    parts = checked(made(nodes, outputs, {"k": np.array([2])}), {"x": drawn(2, 3)})
    assert parts == [(CORE, ["TopK", "Add", "Relu"])]


def test_strings_and_what_has_no_kernel_run_on_the_cpu() -> None:
    words = modelled(
        "(string[2] w, float[2] x) => (string[2] o, float[2] y) { o = StringConcat(w, w)  y = Relu(x) }", opset=20
    )
    feeds = {"w": np.array(["a", "Bc"], object), "x": drawn(2)}
    assert checked(words, feeds) == [(CORE, ["Relu"]), (CPU, ["StringConcat"])]
    shrunk = modelled("(float[2,3] x) => (float[2,3] y) { r = Shrink(x)  y = Sigmoid(r) }", {})
    assert checked(shrunk, {"x": drawn(2, 3)}) == [(CPU, ["Shrink"]), (CORE, ["Sigmoid"])]


def test_quantised_nodes_run_on_the_cpu_and_the_rest_on_the_device() -> None:
    graph = """(float[2,4] x) => (float[2,3] y)
        { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  h = MatMul(d, w)  y = Relu(h) }"""
    constants: dict[str, Array] = {"s": np.array(0.05, np.float32), "z": np.array(0, np.int16), "w": drawn(4, 3)}
    parts = checked(modelled(graph, constants, 21), {"x": drawn(2, 4)})
    assert parts == [(CPU, ["QuantizeLinear", "DequantizeLinear"]), (CORE, ["MatMul", "Relu"])]


@pytest.mark.parametrize("axis", [0, 1])
def test_quantised_weights_are_made_floats_once(axis: int) -> None:
    graph = f"""(float[2,4] x) => (float[2,4] y) {{ q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        w = DequantizeLinear<axis={axis}>(k, t, u)  h = Add(d, w)  y = Relu(h) }}"""
    count = (2, 4)[axis]
    constants: dict[str, Array] = {
        "s": np.array(0.05, np.float32),
        "z": np.array(0, np.int16),
        "k": np.random.default_rng(0).integers(-128, 128, (2, 4)).astype(np.int8),
        "t": np.linspace(0.01, 0.1, count, dtype=np.float32),
        "u": np.arange(count, dtype=np.int8),
    }
    model = modelled(graph, constants, 21)
    assert checked(model, {"x": drawn(2, 4)})[1] == (CORE, ["Add", "Relu"])
    partition = divided(model, {"x": drawn(2, 4)})
    assert [part.inputs for part in partition.parts] == [("x",), ("d",)]
    assert [node.place for node in partition.nodes if node.op == "DequantizeLinear"] == ["cpu", "folded"]


def test_empty_tensors_are_the_cpus() -> None:
    graph = "(float[2,3] x) => (float[0,3] e, float[2,3] y) { e = Slice(x, starts, starts)  y = Relu(x) }"
    model = modelled(graph, {"starts": np.array([0])})
    assert checked(model, {"x": drawn(2, 3)}) == [(CORE, ["Relu"]), (CPU, ["Slice"])]


OPERATORS = st.sampled_from(["Relu", "Sigmoid", "Hardmax", "Add", "Transpose"])


@settings(max_examples=40)
@given(st.lists(st.tuples(OPERATORS, st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9), st.data())
def test_any_graph_gives_onnxruntimes_numbers(steps: list[tuple[str, int, int]], data: st.DataObject) -> None:
    """Square tensors, so that any node may read any two that are there."""
    names, nodes = ["x"], []
    for number, (operator, left, right) in enumerate(steps):
        inputs = [names[left % len(names)], names[right % len(names)]][: 2 if operator == "Add" else 1]
        nodes.append(helper.make_node(operator, inputs, [f"v{number}"]))
        names.append(f"v{number}")
    extra = data.draw(st.lists(st.sampled_from(names[1:]), max_size=3))
    outputs = list(dict.fromkeys([names[-1], *extra]))
    graph = helper.make_graph(nodes, "g", [value("x", [3, 3])], [value(name, [3, 3]) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    places = [place for place, _ in checked(model, {"x": drawn(3, 3)})]
    assert all(place != after for place, after in pairwise(places))
