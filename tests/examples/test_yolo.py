"""examples/yolo: boxes drawn into photos, from a tiny detector; by ultralytics' exporter, where it is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_checkpoints import load_module, make_photo
from vision_models import save_detector, save_segmenter, thirds

from trnrt import InferenceSession
from trnrt.vision.finding import Limits
from trnrt.vision.painting import color_of

detect = load_module("examples/yolo/detect.py")
export = load_module("examples/yolo/export_yolo.py")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A photo that is wider than the input."""
    thirds(192, 96).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_boxes_are_drawn_and_printed(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_detector(tmp_path / "model.onnx")
    monkeypatch.setattr("sys.argv", ["detect.py", str(model), str(photo), "--out", str(tmp_path / "out")])
    detect.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(photo)
    assert {line.split("  ", 2)[2] for line in lines[1:]} == {
        "red thing  24.0, 0.0, 120.0, 96.0",
        "green thing  96.0, 12.0, 180.0, 84.0",
    }
    with Image.open(tmp_path / "out" / "photo.png") as drawn:
        assert drawn.size == (192, 96) and drawn.getpixel((180, 50)) == color_of(1)


def test_masks_too(tmp_path: Path, photo: Path) -> None:
    session = InferenceSession(save_segmenter(tmp_path / "model.onnx"))
    finding = detect.detect(session, photo, tmp_path / "drawn.png", Limits())
    assert {region.label for region in finding.regions} == {"red", "green", "blue"}
    with Image.open(tmp_path / "drawn.png") as drawn:
        assert np.abs(np.array(drawn.getpixel((186, 90))) - np.mean([color_of(2), (0, 0, 255)], axis=0)).max() <= 1


def test_a_classifier_is_refused(tmp_path: Path) -> None:
    digits = InferenceSession(Path(__file__).parents[2] / "models" / "digits_cnn.onnx")
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    with pytest.raises(SystemExit, match="neither boxes nor masks"):
        detect.detect(digits, tmp_path / "digit.png", tmp_path / "drawn.png", Limits())


@pytest.mark.filterwarnings("default")  # torch's and ultralytics' own
@pytest.mark.parametrize("name", ["yolo26n", "yolo11n"])
def test_random_weights_by_ultralytics(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own results for the same file and photo have the same boxes."""
    pytest.importorskip("ultralytics", reason="ultralytics isn't installed")
    from ultralytics import YOLO

    monkeypatch.setenv("YOLO_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    model, photo = tmp_path / "model.onnx", make_photo(tmp_path / "photo.png", (64, 64))
    export.export(f"{name}.yaml", model, 64)
    finding = detect.detect(InferenceSession(model), photo, tmp_path / "drawn.png", Limits(1e-6))
    (theirs,) = YOLO(model, task="detect").predict(photo, conf=1e-6, iou=0.7, imgsz=64, max_det=30000, verbose=False)
    count = min(len(finding.boxes), len(theirs.boxes), 20)
    assert count >= 5
    ours = np.array([(*box.corners, box.score, box.index) for box in finding.boxes[:count]])
    wanted = theirs.boxes.data.numpy()[:count]
    np.testing.assert_allclose(ours[:, :4], wanted[:, :4], rtol=1e-3, atol=0.01)  # pixels
    np.testing.assert_allclose(ours[:, 4:], wanted[:, 4:], rtol=1e-3, atol=1e-7)  # scores near 1e-5, and classes
