"""POST /predict with pictures for detectors and segmenters: boxes and masks in the photo's own pixels."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from serving import MadeUpModel, MadeUpRepository, app_of, ask, error_of
from vision_models import BOXES, COLOURS, ULTRALYTICS, png, thirds

from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.drawing import MASK_SIDE
from trnrt.serve.http.forms import form_of

IMAGES = TensorMeta("images", "float32", (-1, 3, 64, 64))
PNG = {"Content-Type": "image/png"}


def detector() -> MadeUpModel:
    """Both boxes of ``BOXES`` in every picture; the first one's score is the red of the picture's middle."""

    def compute(feeds: Any) -> Any:
        images = feeds["images"]
        made = np.zeros((len(images), 2, 6), np.float32)
        for place, (corners, index) in enumerate(BOXES):
            made[:, place] = [*corners, 0.75, index]
        made[:, 0, 4] = images[:, 0, 32, 32]
        return {"output0": made}

    return MadeUpModel(
        "finder", [IMAGES], [TensorMeta("output0", "float32", (-1, 2, 6))], compute, metadata=ULTRALYTICS
    )


def segmenter(metadata: dict[str, str] = COLOURS) -> MadeUpModel:
    """The colours themselves are the scores of the classes."""
    outputs = [TensorMeta("scores", "float32", (-1, 3, 64, 64))]
    return MadeUpModel("colours", [IMAGES], outputs, lambda feeds: {"scores": feeds["images"]}, metadata=metadata)


def predict(model: MadeUpModel, query: str = "", photo: Image.Image | None = None, **options: Any) -> httpx.Response:
    content = options or {"content": png(photo or thirds(192, 96)), "headers": PNG}
    return ask(app_of(MadeUpRepository(model)), "POST", f"/predict{query}", **content)


def test_boxes() -> None:
    answer = predict(detector()).json()
    assert answer["kind"] == "boxes" and answer["rule"].startswith("ultralytics' metadata says task detect")
    (found,) = answer["predictions"]
    assert (found["width"], found["height"], found["mask"], found["classes"]) == (192, 96, None, [])
    (box,) = found["boxes"]
    assert {**box, "color": ""} == {
        "class": 1, "label": None, "score": 0.75, "box": [96.0, 12.0, 180.0, 84.0], "color": "",
    }  # fmt: skip
    assert box["color"].startswith("#") and answer["timing"]["rows"] == 1


@pytest.mark.parametrize("query", ["", "?draw=boxes"])
def test_sizes_that_a_model_leaves_open_are_those_of_its_outputs(query: str) -> None:
    """As ultralytics' exporter writes models with dynamic axes."""
    model = detector()
    outputs = (TensorMeta("output0", "float32", (-1, -1, -1)),)
    model.described = replace(model.described, outputs=outputs)
    answer = predict(model, query).json()
    assert answer["kind"] == "boxes" and "'output0' [?, 2, 6]" in answer["rule"]
    assert [box["box"] for box in answer["predictions"][0]["boxes"]] == [[96.0, 12.0, 180.0, 84.0]]
    told = error_of(predict(model, "?draw=mask"), 400)
    assert "draw is mask, and the model's outputs are nothing like it" in told


def test_several_pictures_and_the_least_score() -> None:
    files = [("a", ("a.png", png(Image.new("RGB", (64, 64), "red")))), ("b", ("b.png", png(thirds())))]
    answer = predict(detector(), "?min_score=0.9", files=files).json()
    assert [len(found["boxes"]) for found in answer["predictions"]] == [1, 0]
    assert [(found["width"], found["height"]) for found in answer["predictions"]] == [(64, 64), (96, 60)]


def test_a_mask_is_a_png_of_places_in_the_list_of_classes() -> None:
    answer = predict(segmenter(), photo=thirds(960, 300)).json()
    (found,) = answer["predictions"]
    assert {entry["label"]: entry["share"] for entry in found["classes"]} == {
        name: pytest.approx(1 / 3, abs=0.02) for name in ("red", "green", "blue")
    }
    mask = found["mask"]
    assert (mask["width"], mask["height"]) == (MASK_SIDE, 200)
    with Image.open(io.BytesIO(base64.b64decode(mask["png"]))) as image:
        places = np.asarray(image)
    assert image.mode == "L" and places.shape == (200, MASK_SIDE)
    for label, x in (("red", 20), ("green", 320), ("blue", 620)):
        assert found["classes"][places[100, x] - 1]["label"] == label


def test_the_query_chooses() -> None:
    raw = predict(detector(), "?draw=none").json()
    assert "kind" not in raw and len(raw["predictions"][0]) == 2 and len(raw["predictions"][0][0]) == 6
    unnamed = segmenter({"image.scale": "1"})
    assert "kind" not in predict(unnamed).json()
    asked = predict(unnamed, "?draw=mask").json()
    assert asked["kind"] == "mask" and "a score of each of 3 classes" in asked["rule"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("?draw=circles", "draw is 'circles'; it is auto, boxes, mask or none"),
        ("?draw=mask", "draw is mask, and the model's outputs are nothing like it"),
        ("?min_score=2", "min_score is '2'; it is a number of 0 to 1"),
        ("?min_score=nan", "min_score is 'nan'"),
        ("?min_score=", "min_score is ''"),
    ],
)
def test_choices_that_are_none(query: str, told: str) -> None:
    assert told in error_of(predict(detector(), query), 400)


def test_rows_as_json_are_answered_as_before() -> None:
    body = {"instances": [np.zeros((3, 64, 64)).tolist()]}
    answer = predict(detector(), json=body).json()
    assert "kind" not in answer and answer["predictions"][0][1][4] == 0.75


def test_a_detector_without_rows_takes_one_picture() -> None:
    outputs = [TensorMeta("b", "float32", (-1, 4)), TensorMeta("s", "float32", (-1,)), TensorMeta("l", "int64", (-1,))]
    made = {"b": np.array([[0, 0, 32, 64]], np.float32), "s": np.array([0.5], np.float32), "l": np.array([1])}
    model = MadeUpModel("boxer", [IMAGES], outputs, lambda feeds: made, metadata=COLOURS)
    model.described = replace(model.described, batch=None)
    answer = predict(model).json()
    assert answer["predictions"][0]["boxes"][0]["box"] == [0.0, 0.0, 96.0, 96.0]
    assert answer["predictions"][0]["boxes"][0]["label"] == "green"
    two = [("a", ("a.png", png(thirds()))), ("b", ("b.png", png(thirds())))]
    assert "takes one picture at a time" in error_of(predict(model, files=two), 400)
    assert "has inputs without rows" in error_of(predict(model, "?draw=none"), 400)
    assert "have no rows" in error_of(predict(model, json={"instances": [1]}), 400)


def localiser(boxes: int = 1) -> MadeUpModel:
    """A box for each picture, from its left edge to 32 times its red; or ``boxes`` of them, with one score."""

    def compute(feeds: Any) -> Any:
        red = feeds["images"][:, 0, 32, 32]
        corners = np.stack([0 * red, 0 * red, 32 * red + 16, 0 * red + 64], axis=1)
        return {"b": np.repeat(corners, boxes, axis=0), "s": 0.5 + 0 * red, "l": np.zeros(len(red), np.int64)}

    outputs = [TensorMeta("b", "float32", (-1, 4)), TensorMeta("s", "float32", (-1,)), TensorMeta("l", "int64", (-1,))]
    return MadeUpModel("localiser", [IMAGES], outputs, compute, metadata={"image.scale": "0.00392156862745098"})


def test_a_model_of_one_box_for_each_picture() -> None:
    files = [("a", ("a.png", png(Image.new("RGB", (64, 64), colour)))) for colour in ("red", "black")]
    answer = predict(localiser(), files=files).json()
    assert [[box["box"] for box in found["boxes"]] for found in answer["predictions"]] == [
        [[0.0, 0.0, 48.0, 64.0]],
        [[0.0, 0.0, 16.0, 64.0]],
    ]


def test_outputs_that_contradict_each_other_are_an_error_of_the_model() -> None:
    model = localiser(boxes=2)
    model.described = replace(model.described, batch=None)
    assert "a row for each box, and these have different numbers: 'b' 2, 's' 1" in error_of(predict(model), 500)


def test_the_page_knows_what_is_drawn() -> None:
    draws = form_of(detector().described)["draws"]
    assert (draws["kind"], draws["sure"]) == ("boxes", True) and "task detect" in draws["rule"]
    assert form_of(segmenter({"image.scale": "1"}).described)["draws"]["sure"] is False
    classes = TensorMeta("y", "float32", (-1, 3))
    assert form_of(MadeUpModel("m", [IMAGES], [classes], lambda feeds: {}, metadata=COLOURS).described)["draws"] is None
