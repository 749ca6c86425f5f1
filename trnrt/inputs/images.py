"""PNG and JPEG files as a model's input.

How an image becomes an array is never guessed silently. Each setting comes from the user, from the model's metadata
or from the input's shape. ``recipe`` settles them, ``read_images`` applies them and describes the result in one line:

    value = (pixel * scale - mean) / std          pixels are 0 to 255

Metadata: ``image.layout``, ``image.scale``, ``image.mean``, ``image.std`` and ``image.color``; else ONNX's
own experimental keys ``Image.BitmapPixelFormat`` and ``Image.NominalPixelRange``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from trnrt.errors import InputError
from trnrt.text import count_text, list_text, quote, reason_text, shape_text, size_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

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

LARGE = 1 << 24
"""From this many pixels on, images are decoded one at a time: a pixel takes some eight bytes of memory."""
_DECODING_LARGE = Lock()

# EXIF's tag Orientation -> the transposition that turns such an image upright.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_METADATA = "the model's metadata"
_WORDS = {"layout": {word: word for word in LAYOUTS}, "color": {word: word for word in CHANNELS}}


@dataclass(frozen=True)
class ImageOptions:
    """The settings of one source; None is not set."""

    layout: str | None = None
    color: str | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Recipe:
    """How images become the input ``name``.

    ``height`` and ``width`` are None if the model takes any. ``mean`` and ``std`` have one number, or one per
    channel, in the colour's order. ``sources`` has the origin of each setting.
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


class NamedPicture(BytesIO):
    """An image file in memory; messages use its ``name``."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name: str = name

    def __str__(self) -> str:
        return self.name

    def check_pixels(self, most: int) -> None:
        """InputError for an image of more than ``most`` pixels by its header; it is not decoded."""
        from PIL import Image

        with silence_pillow(), _reading_errors(self), Image.open(self, formats=("PNG", "JPEG")) as file:
            if file.width * file.height > most:
                raise InputError(f"{quote(self.name)} has {file.width}x{file.height} pixels; the limit is {most:,}")
        self.seek(0)


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
    sources = _sources(said, stored)
    return Recipe(wanted.name, wanted.dtype, layout, color, height, width, scale, mean, std, sources)


def read_images(paths: Sequence[Path | NamedPicture], how: Recipe, *, largest: int) -> tuple[npt.NDArray[Any], str]:
    """The images as one batch in the recipe's layout and dtype, and a line that describes it.

    Images of another size are resized (bilinear, antialiased). Making the batch takes up to ``largest`` bytes.

    Raises:
        InputError: for a file that is no PNG or JPEG, damaged, or too large.
    """
    import numpy as np

    pictures: list[npt.NDArray[np.uint8]] = []
    steps: dict[str, None] = {}
    for path in paths:
        with silence_pillow():
            pixels = _read_pixels(path, how, steps, largest // len(paths))
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
    row: npt.NDArray[Any] = _values(_read_pixels(path, how, {}, largest)[None], how)[0]
    return row


@contextmanager
def silence_pillow() -> Iterator[None]:
    """Silence Pillow's warnings. Threads share the filters: enter this around threads, not in each."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
            hint="give --scale: 0.00392156862745098 for values of 0 to 1, 1 for 0 to 255",
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


def _read_pixels(path: Path | NamedPicture, how: Recipe, steps: dict[str, None], largest: int) -> npt.NDArray[np.uint8]:
    """The image's pixels, (height, width, channels) in the recipe's colour and size; adds to ``steps``."""
    import numpy as np
    from PIL import Image

    with _reading_errors(path), Image.open(path, formats=("PNG", "JPEG")) as file:
        count = file.width * file.height
        if Image.MAX_IMAGE_PIXELS is not None and count > Image.MAX_IMAGE_PIXELS:  # Pillow only warns
            raise Image.DecompressionBombError
        width, height = how.width or file.width, how.height or file.height
        if width * height * CHANNELS[how.color] * np.dtype(np.float64).itemsize > largest:
            raise InputError(f"as {width}x{height} pixels, {quote(str(path))} needs more than {size_text(largest)}")
        with _DECODING_LARGE if count >= LARGE else nullcontext():
            picture = _convert_color(_turn_upright(file, steps), how.color, steps)
            width, height = how.width or picture.width, how.height or picture.height
            if picture.size != (width, height):
                step = f"resized from {picture.width}x{picture.height} to {width}x{height} (bilinear, antialiased)"
                steps[step] = None
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.uint8).reshape(height, width, -1)
    return pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]] if how.color.startswith("BGR") else pixels


@contextmanager
def _reading_errors(path: Path | NamedPicture) -> Iterator[None]:
    """Turn Pillow's errors for a bad file into InputError."""
    import struct
    import zlib

    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except Image.DecompressionBombError as error:
        raise InputError(
            f"{quote(str(path))} has too many pixels; the limit is {Image.MAX_IMAGE_PIXELS:,}",
            hint="resize it first",
        ) from error
    except UnidentifiedImageError as error:
        raise InputError(f"{quote(str(path))} is no PNG or JPEG image") from error
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error) as error:
        raise InputError(f"can't read the image {quote(str(path))}: {reason_text(error)}") from error


def _turn_upright(picture: Image, steps: dict[str, None]) -> Image:
    """The image as a viewer shows it: cameras store its orientation in EXIF data."""
    from PIL import Image
    from PIL.ExifTags import Base

    picture.load()
    turn = _TURNS.get(picture.getexif().get(Base.Orientation, 1))
    if turn is None:
        return picture
    steps["turned upright, as its EXIF data says"] = None
    # Not ImageOps.exif_transpose, which also rewrites the EXIF data, and fails if that is damaged.
    return picture.transpose(Image.Transpose[turn])


def _convert_color(picture: Image, color: str, steps: dict[str, None]) -> Image:
    """The picture in mode L, RGB or RGBA."""
    if picture.mode.startswith("I"):
        steps["16-bit pixels reduced to 8 bits"] = None
        picture = _reduce_depth(picture)
    mode = _COLOR_OF_CHANNELS[CHANNELS[color]]
    colorful = picture.mode not in ("1", "L", "LA")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        if mode != "RGBA" and min(picture.getchannel("A").tobytes()) < 255:
            steps["transparency dropped"] = None
    if mode == "L" and colorful:
        steps["colours turned to grey (ITU-R 601 luma)"] = None
    return picture if picture.mode == mode else picture.convert(mode)


def _reduce_depth(picture: Image) -> Image:
    """An image of 16-bit greys in 8 bits; Pillow's own conversion clips values at 255."""
    import numpy as np
    from PIL import Image

    greys = np.asarray(picture).astype(np.float64) / 257
    return Image.fromarray(np.clip(np.rint(greys), 0, 255).astype(np.uint8))


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
        by.setdefault(source, []).append(name)
    origins = "; ".join(f"{', '.join(names)}: {source}" for source, names in by.items())
    done = list_text(steps, 4)
    parts = [*([done] if done else []), f"colour {how.color}", f"layout {how.layout}", formula]
    return f"{files} as {quote(how.name)} {how.dtype} {shape_text(shape)}: {', '.join(parts)} ({origins})"


def _numbers_text(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:.9g}" if len(numbers) == 1 else f"[{', '.join(f'{number:.9g}' for number in numbers)}]"
