"""examples/image_classifier: what trnrt says of a photo is what transformers' pipeline says."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt
from PIL import Image
from tiny_checkpoints import KINDS, NAMES, STORED, load_module, make_checkpoint, make_photo, pipeline_shares

from trnrt import InferenceSession

# Of the shares. With torchvision, transformers resizes by it and not by Pillow: a pixel may differ by one of 255.
TOLERANCE = 1e-5
TOLERANCE_OF_PIXELS = 2e-3

classify = load_module("examples/image_classifier/classify.py")
export = load_module("examples/image_classifier/export_classifier.py")


def shares(folder: Path, model: Path, photo: Path) -> dict[str, float]:
    """Each class's share, by the example."""
    (row,) = classify.classify(InferenceSession(model), folder, [photo])
    return dict(zip(classify.class_names(folder), row.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_stored_models_say_what_the_pipeline_said(kind: str) -> None:
    folder = STORED / kind
    wanted = json.loads((folder / "shares.json").read_text(encoding="utf-8"))
    found = shares(folder, folder / "model.onnx", STORED / "photo.png")
    assert found == pytest.approx(wanted, abs=TOLERANCE)
    assert max(found, key=lambda name: found[name]) == max(wanted, key=lambda name: wanted[name])
    assert max(wanted.values()) - min(wanted.values()) > 0.2  # else any answer would do


@pytest.mark.filterwarnings("default")  # torch's own
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_exported_now(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch isn't installed")
    pytest.importorskip("transformers", reason="transformers isn't installed")
    tolerance = TOLERANCE if importlib.util.find_spec("torchvision") is None else TOLERANCE_OF_PIXELS
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_checkpoint(kind, tmp_path)
    export.export(tmp_path, tmp_path / "model.onnx")
    for seed, size in enumerate([(75, 52), (40, 90), (32, 32)]):
        photo = make_photo(tmp_path / f"{seed}.png", size, seed)
        assert shares(tmp_path, tmp_path / "model.onnx", photo) == pytest.approx(
            pipeline_shares(tmp_path, photo), abs=tolerance
        )


def test_a_plain_model_needs_no_script() -> None:
    """Its file says how photos become pixels: `trnrt run` gives the same logits."""
    model, photo = STORED / "vit" / "model.onnx", STORED / "photo.png"
    run = trnrt("run", model, "--input", photo, "--top", "5", "--logits", "--json")
    assert run.code == 0, run.err
    wanted = shares(STORED / "vit", model, photo)
    assert {choice["label"]: choice["number"] for choice in run.document["top"][0]} == pytest.approx(wanted, abs=1e-5)


def test_a_crop_is_not_promised() -> None:
    said = {entry.key for entry in onnx.load(STORED / "convnext" / "model.onnx").metadata_props}
    assert said == {"labels"}


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = STORED / "vit"
    arguments = [str(folder), str(folder / "model.onnx"), str(STORED / "photo.png"), "--top", "2"]
    monkeypatch.setattr("sys.argv", ["classify.py", *arguments])
    classify.main()
    lines = capsys.readouterr().out.splitlines()
    best = max(
        wanted := json.loads((folder / "shares.json").read_text(encoding="utf-8")), key=lambda name: wanted[name]
    )
    assert len(lines) == 3 and lines[0] == str(STORED / "photo.png") and lines[1].split()[1] == best


CROP = {"do_center_crop": True, "crop_size": {"height": 20, "width": 22}}
PLAIN = {"do_normalize": False, "rescale_factor": 1.0}
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 80, 3), np.uint8))


@pytest.mark.parametrize(
    ("processor", "size", "crop"),
    [
        ({"size": {"height": 20, "width": 30}}, (30, 20), None),
        ({"size": 16}, (16, 16), None),
        ({"size": {"shortest_edge": 25}}, (40, 25), None),
        ({"size": {"shortest_edge": 25}, **CROP}, (40, 25), (22, 20)),
        ({"size": {"shortest_edge": 28}, "crop_pct": 0.875}, (51, 32), (28, 28)),
        ({"size": 28, "crop_pct": 0.875}, (51, 32), (28, 28)),
        ({"size": {"shortest_edge": 384}, "crop_pct": 1.0}, (384, 384), None),
    ],
)  # fmt: skip
def test_sizes(processor: dict[str, object], size: tuple[int, int], crop: tuple[int, int] | None) -> None:
    assert (classify.resized(PHOTO.size, processor), classify.cropped(processor)) == (size, crop)
    whole = PHOTO.resize(size, Image.Resampling.BILINEAR)
    if crop is not None:
        left, top = (size[0] - crop[0]) // 2, (size[1] - crop[1]) // 2
        whole = whole.crop((left, top, left + crop[0], top + crop[1]))
    np.testing.assert_array_equal(classify.prepare(PHOTO, processor | PLAIN), np.asarray(whole).transpose(2, 0, 1))
    if processor != {"size": {"shortest_edge": 25}}:  # such a model takes photos of any shape
        assert export.input_size(processor) == (crop or size)[::-1]


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        ({"size": 8, "rescale_offset": True}, "has rescale_offset"),
        ({"size": 8, "do_pad": True, "pad_size": {"height": 9, "width": 9}}, "has do_pad, pad_size"),
        ({"size": {"shortest_edge": 8, "longest_edge": 9}}, "has the size {'shortest_edge': 8, 'longest_edge': 9}"),
        # The shortest edge for CLIP, both sides for DeiT.
        ({"size": 8, "do_center_crop": True, "crop_size": 8}, "has the size 8"),
    ],
)
def test_settings_that_are_not_followed_are_refused(processor: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{told}, which this example doesn't follow")):
        classify.prepare(PHOTO, processor | PLAIN)


@pytest.mark.parametrize("more", [CROP, {"rescale_offset": True}, {"do_pad": True}, {"resample": 3}, {"size": 8}])
def test_only_a_plain_processor_is_promised_to_trnrt(more: dict[str, object]) -> None:
    processor = {"size": {"height": 20, "width": 30}, "resample": 2, **PLAIN}
    assert export.image_metadata(processor)["image.scale"] == "1.0"
    assert export.image_metadata(processor | more) == {}


def test_class_names_are_in_order() -> None:
    assert classify.class_names(STORED / "vit") == NAMES
