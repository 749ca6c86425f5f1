"""``trnrt run --draw``: boxes and masks in the photo, in text and in JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commanding import trnrt
from PIL import Image
from vision_models import COLOURS, ULTRALYTICS, save_detector, save_segmenter, thirds

from trnrt.vision.painting import color_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and a photo that is larger than their inputs, and wider."""
    made = tmp_path_factory.mktemp("draw")
    save_detector(made / "detector.onnx")
    save_segmenter(made / "segmenter.onnx")
    thirds(192, 96).save(made / "photo.png")
    return made


def test_boxes_are_drawn_where_they_are_in_the_photo(folder: Path, tmp_path: Path) -> None:
    """The input of 64 x 64 has the photo of 192 x 96 in its middle 32 rows, a third as large."""
    out = tmp_path / "out.png"
    run = trnrt("run", folder / "detector.onnx", "--input", folder / "photo.png", "--draw", out, "--json")
    assert run.code == 0, run.err
    drawn = run.document["drawn"]
    assert (drawn["kind"], drawn["width"], drawn["height"], drawn["classes"]) == ("boxes", 192, 96, [])
    assert {box["label"]: box["box"] for box in drawn["boxes"]} == {
        "red thing": [24.0, 0.0, 120.0, 96.0],
        "green thing": [96.0, 12.0, 180.0, 84.0],
    }
    # A third of the photo, which is half of the input; the other half is grey.
    assert drawn["boxes"][0]["score"] == pytest.approx(1 / 6 + 114 / 255 / 2, abs=5e-3)
    with Image.open(out) as picture, Image.open(folder / "photo.png") as photo:
        assert picture.size == photo.size
        assert picture.getpixel((180, 50)) == color_of(1)
        assert picture.getpixel((24, 50)) == color_of(0)
        assert picture.getpixel((10, 50)) == photo.getpixel((10, 50))
    assert "read as boxes: ultralytics' metadata says task detect" in run.err and f"drew '{out}'" in run.err


def test_boxes_are_named_in_the_text(folder: Path, tmp_path: Path) -> None:
    run = trnrt("run", folder / "detector.onnx", "--input", folder / "photo.png", "--draw", tmp_path / "out.jpg")
    assert "2 boxes in 192x96 pixels" in run.out
    line = next(line for line in run.out.splitlines() if line.startswith("green thing"))
    assert line.split()[-4:] == ["96.0", "12.0", "180.0", "84.0"]
    with Image.open(tmp_path / "out.jpg") as picture:
        assert picture.format == "JPEG"


def test_the_least_score(folder: Path, tmp_path: Path) -> None:
    flags = ("--input", folder / "photo.png", "--draw", tmp_path / "out.png", "--min-score", "0.99")
    run = trnrt("run", folder / "detector.onnx", *flags)
    assert (run.code, "0 boxes in" in run.out) == (0, True)


def test_a_mask_is_laid_over_the_photo(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    run = trnrt("run", folder / "segmenter.onnx", "--input", folder / "photo.png", "--draw", out, "--json")
    drawn = run.document["drawn"]
    assert {entry["label"]: round(entry["share"], 2) for entry in drawn["classes"]} == {
        "red": pytest.approx(1 / 3, abs=0.02),
        "green": pytest.approx(1 / 3, abs=0.02),
        "blue": pytest.approx(1 / 3, abs=0.02),
    }
    with Image.open(out) as picture:
        assert picture.size == (192, 96)
        for x, index, under in ((150, 2, (0, 0, 255)), (96, 1, (0, 255, 0))):
            blended = (np.array(color_of(index)) + under) / 2
            assert np.abs(np.array(picture.getpixel((x, 80))) - blended).max() <= 1
    text = trnrt("run", folder / "segmenter.onnx", "--input", folder / "photo.png", "--draw", out).out
    assert "3 classes in 192x96 pixels" in text
    assert all(f"{entry['share']:.1%}" in text for entry in drawn["classes"])


def test_without_the_flag_nothing_is_drawn_and_a_note_says_what_could_be(folder: Path) -> None:
    run = trnrt("run", folder / "detector.onnx", "--input", folder / "photo.png", "--json")
    assert run.document["drawn"] is None
    assert "--draw OUT.png draws the boxes: ultralytics' metadata" in run.err
    assert "--draw" not in trnrt("run", folder / "detector.onnx").err
    # --draw refuses a second photo.
    two = trnrt("run", folder / "detector.onnx", "--input", folder / "photo.png", "--input", folder / "photo.png")
    assert two.code == 0 and "--draw" not in two.err


def test_three_channels_may_be_an_image_and_are_a_mask_if_asked(tmp_path: Path, folder: Path) -> None:
    path = save_segmenter(tmp_path / "unnamed.onnx", {"image.scale": COLOURS["image.scale"]})
    silent = trnrt("run", path, "--input", folder / "photo.png")
    assert "--draw" not in silent.err
    asked = trnrt("run", path, "--input", folder / "photo.png", "--draw", tmp_path / "out.png")
    assert "read as mask: 'output0' [batch, 3, 16, 16] has a score of each of 3 classes" in asked.err
    assert "class 2" in asked.out


WRONG = {
    "no photo": (("detector.onnx", "--draw", "out.png"), "draws into one image, and the inputs have 0 images"),
    "two photos": (
        ("detector.onnx", "--input", "photo.png", "--input", "photo.png", "--draw", "out.png"),
        "the inputs have 2 images",
    ),
    "another kind": (
        ("detector.onnx", "--input", "photo.png", "--draw", "out.png", "--draw-as", "mask"),
        "recognises no mask in the outputs 'output0' float32 [batch, 2, 6]",
    ),
    "another ending": (("detector.onnx", "--input", "photo.png", "--draw", "out.gif"), "ends in none of .png"),
    "no folder": (("detector.onnx", "--input", "photo.png", "--draw", "none/out.png"), "can't write"),
    "no --draw": (("detector.onnx", "--input", "photo.png", "--min-score", "0.5"), "need --draw"),
    "a score of 2": (("detector.onnx", "--input", "photo.png", "--draw", "out.png", "--min-score", "2"), "min-score"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, told = WRONG[name]
    monkeypatch.chdir(folder)
    run = trnrt("run", *arguments)
    assert run.code == 2 and told in run.err
    assert not (folder / "out.png").exists()


def test_a_classifier_has_nothing_to_draw(tmp_path: Path) -> None:
    digits = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"
    Image.new("L", (8, 8)).save(tmp_path / "digit.png")
    run = trnrt("run", digits, "--input", tmp_path / "digit.png", "--draw", tmp_path / "out.png")
    assert run.code == 2 and "recognises neither boxes nor masks in the outputs" in run.err


def test_names_of_the_model_and_another_fit(tmp_path: Path, folder: Path) -> None:
    path = save_detector(tmp_path / "model.onnx", {**ULTRALYTICS, "names": "{0: 'x', 1: 'y'}"})
    run = trnrt(
        "run", path, "--input", folder / "photo.png", "--draw", tmp_path / "o.png", "--fit", "stretch", "--json"
    )
    found = {box["label"]: box["box"] for box in run.document["drawn"]["boxes"]}
    assert found["x"] == [24.0, 24.0, 120.0, 72.0] and set(found) == {"x", "y"}
