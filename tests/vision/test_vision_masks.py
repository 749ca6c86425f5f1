"""Masks of classes, in the photo's pixels; and pictures with boxes and masks drawn in."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from PIL import Image
from vision_models import thirds

from trnrt.inputs.fitting import place_picture
from trnrt.vision.finding import MOST, Box, Finding, Region
from trnrt.vision.masks import find_regions, threshold_text
from trnrt.vision.painting import color_of, color_text, name_of, paint
from trnrt.vision.recognising import Recognised

SCORES = Recognised("mask", "scores", {"scores": "y"}, "", classes=5)
LABELS = ["background", "road", "sky", "tree", "car"]
WHOLE = place_picture((40, 32), (40, 32), "stretch")


def enlarged(scores: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """The classes of scores (1, classes, h, w) on a finer grid, by onnxruntime's Resize."""
    sizes = ", ".join(map(str, (*scores.shape[:2], height, width)))
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[a,b,c,d] x) => (float[a,b,e,f] y) {{
            sizes = Constant<value_ints = [{sizes}]>()
            y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , , sizes)
        }}"""
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    classes: NDArray[Any] = session.run(None, {"x": scores})[0][0].argmax(axis=0)
    return classes


def classes_in(finding: Finding) -> NDArray[Any]:
    """The class of each pixel of the input, by the finding; -1 for none."""
    assert finding.mask is not None
    classes: NDArray[Any] = np.array([-1, *(region.index for region in finding.regions)])[finding.mask]
    return classes


@pytest.mark.parametrize("axis", [1, 3])
def test_coarse_scores_are_enlarged_before_the_best_class_is_taken(axis: int) -> None:
    scores = np.random.default_rng(0).normal(size=(1, 5, 8, 10)).astype(np.float32)
    found = Recognised("mask", "scores", {"scores": "y"}, "", classes=5, axis=axis)
    finding = find_regions({"y": np.moveaxis(scores, 1, axis)}, 0, found, WHOLE, [])
    wanted = enlarged(scores, 32, 40)
    assert (classes_in(finding) == wanted).mean() > 0.999  # a tie of rounded sums may fall either way
    shares = [region.share for region in finding.regions]
    assert shares == sorted(shares, reverse=True) and abs(sum(shares) - 1) < 1e-9
    largest = finding.regions[0]
    assert largest.share == pytest.approx((wanted == largest.index).mean(), abs=2e-3)


def test_the_background_is_left_out_where_it_has_that_name() -> None:
    scores = np.zeros((1, 5, 32, 40), np.float32)
    scores[0, 0, :16] = scores[0, 4, 16:] = 1
    finding = find_regions({"y": scores}, 0, SCORES, WHOLE, LABELS)
    assert finding.regions == (Region(4, "car", 0.5),)
    unnamed = find_regions({"y": scores}, 0, SCORES, WHOLE, [])
    assert [region.index for region in unnamed.regions] == [0, 4]


def test_a_letterbox_is_taken_off_and_a_crop_put_back() -> None:
    """Rows of the input are classes; the photo sees those that it covers."""
    scores = np.zeros((1, 4, 64, 64), np.float32)
    for index in range(4):
        scores[0, index, 16 * index : 16 * index + 16] = 1
    found = Recognised("mask", "scores", {"scores": "y"}, "", classes=4)
    wide = find_regions({"y": scores}, 0, found, place_picture((128, 64), (64, 64), "letterbox"), [])
    assert sorted((region.index, region.share) for region in wide.regions) == [(1, 0.5), (2, 0.5)]
    mask = wide.mask_of((128, 64))
    assert mask is not None and mask.shape == (64, 128)
    assert [len(np.unique(mask[:32])), len(np.unique(mask[32:]))] == [1, 1]
    tall = find_regions({"y": scores}, 0, found, place_picture((64, 128), (64, 64), "crop"), [])
    cut = tall.mask_of((64, 128))
    assert cut is not None and (cut[:32] == 0).all() and (cut[96:] == 0).all() and (cut[32:96] > 0).all()
    assert sum(region.share for region in tall.regions) == 0.5


def test_a_long_strip_needs_the_memory_of_what_the_model_saw() -> None:
    """Its middle is the input; the 80 megapixels cropped at both ends have no class."""
    found = Recognised("mask", "map", {"classes": "y"}, "")
    place = place_picture((640, 125_000), (640, 640), "crop")
    tracemalloc.start()
    finding = find_regions({"y": np.zeros((1, 64, 64), np.int64)}, 0, found, place, [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert finding.regions == (Region(0, None, 640 / 125_000),)
    assert peak < 40e6


@pytest.mark.parametrize(
    ("numbers", "limit"), [((0.2, 0.7), "0 to 1: the mask is where they are over 0.5"), ((-3, 0.3), "over 0")]
)
def test_one_number_a_pixel(numbers: tuple[float, float], limit: str) -> None:
    values = np.full((1, 1, 32, 40), numbers[0], np.float32)
    values[0, 0, :, 10:] = numbers[1]
    found = Recognised("mask", "threshold", {"scores": "y"}, "", classes=1)
    finding = find_regions({"y": values}, 0, found, WHOLE, [])
    assert finding.regions == (Region(1, "mask", 0.75),)
    assert limit in threshold_text({"y": values}, found)
    named = find_regions({"y": values}, 0, found, WHOLE, ["text"])
    assert named.regions[0].label == "text"


def test_a_map_of_classes() -> None:
    classes = np.zeros((2, 1, 32, 40), np.int64)
    classes[1, 0, :8] = 3
    found = Recognised("mask", "map", {"classes": "y"}, "")
    finding = find_regions({"y": classes}, 1, found, WHOLE, LABELS)
    assert finding.regions == (Region(3, "tree", 0.25),)


def test_more_classes_than_a_byte_holds() -> None:
    found = Recognised("mask", "map", {"classes": "y"}, "")
    finding = find_regions({"y": np.arange(32 * 40).reshape(1, 32, 40)}, 0, found, WHOLE, [])
    assert len(finding.regions) == MOST and finding.mask is not None and finding.mask.max() == MOST


# -- painting ------------------------------------------------------------------------------------------------------


def test_a_box_is_drawn_at_its_corners() -> None:
    photo = Image.new("RGB", (200, 120), "white")
    boxes = (Box((50, 40, 150, 100), 0.875, 3, "a\nnarrow\x1b[31m street"),)
    painted = paint(photo, Finding(place_picture(photo.size, photo.size, "stretch"), boxes))
    color = color_of(3)
    assert painted.getpixel((150, 90)) == painted.getpixel((100, 100)) == painted.getpixel((50, 70)) == color
    assert painted.getpixel((100, 70)) == painted.getpixel((20, 20)) == (255, 255, 255)
    assert painted.getpixel((51, 28)) == color  # the name stands on top of it
    assert photo.getpixel((150, 90)) == (255, 255, 255)
    assert name_of(boxes[0]) == "a\\x0anarrow\\x1b[31m street"


def test_a_mask_is_laid_over_and_its_classes_are_named() -> None:
    photo = thirds(120, 60)
    mask = np.zeros((60, 120), np.uint8)
    mask[:, 60:] = 1
    finding = Finding(place_picture(photo.size, photo.size, "stretch"), regions=(Region(7, None, 0.5),), mask=mask)
    painted = paint(photo, finding)
    assert painted.getpixel((50, 50)) == photo.getpixel((50, 50))
    blended = [round((before + over) / 2) for before, over in zip((0, 0, 255), color_of(7), strict=True)]
    assert np.abs(np.array(painted.getpixel((110, 50))) - blended).max() <= 1
    assert painted.getpixel((1, 1)) == color_of(7)
    assert name_of(finding.regions[0]) == "class 7"


def test_every_class_has_a_colour_of_its_own() -> None:
    assert len({color_text(index) for index in range(300)}) > 250
    assert all(len(color_text(index)) == 7 for index in (0, 1, 299))


def test_pictures_of_a_pixel_and_long_names() -> None:
    photo = Image.new("RGB", (1, 1))
    boxes = (Box((0, 0, 1, 1), 1.0, 0, "x" * 500),)
    assert paint(photo, Finding(place_picture((1, 1), (8, 8), "letterbox"), boxes)).size == (1, 1)
    assert len(name_of(boxes[0])) == 40
