"""The boxes or regions that a model found in one picture, in the picture's own coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.inputs.fitting import Placement
from trnrt.vision.recognising import Recognised

Array = NDArray[Any]

MOST = 255
"""The most boxes or classes of one picture: a mask has a byte for each pixel, and 0 means none of them."""


@dataclass(frozen=True)
class Limits:
    """The least ``score`` of a box, and the largest ``overlap`` of two boxes of a class, as a share of their union.

    The defaults are ultralytics'. ``overlap`` applies only to models that leave suppression to the reader.
    """

    score: float = 0.25
    overlap: float = 0.7


@dataclass(frozen=True)
class Box:
    """A box: left, top, right and bottom in pixels of the picture; ``index``: its class."""

    corners: tuple[float, float, float, float]
    score: float
    index: int
    label: str | None


@dataclass(frozen=True)
class Region:
    """A class of a mask, and its share of the picture's pixels."""

    index: int
    label: str | None
    share: float


@dataclass(frozen=True)
class Finding:
    """The boxes in a picture, the highest score first, or its regions, the largest first.

    ``mask``: uint8 (h, w) over the model's input: k + 1 where the box or region k is, 0 elsewhere; None without masks.
    """

    placement: Placement
    boxes: tuple[Box, ...] = ()
    regions: tuple[Region, ...] = ()
    mask: Array | None = None

    def mask_of(self, size: tuple[int, int]) -> Array | None:
        """The mask over the whole picture, resized to ``size`` (width, height): uint8 (height, width)."""
        return None if self.mask is None else sample_mask(self.mask, self.placement, size)


def sample_mask(mask: Array, place: Placement, size: tuple[int, int]) -> Array:
    """A mask over the model's input, resampled to ``size`` (width, height) over the picture by nearest values.

    A margin that was cropped before the model is 0.
    """
    columns, rows = (source_places(mask.shape[1 - dim], place, dim, size[dim]) for dim in (0, 1))
    sampled: Array = np.pad(mask, 1)[np.ix_(rows, columns)]
    return sampled


def source_places(count: int, place: Placement, dim: int, size: int) -> Array:
    """For each of ``size`` pixels along a side of the picture: the mask's row or column + 1, 0 outside of the input."""
    points = (np.arange(size) + 0.5) * (place.size[dim] / size) * place.scale[dim] + place.offset[dim]
    places = np.floor(points * (count / place.input_size[dim])).astype(np.int64)
    return np.where((places >= 0) & (places < count), places + 1, 0)


def label_of(index: int, labels: Sequence[str]) -> str | None:
    """The name of a class, if the model has one for it."""
    return labels[index] if 0 <= index < len(labels) else None


def row_of(outputs: Mapping[str, Array], found: Recognised, role: str, row: int) -> Array:
    """The output of a role for one picture of the batch, in float32."""
    array = outputs[found.parts[role]]
    one: Array = np.asarray(array[row] if array.ndim > 0 else array, np.float32)
    return one
