"""A batch that does not fit is taken some rows at a time, by the plan for these: only the time changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from planning import TOLERANCE, drawn, modelled, onnxruntimes
from test_planner_sweeps import block, named, wide

import trnrt
from trnrt.importer import import_model
from trnrt.planner import Plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.making import Planning
from trnrt.planner.options import PlanOptions
from trnrt.planner.placing.passes import fewer_rows, most_fewer
from trnrt.planner.placing.sweeps import Sweep
from trnrt.planner.rendering.draft import Material
from trnrt.planner.rendering.stepwise import split_functions
from trnrt.planner.saving.partitions import decode, encode
from trnrt.planner.searching.trials import Timed
from trnrt.planner.sizes import default_shapes
from trnrt.running.profiler import profile_plan
from trnrt.validate.layers import validate_layers


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of any size may be taken in parts, not only those that take long to plan."""
    monkeypatch.setattr("trnrt.planner.placing.passes.AT_ONCE", 1)


def in_passes(rows: int, sweep: Sweep | None = None) -> Choices:
    """The choice of passes of so many rows, with this sweep of ``block`` within them."""
    return Choices(rows=rows, sweeps=frozenset() if sweep is None else named(sweep))


def session_of(
    model: onnx.ModelProto, dtype: str = "float32", target: str = "trn2", choices: Choices = DEFAULT
) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(
        model.SerializeToString(),
        dtype=dtype,
        target=target,
        backend="simulator",
        cache=False,
        buckets=(4,),
        choices=choices,
    )


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "sweep"), [(1, None), (2, None), (2, Sweep(1, 4, 1))], ids=str)
def test_answers_are_right(rows: int, sweep: Sweep | None, dtype: str, target: str) -> None:
    """As onnxruntime's, of an inner value that leaves the model, too, and with a loop over images within a pass."""
    session, feeds = session_of(block(), dtype, target, in_passes(rows, sweep)), {"x": drawn(4, 3, 12, 12)}
    outputs = session.run(None, feeds)
    plan = session.last_run.plan
    assert plan is not None and f"for row in range(0, 4, {rows}):" in plan.source
    assert {step.images for step in plan.steps} == {rows, *([1] if sweep is not None else [])}
    for ours, theirs in zip(outputs, onnxruntimes(block(), feeds), strict=True):
        tolerance = min(TOLERANCE[dtype], 5e-2)
        np.testing.assert_allclose(
            ours.astype(np.float32), theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max()
        )


@pytest.mark.parametrize("sweep", [None, Sweep(1, 4, 1)], ids=str)
def test_each_step_is_validated(sweep: Sweep | None) -> None:
    """A step alone takes as many rows at a time as in its loop; a wrong weight in it is found."""
    session, feeds = session_of(block(), choices=in_passes(2, sweep)), {"x": drawn(4, 3, 12, 12)}
    plan = session.plan(4)
    report = validate_layers(session, feeds)
    assert report.passed and len(report.layers) == len(plan.steps)
    wrong = next(step for step in plan.steps if step.weights != "none")
    name = next(name for name in plan.weights if name.startswith(("weights", wrong.name)))
    plan.weights[name] = plan.weights[name] * np.float32(1.5)
    assert not validate_layers(session, feeds, plan=plan).passed


def test_it_is_kept_and_profiled(tmp_path: Path) -> None:
    session = session_of(block(), choices=in_passes(2))
    partition = session.partition(4)
    plan = partition.plans[0]
    assert decode(*encode(partition)).plans[0].steps == plan.steps
    assert [tensor.shape for tensor in (*plan.inputs, *plan.results)] == [(4, 3, 12, 12), (4, 20, 6, 6), (4, 5)]
    assert all(step.shape[0] == 4 and all(source.shape[0] == 4 for source in step.sources) for step in plan.steps)
    profile = profile_plan(plan, tmp_path)
    assert all(step.time_us >= 0 for step in profile.steps)
    found = profile_plan(split_functions(plan), tmp_path).steps
    assert [(step.name, step.time_us) for step in found] == [(step.name, step.time_us) for step in profile.steps]


# -- rows that are joined with other dimensions ------------------------------------------------------


def tokens() -> onnx.ModelProto:
    """Token ids to a first token, which is repeated for the batch, and theirs; normalised, and multiplied."""
    graph = """(int64[N,5] ids) => (float[N,6,16] y, float[N,5,16] t) {
        t = Gather(words, ids)  s = Shape(ids)  n = Slice(s, zero, one, zero)  to = Concat<axis=0>(n, one_sixteen)
        e = Expand(first, to)  k = Concat<axis=1>(e, t)  l = LayerNormalization(k, scale, shift)
        m = MatMul(l, w)  y = Add(m, k) }"""
    constants = {
        "words": drawn(9, 16),
        "first": drawn(1, 1, 16, seed=1),
        "scale": drawn(16),
        "shift": drawn(16, seed=2),
    }
    numbers = {"zero": np.array([0]), "one": np.array([1]), "one_sixteen": np.array([1, 16])}
    return modelled(graph, constants | numbers | {"w": drawn(16, 16) / 4})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2])
def test_tokens_go_with_their_row(rows: int, dtype: str) -> None:
    """Tensors of rows times tokens, of numbers that the host prepares, and a constant that is the same for each row."""
    session = session_of(tokens(), dtype, choices=in_passes(rows))
    feeds = {"ids": np.arange(20).reshape(4, 5) % 9}
    outputs = session.run(None, feeds)
    assert session.last_run.plan is not None and f"for row in range(0, 4, {rows}):" in session.last_run.plan.source
    for ours, theirs in zip(outputs, onnxruntimes(tokens(), feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert validate_layers(session, feeds).passed


WITHIN = {
    "GatherElements": ("int64[N,3] i", "float[N,3] y", "y = GatherElements<axis=1>(r, i)", (4, 3)),
    "GatherElements, an element a row": ("int64[N,1] i", "float[N,1] y", "y = GatherElements<axis=1>(r, i)", (4, 1)),
    "GatherND": ("int64[N,3,1] i", "float[N,3] y", "y = GatherND<batch_dims=1>(r, i)", (4, 3, 1)),
}


@pytest.mark.parametrize("name", WITHIN)
def test_elements_that_are_counted_through_the_batch_are_not_looked_up_in_a_part(name: str) -> None:
    """The host numbers them in the tensor of all rows."""
    given, made, node, shape = WITHIN[name]
    model = modelled(f"(float[N,6] x, {given}) => ({made}) {{ r = Relu(x)  {node} }}")
    session = session_of(model, choices=in_passes(2))
    feeds = {"x": drawn(4, 6), "i": np.random.default_rng(0).integers(0, 6, shape)}
    for ours, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert session.last_run.plan is not None and "for row in" not in session.last_run.plan.source


def test_elements_that_a_search_found_are_looked_up_in_a_part() -> None:
    """The device numbers them in the tensor of the pass."""
    graph = "(float[N,6] x) => (float[N,2] y) { r = Relu(x)  v, k = TopK(r, two)  y = GatherElements<axis=1>(r, k) }"
    model = modelled(graph, {"two": np.array([2])})
    session = session_of(model, choices=in_passes(2))
    feeds = {"x": drawn(4, 6)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0])
    assert session.last_run.plan is not None and "for row in" in session.last_run.plan.source


def test_a_constant_that_differs_by_row_stays_whole() -> None:
    model = modelled("(float[4,3] x) => (float[4,3] y) { y = Add(x, c) }", {"c": drawn(4, 3)})
    assert session_of(model, choices=in_passes(2)).plan(4).source.count("for row in") == 0


# -- when ---------------------------------------------------------------------------------------------


def planned(
    model: onnx.ModelProto, rows: int, dtype: str, target: str, choices: Choices = DEFAULT
) -> tuple[Plan, float]:
    """The plan for so many rows, and its predicted latency."""
    plan = session_of(model, dtype, target, choices).plan(rows)
    return plan, profile_plan(plan).benchmark_us


@pytest.mark.parametrize(
    ("dtype", "target"), [("bfloat16", "trn2"), ("bfloat16", "trn1"), ("float32", "trn2"), ("float32", "trn1")]
)
def test_a_batch_takes_no_longer_than_its_halves(dtype: str, target: str) -> None:
    """Where it does not fit SBUF, which a batch of four or eight does not."""
    times = {rows: planned(wide("N"), rows, dtype, target)[1] for rows in (2, 4, 8, 16)}
    for rows in (2, 4, 8):
        assert times[2 * rows] <= 1.02 * 2 * times[rows], times


def test_the_timing_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen images at once, or eight twice, which the plan says: what is predicted to be faster. The answer stays."""
    model = wide("N")
    whole, us = planned(model, 16, "bfloat16", "trn1")
    _, longer = planned(model, 16, "bfloat16", "trn1", in_passes(8))
    assert not any("at a time" in note for note in whole.notes) and us < longer
    gain_over = Timed.gain_over

    def prefer_passes(whole: Timed, other: Timed) -> float:
        return gain_over(whole, other) if whole.choices.rows == other.choices.rows else -1.0

    monkeypatch.setattr(Timed, "gain_over", prefer_passes)
    plan, _ = planned(model, 16, "bfloat16", "trn1")
    assert "for row in range(0, 16, " in plan.source
    assert any("rows of 16 at a time" in note for note in plan.notes)
    feeds = {"x": drawn(16, 3, 64, 64)}
    session = trnrt.InferenceSession(model.SerializeToString(), target="trn1", dtype="bfloat16", cache=False)
    (ours,) = session.run(None, feeds)
    (theirs,) = onnxruntimes(model, feeds)
    np.testing.assert_allclose(ours.astype(np.float32), theirs, rtol=5e-2, atol=5e-2 * np.abs(theirs).max())


def test_usual_batches_are_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are tried for large batches; with effort, for any that doesn't fit."""
    tried: list[int] = []

    def refuse(_: Planning, choices: Choices, rows: int) -> None:
        tried.append(rows)

    monkeypatch.setattr(Planning, "part_material", refuse)
    session_of(wide("N")).plan(16)
    assert tried == [8]
    monkeypatch.setattr("trnrt.planner.placing.passes.AT_ONCE", 16)
    session_of(wide("N")).plan(16)
    assert tried == [8]
    session = session_of(wide("N"))
    session.with_options(replace(session.options, effort=1)).plan(16)
    assert tried == [8, 8]


def test_parts_of_a_batch() -> None:
    assert [most_fewer(batch) for batch in (2, 3, 8, 12, 15, 31)] == [1, 1, 4, 6, 5, 1]


def fewer_of(model: onnx.ModelProto, batch: int) -> Material | None:
    """The material for a half of a batch, as the search is offered it."""
    imported = import_model(model.SerializeToString())
    shapes = default_shapes(imported, batch)
    view = imported.bind(shapes, {})
    fewer = fewer_rows(imported, shapes, {}, view)
    return Planning(imported, view, PlanOptions(), batch, fewer).part_material(DEFAULT, most_fewer(batch))


def test_rows_that_are_independent_are_parted() -> None:
    part = fewer_of(block(), 4)
    assert part is not None and part.batch == 2 and part.inputs[0].shape == (2, 3, 12, 12)


@pytest.mark.parametrize(
    "graph",
    [
        "(float[N,4] x) => (float[N,4] y) { m = ReduceMean<axes=[0], keepdims=1>(x)  y = Sub(x, m) }",
        "(float[N,4] x) => (float[N,4] y) { y = Softmax<axis=0>(x) }",
        # The number of rows becomes a number that is computed with.
        """(float[N,4] x) => (float[N,4] y) {
            s = Shape<start=0, end=1>(x)  n = Cast<to=1>(s)  y = Div(x, n) }""",
        # Rows first, but of two sizes.
        "(float[N,4] x) => (float[N,4] y) { t = Reshape(x, s)  r = Relu(t)  y = Reshape(r, u) }",
        "(float[4,4] x) => (float[4,4] y) { y = Relu(x) }",
    ],
    ids=["mean", "softmax", "count", "mixed_shape", "fixed"],
)
def test_what_else_is_not(graph: str) -> None:
    tensors = {"s": np.array([2, -1]), "u": np.array([-1, 4])} if "Reshape" in graph else {}
    assert fewer_of(modelled(graph, tensors), 4) is None
