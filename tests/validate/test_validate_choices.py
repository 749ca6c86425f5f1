"""Models that choose by the data: another order of close scores is told from a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from layered import Net
from numpy.typing import NDArray
from onnx import helper
from perturbing import shifted

import trnrt
from trnrt.planner import Plan
from trnrt.planner.parts.partition import DevicePart, Partition
from trnrt.planner.parts.partitioning import make_partition
from trnrt.validate import ValidationReport, validate, validate_layers
from trnrt.validate.choices import split_at_choices
from trnrt.validate.running import run_onnxruntime

Array = NDArray[Any]
ANCHORS, FEATURES, K = 60, 24, 20


def detector() -> bytes:
    """Scores and boxes by a product; the boxes and classes of the best scores of two classes."""
    net = Net("detector", [ANCHORS, FEATURES], seed=5)
    scores = net.add("MatMul", "x", net.constant(np.full((FEATURES, 2), 0.3, np.float32)))
    boxes = net.add("MatMul", net.add("Tanh", "x"), net.weight(FEATURES, 4))
    flat = net.add("Reshape", scores, net.constant(np.array([-1])))
    best, place = "best", "place"
    net.nodes.append(helper.make_node("TopK", [flat, net.constant(np.array([K]))], [best, place], name="topk"))
    row, kind = (net.add(op, place, net.constant(np.array(2))) for op in ("Div", "Mod"))
    column = net.add("Unsqueeze", row, net.constant(np.array([1])))
    rows = net.add("Expand", column, net.constant(np.array([1, 4])))
    parts = [net.add("GatherElements", boxes, rows, axis=0)]
    for value in (best, net.add("Cast", kind, to=onnx.TensorProto.FLOAT)):
        parts.append(net.add("Unsqueeze", value, net.constant(np.array([1]))))
    return net.model(net.add("Concat", *parts, axis=1))


def branching() -> bytes:
    """Boxes with scores above a limit, the best first; by an If, as torchvision's exports have it."""
    net = Net("branching", [ANCHORS, FEATURES], seed=5)
    scores = net.add("MatMul", "x", net.constant(np.full((FEATURES, 1), 0.3, np.float32)))
    boxes = net.add("MatMul", net.add("Tanh", "x"), net.weight(FEATURES, 4))
    flat = net.add("Reshape", scores, net.constant(np.array([-1])))
    high = net.add("NonZero", net.add("Greater", flat, net.constant(np.array(-1e6, np.float32))))
    rows = net.add("Squeeze", high, net.constant(np.array([0])))
    kept = net.add("Gather", flat, rows)
    nothing = net.add("Equal", net.add("Size", rows), net.constant(np.array(0)))
    ordered = [
        helper.make_node("TopK", [kept, net.constant(np.array([K]))], ["best", "place"], name="topk"),
        helper.make_node("Gather", [rows, "place"], ["row"], name="rows"),
        helper.make_node("Gather", [boxes, "row"], ["chosen"], name="chosen"),
    ]
    branches = {
        "then_branch": ([helper.make_node("Identity", [boxes], ["all"], name="all")], "all"),
        "else_branch": (ordered, "chosen"),
    }
    bodies = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)])
        for name, (nodes, output) in branches.items()
    }
    return net.model(net.add("If", nothing, **bodies))


DETECTORS = {"searching": detector, "branching": branching}


def close_scores() -> dict[str, Array]:
    """Pairs of anchors with the same features in another order: sums that only rounding tells apart."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ANCHORS, FEATURES)).astype(np.float32)
    for row in range(0, ANCHORS, 2):
        x[row + 1] = rng.permutation(x[row])
    return {"x": x}


def report_of(dtype: str, build: Callable[[], bytes] = detector) -> ValidationReport:
    return validate(trnrt.InferenceSession(build(), dtype=dtype, cache=False), close_scores())


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[Plan], Plan]) -> None:
    """Make a mistake in every plan."""

    def wrong(*arguments: Any, **options: Any) -> Partition:
        partition = make_partition(*arguments, **options)
        part, *ends = partition.parts
        assert isinstance(part, DevicePart)
        return replace(partition, parts=(replace(part, plan=change(part.plan)), *ends))

    monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", wrong)


@pytest.mark.parametrize("build", DETECTORS.values(), ids=DETECTORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_order_of_close_scores_passes(dtype: str, build: Callable[[], bytes]) -> None:
    session, feeds = trnrt.InferenceSession(build(), dtype=dtype, cache=False), close_scores()
    (mine,), (theirs,) = session.run(None, feeds), run_onnxruntime(session, feeds)
    assert np.abs(mine - theirs).max() > 0.5  # other boxes
    report = validate(session, feeds)
    assert report.passed and any("chooses by the data" in note for note in report.notes)
    *offered, chosen = report.outputs
    assert len(offered) == 2 and all(output.split is not None for output in offered) == (dtype != "float32")
    assert chosen.name == session.get_outputs()[0].name and chosen.max_abs == 0


def test_the_wrong_end_of_the_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def smallest(plan: Plan) -> Plan:
        return replace(plan, source=plan.source.replace(f"{K}, True)", f"{K}, False)"))

    plant(monkeypatch, smallest)
    report = report_of("float32")
    assert not report.passed
    assert [output.passed for output in report.outputs] == [True, True, False]


@pytest.mark.parametrize("build", DETECTORS.values(), ids=DETECTORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_weight_before_the_choice_fails(
    monkeypatch: pytest.MonkeyPatch, dtype: str, build: Callable[[], bytes]
) -> None:
    plant(monkeypatch, lambda plan: shifted(plan, "matmul_0_w", 0.1))
    report = report_of(dtype, build)
    assert not report.passed
    assert [output.passed for output in report.outputs] == [True, False, True]


def test_a_model_without_a_choice_is_one() -> None:
    net = Net("plain", [4, 8])
    plain = net.model(net.add("MatMul", "x", net.weight(8, 3)))
    assert split_at_choices(trnrt.InferenceSession(plain, cache=False)) is None


def test_the_choice_starts_where_the_search_reads() -> None:
    choice = split_at_choices(trnrt.InferenceSession(detector(), cache=False))
    assert choice is not None and len(choice.offered) == 2
    kinds = [node.op_type for node in choice.tail.model.model.graph]
    assert "TopK" in kinds and "MatMul" not in kinds
    assert {node.op_type for node in choice.front.model.model.graph} == {"MatMul", "Tanh", "Reshape"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_may_choose_otherwise_where_scores_are_close(dtype: str) -> None:
    session = trnrt.InferenceSession(detector(), dtype=dtype, cache=False)
    report = validate_layers(session, close_scores())
    assert report.passed, [layer for layer in report.layers if not layer.passed]
