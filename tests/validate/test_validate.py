"""The comparison with onnxruntime: what counts as equal, and what a wrong answer looks like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import trnrt
from trnrt.errors import OptionError
from trnrt.validate import Tolerance, changed_decisions, compare, default_tolerance, validate

MODELS = Path(__file__).parents[2] / "models"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def floats(values: Sequence[float]) -> NDArray[Any]:
    """A float32 vector."""
    return np.array(values, np.float32)


CASES = [
    # ours, reference, max_abs, max_rel, required rtol at atol 0.01, passes at rtol 0.1
    ([1, 2], [1, 2], 0, 0, 0, True),
    ([1.05, 2], [1, 2], 0.05, 0.05, 0.04, True),
    ([1.5, 2], [1, 2], 0.5, 0.5, 0.49, False),
    ([0.005], [0], 0.005, INF, 0, True),
    ([0.5], [0], 0.5, INF, INF, False),
    ([NAN, 1], [NAN, 1], 0, 0, 0, True),
    ([NAN], [1], INF, INF, INF, False),
    ([1], [NAN], INF, INF, INF, False),
    ([INF, -INF], [INF, -INF], 0, 0, 0, True),
    ([INF], [-INF], INF, INF, INF, False),
    ([1], [INF], INF, INF, INF, False),
]


@pytest.mark.parametrize(("ours", "reference", "max_abs", "max_rel", "required", "passes"), CASES)
def test_compare(
    ours: list[float], reference: list[float], max_abs: float, max_rel: float, required: float, passes: bool
) -> None:
    result = compare("y", floats(ours), floats(reference), rtol=0.1, atol=0.01)
    assert result.passed is passes
    assert result.max_abs == pytest.approx(max_abs, rel=1e-4)
    assert result.max_rel == pytest.approx(max_rel, rel=1e-4)
    assert result.required_rtol == pytest.approx(required, rel=1e-4)


def test_the_required_tolerance_is_the_smallest_that_passes() -> None:
    random = np.random.default_rng(0)
    reference = random.standard_normal(1000).astype(np.float32)
    ours = reference + random.standard_normal(1000).astype(np.float32) * np.float32(1e-3)
    required = compare("y", ours, reference, 0, 1e-4).required_rtol
    assert compare("y", ours, reference, required, 1e-4).passed
    assert not compare("y", ours, reference, required * 0.999, 1e-4).passed


def test_integers_strings_and_shapes_must_be_equal() -> None:
    one, two = np.array([1, 2]), np.array([1, 5])
    assert compare("y", one, one, 1, 1).passed
    assert not compare("y", two, one, 1, 1).passed and compare("y", two, one, 1, 1).max_abs == 3
    assert compare("y", np.array(["a"], object), np.array(["a"], object), 0, 0).passed
    assert not compare("y", np.array(["a"], object), np.array(["b"], object), 0, 0).passed
    assert not compare("y", floats([1, 2]), floats([1]), 1, 1).passed


def test_changed_decisions() -> None:
    logits = floats([1, 2, 3, 0]).reshape(2, 2)
    swapped = logits[:, ::-1].copy()
    assert changed_decisions({"y": logits}, {"y": logits}) == 0
    assert changed_decisions({"y": swapped}, {"y": logits}) == 2
    labels = np.array([3, 4])
    assert changed_decisions({"y": logits, "l": np.array([3, 5])}, {"y": logits, "l": labels}) == 1
    assert changed_decisions({"y": floats([1])}, {"y": floats([1])}) is None
    # Outputs with other numbers of rows, such as a constant, are counted each for itself.
    assert changed_decisions({"y": swapped, "z": np.arange(5)}, {"y": logits, "z": np.array([0, 1, 2, 3, 9])}) == 3


def test_a_wrong_weight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    session = trnrt.InferenceSession(MODELS / "digits_cnn.onnx")
    feeds = session.random_inputs(8)
    assert validate(session, feeds).passed
    kernel = next(iter(session._programs.loaded.values())).plans[0].kernel
    plan = session.plan(8)
    position = list(plan.weights).index("node_conv2d_w")
    wrong = plan.weights["node_conv2d_w"].copy()
    wrong.flat[5] += 0.1
    kernel._executor.load(len(plan.inputs) + position, wrong)  # type: ignore[attr-defined]
    report = validate(session, feeds)
    assert not report.passed and report.outputs[0].required_rtol > 1e-4


def test_tolerances() -> None:
    assert default_tolerance("float32") == Tolerance(1e-4, 1e-5)
    assert default_tolerance("bfloat16") == default_tolerance("float16") == Tolerance(2e-2, 1e-2)
    session = trnrt.InferenceSession(MODELS / "digits_cnn.onnx", dtype="bfloat16")
    feeds = session.random_inputs(8)
    assert not validate(session, feeds, rtol=0, atol=0).passed
    assert validate(session, feeds, atol=10).passed
    for bad in (-1, NAN, INF):
        with pytest.raises(OptionError, match="rtol"):
            validate(session, feeds, rtol=bad)
