"""Convolutions and pools: of images, rows and volumes, of few channels, with every way to pad, stride and dilate."""

from __future__ import annotations

from typing import Any

from graphs.draft import Draft
from graphs.movement import factored
from graphs.noise import MOVES, Dropped

AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")


def pick_image(draft: Draft) -> str:
    """Images, rows or volumes: a value that is one, or one that is made one."""
    if draft.chance(0.75):
        return draft.pick(lambda array: array.ndim in (3, 4, 5))
    source = draft.pick(lambda array: array.ndim > 0 and array.size > 0)
    shape = draft.shape(source)
    sizes = factored(draft, draft.array(source).size // shape[0], draft.choice([3, 3, 4]))
    return draft.move("Reshape", [source, draft.fixed([0, *sizes])])


def window(draft: Draft, sizes: tuple[int, ...], *, dilates: bool, fits: bool = False) -> dict[str, Any]:
    """Kernel, strides, dilations and pads over an image of ``sizes``."""
    reach = [min(size + 1, 5) for size in sizes]
    kernel = [draft.between(1, top) for top in reach]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if draft.chance(0.6):
        found["strides"] = [draft.choice([1, 2, 2, 3]) for _ in sizes]
    if dilates and draft.chance(0.3):
        found["dilations"] = [draft.choice([1, 1, 2, 3]) for _ in sizes]
    if draft.chance(0.25):
        found["auto_pad"] = draft.choice(AUTO)
    elif draft.chance(0.6):
        top = [max(0, k - 1) for k in kernel]
        found["pads"] = [draft.between(0, limit) for limit in (*top, *top)]
    return found


def draw_conv(draft: Draft) -> None:
    inputs, settings = draw_conv_inputs(draft, pick_image(draft))
    draft.add("Conv", inputs, **settings)


def draw_conv_inputs(draft: Draft, source: str) -> tuple[list[str], dict[str, Any]]:
    """Inputs and attributes of a convolution of a value."""
    shape = draft.shape(source)
    channels = shape[1]
    group = draft.choice([n for n in range(1, channels + 1) if channels % n == 0]) if draft.chance(0.4) else 1
    features = 130 if group == 1 and draft.chance(0.04) else group * draft.between(1, 4)
    settings = window(draft, shape[2:], dilates=True)
    weights = draft.numbers([features, channels // group, *settings["kernel_shape"]], 0.5)
    inputs = [source, draft.weight(weights)]
    if draft.chance(0.5):
        inputs.append(draft.weight(draft.numbers([features])))
    if draft.chance(0.4):
        del settings["kernel_shape"]
    return inputs, settings | {"group": None if group == 1 and draft.chance(0.5) else group}


def draw_computed_conv(draft: Draft) -> None:
    """A convolution whose weights are computed, too."""
    weights = draft.pick(lambda array: array.ndim in (3, 4, 5) and max(array.shape[2:]) <= 4)
    shape = draft.shape(weights)
    if draft.batched(weights) and draft.chance(0.9):
        raise Dropped("weights of the batch")
    source = draft.pick(lambda array: array.ndim == len(shape) and array.shape[1] == shape[1])
    draft.add("Conv", [source, weights], pads=[shape[2] // 2] * 2 * (len(shape) - 2))


def draw_conv_transpose(draft: Draft) -> None:
    source = pick_image(draft)
    shape = draft.shape(source)
    sizes = shape[2:]
    group = draft.choice([1, 1, shape[1]])
    kernel = [draft.between(1, 4) for _ in sizes]
    strides = [draft.choice([1, 2, 2, 3]) for _ in sizes]
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "group": group}
    if draft.chance(0.2):
        settings["dilations"] = [draft.choice([1, 2]) for _ in sizes]
    if draft.chance(0.3):
        settings["output_padding"] = [draft.between(0, stride - 1) for stride in strides]
    if draft.chance(0.3):
        settings["auto_pad"] = draft.choice(AUTO)
    elif draft.chance(0.5):
        settings["pads"] = [draft.between(0, k - 1) for k in (*kernel, *kernel)]
    if draft.chance(0.2):
        settings["output_shape"] = [
            max(1, size * stride + draft.between(-1, 2)) for size, stride in zip(sizes, strides, strict=True)
        ]
        settings.pop("pads", None)
    inputs = [source, draft.weight(draft.numbers([shape[1], draft.between(1, 3), *kernel], 0.5))]
    if draft.chance(0.4):
        inputs.append(draft.weight(draft.numbers([draft.shape(inputs[1])[1] * group])))
    draft.add("ConvTranspose", inputs, **settings)


def draw_max_pool(draft: Draft) -> None:
    source = pick_image(draft)
    settings = window(draft, draft.shape(source)[2:], dilates=draft.opset >= 10)
    if draft.opset >= 10 and draft.chance(0.4):
        settings["ceil_mode"] = 1
    draft.add("MaxPool", [source], MOVES, **settings)


def draw_average_pool(draft: Draft) -> None:
    source = pick_image(draft)
    settings = window(draft, draft.shape(source)[2:], dilates=draft.opset >= 19)
    if draft.opset >= 10 and draft.chance(0.4):
        settings["ceil_mode"] = 1
    if draft.chance(0.5):
        settings["count_include_pad"] = 1
    draft.add("AveragePool", [source], **settings)


def draw_lp_pool(draft: Draft) -> None:
    source = pick_image(draft)
    settings = window(draft, draft.shape(source)[2:], dilates=draft.opset >= 18)
    if draft.opset >= 18 and draft.chance(0.3):
        settings["ceil_mode"] = 1
    draft.add("LpPool", [source], p=draft.choice([None, 1, 2, 3]), **settings)


def draw_global_pool(draft: Draft) -> None:
    op = draft.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    source = draft.pick(lambda array: 3 <= array.ndim <= 5)
    if op == "GlobalMaxPool":
        draft.add(op, [source], MOVES)
    else:
        draft.add(op, [source], p=draft.choice([None, 1, 3]) if op == "GlobalLpPool" else None)


def draw_lrn(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim == 4)
    settings = {"alpha": draft.choice([None, 0.5]), "bias": draft.choice([None, 2.0])}
    draft.add("LRN", [source], size=draft.choice([1, 3, 5, 7]), **settings)
