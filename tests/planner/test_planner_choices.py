"""Choices override the planner: each changes the plan as asked, and no number; what can't be is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from planning import TOLERANCE, Array, drawn, modelled, onnxruntimes, planned

import trnrt
from trnrt import Choices
from trnrt.cache.plans import request_for
from trnrt.errors import OptionError
from trnrt.importer import import_model
from trnrt.planner import Plan, PlanOptions, StepReport
from trnrt.planner.choices import DEFAULT
from trnrt.planner.parts.partitioning import make_partition

# A residual block, pooling, Gemms, and element-wise steps that are merged.
GRAPH = """(float[N,3,8,8] image) => (float[N,5] y) {
    [c1] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(image, w1, b1)  [r1] r = Relu(c)
    [p1] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    [c2] d = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(p, w2, b2)  [r2] e = Relu(d)
    [c3] f = Conv<kernel_shape=[1,1]>(e, w3, b3)  [a3] g = Add(f, p)  [r3] h = Relu(g)
    [gap] i = GlobalAveragePool(h)  [flat] j = Flatten(i)
    [fc] k = Gemm<transB=1>(j, wg, bg)  [rg] l = Relu(k)
    [fd] n = Gemm(l, wm, bias)
    [sq] o = Mul(n, n)  [off] q = Add(o, n)  [tanh] y = Tanh(q)
}"""
CONSTANTS: dict[str, Array] = {
    "w1": drawn(32, 3, 3, 3) / 5,
    "b1": drawn(32),
    "w2": drawn(32, 32, 3, 3) / 17,
    "b2": drawn(32, seed=1),
    "w3": drawn(32, 32, 1, 1) / 6,
    "b3": drawn(32, seed=2),
    "wg": drawn(16, 32) / 6,
    "bg": drawn(16),
    "wm": drawn(16, 5) / 4,
    "bias": drawn(5),
}
IMAGES = {"image": drawn(2, 3, 8, 8)}
DTYPES = [(dtype, target) for dtype in ("float32", "bfloat16") for target in ("trn1", "trn2")]


def network() -> onnx.ModelProto:
    return modelled(GRAPH, CONSTANTS)


def chosen(choices: Choices = DEFAULT, dtype: str = "float32", target: str = "trn2") -> Plan:
    """The plan of the network, whose numbers are checked against onnxruntime's."""
    model = network()
    session = trnrt.InferenceSession(
        model.SerializeToString(), dtype=dtype, target=target, choices=choices, cache=False
    )
    (got,), (expected,) = session.run(None, IMAGES), onnxruntimes(model, IMAGES)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert session.last_run.plan is not None
    return session.last_run.plan


def step_of(plan: Plan, node: str) -> StepReport:
    (found,) = [step for step in plan.steps if node in step.nodes]
    return found


def groups(plan: Plan) -> set[tuple[str, ...]]:
    return {step.nodes for step in plan.steps}


# Node that is kept apart -> the steps that there are then, of the nodes that were one step with it.
APART: dict[str, tuple[tuple[str, ...], ...]] = {
    "r1": (("c1",), ("r1",), ("p1",)),
    "p1": (("c1", "r1"), ("p1",)),
    "r2": (("c2",), ("r2",)),
    "a3": (("c3",), ("a3", "r3")),
    "r3": (("c3", "a3"), ("r3",)),
    "rg": (("fc",), ("rg",)),
    "off": (("sq",), ("off", "tanh")),
    "tanh": (("sq", "off"), ("tanh",)),
}


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
def test_by_itself_the_planner_fuses_keeps_on_chip_and_prefetches(dtype: str, target: str) -> None:
    plan = chosen(dtype=dtype, target=target)
    together = {("c1", "r1", "p1"), ("c2", "r2"), ("c3", "a3", "r3"), ("fc", "rg"), ("fd",), ("sq", "off", "tanh")}
    assert together <= groups(plan)
    assert [step_of(plan, node).place for node in ("c1", "c2")] == ["sbuf", "sbuf"]
    assert [step_of(plan, node).weights for node in ("c3", "fc", "gap")] == ["prefetched", "prefetched", "none"]


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
@pytest.mark.parametrize("node", APART)
def test_a_node_is_kept_apart(node: str, dtype: str, target: str) -> None:
    plan = chosen(Choices(no_fuse=frozenset([node])), dtype, target)
    assert set(APART[node]) <= groups(plan)
    (report,) = [report for report in plan.nodes if report.name == node]
    assert "it was asked for" in report.reason
    others = [report.reason for report in plan.nodes if report.name != node]
    assert not any("asked for" in reason for reason in others)


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
@pytest.mark.parametrize("node", ["c1", "c2", "c3"])
def test_a_tensor_lives_in_hbm(node: str, dtype: str, target: str) -> None:
    before = chosen(dtype=dtype, target=target)
    output = step_of(before, node).output
    plan = chosen(Choices(in_hbm=frozenset([output])), dtype, target)
    step = step_of(plan, node)
    assert (step.output, step.place, step.layout, step.reason) == (output, "hbm", "hbm", "it was asked for")
    assert groups(plan) == groups(before)
    if node == "c2":  # a tensor that nothing else has to share a memory with
        assert [s.place for s in plan.steps if s != step] == [s.place for s in before.steps if s.output != output]


def test_an_output_of_the_model_is_in_hbm_for_that_reason() -> None:
    plan, plain = chosen(Choices(in_hbm=frozenset(["y"]))), chosen()
    assert step_of(plan, "tanh").reason == "an output of the model"
    assert plan.source == plain.source


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
@pytest.mark.parametrize("node", ["c3", "fc", "fd"])
def test_a_step_loads_its_own_weights(node: str, dtype: str, target: str) -> None:
    before = chosen(dtype=dtype, target=target)
    assert step_of(before, node).weights == "prefetched"
    plan = chosen(Choices(own_weights=frozenset([node])), dtype, target)
    step = step_of(plan, node)
    assert (step.weights, step.weights_reason) == ("own", "it was asked for")
    assert f"{node}_w" in plan.weights and f"{node}_w" not in plan.parts
    assert f"{node}_w" in before.parts and f"{node}_w" not in before.weights
    assert [s.weights for s in plan.steps if s.name != node] == [s.weights for s in before.steps if s.name != node]


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
def test_everything_at_once(dtype: str, target: str) -> None:
    apart = Choices(no_fuse=frozenset(APART))
    plan = chosen(apart, dtype, target)
    assert all(len(step.nodes) == 1 for step in plan.steps)
    tensors = frozenset(step.output for step in plan.steps)
    loading = frozenset(step.name for step in plan.steps if step.weights != "none")
    plan = chosen(apart | Choices(in_hbm=tensors, own_weights=loading), dtype, target)
    assert {step.place for step in plan.steps} == {"hbm"}
    assert {step.weights for step in plan.steps} == {"own", "none"}
    assert "prefetch(weights" not in plan.source


@pytest.mark.parametrize(("dtype", "target"), DTYPES)
def test_a_bias_is_kept_apart(dtype: str, target: str) -> None:
    """Of products of matrices in a batch, where the Add is no part of a Gemm."""
    graph = "(float[2,3,8] x) => (float[2,3,5] y) { [mm] m = MatMul(x, w)  [bm] y = Add(m, b) }"
    model, x = modelled(graph, {"w": drawn(8, 5), "b": drawn(5)}), drawn(2, 3, 8)
    made = []
    for choices in (DEFAULT, Choices(no_fuse=frozenset(["bm"]))):
        session = trnrt.InferenceSession(
            model.SerializeToString(), dtype=dtype, target=target, choices=choices, cache=False
        )
        (got,), (expected,) = session.run(None, {"x": x}), onnxruntimes(model, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        made.append(groups(session.plan()))
    assert made == [{("mm", "bm")}, {("mm",), ("bm",)}]


def test_channels_are_put_in_order_apart_from_what_makes_them() -> None:
    graph = """(float[1,3,6,6] x) => (float[1,8,6,6] y) { [c] a = Conv<kernel_shape=[1,1]>(x, w)
        [one] b = Reshape(a, two)  [turn] d = Transpose<perm=[0,2,1,3,4]>(b)  [back] y = Reshape(d, four) }"""
    constants = {"two": np.array([1, 2, 4, 6, 6], np.int64), "four": np.array([1, 8, 6, 6], np.int64)}
    model, x = modelled(graph, {"w": drawn(8, 3, 1, 1), **constants}), drawn(1, 3, 6, 6)
    made = []
    for choices in (DEFAULT, Choices(no_fuse=frozenset(["back"]))):
        session = trnrt.InferenceSession(model.SerializeToString(), choices=choices, cache=False)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], onnxruntimes(model, {"x": x})[0], rtol=1e-5, atol=1e-5
        )
        made.append(groups(session.plan()))
    assert made == [{("c", "back")}, {("c",), ("back",)}]


def test_a_producer_with_two_readers_is_merged_with_neither_when_the_reader_is_kept_apart() -> None:
    """Of two element-wise steps that one reads, both stay apart from it."""
    model = modelled("(float[4,6] x) => (float[4,6] y) { [u] a = Exp(x)  [v] b = Tanh(x)  [w] y = Add(a, b) }")
    assert groups(planned(model, {"x": (4, 6)})) == {("v", "u", "w")}
    session = trnrt.InferenceSession(model.SerializeToString(), choices=Choices(no_fuse=frozenset(["w"])), cache=False)
    assert groups(session.plan()) == {("u",), ("v",), ("w",)}
    x = drawn(4, 6)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], onnxruntimes(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("choices", "message", "hint"),
    [
        (Choices(no_fuse=frozenset(["r11"])), "no_fuse: no node of the model is called 'r11'", "did you mean 'r1'?"),
        (Choices(no_fuse=frozenset(["flat"])), "node 'flat' is in no step", "name a node that is fused"),
        (Choices(in_hbm=frozenset(["r"])), "in_hbm: no tensor between steps is called 'r'", "there are p, e, h"),
        (Choices(in_hbm=frozenset(["image"])), "no tensor between steps is called 'image'", "there are p"),
        (Choices(own_weights=frozenset(["r2"])), "own_weights: no step is called 'r2'", "there are c1"),
        (Choices(own_weights=frozenset(["gap"])), "step 'gap' has no weights", "steps with weights: c1, c2"),
        (Choices(own_weights=frozenset(["\x1b[2J" * 100])), "\\x1b[2J\\x1b", "there are"),
    ],
)
def test_a_name_that_is_not_there(choices: Choices, message: str, hint: str) -> None:
    session = trnrt.InferenceSession(network().SerializeToString(), choices=choices, cache=False)
    for ask in (session.plan, session.partition, lambda: session.run(None, IMAGES)):
        with pytest.raises(OptionError) as caught:
            ask()
        assert message in str(caught.value) and hint in (caught.value.hint or "")
        assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


def test_parts_between_cpu_parts_take_the_choices_that_are_theirs() -> None:
    graph = """(float[2,4,6,6] x) => (float[2,4,6,6] y) {
        [c1] a = Conv<kernel_shape=[1,1]>(x, w)  [r1] b = Relu(a)  [det] d = Det(b)  [un] u = Reshape(d, to)
        [s] e = Add(b, u)  [c2] f = Conv<kernel_shape=[1,1]>(e, w)  [r2] y = Relu(f) }"""
    to = np.array([2, 4, 1, 1], np.int64)
    model = import_model(modelled(graph, {"w": drawn(4, 4, 1, 1), "to": to}).SerializeToString())
    options = PlanOptions("trn2", "float32", fallback="onnxruntime")
    plain = make_partition(model, {"x": (2, 4, 6, 6)}, options)
    assert len(plain.plans) > 1 and plain.cpu_parts
    choices = Choices(no_fuse=frozenset(["r2"]), own_weights=frozenset(["c1"]))
    parts = make_partition(model, {"x": (2, 4, 6, 6)}, replace(options, choices=choices))
    nodes = {step.nodes for plan in parts.plans for step in plan.steps}
    assert {("c1", "r1"), ("c2",), ("r2",)} <= nodes
    assert {step.name: step.weights for plan in parts.plans for step in plan.steps}["c1"] == "own"
    with pytest.raises(OptionError, match="node 'det' is in no step"):
        make_partition(model, {"x": (2, 4, 6, 6)}, replace(options, choices=Choices(no_fuse=frozenset(["det"]))))


def ran(cache_dir: Path, choices: Choices = DEFAULT) -> list[str]:
    """What is to be said of the cache after a run."""
    model = network().SerializeToString()
    session = trnrt.InferenceSession(model, target="trn2", choices=choices, cache_dir=cache_dir)
    session.run(None, IMAGES)
    return list(session.last_run.cache_notes)


def test_a_miss_says_which_choices_changed(tmp_path: Path) -> None:
    apart = Choices(no_fuse=frozenset(["r1", "p1"]))
    assert ran(tmp_path / "c") == ran(tmp_path / "c") == []
    assert ran(tmp_path / "c", apart) == ['choices no_fuse [] -> ["p1", "r1"]']
    assert ran(tmp_path / "c", apart) == ran(tmp_path / "c") == []
    assert ran(tmp_path / "c", Choices(in_hbm=frozenset(["p"]))) == ['choices in_hbm [] -> ["p"]']
    many = Choices(no_fuse=frozenset(APART), own_weights=frozenset(["c3"]))
    assert all(len(note) < 500 for note in ran(tmp_path / "c", many))


def test_sets_of_names_are_told_apart_in_the_key() -> None:
    model = import_model(network().SerializeToString())

    def key(choices: Choices) -> Any:
        shapes = {"image": (1, 3, 8, 8)}
        return request_for(model, shapes, {}, PlanOptions("trn2", "float32", choices))["choices"]

    one, two = frozenset(['a", "b']), frozenset(["a", "b"])
    assert key(Choices(no_fuse=one)) != key(Choices(no_fuse=two)) != key(Choices(in_hbm=two))
    assert key(Choices(no_fuse=two)) == key(Choices(no_fuse=frozenset(["b", "a"])))
    assert set(key(Choices()).values()) == {"[]", "null"}
