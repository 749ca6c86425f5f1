"""Resize and Upsample: all modes, sizes and scales, those that float32 does not hold among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.draft import Draft
from graphs.noise import MOVES, SMOOTH, Dropped

SMALLER = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
SCALES = (*SMALLER, 1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 2.0, 2.0, 2.3, 2.5, 3.0)
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def draw_resize(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim in (4, 4, 3, 2, 1))
    shape = draft.shape(source)
    moved = [axis >= len(shape) - 2 for axis in range(len(shape))]
    if draft.chance(0.2) and not draft.opened:
        moved = [draft.chance(0.5) for _ in shape]
    elif len(shape) <= 2:
        moved[0] = moved[0] and not draft.opened
    scales = [draft.choice(SCALES) if moves else 1.0 for moves in moved]
    mode = draft.choice(["nearest", "nearest", "linear"]) if draft.opset < 11 or draft.chance(0.7) else "cubic"
    if mode != "nearest" and len(shape) > 2 and not all(moved[-2:]):
        raise Dropped("linear and cubic are of the last two axes")
    if mode == "cubic" and len(shape) not in (2, 4):
        raise Dropped("onnxruntime's cubic is of images")
    if draft.opset < 10:
        upsample(draft, source, [max(1.0, scale) for scale in scales], mode)
    elif draft.opset < 11:
        draft.add("Resize", [source, draft.fixed(scales, "float32")], kind_of(mode), mode=mode)
    else:
        resize(draft, source, scales, moved, mode)


def weigh(draft: Draft, mode: str) -> dict[str, Any]:
    """Other weights of linear and cubic pixels."""
    found: dict[str, Any] = {}
    if mode == "cubic":
        found = {"cubic_coeff_a": draft.choice([None, -0.5, -1.0]), "exclude_outside": draft.choice([None, None, 1])}
    if mode != "nearest" and draft.opset >= 18 and draft.chance(0.3):
        found["antialias"] = 1
    return found


def kind_of(mode: str) -> str:
    return MOVES if mode == "nearest" else SMOOTH


def upsample(draft: Draft, source: str, scales: list[float], mode: str) -> None:
    """Opset 7 and 9: scales are an attribute, then an input."""
    if draft.opset >= 9:
        draft.add("Upsample", [source, draft.fixed(scales, "float32")], kind_of(mode), mode=mode)
    else:
        draft.add("Upsample", [source], kind_of(mode), mode=mode, scales=scales)


def resize(draft: Draft, source: str, scales: list[float], moved: list[bool], mode: str) -> None:
    """Opset 11 and later: scales or sizes, regions, axes, and all the ways to round."""
    shape = draft.shape(source)
    settings: dict[str, Any] = {"mode": mode}
    if draft.chance(0.8):
        late, early = draft.opset >= 19, draft.opset < 13
        more = ["half_pixel_symmetric"] * late + ["tf_half_pixel_for_nn"] * early
        settings["coordinate_transformation_mode"] = draft.choice([*COORDINATES, *more])
    if mode == "nearest" and draft.chance(0.8):
        settings["nearest_mode"] = draft.choice(NEAREST)
    axes = list(range(len(shape)))
    if draft.opset >= 18 and draft.chance(0.4):
        axes = [axis for axis in axes if moved[axis]]
        settings["axes"] = [axis - len(shape) if draft.chance(0.3) else axis for axis in axes]
    if not axes:
        raise Dropped("nothing to resize")
    settings |= weigh(draft, mode)
    region = draft.fixed([], draft.float_type)
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        starts = [draft.choice([0.0, 0.1, 0.25]) if moved[axis] else 0.0 for axis in axes]
        ends = [draft.choice([1.0, 0.9, 0.75, 1.2]) if moved[axis] else 1.0 for axis in axes]
        region = draft.fixed([*starts, *ends], draft.float_type)
        settings["extrapolation_value"] = draft.choice([None, 0.0, -1.5])
    if draft.chance(0.5) or (draft.opened and 0 in axes):
        inputs = [source, region, draft.fixed([scales[axis] for axis in axes], "float32")]
    else:
        sizes = [max(1, int(np.floor(shape[axis] * scales[axis]))) for axis in axes]
        inputs = [source, region, "", draft.fixed(sizes)]
        if draft.opset == 11:
            inputs[2] = draft.fixed([], "float32")
        if draft.opset >= 18 and draft.chance(0.3):
            settings["keep_aspect_ratio_policy"] = draft.choice(["stretch", "not_larger", "not_smaller"])
            if "axes" in settings:  # onnxruntime does not find those that are counted from the end
                settings["axes"] = axes
    draft.add("Resize", inputs, kind_of(mode), **settings)
