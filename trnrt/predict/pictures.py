"""Rows that are pictures: the PNG and JPEG files of a folder, in the order of their names, or bytes in a column.

Folders are searched recursively. Hidden files and folders, and files not named .png, .jpg or .jpeg, are ignored. Links
to folders are not followed, as they may form a circle. A picture's id is its path from the folder. The names of all
files are in memory, about their length and 16 bytes each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.decoding import NamedPicture, silence_pillow
from trnrt.inputs.images import CHANNELS, LAYOUTS, ImageOptions, Recipe, read_image, recipe, recipe_text
from trnrt.inputs.matching import LARGEST_INPUT
from trnrt.predict.rows import Array, Columns, Reader, Wanted
from trnrt.predict.source import Asked
from trnrt.text import count_text, name_text, quote

_ENDINGS = (".png", ".jpg", ".jpeg")
_LARGEST_PICTURE = LARGEST_INPUT // 8
_THREADS = 16
"""The most threads that decode: each has a picture in memory."""


@dataclass(frozen=True)
class Decoder:
    """Turns pictures into rows of one input."""

    wanted: Wanted
    how: Recipe
    shape: tuple[int, ...]

    @staticmethod
    def make(wanted: Wanted, metadata: Mapping[str, str], options: ImageOptions) -> Decoder:
        """The decoder for an input; InputError if it takes no pictures, or a setting or its size is not known."""
        how = recipe(wanted.info, metadata, options)
        if len(wanted.shape) == 3:  # --shape gives the size, the model the layout
            height, width = (size for dim, size in enumerate(wanted.shape, 1) if dim != LAYOUTS[how.layout])
            how = replace(how, height=height, width=width)
        if how.height is None or how.width is None:
            raise InputError(
                f"{wanted.describe()} has no fixed size, and all rows need one",
                hint=f"say --shape {name_text(wanted.name)}=3x224x224, for example; pictures are resized to it",
            )
        channels = CHANNELS[how.color]
        shape = (how.height, how.width, channels) if LAYOUTS[how.layout] == 3 else (channels, how.height, how.width)
        return Decoder(wanted, how, shape)

    def read(
        self, pictures: Sequence[Path | bytes | None], names: Sequence[str] | None = None
    ) -> tuple[Array, dict[int, str]]:
        """Decode pictures to (rows, *shape), and say why some can't be. Reasons call the files by ``names``."""
        made = np.zeros((len(pictures), *self.shape), self.wanted.dtype)

        def decode(row: int) -> str | None:
            picture = pictures[row]
            if picture is None:
                return "null"
            named = NamedPicture("picture", picture) if isinstance(picture, bytes) else picture
            try:
                made[row] = read_image(named, self.how, largest=_LARGEST_PICTURE)
            except InputError as error:
                # By its id: the parts must not depend on the folder's path.
                own = "the picture" if names is None else quote(names[row])
                return str(error).replace(quote(str(named)), own)
            return None

        threads = min(_THREADS, len(os.sched_getaffinity(0)), len(pictures))
        with silence_pillow(), ThreadPoolExecutor(threads) as pool:  # Pillow releases the GIL while it decodes
            reasons = list(pool.map(decode, range(len(pictures))))
        return made, {row: reason for row, reason in enumerate(reasons) if reason is not None}

    def describe(self, files: str) -> str:
        """One line on how the pictures become rows."""
        return recipe_text(files, self.how, self.shape)


@dataclass
class PictureRows(Reader):
    """Pictures by path. ``names``: the ids in one text; ``bounds``: where each begins, and where the last one ends."""

    roots: Sequence[Path]
    root_of: Array
    names: bytes
    bounds: Array
    decoder: Decoder

    def read(self, start: int, stop: int) -> Columns:
        """The pictures from ``start`` to ``stop``."""
        raw = [self.names[begin:end] for begin, end in pairwise(self.bounds[start : stop + 1])]
        roots = [self.roots[number] for number in self.root_of[start:stop]]
        paths = [root / os.fsdecode(name) if root.is_dir() else root for root, name in zip(roots, raw, strict=True)]
        # Names that are not UTF-8 are escaped: neither Parquet nor JSON can hold them.
        names = [name.decode("utf-8", "backslashreplace") for name in raw]
        columns = Columns(stop - start, ids=np.array(names, object))
        columns.put(self.decoder.wanted.name, *self.decoder.read(paths, names))
        return columns


def open_pictures(paths: Sequence[Path], asked: Asked, wanted: Wanted, metadata: Mapping[str, str]) -> PictureRows:
    """The pictures at these paths, files or folders; InputError if there are none, or the input takes none."""
    if paths[0].is_dir() and len(wanted.info.shape) != 4:
        raise InputError(f"{quote(str(paths[0]))} has no Parquet files, and {wanted.describe()} takes no pictures")
    decoder = Decoder.make(wanted, metadata, asked.images)
    names, bounds, roots = bytearray(), [0], []
    digest = hashlib.sha256()
    others = 0
    for index, path in enumerate(paths):
        for name, status in _list_files(path) if path.is_dir() else [(os.fsencode(path.name), path.stat())]:
            if status is None:
                others += 1
                continue
            names += name
            bounds.append(len(names))
            roots.append(index)
            digest.update(b"%s\0%d\0%d\0" % (name, status.st_size, status.st_mtime_ns))
    if not roots:
        raise InputError(
            f"{quote(str(paths[0]))} has no pictures (.png, .jpg, .jpeg) and no Parquet files",
            hint="name a folder of pictures, or files: .parquet, .npz or .npy",
        )
    count = count_text(len(roots), "picture")
    notes = [decoder.describe(count)]
    if others:
        notes.append(f"ignored, as their names don't end in .png, .jpg or .jpeg: {count_text(others, 'file')}")
    return PictureRows(
        rows=len(roots),
        shapes={wanted.name: decoder.shape},
        identity=f"{count}, {digest.hexdigest()[:32]}",
        notes=notes,
        id_dtype=np.dtype(object),
        roots=paths,
        root_of=np.array(roots, np.int32),
        names=bytes(names),
        bounds=np.array(bounds, np.int64),
        decoder=decoder,
    )


def _list_files(folder: Path) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """(path from the folder, status) of each picture in order; the status of other files is None."""
    root = os.fsencode(folder)
    for name in sorted(_walk_folder(root)):
        path = Path(os.fsdecode(os.path.join(root, name)))  # noqa: PTH118  (names are bytes, in whatever encoding)
        picture = path.suffix.lower() in _ENDINGS
        # A broken link is a row, too: a bad one.
        yield name, None if not picture else path.stat() if path.exists() else path.lstat()


def _walk_folder(root: bytes) -> Iterator[bytes]:
    for folder, folders, files in os.walk(root, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        below = os.path.relpath(folder, root)
        for name in files:
            if not name.startswith(b"."):
                yield name if below == b"." else os.path.join(below, name)  # noqa: PTH118


def _refuse_folder(error: OSError) -> None:
    """Raise: a folder that can't be listed must not be skipped silently."""
    raise InputError(f"can't list {quote(str(error.filename))}: {error.strerror}")
