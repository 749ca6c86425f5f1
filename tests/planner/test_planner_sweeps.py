"""Consecutive steps that take some images of a batch at a time: only places and the time change."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import numpy as np
import onnx
import pytest
from planning import TOLERANCE, drawn, modelled, onnxruntimes

import trnrt
from trnrt.nki import Spec
from trnrt.planner import Plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.placing.sweeps import Sweep, sweep_bounds, sweep_sizes
from trnrt.planner.rendering.draft import Material
from trnrt.planner.rendering.stepwise import split_functions
from trnrt.planner.saving.partitions import decode, encode
from trnrt.planner.searching import fitting, trials
from trnrt.planner.searching.fitting import Fitted
from trnrt.planner.searching.trial import trace_source
from trnrt.running.profiler import profile_plan
from trnrt.validate.layers import validate_layers

BLOCK = """(float[N,3,12,12] x) => (float[N,5] y, float[N,20,6,6] s) {
    a = Conv<pads=[1,1,1,1]>(x, v, vb)  r = Relu(a)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    b = Conv<pads=[1,1,1,1]>(p, w, wb)  s = Relu(b)
    c = Conv<pads=[1,1,1,1]>(s, u, ub)  d = Add(c, p)  t = Relu(d)
    m = MaxPool<kernel_shape=[3,3], strides=[1,1]>(t)
    g = GlobalAveragePool(m)  f = Flatten(g)  y = Gemm(f, k, kb) }"""


def block(width: int = 20) -> onnx.ModelProto:
    """A residual block with pools, one of whose inner values leaves the model."""
    scale = np.float32(1 / np.sqrt(9 * width))
    return modelled(
        BLOCK.replace("20", str(width)),
        {
            "v": drawn(width, 3, 3, 3) / 5,
            "w": drawn(width, width, 3, 3) * scale,
            "u": drawn(width, width, 3, 3, seed=1) * scale,
            "k": drawn(width, 5) / 12,
            **{name: drawn(width, seed=k) for k, name in enumerate(("vb", "wb", "ub"))},
            "kb": drawn(5),
        },
    )


def named(*sweeps: Sweep) -> frozenset[tuple[str, str, int]]:
    """Sweeps of ``block`` as ``Choices`` name them."""
    steps = session_of().plan(4).steps
    return frozenset((steps[one.first].name, steps[one.end - 1].name, one.images) for one in sweeps)


def session_of(dtype: str = "float32", target: str = "trn2", choices: Choices = DEFAULT) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(
        block().SerializeToString(), dtype=dtype, target=target, cache=False, buckets=(4,), choices=choices
    )


def swept(*sweeps: Sweep, dtype: str = "float32", target: str = "trn2") -> trnrt.InferenceSession:
    """A session of ``block`` whose plan has these sweeps."""
    return session_of(dtype, target, Choices(sweeps=named(*sweeps)))


SWEEPS = [
    Sweep(first, end, images) for first in range(4) for end in (first + 1, 4, 5) if end > first for images in (1, 2)
]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_answers_are_right(sweep: Sweep, dtype: str, target: str) -> None:
    """Any stretch of steps, any number of images, as onnxruntime answers."""
    check_answers(swept(sweep, dtype=dtype, target=target), dtype, sweep)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "sweeps",
    [(Sweep(0, 2, 1), Sweep(2, 4, 2)), (Sweep(0, 1, 2), Sweep(2, 5, 1)), (Sweep(0, 1, 1), Sweep(1, 3, 1))],
    ids=str,
)
def test_several_sweeps_are_right(sweeps: tuple[Sweep, ...], dtype: str) -> None:
    """Next to each other, or apart; what leaves one waits whole for the next."""
    check_answers(swept(*sweeps, dtype=dtype), dtype, *sweeps)


def check_answers(session: trnrt.InferenceSession, dtype: str, *sweeps: Sweep) -> None:
    """Check a plan with these sweeps, and its answers."""
    feeds = {"x": drawn(4, 3, 12, 12)}
    outputs = session.run(None, feeds)
    plan = session.last_run.plan
    assert plan is not None
    for sweep in sweeps:
        assert {step.images for step in plan.steps[sweep.first : sweep.end]} == {sweep.images}
        assert f"for first in range(0, 4, {sweep.images}):" in plan.source
    assert plan.source.count("for first in") == len(sweeps)
    for ours, theirs in zip(outputs, onnxruntimes(block(), feeds), strict=True):
        tolerance = min(TOLERANCE[dtype], 5e-2)
        np.testing.assert_allclose(
            ours.astype(np.float32), theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max()
        )


@pytest.mark.parametrize("sweep", [Sweep(0, 4, 1), Sweep(1, 3, 2)], ids=str)
def test_each_step_of_a_sweep_is_validated(sweep: Sweep) -> None:
    """A step alone takes as many images at a time as in its loop; a wrong weight in it is found."""
    session, feeds = swept(sweep), {"x": drawn(4, 3, 12, 12)}
    report = validate_layers(session, feeds)
    assert report.passed and len(report.layers) == len(session.plan(4).steps)
    plan = session.plan(4)
    wrong = next(step for step in plan.steps if step.images and step.weights != "none")
    name = next(name for name in plan.weights if name.startswith(("weights", wrong.name)))
    plan.weights[name] = plan.weights[name] * np.float32(1.5)
    failed = validate_layers(session, feeds, plan=plan)
    assert not failed.passed and failed.first_failure is not None


def test_it_is_kept_and_profiled(tmp_path: Path) -> None:
    session = swept(Sweep(1, 4, 2))
    partition = session.partition(4)
    again = decode(*encode(partition))
    assert [step.images for step in again.plans[0].steps] == [step.images for step in partition.plans[0].steps]
    profile = profile_plan(partition.plans[0], tmp_path)
    assert all(step.time_us >= 0 for step in profile.steps)
    assert {step.name for step in partition.plans[0].steps} <= {step.name for step in profile.steps}
    stepwise = split_functions(partition.plans[0])
    assert "        step_1(" in stepwise.source, "in the loop"
    found = profile_plan(stepwise, tmp_path).steps
    assert [(step.name, step.time_us) for step in found] == [(step.name, step.time_us) for step in profile.steps]


def test_what_only_the_sweep_touches_is_as_large_as_its_images() -> None:
    source = swept(Sweep(1, 4, 2)).plan(4).source
    before, _, inside = source.partition("for first in range(0, 4, 2):")
    assert "nl.ndarray((20, 1, 4, 6, 6)" in before and "nl.ndarray((20, 1, 2, 6, 6)" in inside


# -- which one ----------------------------------------------------------------------------------------


def wide(images: int | str) -> onnx.ModelProto:
    """Three convolutions, between which a batch of these images does not fit SBUF; ``N`` leaves it open."""
    graph = """(float[N,3,64,64] x) => (float[N,5] y) {
        a = Conv<pads=[1,1,1,1]>(x, v)  r = Relu(a)  b = Conv(r, w)  s = Relu(b)  c = Conv(s, u)  t = Add(c, r)
        z = Relu(t)  h = Conv<strides=[8,8]>(z, q)  g = GlobalAveragePool(h)  f = Flatten(g)  y = Gemm(f, k) }"""
    tensors = {
        "v": drawn(48, 3, 3, 3) / 5,
        "w": drawn(140, 48, 1, 1) / 7,
        "u": drawn(48, 140, 1, 1) / 12,
        "q": drawn(64, 48, 1, 1) / 7,
        "k": drawn(64, 5) / 8,
    }
    return modelled(graph.replace("N", str(images)), tensors)


def plan_of(model: onnx.ModelProto, images: int, effort: int = 0) -> Plan:
    session = trnrt.InferenceSession(model.SerializeToString(), target="trn2", cache=False, effort=effort)
    return session.plan(images)


def specs_of(plan: Plan) -> list[Spec]:
    return [Spec(array.shape, array.dtype) for array in plan.weights.values()]


def test_the_timing_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch does not fit, a sweep is planned that is predicted to be faster; the answer stays."""
    model = wide(8)
    plan = plan_of(model, 8)
    assert any(step.images for step in plan.steps)
    with monkeypatch.context() as patch:
        patch.setattr(trials, "BUDGET", 0)
        plain = plan_of(model, 8)
    assert not any(step.images for step in plain.steps)
    assert any("does not fit" in step.reason for step in plain.steps)
    assert profile_plan(plan).benchmark_us < profile_plan(plain).benchmark_us
    feeds = {"x": drawn(8, 3, 64, 64)}
    (ours,) = trnrt.InferenceSession(model.SerializeToString(), target="trn2", cache=False).run(None, feeds)
    np.testing.assert_allclose(ours, onnxruntimes(model, feeds)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("share", [1, 4, 16])
def test_more_effort_never_finds_a_slower_division(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early the budget ends: the search begins with the plan without effort."""
    monkeypatch.setattr(trials, "BUDGET", trials.BUDGET // share)
    less, more = (profile_plan(plan_of(wide(8), 8, effort=effort)).benchmark for effort in (0, 1))
    assert more.us <= less.us and more.least_us + more.most_us <= less.least_us + less.most_us


def test_what_fits_is_not_swept() -> None:
    assert not any(step.images for step in session_of().plan(4).steps)
    assert not any(step.images for step in plan_of(wide(1), 1).steps)


def test_sizes_divide_the_batch() -> None:
    assert list(sweep_sizes(8)) == [1, 2, 4] and list(sweep_sizes(6)) == [1, 2, 3] and list(sweep_sizes(1)) == []


def test_no_sweep_without_something_to_keep() -> None:
    assert list(sweep_bounds([], [], 4)) == []


def test_sweeps_that_can_t_be_are_ignored() -> None:
    """Steps that there aren't, in the wrong order, twice, or with images that don't divide the batch."""
    (first, last, _), names = next(iter(named(Sweep(0, 2, 2)))), [step.name for step in session_of().plan(4).steps]
    kept = (first, last, 2)
    for other in [("nobody", last, 2), (last, first, 2), (last, names[3], 2), (names[3], names[3], 3)]:
        plan = session_of(choices=Choices(sweeps=frozenset({kept, other}))).plan(4)
        assert [step.images for step in plan.steps].count(2) == 2 and plan.source.count("for first in") == 1


def test_what_finds_no_room_is_paid_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in which no sweep fits is traced as often as the budget allows, not once for each sweep."""
    tried: list[Material] = []

    def refuse(material: Material, known: Container[object] = ()) -> Fitted | None:
        if not material.choices.sweeps:
            return fitting.fit(material, known)
        tried.append(material)
        return None

    monkeypatch.setattr(trials, "fit", refuse)
    plan = plan_of(wide(8), 8)
    assert len(tried) > 1 and not any(step.images for step in plan.steps)
    tried.clear()
    monkeypatch.setattr(trials, "BUDGET", 1)
    plan_of(wide(8), 8)
    assert tried == []
    size = trials.TRIAL + len(
        trace_source(plan.source, plan.entry, plan.inputs, specs_of(plan), plan.target).instructions
    )
    monkeypatch.setattr(trials, "BUDGET", 3 * size)
    plan_of(wide(8), 8)
    assert len(tried) == 1  # the first costs more than what is left
