"""The module with a function for each step: the same program, and each step where it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import trnrt
from trnrt.backends.simulator import SimulatorBackend
from trnrt.cache import KernelCache
from trnrt.nki.checking import static_findings
from trnrt.nki.level import Level
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.stepwise import function_lines, split_functions
from trnrt.running.profiler import profile_plan

MODELS = Path(__file__).parents[2] / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def plan_of(path: Path, batch: int = 1) -> Plan:
    return trnrt.InferenceSession(path, backend="simulator").plan(batch)


@pytest.mark.parametrize("name", ["digits_cnn.onnx", "digits_ffnn.onnx", "light_shufflenet.onnx"])
def test_the_program_is_the_same(name: str) -> None:
    plan = plan_of((LIGHT if name.startswith("light") else MODELS) / name)
    stepwise = split_functions(plan)
    before, after = profile_plan(plan), profile_plan(stepwise)
    assert [(step.name, step.time_us) for step in after.steps] == [(step.name, step.time_us) for step in before.steps]
    assert (after.benchmark_us, after.instructions) == (before.benchmark_us, before.instructions)
    assert [static_findings(stepwise.source, "module.py", level=level) for level in Level] == [[], []]


def test_each_step_is_called_and_defined_where_it_says() -> None:
    plan = plan_of(MODELS / "digits_cnn.onnx")
    stepwise = split_functions(plan)
    lines = stepwise.source.splitlines()
    assert function_lines(plan) == [] and len(function_lines(stepwise)) == len(plan.steps) == 3
    for number, (step, span) in enumerate(zip(stepwise.steps, function_lines(stepwise), strict=True)):
        assert lines[step.lines[0] - 1].startswith(f"    step_{number}(")
        assert lines[span[0] - 1].startswith(f"def step_{number}(")
        assert plan.steps[number].kernel in lines[span[1] - 1]


def test_it_computes_the_same() -> None:
    session = trnrt.InferenceSession(MODELS / "digits_cnn.onnx", backend="simulator")
    plan = session.plan(2)
    stepwise = split_functions(plan)
    path, source, _ = KernelCache().kernel(stepwise.name, stepwise.source)
    image = session.random_inputs(2)["image"]
    (found,) = SimulatorBackend().load(stepwise, path, source).run([image])
    np.testing.assert_array_equal(found, session.run(None, {"image": image})[0])
