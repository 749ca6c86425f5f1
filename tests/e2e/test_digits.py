"""The sample models, whole: every export, every held-out image, against onnxruntime and the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trnrt
from trnrt.validate import validate

MODELS = Path(__file__).parents[2] / "models"
# model, input, accuracy to reach on the held-out split
EXPORTS = [
    ("digits_ffnn", "image", 0.96),
    ("digits_ffnn_legacy", "image", 0.96),
    ("digits_mlp_sklearn", "pixels", 0.96),
    ("digits_cnn", "image", 0.98),
    ("digits_cnn_legacy", "image", 0.98),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize(("model", "argument", "accuracy"), EXPORTS)
def test_every_held_out_decision_equals_onnxruntimes(model: str, argument: str, accuracy: float, target: str) -> None:
    held_out = np.load(MODELS / "digits_test.npz")
    session = trnrt.InferenceSession(MODELS / f"{model}.onnx", target=target)
    feeds = {argument: held_out[argument]}
    report = validate(session, feeds)
    assert report.passed, report
    assert report.samples == len(held_out["label"]) and report.changed_decisions == 0
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    decisions = outputs["label"] if "label" in outputs else outputs["logits"].argmax(axis=1)
    assert (decisions == held_out["label"]).mean() >= accuracy


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("model", "argument", "accuracy"), EXPORTS)
def test_16_bit(model: str, argument: str, accuracy: float, dtype: str) -> None:
    held_out = np.load(MODELS / "digits_test.npz")
    session = trnrt.InferenceSession(MODELS / f"{model}.onnx", dtype=dtype)
    report = validate(session, {argument: held_out[argument]})
    assert report.passed and report.changed_decisions == 0, report
