"""Two physical cores divide the channels or features of steps, and exchange them: the same answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import TOLERANCE, drawn, modelled, onnxruntimes
from test_planner_cores import DIGITS, TWO, session_of

import trnrt
from trnrt.backends.simulator import SimulatedKernel
from trnrt.nki.machine.timing import predict_benchmark
from trnrt.planner import Plan
from trnrt.planner.cores import outputs, sharing
from trnrt.planner.rendering.stepwise import split_functions
from trnrt.planner.saving.partitions import decode, encode
from trnrt.planner.searching.trial import trace_cores_of
from trnrt.validate.layers import validate_layers


def network(channels: int = 256, features: int = 2048, size: int = 8, seed: int = 0) -> onnx.ModelProto:
    """Convolutions, a residual sum, pools and linear layers."""
    graph = """(float[N,3,S,S] x) => (float[N,10] y) {
        c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w1, b1) a = Relu(c)
        d = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, w2, b2) e = Relu(d)
        f = Conv<kernel_shape=[1,1]>(e, w3, b3) g = Add(f, a)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(g)
        v = Flatten(p) h = Gemm(v, w4, b4) r = Relu(h) y = Gemm(r, w5, b5) }"""
    shapes: dict[str, tuple[int, ...]] = {
        "w1": (channels, 3, 3, 3),
        "w2": (channels, channels, 3, 3),
        "w3": (channels, channels, 1, 1),
    }
    shapes |= {"w4": (channels * (size // 2) ** 2, features), "w5": (features, 10)}
    shapes |= {"b1": (channels,), "b2": (channels,), "b3": (channels,), "b4": (features,), "b5": (10,)}
    weights = {}
    for k, (name, shape) in enumerate(shapes.items()):
        summed = np.prod(shape[1:]) if len(shape) == 4 else shape[0] if len(shape) == 2 else 1
        weights[name] = (drawn(*shape, seed=seed + k) / np.sqrt(summed)).astype(np.float32)
    return modelled(graph.replace("S,S", f"{size},{size}"), weights)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide every step that can be, whatever it costs."""
    monkeypatch.setattr(sharing, "is_faster", lambda one, other: True)
    monkeypatch.setattr(outputs, "_ROUNDS", 0)


def plan_in(session: trnrt.InferenceSession, rows: int) -> Plan:
    (plan,) = session.partition(rows).plans
    return plan


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_onnxruntimes(dtype: str, target: str, rows: int, always: None) -> None:
    model, feeds = network(), {"x": drawn(rows, 3, 8, 8)}
    session = session_of(model, dtype, target, buckets=(rows,))
    (got,), (expected,) = session.run(None, feeds), onnxruntimes(model, feeds)
    tolerance = min(TOLERANCE[dtype], 5e-2)
    np.testing.assert_allclose(
        got.astype(np.float32), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )
    plan = plan_in(session, rows)
    assert plan.cores == 2 and "exchange(" in plan.source


@settings(max_examples=8, deadline=None)
@given(
    channels=st.sampled_from([64, 128, 192, 256, 384, 512]),
    features=st.sampled_from([7, 10, 256, 500, 512, 1024]),
    size=st.sampled_from([4, 6, 10]),
    seed=st.integers(0, 99),
)
def test_any_sizes(channels: int, features: int, size: int, seed: int) -> None:
    model, feeds = network(channels, features, size, seed), {"x": drawn(1, 3, size, size, seed=seed)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "is_faster", lambda one, other: True)
        patch.setattr(outputs, "_ROUNDS", 0)
        (got,), (expected,) = session_of(model, buckets=(1,)).run(None, feeds), onnxruntimes(model, feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_residual_sum_needs_no_exchange(always: None) -> None:
    """A core adds its own channels of the image that both cores have, and pools them: only then they exchange."""
    plan = plan_in(session_of(network(), buckets=(1,)), 1)
    assert "added=a[:, core : core + 1]" in plan.source
    summed, pooled = (step for step in plan.steps if step.output in "gp")
    assert summed.reason.endswith("each of 2 cores makes 128 of its outputs, without an exchange")
    assert pooled.reason.endswith("each of 2 cores makes 128 of its outputs, and they exchange them")
    (last,) = (step for step in plan.steps if step.place == "hbm" and step.output == "y")
    assert last.reason.endswith("each of 2 cores makes 5 of its outputs, without an exchange")


def test_each_step_is_right_alone(always: None) -> None:
    session, feeds = session_of(network(), buckets=(1,)), {"x": drawn(1, 3, 8, 8)}
    session.run(None, feeds)
    assert all(layer.passed for layer in validate_layers(session, feeds).layers)
    assert decode(*encode(session.partition(1))).plans[0].cores == 2


def test_many_weights_are_divided_where_that_is_faster() -> None:
    model = modelled(
        "(float[N,1024] x) => (float[N,64] y) { h = Gemm(x, w, b) r = Relu(h) y = Gemm(r, v, c) }",
        {"w": drawn(1024, 8192), "b": drawn(8192), "v": drawn(8192, 64), "c": drawn(64)},
    )
    two, one = (session_of(model, lnc=lnc, buckets=(1,)) for lnc in (2, 1))
    before, after = one.latency(1), two.latency(1)
    assert after.least_us < before.least_us and after.most_us < before.most_us and after.us < 0.75 * before.us
    (note,) = (note for note in two.partition(1).notes if "2 cores" in note)
    assert note.startswith("2 cores divide the work, 2 steps of 2 by channels or features: predicted ")


def test_a_share_that_is_read_before_the_exchange_is_no_number(always: None) -> None:
    """Without the exchange the other core's half was never written: the simulator gives NaN for it."""
    session, feeds = session_of(network(), buckets=(1,)), {"x": drawn(1, 3, 8, 8)}
    plan = plan_in(session, 1)
    lines = [line for line in plan.source.splitlines() if not line.strip().startswith("exchange(")]
    broken = replace(plan, source="\n".join(lines) + "\n")
    kernel = SimulatedKernel(trace_cores_of(broken), broken)
    with np.errstate(all="ignore"):
        assert np.isnan(np.asarray(kernel.run([feeds["x"]])[0], np.float32)).all()


def test_the_prediction_counts_the_meetings(always: None) -> None:
    plan = plan_in(session_of(network(), buckets=(1,)), 1)
    lines = [line for line in plan.source.splitlines() if not line.strip().startswith("exchange(")]
    alone = predict_benchmark(trace_cores_of(replace(plan, source="\n".join(lines) + "\n")))
    meeting = predict_benchmark(trace_cores_of(plan))
    assert meeting.least_us > alone.least_us and meeting.us > alone.us and meeting.most_us > alone.most_us


def test_a_function_for_each_step_exchanges_too(always: None) -> None:
    plan = plan_in(session_of(network(), buckets=(1,)), 1)
    stepwise = split_functions(plan)
    assert stepwise.source.count("    exchange(") == plan.source.count("    exchange(") == 4
    feeds = [drawn(1, 3, 8, 8)]
    ours, theirs = (SimulatedKernel(trace_cores_of(one), one).run(feeds)[0] for one in (stepwise, plan))
    np.testing.assert_array_equal(ours, theirs)


def test_small_layers_stay_whole() -> None:
    session = trnrt.InferenceSession(DIGITS, backend="simulator", cache=False, device=TWO)
    (note,) = (note for note in session.partition(1).notes if "2 cores" in note)
    assert note.startswith("2 cores do the same work: 1 row can't be divided evenly; ")
    assert [plan.cores for plan in session.partition(1).plans] == [1]
