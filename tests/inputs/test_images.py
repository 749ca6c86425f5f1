"""Pictures as inputs: every setting is said by somebody, and told."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image, ImageOps

from trnrt.errors import InputError
from trnrt.importer import TensorInfo
from trnrt.inputs.images import ImageOptions, Recipe, parse_numbers, read_images, recipe

GREY = TensorInfo("image", "float32", ("batch", 1, 8, 8))
COLOR = TensorInfo("image", "float32", ("batch", 3, 4, 6))
LAST = TensorInfo("image", "float32", (1, 4, 6, 3))
OPEN = TensorInfo("image", "float32", ("N", 3, "H", "W"))
LARGEST = 2**20
SCALE_1 = ImageOptions(scale=1.0)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Saved = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Writes pixels or a picture as a file."""

    def save(picture: Pixels | Image.Image, name: str = "picture.png", **options: Any) -> Path:
        path = tmp_path / name
        (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(path, **options)
        return path

    return save


def pixels(height: int, width: int, channels: int = 3) -> Pixels:
    """Pixels that are all different."""
    values = np.arange(height * width * channels, dtype=np.uint8).reshape(height, width, channels)
    return values[:, :, 0] if channels == 1 else values


def read(path: Path, wanted: TensorInfo, said: ImageOptions = SCALE_1, **metadata: str) -> tuple[Any, str]:
    """One picture as the input ``wanted``, and what was told; ``image_scale`` is the metadata "image.scale"."""
    stored = {key.replace("_", ".", 1): value for key, value in metadata.items()}
    return read_images([path], recipe(wanted, stored, said), largest=LARGEST)


# ---- settling the recipe


def test_the_sample_models_metadata_says_everything() -> None:
    metadata = {
        "image.layout": "NCHW",
        "image.scale": "0.00392156862745098",
        "image.mean": "0",
        "image.std": "1",
        "image.color": "L",
    }
    settled = recipe(GREY, metadata, ImageOptions())
    assert (settled.layout, settled.color, settled.height, settled.width) == ("NCHW", "L", 8, 8)
    assert (settled.scale, settled.mean, settled.std) == (1 / 255, (0.0,), (1.0,))
    assert set(settled.sources.values()) == {"the model's metadata"}


def test_options_go_before_metadata() -> None:
    metadata = {"image.layout": "NHWC", "image.scale": "7", "image.mean": "7", "image.std": "7", "image.color": "L"}
    said = ImageOptions("NCHW", "BGR", 2.0, (1.0, 2.0, 3.0), (4.0,))
    settled = recipe(COLOR, metadata, said)
    assert (settled.layout, settled.color, settled.scale, settled.mean, settled.std) == (
        "NCHW",
        "BGR",
        2.0,
        (1.0, 2.0, 3.0),
        (4.0,),
    )
    assert settled.sources["scale"] == "--scale"


def test_options_save_from_metadata_that_is_broken() -> None:
    metadata = {"image.layout": "?", "image.scale": "x", "image.mean": "nan", "image.std": "", "image.color": "CMYK"}
    assert recipe(COLOR, metadata, ImageOptions("NCHW", "RGB", 1.0, (0.0,), (1.0,))).scale == 1.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layout", "CHWN"),
        ("scale", "1,2"),
        ("scale", "inf"),
        ("scale", ""),
        ("mean", "a,b"),
        ("std", "nan"),
        ("color", "CMYK"),
    ],
)
def test_metadata_that_is_broken_is_named(key: str, value: str) -> None:
    with pytest.raises(InputError, match=f"image.{key}") as caught:
        recipe(COLOR, {"image.scale": "1", f"image.{key}": value}, ImageOptions())
    assert caught.value.hint == f"give --{key} instead"


@pytest.mark.parametrize(
    ("shape", "layout", "color"),
    [
        (("N", 1, 8, 8), "NCHW", "L"),
        (("N", 3, "H", "W"), "NCHW", "RGB"),
        (("N", 4, 8, 8), "NCHW", "RGBA"),
        (("N", 8, 8, 1), "NHWC", "L"),
        (("N", None, None, 3), "NHWC", "RGB"),
    ],
)
def test_layout_and_color_from_the_shape(shape: Any, layout: str, color: str) -> None:
    settled = recipe(TensorInfo("x", "float32", shape), {}, SCALE_1)
    assert (settled.layout, settled.color) == (layout, color)
    assert settled.sources["layout"] == "from the shape"


@pytest.mark.parametrize("shape", [(1, 3, 8, 3), (1, 1, 1, 1), ("N", "C", "H", "W"), (1, 8, 8, 8)])
def test_a_layout_that_the_shape_does_not_tell_is_asked_for(shape: Any) -> None:
    with pytest.raises(InputError) as caught:
        recipe(TensorInfo("x", "float32", shape), {}, SCALE_1)
    assert caught.value.hint == "give --layout NCHW or NHWC"


def test_open_channels_need_a_color() -> None:
    wanted = TensorInfo("x", "float32", ("N", "C", "H", "W"))
    with pytest.raises(InputError) as caught:
        recipe(wanted, {}, ImageOptions(layout="NCHW", scale=1.0))
    assert "--color" in (caught.value.hint or "")
    assert recipe(wanted, {}, ImageOptions(layout="NCHW", color="L", scale=1.0)).color == "L"


def test_no_scale_is_guessed() -> None:
    with pytest.raises(InputError, match="how pixels") as caught:
        recipe(COLOR, {"image.mean": "0.5"}, ImageOptions())
    assert "--scale" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("wanted", "said", "message"),
    [
        (TensorInfo("x", "float32", ("N", 64)), SCALE_1, "rank 4"),
        (TensorInfo("x", "float32", (0, 3, 8, 8)), SCALE_1, "rank 4"),
        (TensorInfo("x", "int64", ("N", 3, 8, 8)), SCALE_1, "isn't float32"),
        (TensorInfo("x", "str", ("N", 3, 8, 8)), SCALE_1, "isn't float32"),
        (COLOR, ImageOptions(layout="NHWC", scale=1.0), "6 channels"),
        (COLOR, ImageOptions(color="L", scale=1.0), "L has 1"),
        (COLOR, ImageOptions(scale=1.0, mean=(1.0, 2.0)), "mean has 2 numbers for 3 channels"),
        (COLOR, ImageOptions(scale=1.0, std=(1.0, 0.0, 1.0)), "std is 0"),
        (TensorInfo("x", "uint8", ("N", 3, 8, 8)), ImageOptions(scale=0.5), "uint8"),
        (TensorInfo("x", "uint8", ("N", 3, 8, 8)), ImageOptions(std=(2.0,)), "uint8"),
    ],
)
def test_what_can_not_be_is_refused(wanted: TensorInfo, said: ImageOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe(wanted, {}, said)


@pytest.mark.parametrize(
    ("range_name", "low", "high"),
    [
        ("NominalRange_0_255", 0, 255),
        ("Normalized_0_1", 0, 1),
        ("normalized_1_1", -1, 1),
        ("NOMINALRANGE_16_235", 16, 235),
    ],
)
def test_onnx_ranges(saved: Saved, range_name: str, low: float, high: float) -> None:
    path = saved(np.array([[0, 255]], np.uint8))
    batch, _ = read_images(
        [path],
        recipe(TensorInfo("x", "float32", (1, 1, 1, 2)), {"Image.NominalPixelRange": range_name}, ImageOptions("NCHW")),
        largest=LARGEST,
    )
    np.testing.assert_allclose(batch.ravel(), [low, high], atol=1e-5)


@pytest.mark.parametrize("key", ["Image.BitmapPixelFormat", "image.BITMAPPIXELFORMAT"])
def test_onnx_pixel_format(key: str) -> None:
    # ONNX's keys are case-insensitive; trnrt's own start with "image." and are not among them.
    metadata = {key: "bgr8"}
    assert recipe(COLOR, metadata, SCALE_1).color == "BGR"
    assert recipe(COLOR, {"Image.BitmapPixelFormat": "Bgr8", "image.color": "RGB"}, SCALE_1).color == "RGB"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"Image.BitmapPixelFormat": "Yuv"}, "BitmapPixelFormat 'Yuv'"),
        ({"Image.NominalPixelRange": "0..1"}, "NominalPixelRange '0..1'"),
        ({"Image.ColorSpaceGamma": "Linear"}, "ColorSpaceGamma 'Linear'"),
    ],
)
def test_onnx_metadata_that_trnrt_does_not_know(metadata: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recipe(COLOR, metadata, ImageOptions())


def test_numbers() -> None:
    assert parse_numbers("0.485, 0.456,1e-3") == (0.485, 0.456, 0.001)
    for text in ("", "1,", "a", "nan", "1,inf"):
        with pytest.raises(ValueError):
            parse_numbers(text)


# ---- reading


def test_a_grey_picture_is_the_array(saved: Saved) -> None:
    stored = pixels(8, 8, 1)
    batch, told = read(saved(stored), GREY, ImageOptions(), image_scale="0.5", image_mean="[3]", image_std="2")
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch, ((stored * 0.5 - 3) / 2).astype(np.float32)[None, None])
    assert "value = (pixel * 0.5 - 3) / 2" in told
    assert "resized" not in told
    assert "\n" not in told


def test_layouts_and_colors(saved: Saved) -> None:
    stored = pixels(4, 6)
    path = saved(stored)
    first, _ = read(path, COLOR)
    last, _ = read(path, LAST, ImageOptions(layout="NHWC", scale=1.0))
    swapped, _ = read(path, COLOR, ImageOptions(color="BGR", scale=1.0))
    np.testing.assert_array_equal(last[0], stored)
    np.testing.assert_array_equal(first[0], stored.transpose(2, 0, 1))
    np.testing.assert_array_equal(swapped[0], stored[:, :, ::-1].transpose(2, 0, 1))
    assert first.flags.c_contiguous


def test_mean_and_std_a_channel(saved: Saved) -> None:
    said = ImageOptions(scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    batch, told = read(saved(np.full((4, 6, 3), 255, np.uint8)), COLOR, said)
    np.testing.assert_allclose(batch[0, :, 0, 0], [0.9, 0.4, 0.175], rtol=1e-6)
    assert "- [0.1, 0.2, 0.3]) / [1, 2, 4]" in told
    assert "scale, mean, std: options" in told


def test_another_size_is_resized_and_told(saved: Saved) -> None:
    # Every second column is white: without antialiasing, halving would give all black or all white.
    stripes = np.tile(np.array([0, 255], np.uint8), (16, 8))
    batch, told = read(saved(stripes), GREY)
    assert "resized from 16x16 to 8x8 (bilinear, antialiased)" in told
    assert batch.min() > 100
    assert batch.max() < 155


def test_open_sizes_take_the_picture_s_own(saved: Saved) -> None:
    batch, told = read(saved(pixels(5, 7)), OPEN)
    assert batch.shape == (1, 3, 5, 7)
    assert "resized" not in told
    half_open = TensorInfo("x", "float32", ("N", 3, 4, "W"))
    assert read(saved(pixels(5, 7)), half_open)[0].shape == (1, 3, 4, 7)


def test_several_pictures_are_a_batch(saved: Saved) -> None:
    paths = [saved(pixels(4, 6), "a.png"), saved(pixels(8, 12), "b.jpg"), saved(pixels(4, 6), "c.png")]
    batch, told = read_images(paths, recipe(COLOR, {}, SCALE_1), largest=LARGEST)
    assert batch.shape == (3, 3, 4, 6)
    np.testing.assert_array_equal(batch[0], batch[2])
    assert told.startswith("3 images as 'image' float32 [3, 3, 4, 6]: resized from 12x8 to 6x4")


def test_pictures_of_a_batch_need_one_size(saved: Saved) -> None:
    paths = [saved(pixels(4, 6), "a.png"), saved(pixels(8, 12), "b.png")]
    with pytest.raises(InputError, match=r"12x8 pixels, and .*a\.png' 6x4"):
        read_images(paths, recipe(OPEN, {}, SCALE_1), largest=LARGEST)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "uint8"])
def test_dtypes(saved: Saved, dtype: str) -> None:
    wanted = TensorInfo("image", dtype, ("N", 1, 8, 8))
    said = ImageOptions() if dtype == "uint8" else SCALE_1
    batch, told = read(saved(pixels(8, 8, 1)), wanted, said)
    assert batch.dtype == (np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype))
    np.testing.assert_array_equal(batch.astype(np.float32)[0, 0], pixels(8, 8, 1))
    assert ("pixels as they are" in told) == (dtype == "uint8")


@pytest.mark.parametrize(
    ("mode", "color", "steps"),
    [
        ("1", "L", []),
        ("L", "RGB", []),
        ("LA", "L", ["transparency dropped"]),
        ("P", "L", ["colours turned to grey"]),
        ("RGB", "L", ["colours turned to grey"]),
        ("RGBA", "L", ["transparency dropped", "colours turned to grey"]),
        ("RGBA", "RGB", ["transparency dropped"]),
        ("RGBA", "RGBA", []),
        ("RGB", "RGBA", []),
    ],
)
def test_every_mode_becomes_every_color(saved: Saved, mode: str, color: str, steps: list[str]) -> None:
    colour = {"L": 1, "RGB": 3, "RGBA": 4}[color]
    alpha = 255 if mode == "P" else 100
    picture = Image.new("RGBA", (8, 8), (255, 255, 255, alpha)).convert(mode)
    batch, told = read(saved(picture), TensorInfo("image", "float32", (1, colour, 8, 8)))
    assert batch.shape == (1, colour, 8, 8)
    assert (batch[0, :3] == 255).all()
    for step in ("transparency dropped", "colours turned to grey"):
        assert (step in told) == (step in steps)


def test_a_palette_with_transparency_in_bytes(saved: Saved) -> None:
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 9, 9, 9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch, told = read(saved(picture, transparency=bytes([0, 128])), GREY)
    assert (batch == 9).all()
    assert "transparency dropped" in told


def test_sixteen_bits_are_reduced_and_not_cut(saved: Saved) -> None:
    greys = np.array([[0, 257, 257 * 100, 65535]], np.uint16)
    batch, told = read(
        saved(Image.fromarray(greys)),
        TensorInfo("x", "float32", (1, 1, 1, 4)),
        ImageOptions(layout="NCHW", color="L", scale=1.0),
    )
    assert batch.ravel().tolist() == [0, 1, 100, 255]
    assert "16-bit pixels reduced to 8 bits" in told


def test_a_cmyk_jpeg(saved: Saved) -> None:
    batch, _ = read(saved(Image.new("CMYK", (6, 4), (0, 0, 0, 0)), "picture.jpg"), COLOR)
    assert (batch > 250).all()


@pytest.mark.parametrize("orientation", range(10))
def test_a_camera_s_orientation_is_followed(saved: Saved, orientation: int) -> None:
    """As Pillow's own function turns it; 0 and 9 are none that the specification has."""
    picture = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40)
    exif = picture.getexif()
    exif[0x112] = orientation
    path = saved(picture, "picture.png", exif=exif)
    with Image.open(path) as file:
        expected = np.asarray(ImageOps.exif_transpose(file))
    batch, told = read(path, TensorInfo("x", "float32", ("N", 1, "H", "W")))
    np.testing.assert_array_equal(batch[0, 0], expected)
    assert ("turned upright" in told) == (2 <= orientation <= 8)


def test_a_picture_is_turned_whose_exif_data_could_not_be_written_again(saved: Saved) -> None:
    """Its resolution, a fraction, is a text: Pillow reads that, and writing it anew would be a TypeError."""
    turned, resolution = struct.pack("<HHIHH", 0x112, 3, 1, 6, 0), struct.pack("<HHI4s", 0x11A, 2, 4, b"abc")
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + turned + resolution + bytes(4)
    path = saved(Image.new("L", (20, 10)), "picture.jpg", exif=exif)
    batch, _ = read(path, TensorInfo("x", "float32", ("N", 1, "H", "W")))
    assert batch.shape == (1, 1, 20, 10)


@pytest.mark.parametrize("content", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a" + bytes(50)])
def test_what_is_no_picture(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "picture.png").write_bytes(content)
    with pytest.raises(InputError, match=r"picture.png"):
        read(tmp_path / "picture.png", GREY)


@pytest.mark.parametrize("name", ["picture.png", "picture.jpg"])
def test_a_truncated_or_damaged_picture_is_an_error_or_a_picture(saved: Saved, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = saved(noise, name)
    whole = path.read_bytes()
    damaged = 0
    for cut in range(0, len(whole), max(1, len(whole) // 60)):
        for content in (whole[:cut], whole[:cut] + b"\xff\x00\x7f" + whole[cut + 3 :]):
            path.write_bytes(content)
            try:
                read(path, COLOR)
            except InputError:
                damaged += 1
    assert damaged > 50


def test_a_bomb_is_refused(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(Image.new("1", (100, 100)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9_999)
    with pytest.raises(InputError, match="too many pixels"):
        read(path, GREY)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4_999)
    with pytest.raises(InputError, match="too many pixels"):
        read(path, GREY)


def test_a_model_that_asks_for_a_huge_picture_is_refused(saved: Saved) -> None:
    with pytest.raises(InputError, match="needs more than"):
        read(saved(pixels(4, 6)), TensorInfo("x", "float32", (1, 3, 100_000, 100_000)))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    how: Recipe = recipe(GREY, {}, SCALE_1)
    with pytest.raises(InputError, match="can't read the image"):
        read_images([tmp_path / "none.png"], how, largest=LARGEST)
