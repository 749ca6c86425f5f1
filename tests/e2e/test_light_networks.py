"""The nine real networks whose graphs ship inside the onnx package, at their full size of 224x224 pixels.

As they are, every weight is 0.02 and every class gets nearly the same probability: that shows that the graph is taken,
and little of the numbers. With random weights every number of every weight counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from randomizing import random_feeds, randomized
from whole_models import Array, compared

import trnrt

PACKAGE = Path(onnx.__file__).parent
NETWORKS = {case.model_name: case for case in load_model_tests(kind="real")}


def load(case: TestCase) -> tuple[onnx.ModelProto, Array]:
    """A network of the package and its expected output, both found as onnx's own runner of backend tests does."""
    path = PACKAGE.parent / str(case.url)
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return onnx.load(path), onnx.numpy_helper.to_array(expected)


def runner_feeds(model: onnx.ModelProto) -> dict[str, Array]:
    """The input that the expected outputs belong to: a ramp from 0 to 1, as in onnx's runner."""
    ramps = {}
    for name, array in random_feeds(model).items():
        ramps[name] = (np.arange(array.size).reshape(array.shape) / array.size).astype(np.float32)
    return ramps


def test_there_are_nine() -> None:
    assert len(NETWORKS) == 9


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_as_it_is(name: str) -> None:
    case = NETWORKS[name]
    model, expected = load(case)
    session = trnrt.InferenceSession(model.SerializeToString(), backend="simulator", cache=False)
    (ours,) = session.run(None, runner_feeds(model))
    np.testing.assert_allclose(ours, expected, rtol=case.rtol, atol=case.atol)
    assert session.last_plan is not None and session.last_plan.host == ()


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_with_random_weights(name: str) -> None:
    model = randomized(load(NETWORKS[name])[0])
    found = compared(model, random_feeds(model, seed=1))
    found.check()
    assert len(np.unique(found.reference)) > 500
