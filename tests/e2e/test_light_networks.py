"""The nine real networks whose graphs ship inside the onnx package, at their full size of 224x224 pixels.

As they are, every weight is 0.02 and every class gets nearly the same probability: that shows that the graph is taken,
and little of the numbers (tests/conformance/onnx runs them so). With random weights every number of a weight counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from randomizing import random_feeds, randomized
from whole_models import compared

PACKAGE = Path(onnx.__file__).parent
NETWORKS = {case.model_name: case for case in load_model_tests(kind="real")}


def load(case: TestCase) -> onnx.ModelProto:
    """A network of the package, found as onnx's own runner of backend tests does."""
    return onnx.load(PACKAGE.parent / str(case.url))


def test_there_are_nine() -> None:
    assert len(NETWORKS) == 9


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_with_random_weights(name: str) -> None:
    model = randomized(load(NETWORKS[name]))
    found = compared(model, random_feeds(model, seed=1))
    found.check()
    assert len(np.unique(found.reference)) > 500
