"""Where a picture lies in a model's input, and back.

stretch: each side is resized to the input's.
letterbox: the picture is resized by one factor until it fits inside; the rest, the same on both sides, is grey.
crop: it is resized by one factor until it covers the input; the overhang on both sides is cut off.
center: as crop, but it is resized to cover 8/7 of the input: a side of 224 shows the middle of 256, as torchvision
prepares pictures for its classifiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FITS = ("stretch", "letterbox", "crop", "center")
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
        cover, whole = (max(ratios) * 256 / 224, int) if fit == "center" else (max(ratios), round)
        width, height = (max(least, whole(side * cover + 1e-6)) for side, least in zip(size, wanted, strict=True))
        # As torchvision's CenterCrop rounds: a half to the even number.
        return Placement(
            size, wanted, (width, height), (-round((width - wanted[0]) / 2), -round((height - wanted[1]) / 2))
        )
    left, top = (wanted[0] - width) // 2, (wanted[1] - height) // 2
    return Placement(size, wanted, (width, height), (left, top))


def fit_picture(picture: Image, place: Placement, steps: dict[str, None]) -> Image:
    """The picture fitted to the input (bilinear, antialiased); adds a note of each change to ``steps``."""
    from PIL import Image

    if place.size == place.inner == place.input_size:
        return picture
    (width, height), (left, top) = place.input_size, place.offset
    if place.size != place.inner:
        (before, inner) = (f"{each[0]}x{each[1]}" for each in (place.size, place.inner))
        steps[f"resized from {before} to {inner} (bilinear, antialiased)"] = None
    if left < 0 or top < 0:
        steps[f"cropped to {width}x{height}"] = None
        # Resized by Pillow from a part of the picture: a long strip never becomes a huge picture first.
        return _resize_part(picture, place)
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


_MARGIN = 2
"""Pixels beyond a crop that are resized, too: its edges then see their neighbours, as in the whole picture, resized."""


def _resize_part(picture: Image, place: Placement) -> Image:
    """The part of a picture that the input shows, as if the whole picture were resized and then cropped."""
    from PIL import Image

    (width, height), (inner_width, inner_height), scale = place.input_size, place.inner, place.scale
    left, top = -place.offset[0], -place.offset[1]
    first = (max(0, left - _MARGIN), max(0, top - _MARGIN))
    last = (min(inner_width, left + width + _MARGIN), min(inner_height, top + height + _MARGIN))
    box = (
        first[0] / scale[0],
        first[1] / scale[1],
        min(last[0] / scale[0], place.size[0]),
        min(last[1] / scale[1], place.size[1]),
    )
    part = picture.resize((last[0] - first[0], last[1] - first[1]), Image.Resampling.BILINEAR, box=box)
    at = (left - first[0], top - first[1])
    return part.crop((*at, at[0] + width, at[1] + height))
