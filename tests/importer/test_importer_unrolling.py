"""Loops, branches and sequences, written out as plain operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.importer import import_model
from trnrt.importer.unrolling.loops import MOST_NODES
from trnrt.importer.unrolling.trips import MOST_TRIPS

Array = NDArray[Any]
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parsed(text: str, opset: int = 17) -> bytes:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    return bytes(model.SerializeToString())


def operators(model: bytes, *shape: int) -> list[str]:
    graph = import_model(model).bind({"x": shape or X.shape}).model.graph
    return [node.op_type for node in graph]


def check(model: bytes, x: Array = X, **more: Array) -> trnrt.InferenceSession:
    """A session whose answers are onnxruntime's."""
    session = trnrt.InferenceSession(model, cache=False)
    feeds = {"x": x, **more}
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    return session


def refused(model: bytes, match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=match):
        trnrt.InferenceSession(model, cache=False).run(None, {"x": X})


# -- Loop ------------------------------------------------------------------------------------------------


def loop(trips: str, body: str, state: str = "float[n,4] s", more: str = "") -> bytes:
    """A Loop from x, with ``t`` as its state after a trip and ``p`` as its condition."""
    return parsed(
        f"g (float[n,4] x) => (float[n,4] y) <int64 m = {{{trips}}}, bool c = {{1}}, float limit = {{3.0}} {more}>"
        f"{{ y = Loop (m, c, x) <body = b (int64 i, bool q, {state}) => (bool p, float[n,4] t) {{ {body} }}> }}"
    )


TIMES = "p = Identity(q)  f = Cast<to=1>(i)  a = Add(s, f)  t = Mul(a, x)"


@pytest.mark.parametrize("trips", [0, 1, 3, MOST_TRIPS // 100])
def test_a_loop_of_constant_trips_is_unrolled(trips: int) -> None:
    model = loop(str(trips), TIMES)
    assert operators(model) == ["Add", "Mul"] * trips or (trips == 0 and operators(model) == ["Identity"])
    assert "padded with 1 row" in check(model, X / 4).last_run.notes[0]


def test_what_a_loop_collects_is_stacked() -> None:
    check(
        parsed(
            """g (float[n,4] x) => (float[n,4] y, float[k,n,4] all, float[k,4] sums) <int64 m = {3}, bool c = {1}>
            { y, all, sums = Loop (m, c, x) <body = b (int64 i, bool q, float[n,4] s)
              => (bool p, float[n,4] t, float[n,4] u, float[4] v) <int64[1] ax = {0}>
              { p = Identity(q)  f = Cast<to=1>(i)  t = Add(s, f)  u = Mul(t, x)
                v = ReduceSum<keepdims=0>(u, ax) }> }"""
        )
    )


def test_a_condition_that_counts_ends_the_loop() -> None:
    model = parsed(
        """g (float[n,4] x) => (float[n,4] y) <bool c = {1}, float end = {3.0}, float zero = {0.0}, float one = {1.0}>
        { y, k = Loop (, c, x, zero) <body = b (int64 i, bool q, float[n,4] s, float w)
          => (bool p, float[n,4] t, float v) { v = Add(w, one)  p = Less(v, end)  t = Mul(s, x) }> }"""
    )
    assert operators(model) == ["Mul"] * 3
    check(model)


def test_loops_in_loops_are_unrolled() -> None:
    inner = "Loop (m, q, s) <body = d (int64 j, bool r, float[n,4] u) => (bool o, float[n,4] v) { o = Identity(r)  "
    model = loop("2", f"p = Identity(q)  t = {inner} v = Mul(u, x) }}>")
    assert operators(model) == ["Mul"] * 4
    check(model)


def test_the_trips_may_be_an_input_that_a_plan_depends_on() -> None:
    model = parsed(
        """g (float[n,4] x, int64 m) => (float[n,4] y) <bool c = {1}> { y = Loop (m, c, x) <body =
        b (int64 i, bool q, float[n,4] s) => (bool p, float[n,4] t) { p = Identity(q)  t = Mul(s, x) }> }"""
    )
    assert import_model(model).parameters == ("m",)
    for trips in (1, 4):
        check(model, m=np.array(trips))


def test_weights_of_a_body_are_shared_by_the_trips() -> None:
    model = loop("5", "p = Identity(q)  w = Constant<value = float[4] {1.0, 2.0, -1.0, 0.5}>()  t = Mul(s, w)")
    graph = import_model(model).bind({"x": (3, 4)}).model.graph
    assert len({node.inputs[1] for node in graph if node.op_type == "Mul"}) == 1
    check(model)


def test_a_state_that_stays_as_it_is() -> None:
    """Keras 3 hands its weights on from trip to trip."""
    model = parsed(
        """g (float[n,4] x) => (float[n,4] y) <int64 m = {3}, bool c = {1}, float[4] w = {1.0, 2.0, -1.0, 0.5}>
        { y, v = Loop (m, c, x, w) <body = b (int64 i, bool q, float[n,4] s, float[4] u)
          => (bool p, float[n,4] t, float[4] u) { p = Identity(q)  t = Mul(s, u) }> }"""
    )
    assert operators(model) == ["Mul"] * 3
    check(model)


def test_a_branch_that_a_constant_condition_rules_out_uses_nothing() -> None:
    model = parsed(
        """g (float[n,4] x) => (float[n,4] y) <bool c = {1}> { r = Relu(x)  e = Exp(r)
        y = If (c) <then_branch = t () => (float[n,4] a) { a = Neg(r) }, else_branch = f () => (float[n,4] b)
        { b = Mul(e, r) }> }"""
    )
    graph = import_model(model).bind({"x": (3, 4)}).model.graph
    assert [node.op_type for node in graph] == ["Relu", "Neg"]
    assert len(graph.node(0).outputs[0].uses()) == 1


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (
            loop("5", "t = Mul(s, x)  z = ReduceMax<keepdims=0>(t)  p = Less(z, limit)"),
            "number of trips that isn't known",
        ),
        (loop(str(MOST_TRIPS + 1), TIMES), "more than 1,024"),
        (
            loop(
                str(MOST_TRIPS),
                "p = Identity(q)  a0 = Exp(s) "
                + "".join(f"a{k + 1} = Neg(a{k}) " for k in range(25))
                + "t = Mul(s, a25)",
            ),
            "20,000",
        ),
    ],
)
def test_other_loops_are_refused(model: bytes, match: str) -> None:
    refused(model, match)
    assert (MOST_TRIPS, MOST_NODES) == (1024, 20_000)  # as the refusal says


def test_nested_loops_do_not_escape_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.importer.unrolling.loops.MOST_NODES", 400)
    inner = "Loop (m, q, s) <body = d (int64 j, bool r, float[n,4] u) => (bool o, float[n,4] v) { o = Identity(r)  "
    refused(loop("100", f"p = Identity(q)  t = {inner} v = Mul(u, x) }}>"), "Loop")


# -- Scan ------------------------------------------------------------------------------------------------

SCAN = """g (float[3,4] x) => (float[4] y, float[3,4] all) <float[4] first = {0.5, 0.0, -1.0, 2.0}> {
    y, all = Scan <num_scan_inputs = 1 ATTRIBUTES, body = b (float[4] s, float[4] e) => (float[4] t, float[4] u)
    { t = Add(s, e)  u = Mul(s, e) }> (first, x) }"""


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", scan_input_directions = [1]",
        ", scan_output_directions = [1]",
        ", scan_input_directions = [1], scan_output_directions = [1]",
    ],
)
def test_a_scan_is_unrolled_along_its_axis(attributes: str) -> None:
    model = parsed(SCAN.replace("ATTRIBUTES", attributes))
    assert "Scan" not in operators(model)
    check(model)


def test_a_scan_along_other_axes() -> None:
    text = SCAN.replace("ATTRIBUTES", ", scan_input_axes = [1], scan_output_axes = [-1]").replace("[3,4] x", "[4,3] x")
    check(parsed(text.replace("[3,4] all", "[4,3] all")), np.ascontiguousarray(X.T))


# -- If --------------------------------------------------------------------------------------------------


def branches(then: str, other: str, result: str = "float[n,4]") -> bytes:
    return parsed(
        f"g (float[n,4] x) => ({result} y) <float zero = {{0.0}}, int64[1] ax = {{1}}> {{"
        f"s = ReduceSum<keepdims=0>(x)  c = Greater(s, zero)  r = Relu(x)  y = If (c) <"
        f"then_branch = t () => ({result} a) {{ {then} }}, else_branch = e () => ({result} b) {{ {other} }}> }}"
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_where_selects_one_of_two_branches(sign: int) -> None:
    model = branches("a = Exp(r)", "q = Neg(x)  b = Add(q, r)")
    assert operators(model)[-1] == "Where"
    check(model, sign * np.abs(X))


def test_a_branch_may_be_a_constant_or_an_input() -> None:
    model = branches("a = Identity(x)", "k = Constant<value = float[1,4] {1.0, 2.0, 3.0, 4.0}>()  b = Add(k, x)")
    for sign in (1, -1):
        check(model, sign * np.abs(X))


def test_branches_of_different_shapes_are_refused() -> None:
    model = branches("a = ReduceMax<axes = [1]>(x)", "b = Exp(x)", "float[n,k]")
    refused(model, "results differ in shape or type")


def test_a_refused_if_leaves_nothing_behind() -> None:
    model = branches("a = ReduceMax<axes = [1]>(x)", "b = Exp(x)", "float[n,k]")
    assert operators(model) == ["ReduceSum", "Greater", "If"]


# -- sequences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "q = SequenceConstruct(x, e)  y = ConcatFromSequence<axis=1>(q)",
        "q = SequenceConstruct(x, e)  y = ConcatFromSequence<axis=1, new_axis=1>(q)",
        "q = SequenceEmpty()  r = SequenceInsert(q, x)  s = SequenceInsert(r, e, zero)  y = SequenceAt(s, zero)",
        "q = SequenceConstruct(x, e, x)  r = SequenceErase(q, last)  y = ConcatFromSequence<axis=-1>(r)",
        "q = SequenceConstruct(x, e)  n = SequenceLength(q)  f = Cast<to=1>(n)  y = Add(e, f)",
        "q = SplitToSequence<axis=1>(x, sizes)  y = SequenceAt(q, last)",
        "q = SplitToSequence<axis=1>(x, three)  y = SequenceAt(q, last)",
        "q = SplitToSequence<axis=1>(e)  y = SequenceAt(q, zero)",
        "q = SplitToSequence<axis=1, keepdims=0>(e)  a = SequenceAt(q, zero)  y = Mul(a, a)",
    ],
)
def test_what_takes_a_sequence_takes_its_elements(body: str) -> None:
    model = parsed(
        "g (float[n,4] x) => (float[] y)"
        "<int64 zero = {0}, int64 last = {-1}, int64[2] sizes = {1, 3}, int64 three = {3}>"
        f"{{ e = Exp(x)  {body} }}"
    )
    assert not any("Sequence" in name for name in operators(model))
    check(model)


def test_an_element_that_is_computed_is_refused() -> None:
    refused(
        parsed(
            "g (float[n,4] x) => (float[n,4] y) { e = Exp(x)  q = SequenceConstruct(x, e)"
            "  i = ArgMax<axis=1>(x)  k = ReduceMax<keepdims=0>(i)  y = SequenceAt(q, k) }"
        ),
        "SequenceConstruct",
    )
