"""From a plan to a profile, and the latency that a session predicts for its last run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from trnrt import profiler
from trnrt.nki.machine import execute
from trnrt.nki.profiling import profile_programs
from trnrt.profiler import profile_plan
from trnrt.session import InferenceSession

CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"


def small(batch: str) -> bytes:
    """y = relu(x)."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{batch},3] x) => (float[{batch},3] y) {{ y = Relu(x) }}'
    return bytes(parser.parse_model(text).SerializeToString())


def test_a_plan_is_profiled_by_its_steps_and_nothing_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute.Executor, "__init__", lambda *_, **__: pytest.fail("arrays were bound"))
    plan = InferenceSession(CNN, target="trn1", dtype="bfloat16").plan_for(4)
    profile = profile_plan(plan)
    assert (profile.target, profile.dtype, profile.batch) == ("trn1", "bfloat16", 4)
    rows = [*((step.name, step.nodes) for step in plan.steps), ("(weights brought ahead)", ())]
    assert [(step.name, step.nodes) for step in profile.steps] == rows
    assert sum(step.instructions for step in profile.steps) == profile.instructions


def test_a_profile_is_a_pure_function_of_model_target_dtype_and_batch() -> None:
    figures = set()
    for target, dtype, batch in [
        ("trn2", "float32", 1),
        ("trn1", "float32", 1),
        ("trn2", "bfloat16", 1),
        ("trn2", "float32", 64),
    ]:
        twice = [profile_plan(InferenceSession(CNN, target=target, dtype=dtype).plan_for(batch)) for _ in range(2)]
        assert twice[0].benchmark_us == twice[1].benchmark_us and twice[0].steps == twice[1].steps
        figures.add(twice[0].benchmark_us)
    assert len(figures) == 4


def test_a_session_predicts_what_its_last_run_costs_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        timed.append(1)
        return profile_programs(*args, **kwargs)

    monkeypatch.setattr(profiler, "profile_programs", counted)
    session = InferenceSession(small("N"))
    before = session.predicted_us
    assert before is None
    session.run(None, {"x": np.ones((128, 3), np.float32)})
    assert timed == []
    large = session.predicted_us
    assert large == session.predicted_us == profile_plan(session.plan_for(128)).benchmark_us
    assert len(timed) == 2  # once by the session, once here
    session.run(None, {"x": np.ones((1, 3), np.float32)})
    one = session.predicted_us
    assert one is not None and large is not None and one < large


def test_a_run_in_slices_costs_each_of_them() -> None:
    session = InferenceSession(small("2"))
    session.run(None, {"x": np.ones((2, 3), np.float32)})
    one = session.predicted_us
    session.run(None, {"x": np.ones((5, 3), np.float32)})
    assert one is not None and session.predicted_us == 3 * one
    session.run(None, {"x": np.ones((2, 3), np.float32)})
    assert session.predicted_us == one
