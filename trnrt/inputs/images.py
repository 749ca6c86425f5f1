"""PNG and JPEG files as a model's input.

How an image becomes an array is never guessed silently. Each setting comes from the user, from the model's metadata
or from the input's shape. ``recipe`` settles them, ``read_images`` applies them and describes the result in one line:

    value = (pixel * scale - mean) / std          pixels are 0 to 255

Metadata: ``image.layout``, ``image.scale``, ``image.mean``, ``image.std``, ``image.color`` and ``image.fit``; else
ONNX's own experimental keys ``Image.BitmapPixelFormat`` and ``Image.NominalPixelRange``; else what ultralytics' models
expect, by the keys that its exporter writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.errors import InputError
from trnrt.inputs.decoding import (
    NamedPicture,
    convert_color,
    limit_decoding,
    opened_picture,
    silence_pillow,
    turn_upright,
)
from trnrt.inputs.fitting import FITS, Placement, fit_picture, place_picture
from trnrt.inputs.ultralytics import is_ultralytics, ultralytics_size
from trnrt.text import count_text, list_text, quote, shape_text, size_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from trnrt.importer import TensorInfo

CHANNELS = {"L": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""Channels of each colour order."""

LAYOUTS = {"NCHW": 1, "NHWC": 3}
"""The dimension that holds the channels in each layout."""

DTYPES = ("float32", "float16", "bfloat16", "float64", "uint8")
"""Dtypes that an input for images may have."""

_COLOR_OF_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}

# ONNX's page "MetadataProps": keys and values are case-insensitive.
_PIXEL_FORMATS = {"gray8": "L", "rgb8": "RGB", "bgr8": "BGR", "rgba8": "RGBA", "bgra8": "BGRA"}
_PIXEL_RANGES = {  # scale and mean that give the range
    "nominalrange_0_255": (1.0, 0.0),
    "normalized_0_1": (1 / 255, 0.0),
    "normalized_1_1": (2 / 255, 1.0),
    "nominalrange_16_235": (219 / 255, -16.0),
}

_METADATA = "the model's metadata"
_WORDS = {
    "layout": {word: word for word in LAYOUTS},
    "color": {word: word for word in CHANNELS},
    "fit": {word.upper(): word for word in FITS},
}


@dataclass(frozen=True)
class ImageOptions:
    """The settings of one source; None is not set."""

    layout: str | None = None
    color: str | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    fit: str | None = None


PRESETS = {
    "imagenet": ImageOptions(
        color="RGB", scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="center"
    )
}
"""Settings of classifiers by name. imagenet: the defaults of torchvision's ``ImageClassification``: shorter side 256,
the middle 224, means and deviations of ImageNet's pixels in [0, 1]."""


@dataclass(frozen=True)
class Recipe:
    """How images become the input ``name``.

    ``height`` and ``width`` are None if the model takes any. ``mean`` and ``std`` have one number, or one per
    channel, in the colour's order. ``sources`` has the origin of each setting. ``fit``: see ``fitting``.
    """

    name: str
    dtype: str
    layout: str
    color: str
    height: int | None
    width: int | None
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sources: Mapping[str, str]
    fit: str = FITS[0]

    def placement(self, size: tuple[int, int]) -> Placement:
        """Where a picture of this width and height lies in the input."""
        return place_picture(size, (self.width or size[0], self.height or size[1]), self.fit)


def recipe(wanted: TensorInfo, metadata: Mapping[str, str], said: ImageOptions) -> Recipe:
    """Settle how images become the input ``wanted``: of rank 4, with 1, 3 or 4 channels.

    Raises:
        InputError: if the input takes no images, a setting contradicts it, or a setting is missing that the shape does
            not determine.
    """
    _check_takes_pictures(wanted)
    stored = _metadata_options(metadata, said)
    layout = said.layout or stored.layout or _layout_of(wanted)
    channels = wanted.shape[LAYOUTS[layout]]
    color = said.color or stored.color or _color_of(wanted, channels, layout)
    if channels != CHANNELS[color] and isinstance(channels, int):
        raise InputError(
            f"{_input_text(wanted)} has {channels} as channels in layout {layout}; {color} has {CHANNELS[color]}"
        )
    scale, mean, std = _numbers(wanted, said, stored, CHANNELS[color])
    height, width = (_size_of(wanted.shape[dim]) for dim in range(1, 4) if dim != LAYOUTS[layout])
    if height is None and width is None and (size := ultralytics_size(metadata)):
        height, width = size
    fit = said.fit or stored.fit or FITS[0]
    return Recipe(
        wanted.name, wanted.dtype, layout, color, height, width, scale, mean, std, _sources(said, stored), fit
    )


def read_images(
    paths: Sequence[Path | NamedPicture],
    how: Recipe,
    *,
    largest: int,
    placements: list[Placement] | None = None,
    check: Callable[[], None] | None = None,
) -> tuple[npt.NDArray[Any], str]:
    """The images as one batch in the recipe's layout and dtype, and a line that describes it.

    Images of another size are fitted as the recipe says (bilinear, antialiased). Making the batch takes up to
    ``largest`` bytes. ``placements`` receives where each picture lies in the input. ``check`` is called before each
    one; what it raises ends the work.

    Raises:
        InputError: for a file that is no PNG or JPEG, damaged, or too large.
    """
    import numpy as np

    pictures: list[npt.NDArray[np.uint8]] = []
    steps: dict[str, None] = {}
    for path in paths:
        if check is not None:
            check()
        with silence_pillow():
            pixels, placement = _read_pixels(path, how, steps, largest // len(paths))
        if placements is not None:
            placements.append(placement)
        if pictures and pixels.shape != pictures[0].shape:
            raise InputError(
                f"{quote(str(path))} has {_size_text(pixels)} pixels, and {quote(str(paths[0]))} "
                f"{_size_text(pictures[0])}: the images of a batch need one size, and the model doesn't fix it",
                hint="give one image per run, or resize them first",
            )
        pictures.append(pixels)
    batch = _values(np.stack(pictures), how)
    return batch, _pictures_text(paths, batch, how, steps)


def read_image(path: Path | NamedPicture, how: Recipe, *, largest: int) -> npt.NDArray[Any]:
    """One image as ``read_images`` makes it, without the batch. For threads, within ``silence_pillow``.

    InputError as there. Threads decode images of ``LARGE`` pixels one at a time.
    """
    row: npt.NDArray[Any] = _values(_read_pixels(path, how, {}, largest)[0][None], how)[0]
    return row


def parse_numbers(text: str) -> tuple[float, ...]:
    """Finite numbers separated by commas; ValueError for anything else."""
    numbers = tuple(float(part) for part in text.split(","))
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("not finite")
    return numbers


def _check_takes_pictures(wanted: TensorInfo) -> None:
    way_out = "give its values as NAME=FILE.npy"
    if len(wanted.shape) != 4 or 0 in wanted.shape:
        raise InputError(f"{_input_text(wanted)} takes no image: it isn't of rank 4", hint=way_out)
    if wanted.dtype not in DTYPES:
        raise InputError(
            f"{_input_text(wanted)} takes no image: it isn't {', '.join(DTYPES[:-1])} or uint8", hint=way_out
        )


def _input_text(wanted: TensorInfo) -> str:
    return f"input {quote(wanted.name)} ({wanted.dtype} {shape_text(wanted.shape)})"


def _size_of(dim: int | str | None) -> int | None:
    return dim if isinstance(dim, int) else None


def _layout_of(wanted: TensorInfo) -> str:
    """The layout, if only one of them gives 1, 3 or 4 channels."""
    fitting = [layout for layout, dim in LAYOUTS.items() if wanted.shape[dim] in _COLOR_OF_CHANNELS]
    if len(fitting) == 1:
        return fitting[0]
    reason = "could be either layout" if fitting else "doesn't say where its channels (1, 3 or 4) are"
    raise InputError(f"{_input_text(wanted)} {reason}", hint=f"give --layout {' or '.join(LAYOUTS)}")


def _color_of(wanted: TensorInfo, channels: int | str | None, layout: str) -> str:
    if isinstance(channels, int) and channels in _COLOR_OF_CHANNELS:
        return _COLOR_OF_CHANNELS[channels]
    if isinstance(channels, int):
        raise InputError(f"{_input_text(wanted)} has {channels} channels in layout {layout}; an image has 1, 3 or 4")
    raise InputError(f"{_input_text(wanted)} leaves its channels open", hint=f"give --color: {', '.join(CHANNELS)}")


def _numbers(
    wanted: TensorInfo, said: ImageOptions, stored: ImageOptions, channels: int
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Scale, mean and std from the user, else from the model; raw pixels for uint8."""
    scale = stored.scale if said.scale is None else said.scale
    mean = said.mean or stored.mean or (0.0,)
    std = said.std or stored.std or (1.0,)
    if wanted.dtype == "uint8":
        if scale not in (None, 1) or any(mean) or set(std) != {1}:
            raise InputError(
                f"{_input_text(wanted)} takes pixels as they are; scale, mean and std don't apply to uint8"
            )
        scale = 1.0
    if scale is None:
        raise InputError(
            f"neither the model's metadata nor an option says how pixels (0 to 255) become {_input_text(wanted)}",
            hint="give --scale 1/255 for values of 0 to 1, or 1 for 0 to 255, with --mean and --std if the model was "
            "trained so; for networks that were trained on ImageNet, --preprocess imagenet is all of them",
        )
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, channels):
            raise InputError(f"{name} has {count_text(len(numbers), 'number')} for {count_text(channels, 'channel')}")
    if 0 in std:
        raise InputError("std is 0, and values are divided by it", hint="give --std")
    return scale, mean, std


def _metadata_options(metadata: Mapping[str, str], said: ImageOptions) -> ImageOptions:
    """The metadata's settings, where the user sets none."""
    onnx = {key.lower(): value for key, value in metadata.items() if key.lower().startswith("image.")}
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(ImageOptions) if getattr(said, field.name) is None):
        if (text := metadata.get(f"image.{name}")) is not None:
            found[name] = _parse_setting(name, text)
    if said.color is None and "color" not in found and "image.bitmappixelformat" in onnx:
        found["color"] = _metadata_value("Image.BitmapPixelFormat", onnx, _PIXEL_FORMATS, "--color")
    if said.scale is None and "scale" not in found and "image.nominalpixelrange" in onnx:
        scale, mean = _metadata_value("Image.NominalPixelRange", onnx, _PIXEL_RANGES, "--scale")
        found = {"mean": (mean,), **found, "scale": scale}
    if is_ultralytics(metadata):
        fit = "crop" if metadata["task"] == "classify" else "letterbox"
        expected = {"scale": 1 / 255, "fit": fit}
        found = {name: value for name, value in expected.items() if getattr(said, name) is None} | found
    if onnx.get("image.colorspacegamma", "srgb").lower() != "srgb":
        raise InputError(
            f"the model's metadata asks for Image.ColorSpaceGamma {quote(onnx['image.colorspacegamma'])}, "
            "and trnrt takes pixels as files store them, which is SRGB",
            hint="convert the image yourself, and give its values as NAME=FILE.npy",
        )
    return ImageOptions(**found)


def _parse_setting(name: str, text: str) -> Any:
    """The metadata ``image.{name}`` as the setting ``name``."""
    try:
        if name in _WORDS:
            return _WORDS[name][text.strip().upper()]
        numbers = parse_numbers(text.strip().removeprefix("[").removesuffix("]"))
        if name != "scale":
            return numbers
        (scale,) = numbers
        return scale
    except (ValueError, KeyError):
        raise InputError(
            f"the model's metadata has image.{name} {quote(text)}, which trnrt doesn't understand",
            hint=f"give --{name} instead",
        ) from None


def _metadata_value(key: str, onnx: Mapping[str, str], table: Mapping[str, Any], option: str) -> Any:
    value = onnx[key.lower()]
    if value.lower() not in table:
        raise InputError(
            f"the model's metadata has {key} {quote(value)}, which trnrt doesn't know",
            hint=f"give {option} instead",
        )
    return table[value.lower()]


def _sources(said: ImageOptions, stored: ImageOptions) -> dict[str, str]:
    """The origin of each setting."""
    sources = {"layout": "from the shape", "color": "from the channels"}
    for name in (field.name for field in fields(ImageOptions)):
        if getattr(said, name) is not None:
            sources[name] = f"--{name}"
        elif getattr(stored, name) is not None:
            sources[name] = _METADATA
    return sources


def _read_pixels(
    path: Path | NamedPicture, how: Recipe, steps: dict[str, None], largest: int
) -> tuple[npt.NDArray[np.uint8], Placement]:
    """The image as (height, width, channels) in the recipe's colour and size, and its place; adds to ``steps``."""
    import numpy as np

    with opened_picture(path) as file:
        width, height = how.width or file.width, how.height or file.height
        if width * height * CHANNELS[how.color] * np.dtype(np.float64).itemsize > largest:
            raise InputError(f"as {width}x{height} pixels, {quote(str(path))} needs more than {size_text(largest)}")
        with limit_decoding(file.width * file.height):
            picture = convert_color(turn_upright(file, steps), _COLOR_OF_CHANNELS[CHANNELS[how.color]], steps)
            placement = how.placement(picture.size)
            picture = fit_picture(picture, placement, steps)
        pixels = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, -1)
    if how.color.startswith("BGR"):
        pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
    return pixels, placement


def _values(pixels: npt.NDArray[np.uint8], how: Recipe) -> npt.NDArray[Any]:
    """Pixels (images, height, width, channels) as the model's input."""
    import numpy as np

    from trnrt.inputs.drawing import as_numpy

    axis = LAYOUTS[how.layout]
    if how.dtype == "uint8":
        return np.ascontiguousarray(np.moveaxis(pixels, 3, axis))
    # A pixel has 256 values: looking them up takes a quarter of the time of computing them.
    values = (np.arange(256)[:, None] * how.scale - np.array(how.mean)) / np.array(how.std)
    table = np.broadcast_to(values, (256, pixels.shape[3])).astype(as_numpy(how.dtype))
    channels = [table[:, channel].take(pixels[..., channel], mode="clip") for channel in range(pixels.shape[3])]
    return np.stack(channels, axis=axis)


def _size_text(pixels: npt.NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


def _pictures_text(
    paths: Sequence[Path | NamedPicture], batch: npt.NDArray[Any], how: Recipe, steps: Mapping[str, None]
) -> str:
    """One line on everything done to the images."""
    files = quote(paths[0].name) if len(paths) == 1 else f"{len(paths)} images"
    return recipe_text(files, how, batch.shape, steps)


def recipe_text(files: str, how: Recipe, shape: Sequence[int | str | None], steps: Iterable[str] = ()) -> str:
    """One line on a recipe's effect on ``files``, with the origin of each setting; some files needed ``steps``."""
    if how.dtype == "uint8":
        formula = "pixels as they are"
    else:
        formula = f"value = (pixel * {how.scale:.9g} - {_numbers_text(how.mean)}) / {_numbers_text(how.std)}"
    by: dict[str, list[str]] = {}
    for name, source in how.sources.items():
        # One word for all flags: --preprocess sets several of them.
        by.setdefault("options" if source.startswith("--") else source, []).append(name)
    origins = "; ".join(f"{', '.join(names)}: {source}" for source, names in by.items())
    done = list_text(steps, 4)
    if how.fit != FITS[0]:
        formula = f"{formula}, fit {how.fit}"
    parts = [*([done] if done else []), f"colour {how.color}", f"layout {how.layout}", formula]
    return f"{files} as {quote(how.name)} {how.dtype} {shape_text(shape)}: {', '.join(parts)} ({origins})"


def _numbers_text(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:.9g}" if len(numbers) == 1 else f"[{', '.join(f'{number:.9g}' for number in numbers)}]"
