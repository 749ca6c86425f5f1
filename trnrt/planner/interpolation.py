"""What Resize does along one axis, as numbers: the index that each result is a copy of, or the weights it sums with.

The formulas are those of ONNX's operator. Where onnxruntime reads them otherwise, it is followed: ``align_corners``
goes by whole lengths (so do the exporters), and what rounds or lies outside is found in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
# "simple" is what Upsample, and Resize in opset 10, do: they round up only where they shrink.
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize: from ``size`` elements to ``result``; ``scale`` as the model gives it, or result / size.

    ``mode`` is the attribute coordinate_transformation_mode, ``roi`` the (start, end) that tf_crop_and_resize takes.
    """

    size: int
    result: int
    scale: float
    mode: str = "half_pixel"
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def moves(self) -> bool:
        """Whether the axis is anything but what it was."""
        crops = self.mode == "tf_crop_and_resize" and self.roi != (0.0, 1.0)
        return self.result != self.size or bool(np.float32(self.scale) != 1) or crops


def coordinates(axis: Axis, dtype: type[np.floating[Any]] = np.float64) -> Array:
    """(result,): where in the source each result lies."""
    size, result, scale = dtype(axis.size), dtype(axis.result), dtype(axis.scale)
    half, one, offset = dtype(0.5), dtype(1), dtype(0)
    place: Array = np.arange(axis.result).astype(dtype)
    if axis.mode == "asymmetric":
        place = place / scale
    elif axis.mode == "tf_half_pixel_for_nn":
        place = (place + half) / scale
    elif axis.mode == "align_corners":
        place = place * (size - one) / (result - one) if axis.result > 1 else place
    elif axis.mode == "tf_crop_and_resize":
        start, end = dtype(axis.roi[0]), dtype(axis.roi[1])
        if axis.result > 1:
            place = start * (size - one) + place * (end - start) * (size - one) / (result - one)
        else:
            place = np.full(1, half * (start + end) * (size - one))
    elif axis.mode == "pytorch_half_pixel" and axis.result == 1:
        place = np.zeros(1, dtype)
    else:
        if axis.mode == "half_pixel_symmetric":
            offset = size / dtype(2) * (one - result / (scale * size))
        place = offset + (place + half) / scale - half
    return place


def outside(axis: Axis) -> Array:
    """(result,): whether a result is the attribute extrapolation_value."""
    places = coordinates(axis, np.float32)
    if axis.mode != "tf_crop_and_resize":
        return np.zeros(axis.result, bool)
    return np.asarray((places < 0) | (places > axis.size - 1))


def nearest_indices(axis: Axis, rounding: str) -> Array:
    """(result,): which element each result is a copy of; -1 where it is the attribute extrapolation_value.

    ``rounding`` is the attribute nearest_mode, or "simple".
    """
    places = coordinates(axis, np.float32)
    if rounding == "round_prefer_floor":
        nearest = np.ceil(places - np.float32(0.5))
    elif rounding == "round_prefer_ceil":
        nearest = np.floor(places + np.float32(0.5))
    elif rounding == "ceil" or (rounding == "simple" and axis.scale < 1):
        nearest = np.ceil(places)
    else:
        nearest = np.floor(places)
    indices = np.clip(nearest.astype(np.int64), 0, axis.size - 1)
    return np.where(outside(axis), -1, indices)


def linear_matrix(axis: Axis, antialias: bool = False, exclude_outside: bool = False) -> Array:
    """(result, size): each result is its row's sum of the source; a row of zeros where it is the extrapolation_value.

    ``antialias``: results that shrink are sums over as much of the source as they stand for. ``exclude_outside``: what
    lies beyond the edges has no weight, else that of the edge's element.
    """
    places = coordinates(axis)
    reach = max(1.0, 1 / axis.scale) if antialias else 1.0
    first = np.floor(places - reach).astype(np.int64)
    taps = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 2)
    weights = np.clip(1 - np.abs(taps - places[:, None]) / reach, 0, None)
    if exclude_outside:
        weights = np.where((taps < 0) | (taps >= axis.size), 0, weights)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(outside(axis)[:, None], 0, weights / np.where(total == 0, 1, total))
    matrix = np.zeros((axis.result, axis.size))
    rows = np.broadcast_to(np.arange(axis.result)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, axis.size - 1)), weights)
    return matrix.astype(np.float32)
