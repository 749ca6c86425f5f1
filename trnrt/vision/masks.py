"""Masks from a segmenter's outputs, and those of a detector's boxes.

Forms: "scores" (a score of each class for each pixel), "threshold" (one number for each pixel), "map" (each pixel's
class). Scores of a coarser grid than the input are enlarged bilinearly before the best class is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from trnrt.inputs.fitting import Placement
from trnrt.vision.finding import MOST, Array, Finding, Region, label_of, row_of, source_places
from trnrt.vision.recognising import Recognised

BACKGROUND = ("background", "__background__", "bg")
"""A class with one of these names is left out of a mask."""


def find_regions(
    outputs: Mapping[str, Array], row: int, found: Recognised, placement: Placement, labels: Sequence[str]
) -> Finding:
    """The classes of one picture's pixels, the largest first; at most ``MOST``."""
    classes = _READERS[found.form](outputs, row, found, placement.input_size)
    size = _most_pixels(placement)
    columns, rows = (source_places(classes.shape[1 - dim], placement, dim, size[dim]) for dim in (0, 1))
    seen = classes[np.ix_(rows[rows > 0] - 1, columns[columns > 0] - 1)]  # without the margin that is cropped
    present, counts = np.unique(seen[seen >= 0], return_counts=True)
    if found.form == "threshold" and len(labels) != 2:
        labels = ["", *(labels if len(labels) == 1 else ["mask"])]
    left_out = {k for k in present.tolist() if (label_of(k, labels) or "").strip().lower() in BACKGROUND}
    if found.form == "threshold":
        left_out.add(0)
    ranked = [k for k in np.argsort(-counts, kind="stable").tolist() if present[k] not in left_out][:MOST]
    mask = np.zeros(classes.shape, np.uint8)
    for place, k in enumerate(ranked):
        mask[classes == present[k]] = place + 1
    regions = tuple(
        Region(int(present[k]), label_of(int(present[k]), labels), float(counts[k] / (size[0] * size[1])))
        for k in ranked
    )
    return Finding(placement, regions=regions, mask=mask)


def threshold_text(outputs: Mapping[str, Array], found: Recognised) -> str:
    """How the numbers of a mask of one class are read: their range decides, as nothing else tells."""
    numbers = outputs[found.parts["scores"]]
    return f"values {'of 0 to 1: the mask is where they are over 0.5' if _are_shares(numbers) else _LOGITS}"


_LOGITS = "outside of 0 to 1: the mask is where they are over 0"


def prototype_masks(prototypes: Array, coefficients: Array, size: tuple[int, int]) -> Iterator[Array]:
    """Each box's mask over an input of ``size`` (width, height), bool: sums of prototypes (k, h, w), where positive."""
    flat = prototypes.reshape(len(prototypes), -1)
    for row in coefficients:
        yield _resize((row @ flat).reshape(prototypes.shape[1:]), size) > 0


def stored_masks(masks: Array, size: tuple[int, int]) -> Iterator[Array]:
    """Masks (N, h, w) of probabilities over an input of ``size`` (width, height), where over a half."""
    for mask in masks:
        yield _resize(mask, size) > 0.5


def paint_instances(masks: Iterable[Array], corners: Array, shape: tuple[int, int]) -> Array:
    """One mask of ``shape`` (height, width): k + 1 where box k and its mask are; where boxes meet, the first one's."""
    painted = np.zeros(shape, np.uint8)
    limits = np.clip(np.rint(corners), 0, (shape[1], shape[0], shape[1], shape[0])).astype(np.int64)
    for place, (mask, (x1, y1, x2, y2)) in enumerate(zip(masks, limits.tolist(), strict=True)):
        part = painted[y1:y2, x1:x2]
        part[mask[y1:y2, x1:x2] & (part == 0)] = place + 1
    return painted


def _most_pixels(placement: Placement) -> tuple[int, int]:
    """The size at which shares are counted: the picture's own, or less if that has more pixels than the input."""
    (width, height), (across, down) = placement.size, placement.inner
    return min(width, across), min(height, down)


def _read_scores(outputs: Mapping[str, Array], row: int, found: Recognised, size: tuple[int, int]) -> Array:
    scores = np.moveaxis(row_of(outputs, found, "scores", row), found.axis - 1, 0)
    best = _enlarge(scores[0], size)
    classes = np.zeros(best.shape, np.int64)
    for index, layer in enumerate(scores[1:], 1):
        larger = _enlarge(layer, size)
        better = larger > best
        best, classes = np.where(better, larger, best), np.where(better, index, classes)
    return classes


def _read_threshold(outputs: Mapping[str, Array], row: int, found: Recognised, size: tuple[int, int]) -> Array:
    numbers = np.moveaxis(row_of(outputs, found, "scores", row), found.axis - 1, 0)[0]
    limit = 0.5 if _are_shares(outputs[found.parts["scores"]]) else 0.0
    return (_enlarge(numbers, size) > limit).astype(np.int64)


def _read_map(outputs: Mapping[str, Array], row: int, found: Recognised, size: tuple[int, int]) -> Array:
    classes: Array = np.asarray(outputs[found.parts["classes"]][row]).astype(np.int64)
    return classes.reshape(classes.shape[-2:])


def _are_shares(numbers: Array) -> bool:
    return bool(np.all((numbers >= 0) & (numbers <= 1)))


def _enlarge(layer: Array, size: tuple[int, int]) -> Array:
    """A layer (h, w) with at least the pixels of ``size`` (width, height)."""
    height, width = layer.shape
    return layer if width >= size[0] and height >= size[1] else _resize(layer, size)


def _resize(layer: Array, size: tuple[int, int]) -> Array:
    """A layer (h, w) with ``size`` (width, height): bilinear, pixels as areas."""
    image = Image.fromarray(np.ascontiguousarray(layer, np.float32))
    resized: Array = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    return resized


_READERS = {"scores": _read_scores, "threshold": _read_threshold, "map": _read_map}
