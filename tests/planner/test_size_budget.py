"""A budget of instructions: the kernels keep it, and the answers stay onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import TOLERANCE, Array, drawn, modelled, onnxruntimes

import trnrt
from trnrt.errors import KernelSizeError, OptionError
from trnrt.nki.checking import check
from trnrt.planner import PlanOptions
from trnrt.planner.options import NO_BUDGET
from trnrt.planner.parts.partition import Partition
from trnrt.planner.rendering.stepwise import split_functions
from trnrt.planner.saving.partitions import decode, encode
from trnrt.planner.sizing.budget import PlannedKernel, _Budgeting
from trnrt.running.profiler import profile_plan
from trnrt.validate.layers import validate_layers

Way = Callable[[_Budgeting], list[PlannedKernel] | None]

LOOP: Way = _Budgeting._loop
CUT_AND_LOOP: Way = _Budgeting._cut_and_loop


def cut(budgeting: _Budgeting) -> list[PlannedKernel]:
    return budgeting._cut(budgeting._whole, 1)


def tall() -> onnx.ModelProto:
    """Convolutions whose instructions grow with the batch; an inner value is an output, and is read by two steps."""
    shapes = {"w1": (16, 8, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (16, 16, 3, 3), "b3": (16,)}
    weights = {name: drawn(*shape) * (0.2 if len(shape) > 1 else 1) for name, shape in shapes.items()}
    return modelled(
        "(float[N,8,48,48] x) => (float[N,5] y, float[N,16,24,24] c2) {"
        "c1 = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(x, w1, b1)  r1 = Relu(c1)"
        "c2 = Conv<kernel_shape=[3,3],pads=[1,1,1,1],strides=[2,2]>(r1, w2, b2)  r2 = Relu(c2)"
        "c3 = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(r2, w3, b3)  s = Add(c3, c2)"
        "g = GlobalAveragePool(s)  f = Flatten(g)  y = Gemm<transB=1>(f, w4, b4) }",
        weights | {"w4": drawn(5, 16), "b4": drawn(5)},
    )


def session_of(
    model: onnx.ModelProto, budget: int | None, batch: int, dtype: str = "float32", fallback: str | None = None
) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(
        model.SerializeToString(),
        dtype=dtype,
        backend="simulator",
        cache=False,
        buckets=(batch,),
        max_instructions=budget,
        fallback=fallback,
    )


def answer(session: trnrt.InferenceSession, model: onnx.ModelProto, feeds: dict[str, Array]) -> Partition:
    """Run the model, and compare all outputs with onnxruntime's; the parts that ran."""
    tolerance = TOLERANCE[session.dtype]
    for ours, theirs in zip(session.run(None, feeds), onnxruntimes(model, feeds), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind == "f":
            scale = max(1.0, float(np.abs(theirs).max(initial=0)))
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(ours, theirs)
    partition = session.last_run.partition
    assert partition is not None
    return partition


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("way", "budgets"), [(LOOP, (140, 140)), (cut, (140, 260)), (CUT_AND_LOOP, (75, 75))], ids=["loop", "cut", "both"]
)
@pytest.mark.parametrize(("batch", "number"), [(4, 0), (8, 1)])
def test_each_way_answers_right(
    way: Way,
    budgets: tuple[int, int],
    batch: int,
    number: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As onnxruntime, within the budget, and as text that NKI takes."""
    monkeypatch.setattr(_Budgeting, "kernels", way)
    session = session_of(tall(), budgets[number], batch, dtype)
    partition = answer(session, tall(), {"x": drawn(batch, 8, 48, 48)})
    assert all(plan.size.compiled <= session.options.budget for plan in partition.plans)
    assert (len(partition.plans) > 1) == (way is not LOOP)
    assert all((plan.size.trips > 1) == ("nl.fori_loop" in plan.source) == (way is not cut) for plan in partition.plans)
    for plan in partition.plans:
        path = tmp_path / f"{plan.name}.py"
        path.write_text(plan.source)
        assert check(path, calls=()).findings == []


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_loops_and_cuts_answer_right_on_other_targets(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Budgeting, "kernels", CUT_AND_LOOP)
    model = tall()
    session = trnrt.InferenceSession(
        model.SerializeToString(), target=target, backend="simulator", cache=False, buckets=(4,), max_instructions=80
    )
    assert answer(session, model, {"x": drawn(4, 8, 48, 48)}).plans[0].size.trips == 4


def test_a_loop_counts_its_body_once() -> None:
    """As many instructions run as are issued; the loop's barriers are none."""
    for plan in session_of(tall(), 60, 8).partition(8).plans:
        assert plan.size.trips == 8
        assert profile_plan(plan).instructions == plan.size.unrolled
        assert plan.size.compiled * 4 < plan.size.unrolled < plan.size.compiled * 8 + 1


def test_a_budget_that_is_large_enough_changes_nothing() -> None:
    model = tall()
    free, held = (session_of(model, budget, 4).partition(4) for budget in (NO_BUDGET, 5_000))
    assert [plan.source for plan in free.plans] == [plan.source for plan in held.plans]
    assert free.plans[0].size.compiled == free.plans[0].size.unrolled > 100


ODD = {
    "an inner value that is an output": (
        "(float[2,6] x) => (float[2,6] a, float[2,6] y)"
        "{ a = Softmax(x)  b = MatMul(a, w)  c = Softmax(b)  y = Add(c, a) }"
    ),
    "an output that is an input": "(float[2,6] x) => (float[2,6] y, float[2,6] z) "
    "{ a = Softmax(x)  b = MatMul(a, w)  y = Softmax(b)  z = Identity(x) }",
    "a constant output": "(float[2,6] x) => (float[2,6] y, float[6,6] z) "
    "{ a = Softmax(x)  b = MatMul(a, w)  y = Softmax(b)  z = Identity(w) }",
    "a host node that reads an early result": "(float[2,6] x) => (int32[2,1] c, float[2,6] y) "
    "{ i = ArgMax<axis=1>(x)  c = Cast<to=6>(i)  b = MatMul(x, w)  y = Softmax(b) }",
    "an input that only the last kernel reads": "(float[2,6] x, float[2,6] z) => (float[2,6] y) "
    "{ a = Softmax(x)  b = MatMul(a, w)  c = Softmax(b)  y = Sub(c, z) }",
    "a value in another order": "(float[2,3,6] x) => (float[2,6,3] y) "
    "{ a = Softmax(x)  b = MatMul(a, w)  t = Transpose<perm=[0,2,1]>(b)  y = Softmax(t) }",
    "two names of one value": "(float[2,6] x) => (float[2,6] y, float[12] z) "
    "{ a = Softmax(x)  b = MatMul(a, w)  y = Softmax(b)  z = Reshape(a, s) }",
}


@pytest.mark.parametrize("graph", ODD.values(), ids=list(ODD))
def test_what_crosses_between_kernels(graph: str) -> None:
    """One step in each kernel, which is the most cuts that there are."""
    model = modelled(graph, {"w": drawn(6, 6), "s": np.array([12])})
    steps = len(session_of(model, NO_BUDGET, 2).partition(2).steps)
    shape = (2, 3, 6) if "[2,3,6] x" in graph else (2, 6)
    feeds = {info.name: drawn(*shape, seed=k) for k, info in enumerate(model.graph.input)}
    least = smallest_budget(model, 2)
    partition = answer(session_of(model, least, 2), model, feeds)
    assert 1 < len(partition.plans) <= steps
    assert len(partition.nodes) == len(model.graph.node)
    assert bool(partition.plans[-1].host) == ("Cast" in graph)


def smallest_budget(model: onnx.ModelProto, batch: int) -> int:
    """The least budget that can be met."""
    budget = 1
    while True:
        try:
            session_of(model, budget, batch).partition(batch)
        except KernelSizeError as error:
            assert error.hint is not None
            budget = int(error.hint.split("--max-instructions ")[1].split(",")[0])
        else:
            return budget


def test_the_layers_of_cut_and_looped_kernels_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tall()
    feeds = {"x": drawn(4, 8, 48, 48)}
    for way, budget in ((cut, 100), (CUT_AND_LOOP, 60)):
        monkeypatch.setattr(_Budgeting, "kernels", way)
        session = session_of(model, budget, 4)
        report = validate_layers(session, feeds)
        assert report.passed and len(report.layers) == len(session.partition(4).steps) == 6


def test_a_wrong_weight_in_a_looped_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Budgeting, "kernels", LOOP)
    session = session_of(tall(), 130, 4)
    (plan,) = session.partition(4).plans
    name = next(name for name, array in plan.weights.items() if array.size > 1000)
    wrong = replace(plan, weights=plan.weights | {name: plan.weights[name] * np.float32(1.5)})
    assert not validate_layers(session, {"x": drawn(4, 8, 48, 48)}, plan=wrong).passed


def test_steps_as_functions_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Budgeting, "kernels", LOOP)
    (plan,) = session_of(tall(), 130, 4).partition(4).plans
    split = split_functions(plan)
    assert profile_plan(split).instructions == profile_plan(plan).instructions
    steps = [[step.name for step in profile_plan(one).steps if step.time_us] for one in (plan, split)]
    assert steps[0] == steps[1] and len(steps[0]) >= 5


def test_beside_the_fallback() -> None:
    """Each part on the device keeps the budget, and values still reach the CPU's part and the outputs."""
    model = modelled(
        "(float[2,6] x) => (float[2,6] y, float[2,6] b)"
        "{ a = Softmax(x)  b = MatMul(a, w)  h = Hardmax(b)  c = MatMul(h, w)  d = Softmax(c)  y = Add(d, a) }",
        {"w": drawn(6, 6)},
    )
    session = session_of(model, 12, 2, fallback="onnxruntime")
    partition = answer(session, model, {"x": drawn(2, 6)})
    assert len(partition.cpu_parts) == 1 and len(partition.plans) > 2
    assert validate_layers(session, {"x": drawn(2, 6)}).passed


def test_a_saved_partition_is_the_same() -> None:
    model = tall()
    partition = session_of(model, 60, 4).partition(4)
    saved = decode(*encode(partition))
    assert [plan.source for plan in saved.plans] == [plan.source for plan in partition.plans]
    assert [plan.size for plan in saved.plans] == [plan.size for plan in partition.plans]
    assert [part.inputs for part in saved.parts] == [part.inputs for part in partition.parts]


def test_the_cache_keeps_budgets_apart(tmp_path: Path) -> None:
    path = tmp_path / "tall.onnx"
    onnx.save(tall(), path)
    counts = []
    for budget in (NO_BUDGET, 75, NO_BUDGET):
        session = trnrt.InferenceSession(path, backend="simulator", cache_dir=tmp_path, max_instructions=budget)
        counts.append(len(session.partition(8, cached=True).plans))
    assert counts == [1, 2, 1]


def test_a_requested_budget_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(
        KernelSizeError, match=r"step 'Conv_0' \(conv2d\) alone takes \d+ instructions; .* is 10\nhint: "
    ) as got:
        session_of(tall(), 10, 8).partition(8)
    assert got.value.exit_code == 1
    assert got.value.hint is not None and got.value.hint.startswith("allow --max-instructions ")


def test_the_default_budget_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are as small as they can be, and a note names the largest."""
    monkeypatch.setattr("trnrt.planner.options.DEFAULT_BUDGET", 10)
    model = tall()
    partition = answer(session_of(model, None, 4), model, {"x": drawn(4, 8, 48, 48)})
    assert any("more than the 10 of a kernel" in note for note in partition.notes)
    assert len(max(partition.plans, key=lambda plan: plan.size.compiled).steps) == 1


def test_rows_that_depend_on_each_other_are_not_looped() -> None:
    model = modelled(
        "(float[N,40] x) => (float[N,40] y)"
        "{ m = ReduceMean<axes=[0]>(x)  a = Sub(x, m)  b = Softmax(a)  y = MatMul(b, w) }",
        {"w": drawn(40, 40)},
    )
    partition = session_of(model, smallest_budget(model, 4), 4).partition(4)
    assert all(plan.size.trips == 1 for plan in partition.plans)


@pytest.mark.parametrize("budget", [-1, -1000])
def test_a_negative_budget_is_refused(budget: int) -> None:
    with pytest.raises(OptionError, match=f"max_instructions is {budget}"):
        PlanOptions(max_instructions=budget)


@settings(max_examples=12, deadline=None)
@given(budget=st.integers(24, 120), batch=st.sampled_from([1, 2, 4]))
def test_any_budget_is_kept_or_refused(budget: int, batch: int) -> None:
    model = tall()
    try:
        partition = answer(session_of(model, budget, batch), model, {"x": drawn(batch, 8, 48, 48)})
    except KernelSizeError:
        return
    assert all(plan.size.compiled <= budget for plan in partition.plans)
    made = [step.name for plan in partition.plans for step in plan.steps]
    assert len(made) == len(set(made)) == 6


@pytest.mark.parametrize("budget", [75, 140, 240])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_more_effort_plans_no_slower_kernels(target: str, budget: int) -> None:
    """The search judges one kernel; within the budget, its choices may be the slower ones."""
    model = tall().SerializeToString()
    less, more = (
        trnrt.InferenceSession(model, target=target, cache=False, max_instructions=budget, effort=effort).latency(4)
        for effort in (0, 1)
    )
    assert more.us <= less.us and more.least_us + more.most_us <= less.least_us + less.most_us
