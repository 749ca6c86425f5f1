"""Resize along one axis, as numbers: the index that each result copies, or the weights of its sum.

The formulas are ONNX's. Where onnxruntime deviates, this follows onnxruntime: ``align_corners`` uses whole lengths (as
the exporters do), an axis with scale 1 stays unchanged whatever its roi, and coordinates are float32 in onnxruntime's
order of operations, because the last bit decides how a coordinate is rounded and whether it lies outside.
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
# "simple" is the rounding of Upsample, and of Resize in opset 10: up only if they shrink.
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
# onnxruntime treats a coordinate this close to a half as a half: 4 * 7/8 is 3.4999998 in float32.
_TIE = np.float32(1e-6)


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
        """True if the axis changes; a scale of 1 crops nothing."""
        return self.result != self.size or bool(np.float32(self.scale) != 1)


def coordinates(axis: Axis) -> Array:
    """(result,): each result's coordinate in the source, in float32."""
    single = np.float32
    size, result, scale = single(axis.size), single(axis.result), single(axis.scale)
    half, one = single(0.5), single(1)
    place: Array = np.arange(axis.result).astype(single)
    if scale == 1:
        return place
    if axis.mode == "asymmetric":
        place = place / scale
    elif axis.mode == "tf_half_pixel_for_nn":
        place = (place + half) / scale
    elif axis.mode == "align_corners":
        place = place * (size - one) / (result - one) if axis.result > 1 else place
    elif axis.mode == "tf_crop_and_resize":
        place = _crop_coordinates(axis, place)
    elif axis.mode == "pytorch_half_pixel" and axis.result == 1:
        place = np.zeros(1, single)
    elif axis.mode == "half_pixel_symmetric":
        # From the offset on, onnxruntime computes in float64.
        offset = size / single(2) * (one - result / (scale * size))
        place = np.float64(offset) + (place.astype(np.float64) + 0.5) / np.float64(scale) - 0.5
    else:
        place = (place + half) / scale - half
    return place.astype(single)


def _crop_coordinates(axis: Axis, place: Array) -> Array:
    """The coordinates of tf_crop_and_resize."""
    last, start, end = np.float32(axis.size - 1), np.float32(axis.roi[0]), np.float32(axis.roi[1])
    if axis.result > 1:
        return start * last + place * (end - start) * last / np.float32(axis.result - 1)
    return np.full(1, 0.5 * np.float64(start + end) * np.float64(last))


def outside_mask(axis: Axis) -> Array:
    """(result,): true for results that are the attribute extrapolation_value."""
    places = coordinates(axis)
    if axis.mode != "tf_crop_and_resize" or axis.scale == 1:
        return np.zeros(axis.result, bool)
    return np.asarray((places < 0) | (places > axis.size - 1))


def nearest_indices(axis: Axis, rounding: str) -> Array:
    """(result,): the index of the element that each result copies; -1 for the attribute extrapolation_value.

    ``rounding`` is the attribute nearest_mode, or "simple".
    """
    places = coordinates(axis)
    below = np.floor(places)
    if rounding in ("round_prefer_floor", "round_prefer_ceil"):
        beyond = places - below - np.float32(0.5)
        is_tie = np.abs(beyond) <= _TIE
        nearest = below + np.where(is_tie, rounding == "round_prefer_ceil", beyond > 0)
    elif rounding == "ceil" or (rounding == "simple" and axis.scale < 1):
        nearest = np.ceil(places)
    else:
        nearest = below
    indices = np.clip(nearest.astype(np.int64), 0, axis.size - 1)
    return np.where(outside_mask(axis), -1, indices)


def interpolation_matrix(
    axis: Axis, antialias: bool = False, exclude_outside: bool = False, cubic: float | None = None
) -> Array:
    """(result, size): the weights of the source in each result; a row of zeros means the extrapolation_value.

    ``antialias``: a result of a shrinking axis sums over all the source elements that it replaces. ``exclude_outside``:
    elements beyond the edges get no weight; otherwise they count as the edge's element. ``cubic``: the attribute
    cubic_coeff_a, for cubic weights; linear ones without it.
    """
    if antialias and axis.size == axis.result:
        # onnxruntime copies along such an axis, whatever its scale.
        return np.where(outside_mask(axis)[:, None], 0, np.eye(axis.size)).astype(np.float32)
    places = coordinates(axis).astype(np.float64)
    stretch = max(1.0, 1 / axis.scale) if antialias else 1.0
    reach = stretch * (1 if cubic is None else 2)
    first = np.floor(places - reach).astype(np.int64)
    taps = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 2)
    distances = np.abs(taps - places[:, None]) / stretch
    weights = np.clip(1 - distances, 0, None) if cubic is None else _cubic_weights(distances, cubic)
    if exclude_outside:
        weights = np.where((taps < 0) | (taps >= axis.size), 0, weights)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(outside_mask(axis)[:, None], 0, weights / np.where(total == 0, 1, total))
    matrix = np.zeros((axis.result, axis.size))
    rows = np.broadcast_to(np.arange(axis.result)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, axis.size - 1)), weights)
    return matrix.astype(np.float32)


def _cubic_weights(distances: Array, a: float) -> Array:
    """The weights of elements at these distances (0 or more): Keys' cubic convolution with the parameter ``a``."""
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = a * (((distances - 5) * distances + 8) * distances - 4)
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0.0))
