"""The verbs note values that are not finite, and prepare pictures for ImageNet's classifiers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt
from onnx import TensorProto, helper
from PIL import Image

MODELS = Path(__file__).parents[2] / "models"
FFNN = str(MODELS / "digits_ffnn.onnx")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture
def identity(tmp_path: Path) -> str:
    """A model that returns its picture, (N, 3, 224, 224)."""
    shape = ["N", 3, 224, 224]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    path = tmp_path / "identity.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return str(path)


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_values_that_are_not_finite_are_noted(verb: str, tmp_path: Path) -> None:
    rows = np.zeros((3, 1, 8, 8), np.float32)
    rows[1, 0, 5, 7], rows[2, 0, 0, 0] = np.nan, np.inf
    np.savez(tmp_path / "rows.npz", image=rows)
    wanted = "note: input 'image' has 2 values that are NaN or infinite; the first, nan, is at [1, 0, 5, 7]\n"
    assert wanted in trnrt(verb, FFNN, "--input", tmp_path / "rows.npz").err
    assert "infinite" not in trnrt(verb, FFNN, "--input", tmp_path / "rows.npz", "--rows", "1").err


def test_a_scale_may_be_a_fraction(identity: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    out = tmp_path / "out.npz"
    flags = ("--input", tmp_path / "picture.png", "-o", out)
    assert trnrt("run", identity, *flags, "--scale", "1/255").code == 0
    assert np.allclose(np.load(out)["y"][0], pixels.transpose(2, 0, 1) / 255, atol=1e-6)
    refused = trnrt("run", identity, *flags, "--scale", "1/0")
    assert (refused.code, refused.err.splitlines()[0]) == (2, "error: '1/0' is not a number")


def test_preprocess_imagenet_is_torchvisions(identity: str, tmp_path: Path) -> None:
    """Resize the shorter side to 256, take the middle 224, divide by 255, normalise."""
    rng = np.random.default_rng(1)
    small = rng.integers(0, 256, (12, 16, 3), np.uint8)
    picture = Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "picture.png")
    out = tmp_path / "out.npz"
    outcome = trnrt("run", identity, "--input", tmp_path / "picture.png", "-o", out, "--preprocess", "imagenet")
    assert outcome.code == 0
    resized = picture.resize((341, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized.crop((58, 16, 58 + 224, 16 + 224)), np.float64)
    wanted = np.maximum((pixels / 255 - MEAN) / STD, 0).transpose(2, 0, 1)
    assert np.max(np.abs(np.load(out)["y"][0] - wanted)) < 1.01 / 255 / STD.min()
    own = trnrt("run", identity, "--input", tmp_path / "picture.png", "--preprocess", "imagenet", "--scale", "1/128")
    assert "0.0078" in own.err


def test_preprocess_needs_a_picture() -> None:
    outcome = trnrt("run", FFNN, "--preprocess", "imagenet")
    assert outcome.code == 2 and "--preprocess, --layout" in outcome.err
