"""Where a picture lies in a model's input, and back.

stretch: each side is resized to the input's.
letterbox: the picture is resized by one factor until it fits inside; the rest, the same on both sides, is grey.
crop: it is resized by one factor until it covers the input; the overhang on both sides is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FITS = ("stretch", "letterbox", "crop")
"""The ways to fit a picture; the first one is the default."""

GREY = 114
"""The grey of the margins of a letterbox, as in the training of ultralytics' models."""


@dataclass(frozen=True)
class Placement:
    """A picture of ``size`` in an input of ``input_size``, both (width, height) in pixels.

    The picture is resized to ``inner`` pixels, whose top left corner is at ``offset``: negative if cropped.
    """

    size: tuple[int, int]
    input_size: tuple[int, int]
    inner: tuple[int, int]
    offset: tuple[int, int]

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the input per pixel of the picture: a point x of the picture is at x * scale + offset."""
        return self.inner[0] / self.size[0], self.inner[1] / self.size[1]


def place_picture(size: tuple[int, int], wanted: tuple[int, int], fit: str) -> Placement:
    """Where a picture of ``size`` lies in an input of size ``wanted``: (width, height) each."""
    if fit == "stretch":
        return Placement(size, wanted, wanted, (0, 0))
    ratios = [one / other for one, other in zip(wanted, size, strict=True)]
    if fit == "letterbox":
        width, height = (min(most, max(1, round(side * min(ratios)))) for side, most in zip(size, wanted, strict=True))
    else:
        width, height = (max(least, round(side * max(ratios))) for side, least in zip(size, wanted, strict=True))
    left, top = (wanted[0] - width) // 2, (wanted[1] - height) // 2
    return Placement(size, wanted, (width, height), (left, top))


def fit_picture(picture: Image, place: Placement, steps: dict[str, None]) -> Image:
    """The picture fitted to the input (bilinear, antialiased); adds a note of each change to ``steps``."""
    from PIL import Image

    if place.size == place.inner == place.input_size:
        return picture
    (width, height), (left, top), scale = place.input_size, place.offset, place.scale
    if place.size != place.inner:
        (before, inner) = (f"{each[0]}x{each[1]}" for each in (place.size, place.inner))
        steps[f"resized from {before} to {inner} (bilinear, antialiased)"] = None
    if left < 0 or top < 0:
        steps[f"cropped to {width}x{height}"] = None
        # Resized by Pillow from a part of the picture: a long strip never becomes a huge picture first.
        box = (-left / scale[0], -top / scale[1], (width - left) / scale[0], (height - top) / scale[1])
        limits = (min(box[2], place.size[0]), min(box[3], place.size[1]))
        return picture.resize((width, height), Image.Resampling.BILINEAR, box=(*box[:2], *limits))
    if place.size != place.inner:
        picture = picture.resize(place.inner, Image.Resampling.BILINEAR)
    if place.inner == place.input_size:
        return picture
    steps[f"padded to {width}x{height}"] = None
    bands = len(picture.getbands())
    filling = GREY if bands == 1 else (GREY,) * 3 if bands == 3 else (GREY, GREY, GREY, 255)
    padded = Image.new(picture.mode, (width, height), filling)
    padded.paste(picture, (left, top))
    return padded
