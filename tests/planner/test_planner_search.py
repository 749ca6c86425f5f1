"""What the planner chooses by asking the timing model: right, never slower, bounded, the same every time, and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from planning import TOLERANCE, drawn, modelled, onnxruntimes

import trnrt
from trnrt.errors import OptionError
from trnrt.operators.linear import linear_step
from trnrt.planner import Plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.options import EFFORTS
from trnrt.planner.placing.placement import Placed
from trnrt.planner.plan import Layout
from trnrt.planner.saving.planfile import choices_of, parse_plan, plan_document
from trnrt.planner.searching import search, trials
from trnrt.planner.searching.candidates import candidates
from trnrt.planner.searching.search import Move
from trnrt.planner.searching.trials import BUDGET, Timed, Trials
from trnrt.planner.steps import Operand
from trnrt.running.profiler import profile_plan

CHAIN = """(float[N,24,56,56] x) => (float[N,9] y) {
    a = Conv<pads=[1,1,1,1]>(x, v, vb)  r = Relu(a)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    b = Conv<pads=[1,1,1,1]>(p, w)  s = Relu(b)
    c = Conv<pads=[1,1,1,1]>(s, u)  d = Add(c, p)  t = Relu(d)
    g = GlobalAveragePool(t)  f = Flatten(g)  y = Gemm(f, k) }"""


def chain(width: int = 48) -> onnx.ModelProto:
    scale = np.float32(1 / np.sqrt(9 * width))
    return modelled(
        CHAIN,
        {
            "v": drawn(width, 24, 3, 3) / 15,
            "vb": drawn(width),
            "w": drawn(width, width, 3, 3) * scale,
            "u": drawn(width, width, 3, 3, seed=1) * scale,
            "k": drawn(width, 9) / 7,
        },
    )


def session_of(model: onnx.ModelProto, **options: Any) -> trnrt.InferenceSession:
    return trnrt.InferenceSession(model.SerializeToString(), cache=False, **options)


def chosen_by(session: trnrt.InferenceSession, choices: Choices) -> trnrt.InferenceSession:
    """The session with these choices, which searches for no more."""
    return session.with_options(replace(session.options, choices=choices, effort=0))


def planned(effort: int, **options: Any) -> Plan:
    return session_of(chain(), effort=effort, **options).plan(1)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_never_slower_and_the_answer_stays(dtype: str, target: str) -> None:
    feeds = {"x": drawn(1, 24, 56, 56)}
    (expected,) = onnxruntimes(chain(), feeds)
    times = []
    for effort in EFFORTS:
        session = session_of(chain(), dtype=dtype, target=target, effort=effort)
        (found,) = session.run(None, feeds)
        tolerance = min(TOLERANCE[dtype], 5e-2)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
        assert session.last_run.predicted_us is not None
        times.append(session.last_run.predicted_us)
    assert times[1] <= times[0]


def test_something_is_gained_and_told() -> None:
    plan = planned(1, target="trn1")
    taken = [one for one in plan.weighed if one.taken]
    assert taken and plan.choices != DEFAULT
    assert all(one.whole and one.gain_us > 0 for one in taken)
    before, after = (profile_plan(one).benchmark for one in (planned(0, target="trn1"), plan))
    gained = (before.least_us + before.most_us - after.least_us - after.most_us) / 2  # of both ends
    assert after.us < before.us
    assert sum(one.gain_us for one in taken) == pytest.approx(gained, abs=1e-3)


def test_a_plan_is_the_same_every_time() -> None:
    first, second = planned(1), planned(1)
    assert (first.source, first.choices, first.weighed) == (second.source, second.choices, second.weighed)


def test_what_was_found_can_be_asked_for() -> None:
    """As the golden numbers of whole networks are planned: with what the search has found, and no search."""
    found = planned(1, target="trn1")
    again = planned(0, target="trn1", choices=Choices.from_document(json.loads(json.dumps(found.choices.document))))
    assert again.source == found.source


def test_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[float] = []
    challenge = Trials.challenge

    def counting(self: Trials, best: Timed, choices: Choices) -> Timed | None:
        before = self.left
        result = challenge(self, best, choices)
        counted.append(before - self.left)
        return result

    monkeypatch.setattr(Trials, "challenge", counting)
    planned(1)
    assert counted and sum(counted) <= BUDGET
    many = len(counted)
    counted.clear()
    monkeypatch.setattr(trials, "BUDGET", BUDGET // 16)
    planned(1)
    assert len(counted) < many


def test_small_models_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a trial")

    monkeypatch.setattr(search, "_Search", refuse)
    path = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
    assert trnrt.InferenceSession(str(path), cache=False).plan(1).weighed == ()


def test_what_was_asked_for_stays() -> None:
    names = [step.name for step in planned(0).steps if dict(step.options) or step.kernel == "conv2d"]
    asked = Choices(options=frozenset({(names[0], "band_bytes", 4096)}))
    plan = planned(1, choices=asked)
    assert asked.options <= plan.choices.options
    (step,) = [step for step in plan.steps if step.name == names[0]]
    assert dict(step.options)["band_bytes"] == 4096 and "band_bytes=4096" in plan.source


def test_an_effort_that_there_is_none_of() -> None:
    with pytest.raises(OptionError, match="effort is 7"):
        session_of(chain(), effort=7)


def test_moves_replace_what_they_change() -> None:
    first = Move(("a", "b"), "band_bytes", 4096).apply(DEFAULT)
    second = Move(("a",), "band_bytes", 8192).apply(first)
    assert second.options == {("a", "band_bytes", 8192), ("b", "band_bytes", 4096)}
    assert Move(("a", "b"), "band_bytes").apply(second) == DEFAULT
    fused = Move(("a",), "no_fuse", names=frozenset({"n"})).apply(DEFAULT)
    assert fused.no_fuse == {"n"} and fused.options == frozenset()


def test_options_hold_in_a_sweep() -> None:
    """One image of the batch would have its kernel rows stacked, by a kernel that has no such options."""
    graph = "(float[16,16,16,16] x) => (float[16,16,16,16] y) { [c] h = Conv<pads=[1,1,1,1]>(x, w)  [r] y = Relu(h) }"
    model = modelled(graph, {"w": drawn(16, 16, 3, 3) / 12})
    chosen = Choices(options=frozenset({("c", "band_bytes", 8192)}), sweeps=frozenset({("c", "c", 1)}))
    session = session_of(model, choices=chosen, effort=0)
    feeds = {"x": drawn(16, 16, 16, 16)}
    np.testing.assert_allclose(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0], rtol=1e-4, atol=1e-4)
    plan = session.last_run.plan
    assert plan is not None and "band_bytes=8192" in plan.source and "for first in range(0, 16, 1):" in plan.source


def test_larger_loads_take_their_room() -> None:
    """What a step says that its kernel takes grows with the loads that were chosen for it."""
    graph = ir.from_proto(modelled("(float[1,4096] x) => (float[1,2048] y) { y = MatMul(x, w) }")).graph
    step = linear_step(graph[0], Operand("x", (1, 4096)), "y", drawn(4096, 2048), drawn(2048), "none")
    placed = Placed({"x": (1, 4096), "y": (1, 2048)}, dict.fromkeys("xy", Layout.HBM), {})
    taken = []
    for size in (4096, 8192):
        step.tune({"load_bytes": size})
        taken.append(step.working_bytes(placed, held=False))
    assert step.tuned == {"load_bytes": 8192} and taken[1] > taken[0] > step.working_bytes(placed, held=True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("Conv_0", "band_bytes", 1), "can't have band_bytes 1"),
        (("Conv_0", "speed", 8192), "can't have speed 8192"),
        (("nobody", "band_bytes", 8192), "no step is called 'nobody'"),
    ],
)
def test_options_that_are_not_offered(option: tuple[str, str, int], message: str) -> None:
    name = planned(0).steps[0].name
    asked = (option[0].replace("Conv_0", name), *option[1:])
    with pytest.raises(OptionError, match=message):
        planned(0, choices=Choices(options=frozenset({asked})))


def test_a_saved_plan_gives_what_was_found_again() -> None:
    session = session_of(chain(), target="trn1", effort=1)
    partition = session.partition(1)
    file = parse_plan(json.dumps(plan_document(partition)).encode())
    choices, told = choices_of(file, lambda chosen: chosen_by(session, chosen).partition(1))
    assert partition.choices != DEFAULT and told == []
    assert chosen_by(session, choices).partition(1).plans[0].source == partition.plans[0].source


@pytest.mark.parametrize("options", [[], {"band_bytes": 1.5}, {"band_bytes": True}, {str(k): k for k in range(17)}])
def test_strange_options_in_a_file(options: Any) -> None:
    document = plan_document(session_of(chain(), effort=0).partition(1))
    document["steps"][0]["options"] = options
    with pytest.raises(ValueError, match="options of step"):
        parse_plan(json.dumps(document).encode())


def test_why_offers_the_options() -> None:
    partition = session_of(chain(), target="trn1", effort=1).partition(1)
    steps = [step for step in partition.plans[0].steps if step.offered]
    assert steps
    for step in steps:
        weighed, chosen = {one.what for one in candidates(partition, partition.choices, step)}, dict(step.options)
        for option, values in step.offered:
            assert (f"{option} by default" in weighed) == (option in chosen)
            assert all((f"{option} {value}" in weighed) == (chosen.get(option) != value) for value in values)
