"""Images at computed places: GridSample, AffineGrid, MaxPool's Indices and the MaxUnpool of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.draft import Draft
from graphs.noise import MOVES, SMOOTH, Dropped
from graphs.windows import pick_image, window


def draw_grid_sample(draft: Draft) -> None:
    """By a grid that is constant, an input, or made by AffineGrid; in part outside the images."""
    draft.since(16)
    if draft.float_type != "float32":
        raise Dropped("onnxruntime's GridSample is of float32")
    source = draft.pick(lambda array: array.ndim == 4)
    grid = draw_grid(draft, source)
    modes = ("linear", "nearest") if draft.opset >= 20 else ("bilinear", "nearest")
    mode = draft.choice([None, modes[0], modes[1]])
    if mode == "nearest" and not draft.values[grid].exact:
        raise Dropped("GridSample: rounding decides which pixel is nearest")
    settings = {"padding_mode": draft.choice([None, "zeros", "border"]), "align_corners": draft.choice([None, 0, 1])}
    draft.add("GridSample", [source, grid], MOVES if mode == "nearest" else SMOOTH, mode=mode, **settings)


def draw_grid(draft: Draft, source: str) -> str:
    """Places (N, H, W, 2) for the images of a value."""
    count, size = draft.shape(source)[0], (draft.size(5), draft.size(5))
    if draft.opset >= 20 and not draft.opened and draft.chance(0.4):
        return affine_grid(draft, (count, draft.shape(source)[1], *size))
    if draft.batched(source):
        return draft.input(("N", *size, 2), "float32", "normal")
    if draft.chance(0.4):
        return draft.input((count, *size, 2), "float32", draft.choice(["normal", "eighths"]))
    return draft.weight(draft.numbers([count, *size, 2], 0.7))


def draw_affine_grid(draft: Draft) -> None:
    """A grid for images or volumes."""
    draft.since(20)
    if draft.float_type != "float32" or draft.opened:
        raise Dropped("affine grids of float32 and of constant sizes are supported")
    count = draft.rows if draft.chance(0.5) else draft.size(3)
    affine_grid(draft, (count, draft.size(3), *[draft.size(5) for _ in range(draft.choice([2, 2, 3]))]))


def affine_grid(draft: Draft, shape: tuple[int, ...]) -> str:
    """Places by transformations that are an input, or a constant times a value."""
    axes = len(shape) - 2
    theta = (shape[0], axes, axes + 1)
    if draft.chance(0.5):
        given = draft.input(theta, "float32", draft.choice(["normal", "eighths"]))
    else:
        given = draft.weight(draft.numbers(theta, 0.7))
        given = draft.add("Mul", [given, draft.pick(lambda array: array.size == 1 and array.ndim <= 3)])[0]
    (made,) = draft.add("AffineGrid", [given, draft.fixed(shape)], align_corners=draft.choice([None, 0, 1]))
    return made


def draw_indices(draft: Draft) -> None:
    """MaxPool with its Indices, of windows that may overlap and be padded."""
    draft.since(11)
    if draft.float_type == "float64":
        raise Dropped("indices of doubles are refused")
    source = pick_image(draft)
    settings: dict[str, Any] = window(draft, draft.shape(source)[2:], dilates=True)
    if "auto_pad" in settings:  # trnrt refuses the negative padding that larger strides would have
        strides = zip(settings.get("strides", settings["kernel_shape"]), settings["kernel_shape"], strict=True)
        settings["strides"] = [min(pair) for pair in strides]
    if draft.chance(0.3):
        settings["ceil_mode"] = 1
    if draft.chance(0.2):
        settings["storage_order"] = 1
    if np.prod(settings["kernel_shape"]) > 64:
        raise Dropped("windows of too many elements")
    draft.add("MaxPool", [source], MOVES, outputs=2, **settings)


def draw_unpool(draft: Draft) -> None:
    """MaxUnpool of a MaxPool's own indices, of windows side by side, with something in between at times."""
    draft.since(11)
    source = pick_image(draft)
    shape = draft.shape(source)
    if len(shape) != 4 or draft.float_type != "float32":
        raise Dropped("onnxruntime unpools images of float32")
    kernel = [draft.between(1, min(size, 3)) for size in shape[2:]]
    if kernel == [1, 1]:
        raise Dropped("windows of one pixel")
    pooled, indices = draft.add("MaxPool", [source], MOVES, outputs=2, kernel_shape=kernel, strides=kernel)
    if draft.chance(0.5):
        pooled = draft.add(draft.choice(["Tanh", "Sin", "Sigmoid"]), [pooled])[0]
    inputs = [pooled, indices]
    fits = all(size % k == 0 for size, k in zip(shape[2:], kernel, strict=True))
    if not fits and draft.opened:
        raise Dropped("the size of an unpooled image is constant")
    if not fits or (not draft.opened and draft.chance(0.3)):
        inputs.append(draft.fixed(shape))
    draft.add("MaxUnpool", inputs, MOVES, kernel_shape=kernel, strides=kernel)
