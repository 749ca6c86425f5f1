"""Two physical cores of a logical one divide a batch: the same answers, in less predicted time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import TOLERANCE, drawn, modelled, onnxruntimes
from test_planner_sweeps import block

import trnrt
from trnrt.backends import DeviceOptions
from trnrt.backends.simulator import SimulatedKernel
from trnrt.errors import KernelError, OptionError
from trnrt.nki import Spec
from trnrt.nki.machine.timing import Range
from trnrt.planner import Plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.cores.sharing import is_faster
from trnrt.planner.saving.partitions import decode, encode
from trnrt.planner.searching.trial import trace_source
from trnrt.validate.layers import validate_layers

TWO = DeviceOptions(lnc=2)
DIGITS = "models/digits_cnn.onnx"


def session_of(
    model: onnx.ModelProto,
    dtype: str = "float32",
    target: str = "trn2",
    lnc: int = 2,
    buckets: tuple[int, ...] = (4,),
    choices: Choices = DEFAULT,
) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(
        model.SerializeToString(),
        dtype=dtype,
        target=target,
        backend="simulator",
        cache=False,
        buckets=buckets,
        choices=choices,
        device=DeviceOptions(lnc=lnc),
    )


def plan_of(session: trnrt.InferenceSession) -> Plan:
    plan = session.last_run.plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_answers_are_onnxruntimes_and_one_cores(dtype: str, target: str) -> None:
    """To the bit those of one core with half the rows."""
    session, feeds = session_of(block(), dtype, target), {"x": drawn(4, 3, 12, 12)}
    outputs = session.run(None, feeds)
    plan = plan_of(session)
    assert plan.cores == 2 and "row = nl.program_id(0) * 2" in plan.source
    alone = session_of(block(), dtype, target, lnc=1, buckets=(2,)).run(None, feeds)
    for ours, theirs, ones in zip(outputs, onnxruntimes(block(), feeds), alone, strict=True):
        np.testing.assert_array_equal(ours, ones)
        tolerance = min(TOLERANCE[dtype], 5e-2)
        np.testing.assert_allclose(
            ours.astype(np.float32), theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max()
        )


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 9),
    channels=st.integers(1, 40),
    size=st.integers(3, 14),
    kernel=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_any_shape(rows: int, channels: int, size: int, kernel: int, seed: int) -> None:
    graph = """(float[N,C,H,H] x) => (float[N,5] y) {
        c = Conv<pads=[P,P,P,P]>(x, w)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  y = MatMul(f, m) }"""
    for name, value in {"C": channels, "H": size, "P": kernel // 2}.items():
        graph = graph.replace(f"{name},", f"{value},").replace(f"{name}]", f"{value}]")
    weights = {"w": drawn(7, channels, kernel, kernel, seed=seed), "m": drawn(7, 5, seed=seed)}
    model, feeds = modelled(graph, weights), {"x": drawn(rows, channels, size, size, seed=seed)}
    session = session_of(model, buckets=(rows,))
    (got,), (expected,) = session.run(None, feeds), onnxruntimes(model, feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert plan_of(session).cores in ((1, 2) if rows % 2 == 0 else (1,))


def test_each_core_makes_passes() -> None:
    session, feeds = session_of(block(), choices=Choices(rows=1)), {"x": drawn(4, 3, 12, 12)}
    outputs = session.run(None, feeds)
    assert "start = nl.program_id(0) * 2" in plan_of(session).source
    assert "for row in range(start, start + 2, 1):" in plan_of(session).source
    for ours, theirs in zip(outputs, onnxruntimes(block(), feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_the_prediction_is_that_of_half_the_rows() -> None:
    two, one = (
        trnrt.InferenceSession(DIGITS, backend="simulator", cache=False, device=DeviceOptions(lnc=lnc))
        for lnc in (2, 1)
    )
    assert two.latency(64) == one.latency(32)
    assert one.latency(64).us > two.latency(64).us
    (note,) = (note for note in two.partition(64).notes if "2 cores" in note)
    assert note.startswith("2 cores divide the work, 32 of 64 rows each: predicted ")


@pytest.mark.parametrize(
    ("rows", "reason"), [(1, "1 row can't be divided evenly"), (3, "3 rows can't be divided evenly")]
)
def test_what_is_not_divided_says_why(rows: int, reason: str) -> None:
    session = trnrt.InferenceSession(DIGITS, backend="simulator", cache=False, device=TWO)
    partition = session.partition(rows)
    (note,) = (note for note in partition.notes if "2 cores" in note)
    assert note.startswith(f"2 cores do the same work: {reason}; ")
    assert [plan.cores for plan in partition.plans] == [1]


def test_rows_that_depend_on_each_other_stay_together() -> None:
    model = modelled("(float[N,8] x) => (float[N,8] y) { m = ReduceMean<axes=[0], keepdims=1>(x) y = Sub(x, m) }")
    session, feeds = session_of(model), {"x": drawn(4, 8)}
    np.testing.assert_allclose(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0], rtol=1e-5, atol=1e-5)
    assert any("the rows of the batch depend on each other" in note for note in session.partition(4).notes)


def test_a_plan_above_the_budget_is_not_divided() -> None:
    session = trnrt.InferenceSession(DIGITS, backend="simulator", cache=False, device=TWO, max_instructions=40)
    partition = session.partition(64)
    assert any("keeps the budget of instructions" in note for note in partition.notes)
    assert {plan.cores for plan in partition.plans} == {1}


def test_trn1_has_no_logical_cores() -> None:
    with pytest.raises(OptionError, match="--lnc 2: trn1 has no logical cores of 2") as caught:
        session_of(block(), target="trn1")
    assert "LNC is always 1" in str(caught.value.hint)


def test_a_divided_module_refuses_one_core() -> None:
    plan = session_of(block()).plan(4)
    specs = [Spec(weight.shape, weight.dtype) for weight in plan.weights.values()]
    with pytest.raises(KernelError, match=r"launch it on 2 cores: kernel\[2\]"):
        trace_source(plan.source, plan.entry, plan.inputs, specs, plan.target)


def test_a_divided_plan_is_kept_and_its_steps_are_right() -> None:
    session = session_of(block())
    partition = session.partition(4)
    assert decode(*encode(partition)).plans[0].cores == 2
    feeds = {"x": drawn(4, 3, 12, 12)}
    session.run(None, feeds)
    assert all(layer.passed for layer in validate_layers(session, feeds).layers)


def test_weights_are_loaded_once_for_both_cores() -> None:
    session = session_of(block())
    first, second = ({"x": drawn(4, 3, 12, 12, seed=seed)} for seed in (1, 2))
    before = session.run(None, first)
    session.run(None, second)
    np.testing.assert_array_equal(session.run(None, first)[0], before[0])
    (loaded,) = (plan.kernel for program in session.last_run.programs for plan in program.plans)
    assert isinstance(loaded, SimulatedKernel) and len(loaded.programs) == 2


@pytest.mark.parametrize(
    ("one", "other", "faster"),
    [
        (Range(1, 2, 3), Range(2, 3, 4), True),
        (Range(1, 2, 5), Range(2, 3, 5.5), True),
        (Range(1, 2, 7), Range(2, 3, 5.5), False),
        (Range(1, 3, 4), Range(2, 3, 5), False),
    ],
)
def test_the_whole_range_decides(one: Range, other: Range, faster: bool) -> None:
    assert is_faster(one, other) == faster
