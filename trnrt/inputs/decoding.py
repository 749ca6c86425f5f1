"""PNG and JPEG files, decoded: upright, in the colours wanted, with errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from trnrt.errors import InputError
from trnrt.inputs.anatomy import check_anatomy
from trnrt.text import quote, reason_text

if TYPE_CHECKING:
    from PIL.Image import Image

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


class NamedPicture(BytesIO):
    """An image file in memory; messages use its ``name``."""

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name: str = name

    def __str__(self) -> str:
        return self.name

    def check_pixels(self, most: int) -> None:
        """InputError for an image of more than ``most`` pixels by its header, or one that takes long to decode for
        another reason (``anatomy``); it is not decoded."""
        from PIL import Image

        check_anatomy(self.getbuffer(), self.name)
        with silence_pillow(), reading_errors(self), Image.open(self, formats=("PNG", "JPEG")) as file:
            if file.width * file.height > most:
                raise InputError(f"{quote(self.name)} has {file.width}x{file.height} pixels; the limit is {most:,}")
        self.seek(0)


@contextmanager
def silence_pillow() -> Iterator[None]:
    """Silence Pillow's warnings. Threads share the filters: enter this around threads, not in each."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def opened_picture(path: Path | NamedPicture) -> Iterator[Image]:
    """The image at ``path``, not decoded yet; Pillow's errors, here and in the block, become InputError."""
    from PIL import Image

    with reading_errors(path), Image.open(path, formats=("PNG", "JPEG")) as file:
        most = Image.MAX_IMAGE_PIXELS  # beyond, Pillow only warns
        if most is not None and file.width * file.height > most:
            raise Image.DecompressionBombError
        yield file


def limit_decoding(pixels: int) -> AbstractContextManager[object]:
    """Hold this while decoding: threads decode images of ``LARGE`` pixels one at a time."""
    return _DECODING_LARGE if pixels >= LARGE else nullcontext()


def read_photo(path: Path | NamedPicture) -> Image:
    """An image for a person to see: upright, in RGB. InputError if it can't be read."""
    with silence_pillow(), opened_picture(path) as file, limit_decoding(file.width * file.height):
        return convert_color(turn_upright(file, {}), "RGB", {})


@contextmanager
def reading_errors(path: Path | NamedPicture) -> Iterator[None]:
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


def turn_upright(picture: Image, steps: dict[str, None]) -> Image:
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


def convert_color(picture: Image, mode: str, steps: dict[str, None]) -> Image:
    """The picture in mode L, RGB or RGBA."""
    if picture.mode in ("P", "PA") and picture.palette is None:
        raise ValueError("its pixels are places of a palette, which it does not have")
    if picture.mode.startswith("I"):
        steps["16-bit pixels reduced to 8 bits"] = None
        picture = _reduce_depth(picture)
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
