"""``validate_layers`` on whole networks with random weights: right plans raise no alarm, in any dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.backend.test.loader import load_model_tests
from perturbing import with_weight
from randomizing import random_feeds, randomized

import trnrt
from trnrt.planner.naming import identifier
from trnrt.validate import validate_layers

GRAPHS = Path(__file__).parents[1] / "data" / "architectures"
LIGHT = {case.model_name: case for case in load_model_tests(kind="real")}
CASES = [
    ("shufflenet", "bfloat16"),
    ("densenet121", "float32"),
    ("inception_v1", "float16"),
    ("resnet18_dynamo", "bfloat16"),
    ("efficientnet_b0_dynamo", "float16"),
    ("mobilenet_v3_small_torchscript", "float32"),
]


def load(name: str) -> onnx.ModelProto:
    """A network of the onnx package, or one of tests/data."""
    if name in LIGHT:
        return randomized(onnx.load(Path(onnx.__file__).parents[1] / str(LIGHT[name].url)))
    return randomized(onnx.load(GRAPHS / f"{name}.onnx"))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_no_false_alarm(name: str, dtype: str) -> None:
    model = load(name)
    session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype, cache=False)
    report = validate_layers(session, random_feeds(model, seed=1))
    assert [layer for layer in report.layers if not layer.passed] == []
    assert len(report.layers) > 20


def test_a_wrong_weight_deep_in_a_network() -> None:
    model = load("resnet18_dynamo")
    feeds = random_feeds(model, seed=1)
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    rows = next(iter(feeds.values())).shape[0]
    plan = session.plan(rows)
    step = plan.steps[len(plan.steps) // 2]

    def move(weight: NDArray[Any]) -> None:
        weight[tuple(np.argwhere(weight)[7])] += np.abs(weight).max()

    report = validate_layers(session, feeds, plan=with_weight(plan, f"{identifier(step.name)}_w", move))
    assert [layer.step for layer in report.layers if not layer.passed] == [step.name]
