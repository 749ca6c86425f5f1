"""Pictures in a model's input: stretched, letterboxed, cropped; and what ultralytics' models expect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from trnrt.errors import InputError
from trnrt.importer import TensorInfo
from trnrt.inputs.fitting import FITS, GREY, fit_picture, place_picture
from trnrt.inputs.images import ImageOptions, read_images, recipe
from trnrt.inputs.ultralytics import ultralytics_names, ultralytics_point_numbers, ultralytics_size

WANTED = TensorInfo("images", "float32", (1, 3, 32, 48))
ULTRALYTICS = {"task": "detect", "names": "{0: 'a', 1: 'b'}", "imgsz": "[32, 48]", "stride": "32"}
SIDES = st.tuples(st.integers(1, 300), st.integers(1, 300))


@pytest.mark.parametrize(
    ("size", "fit", "inner", "offset"),
    [
        ((96, 32), "stretch", (48, 32), (0, 0)),
        ((96, 32), "letterbox", (48, 16), (0, 8)),
        ((10, 32), "letterbox", (10, 32), (19, 0)),
        ((11, 32), "letterbox", (11, 32), (18, 0)),
        ((1, 9999), "letterbox", (1, 32), (23, 0)),
        ((96, 32), "crop", (96, 32), (-24, 0)),
        ((24, 32), "crop", (48, 64), (0, -16)),
    ],
)
def test_where_a_picture_lies(size: tuple[int, int], fit: str, inner: tuple[int, int], offset: tuple[int, int]) -> None:
    placed = place_picture(size, (48, 32), fit)
    assert (placed.inner, placed.offset) == (inner, offset)


@given(size=SIDES, wanted=SIDES, fit=st.sampled_from(FITS))
def test_every_picture_fills_the_input(size: tuple[int, int], wanted: tuple[int, int], fit: str) -> None:
    placed = place_picture(size, wanted, fit)
    for inner, offset, side in zip(placed.inner, placed.offset, wanted, strict=True):
        if fit == "letterbox":
            assert offset >= 0 and offset + inner <= side
        else:
            assert offset <= 0 and offset + inner >= side
    picture = fit_picture(Image.new("RGB", size, "white"), placed, {})
    assert picture.size == wanted
    grey = (np.asarray(picture) == GREY).all(axis=2)
    assert grey.sum() == (wanted[0] * wanted[1] - placed.inner[0] * placed.inner[1] if fit == "letterbox" else 0)


def test_cropping_equals_resizing_and_then_cutting() -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 130, 3), np.uint8))
    placed = place_picture(picture.size, (48, 32), "crop")
    whole = picture.resize(placed.inner, Image.Resampling.BILINEAR)
    left = -placed.offset[0]
    cut = np.asarray(whole.crop((left, 0, left + 48, 32))).astype(int)
    found = np.asarray(fit_picture(picture, placed, {})).astype(int)
    assert np.abs(found - cut).max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_a_letterbox_is_grey_in_any_colours(mode: str) -> None:
    picture = fit_picture(Image.new(mode, (48, 8)), place_picture((48, 8), (48, 32), "letterbox"), {})
    assert picture.getpixel((0, 0)) == {"L": GREY, "RGB": (GREY,) * 3, "RGBA": (GREY, GREY, GREY, 255)}[mode]


def test_ultralytics_metadata_says_how_pictures_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("RGB", (96, 32), "white").save(path)
    how = recipe(WANTED, ULTRALYTICS, ImageOptions())
    assert (how.fit, how.scale, how.color, how.sources["fit"]) == ("letterbox", 1 / 255, "RGB", "the model's metadata")
    batch, told = read_images([path], how, largest=2**20)
    assert batch[0, :, 8:24].min() == 1 and np.unique(batch[0, :, :8]).tolist() == [np.float32(GREY / 255)]
    assert "padded to 48x32" in told and "fit letterbox" in told


def test_the_user_and_the_models_own_keys_outweigh_it() -> None:
    assert recipe(WANTED, ULTRALYTICS, ImageOptions(fit="stretch", scale=1.0)).fit == "stretch"
    own = recipe(WANTED, {**ULTRALYTICS, "image.fit": "Crop", "image.scale": "0.5"}, ImageOptions())
    assert (own.fit, own.scale) == ("crop", 0.5)
    assert recipe(WANTED, {**ULTRALYTICS, "task": "classify"}, ImageOptions()).fit == "crop"
    with pytest.raises(InputError, match=r"image\.fit 'squeeze'"):
        recipe(WANTED, {"image.scale": "1", "image.fit": "squeeze"}, ImageOptions())


def test_open_sizes_are_those_of_the_export() -> None:
    wanted = TensorInfo("images", "float32", ("N", 3, "H", "W"))
    how = recipe(wanted, ULTRALYTICS, ImageOptions())
    assert (how.height, how.width) == (32, 48)


@pytest.mark.parametrize("text", ["{0: 'a', 2: 'b'}", "{0: 1}", "__import__('os')", "(" * 9999, "'a'", "{", ""])
def test_names_that_are_none(text: str) -> None:
    assert ultralytics_names({**ULTRALYTICS, "names": text}) == []


@pytest.mark.parametrize("text", ["[32]", "[32, -1]", "['a', 'b']", "[99999, 32]", "{}", "[True, 2]"])
def test_sizes_that_are_none(text: str) -> None:
    assert ultralytics_size({**ULTRALYTICS, "imgsz": text}) is None


def test_what_the_metadata_holds() -> None:
    assert ultralytics_names(ULTRALYTICS) == ["a", "b"]
    assert ultralytics_names({"names": ULTRALYTICS["names"]}) == []
    assert ultralytics_size({**ULTRALYTICS, "imgsz": "640"}) == (640, 640)
    assert ultralytics_point_numbers({**ULTRALYTICS, "kpt_shape": "[17, 3]"}) == 51
    assert ultralytics_point_numbers(ULTRALYTICS) == 0
