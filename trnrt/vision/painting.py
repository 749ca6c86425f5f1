"""Draw a finding into its photo: boxes with names and scores, masks laid over, a legend of a mask's classes."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from trnrt.text import escape_text
from trnrt.vision.finding import Box, Finding, Region

Color = tuple[int, int, int]

_OPACITY = 0.5
# Hues a golden ratio apart: neighbours differ, and no two classes have one hue.
_TURN = (5**0.5 - 1) / 2
_LONGEST_LABEL = 40


def color_of(index: int) -> Color:
    """The colour of a class: red, green and blue."""
    red, green, blue = colorsys.hsv_to_rgb(index * _TURN % 1, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def color_text(index: int) -> str:
    """The colour of a class as pages write it: ``#f23d3d``."""
    return "#{:02x}{:02x}{:02x}".format(*color_of(index))


def name_of(entry: Box | Region) -> str:
    """The name of a box or region: its label, else its class's number; one line, at most 40 characters."""
    text = escape_text(entry.label) if entry.label else f"class {entry.index}"
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 3]}..."


def paint(photo: Image.Image, finding: Finding) -> Image.Image:
    """A copy of the photo (RGB, upright) with the finding drawn in."""
    mask = finding.mask_of(photo.size)
    painted = photo.copy() if mask is None else _lay_over(photo, mask, finding)
    brush = _Brush.make(painted)
    # The best boxes last: they cover the others.
    for box in reversed(finding.boxes):
        brush.outline(box)
    for box in reversed(finding.boxes):
        x, y = box.corners[:2]
        brush.tag(f"{name_of(box)} {box.score:.2f}", color_of(box.index), (x, y - brush.height))
    for place, region in enumerate(finding.regions[: max(1, photo.height // brush.height)]):
        brush.tag(f"{name_of(region)} {region.share:.1%}", color_of(region.index), (0, place * brush.height))
    return painted


def _lay_over(
    photo: Image.Image, mask: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], finding: Finding
) -> Image.Image:
    entries = finding.boxes or finding.regions
    palette = np.array([(0, 0, 0), *(color_of(entry.index) for entry in entries)], np.uint8)
    colors = Image.fromarray(palette[mask])
    blended = Image.blend(photo, colors, _OPACITY)
    return Image.composite(blended, photo, Image.fromarray(np.where(mask > 0, 255, 0).astype(np.uint8)))


@dataclass(frozen=True)
class _Brush:
    """Draws on one image, in sizes that suit it."""

    draw: ImageDraw.ImageDraw
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont
    line: int
    height: int
    size: tuple[int, int]

    @staticmethod
    def make(image: Image.Image) -> _Brush:
        """A brush for an image: text of a fortieth of its shorter side, at least 10 pixels."""
        size = max(10, min(image.size) // 40)
        return _Brush(
            ImageDraw.Draw(image), ImageFont.load_default(size), max(2, size // 7), round(size * 1.4), image.size
        )

    def outline(self, box: Box) -> None:
        """Draw a box's edges."""
        self.draw.rectangle(box.corners, outline=color_of(box.index), width=self.line)

    def tag(self, text: str, color: Color, corner: tuple[float, float]) -> None:
        """Draw a line of text on its class's colour, moved into the image where it would hang over."""
        width = self.draw.textlength(text, font=self.font) + self.height / 2
        x = max(0, min(corner[0], self.size[0] - width))
        y = max(0, min(corner[1], self.size[1] - self.height))
        self.draw.rectangle((x, y, x + width, y + self.height), fill=color)
        ink = "black" if np.dot(color, (0.299, 0.587, 0.114)) > 130 else "white"
        self.draw.text((x + self.height / 4, y + self.height / 2), text, fill=ink, font=self.font, anchor="lm")
