"""Networks that read sequences, with random weights, against onnxruntime: text recognition, keyword spotting, and
layers of so many steps that they loop on the device."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from planning import Array, compare, drawn, modelled, onnxruntimes, planned
from recurrent_models import check_model, recurrent_model

import trnrt
from trnrt.errors import KernelSizeError
from trnrt.operators.recurrent import UNROLLED
from trnrt.planner import Plan

GATES = {"LSTM": 4, "GRU": 3}


def drawn_weight(*shape: int, seed: int = 0, gain: float = 2.0) -> Array:
    """A weight whose products have about ``gain`` times the variance of their inputs."""
    return drawn(*shape, seed=seed) * np.float32((gain / prod(shape[1:])) ** 0.5)


def drawn_layer(op: str, name: str, directions: int, features: int, hidden: int) -> dict[str, Array]:
    """W, R and B of a recurrent layer, under ``name`` and their letter; its states neither vanish nor grow."""
    rows = GATES[op] * hidden
    weights = [drawn_weight(rows, size, seed=d, gain=1.5) for size in (features, hidden) for d in range(directions)]
    w, r = np.stack(weights[:directions]), np.stack(weights[directions:])
    return {f"{name}w": w, f"{name}r": r, f"{name}b": drawn(directions, 2 * rows) / 4}


def crnn() -> onnx.ModelProto:
    """Text recognition: convolutions make a column of features a step, two bidirectional LSTMs read them."""
    weights = {
        "k1": drawn_weight(12, 1, 3, 3),
        "k2": drawn_weight(16, 12, 3, 3),
        "k3": drawn_weight(24, 16, 4, 1),
        "f": drawn(48, 11) / 7,
    }
    weights |= drawn_layer("LSTM", "p", 2, 24, 24) | drawn_layer("LSTM", "q", 2, 48, 24)
    return modelled(
        "(float[N,1,16,52] x) => (float[26,N,11] y) {"
        "c1 = Conv<pads=[1,1,1,1]>(x, k1)  r1 = Relu(c1)  m1 = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r1)"
        "c2 = Conv<pads=[1,1,1,1]>(m1, k2)  r2 = Relu(c2)  m2 = MaxPool<kernel_shape=[2,1],strides=[2,1]>(r2)"
        "c3 = Conv(m2, k3)  r3 = Relu(c3)  axes = Constant<value_ints=[2]>()  s = Squeeze(r3, axes)"
        "t = Transpose<perm=[2,0,1]>(s)  shape = Constant<value_ints=[0,0,-1]>()"
        'l1 = LSTM<hidden_size=24,direction="bidirectional">(t, pw, pr, pb)'
        "t1 = Transpose<perm=[0,2,1,3]>(l1)  j1 = Reshape(t1, shape)"
        'l2 = LSTM<hidden_size=24,direction="bidirectional">(j1, qw, qr, qb)'
        "t2 = Transpose<perm=[0,2,1,3]>(l2)  j2 = Reshape(t2, shape)"
        "z = MatMul(j2, f)  y = LogSoftmax<axis=2>(z) }",
        weights,
    )


def keyword_spotting() -> onnx.ModelProto:
    """Frames of 20 features, two GRUs as PyTorch exports them, and classes from the last state."""
    weights = drawn_layer("GRU", "p", 1, 20, 32) | drawn_layer("GRU", "q", 1, 32, 32) | {"f": drawn(32, 6) / 4}
    return modelled(
        "(float[150,N,20] x) => (float[N,6] y) {"
        "l1 = GRU<hidden_size=32,linear_before_reset=1>(x, pw, pr, pb)"
        "axes = Constant<value_ints=[1]>()  s1 = Squeeze(l1, axes)"
        "l2, h = GRU<hidden_size=32,linear_before_reset=1>(s1, qw, qr, qb)"
        "first = Constant<value_ints=[0]>()  s2 = Squeeze(h, first)  y = MatMul(s2, f) }",
        weights,
    )


@pytest.mark.parametrize(("make", "shape"), [(crnn, (2, 1, 16, 52)), (keyword_spotting, (150, 3, 20))])
def test_networks(make: Callable[[], onnx.ModelProto], shape: tuple[int, ...]) -> None:
    model, x = make(), drawn(*shape)
    assert all(np.ptp(answer, axis=0).min() > 0.02 for answer in onnxruntimes(model, {"x": x}))
    compare(model, {"x": x})


def trips_of(plan: Plan) -> list[str]:
    """The part of the recurrent steps' calls that says how many steps a trip has."""
    return [line.strip() for line in plan.source.splitlines() if line.strip().startswith("trip=")]


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {"steps": 1500, "direction": "bidirectional", "lengths": [1500, 700], "states": True}),
        ("RNN", {"steps": 5500, "rows": 1}),
    ],
)
def test_many_steps_loop_on_the_device(op: str, options: dict[str, Any]) -> None:
    model, feeds = recurrent_model(op, hidden=6, **options)
    plan = planned(model, {name: array.shape for name, array in feeds.items()})
    assert trips_of(plan) and plan.size.compiled <= UNROLLED < plan.size.unrolled
    check_model(model, feeds)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {"peepholes": True, "clip": 1.5, "direction": "reverse"}),
        ("LSTM", {"direction": "bidirectional", "lengths": [180, 70], "states": True, "layout": 1}),
        ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "lengths": [9, 180]}),
        ("GRU", {"direction": "bidirectional", "states": True, "computed_states": True, "hidden": 140}),
        ("RNN", {"direction": "reverse", "states": True, "hidden": 130}),
    ],
)
def test_loops_of_any_layer(op: str, options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they were longer: a layer of a few hundred instructions is unrolled."""
    monkeypatch.setattr("trnrt.operators.recurrent.UNROLLED", 400)
    model, feeds = recurrent_model(op, steps=180, **options)
    plan = planned(model, {name: array.shape for name, array in feeds.items()}, dtype=dtype)
    assert trips_of(plan) and plan.size.compiled < plan.size.unrolled
    check_model(model, feeds, dtype, most=3e-6 if dtype == "float32" else 0.03)


def test_the_budget_decides_what_is_unrolled() -> None:
    """With less room the trips are shorter; with any room there is no loop."""
    model, feeds = recurrent_model("LSTM", steps=400, rows=1, hidden=5)
    expected = onnxruntimes(model, feeds)
    sizes, trips = [], []
    for budget in (0, None, 3000, 1000):
        session = trnrt.InferenceSession(model.SerializeToString(), max_instructions=budget, cache=False)
        for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-6)
        assert session.last_run.plan is not None
        sizes.append(session.last_run.plan.size.compiled)
        trips.append(trips_of(session.last_run.plan))
    assert trips[0] == trips[1] == [] and trips[2] and trips[3] and trips[2] != trips[3]
    assert sizes[0] == sizes[1] > 3000 >= sizes[2] > sizes[3] <= 1000


def test_a_budget_that_no_trip_keeps() -> None:
    model, feeds = recurrent_model("LSTM", steps=400, rows=1, hidden=5)
    with pytest.raises(KernelSizeError, match=r"alone takes \d+ instructions; the limit for a kernel is 40"):
        trnrt.InferenceSession(model.SerializeToString(), max_instructions=40, cache=False).run(None, feeds)
