"""Rows that are pictures: the PNG and JPEG files of a folder, in the order of their names, or bytes in a column.

A folder is searched below, too; hidden files and folders are left alone, and so is what is called neither .png nor
.jpg or .jpeg. Links to folders are not followed: they may lead round in a circle. A picture's id is its path from
the folder. The names of all files are in memory, about their length and 16 bytes each.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.images import (
    CHANNELS,
    LAYOUTS,
    ImageOptions,
    NamedPicture,
    Recipe,
    read_image,
    recipe,
    recipe_text,
    silence_pillow,
)
from trnrt.inputs.matching import LARGEST_INPUT
from trnrt.predict.rows import Array, Columns, Wanted
from trnrt.predict.source import Asked
from trnrt.text import count_text, name_text, quote

_ENDINGS = (".png", ".jpg", ".jpeg")
_LARGEST_PICTURE = LARGEST_INPUT // 8
_THREADS = 16
"""Threads at most that decode: each has a picture in memory."""


@dataclass(frozen=True)
class Decoder:
    """How pictures become rows of one input."""

    wanted: Wanted
    how: Recipe
    shape: tuple[int, ...]

    @staticmethod
    def make(wanted: Wanted, metadata: Mapping[str, str], said: ImageOptions) -> Decoder:
        """For an input that takes pictures; InputError where it takes none, or a setting or its size is not known."""
        how = recipe(wanted.info, metadata, said)
        if len(wanted.shape) == 3:  # pictures are resized to what --shape says; the layout is what the model says
            height, width = (size for dim, size in enumerate(wanted.shape, 1) if dim != LAYOUTS[how.layout])
            how = replace(how, height=height, width=width)
        if how.height is None or how.width is None:
            raise InputError(
                f"{wanted.describe()} has no fixed size, and all rows need one",
                hint=f"say --shape {name_text(wanted.name)}=3x224x224, or what it is; pictures are resized to it",
            )
        channels = CHANNELS[how.color]
        shape = (how.height, how.width, channels) if LAYOUTS[how.layout] == 3 else (channels, how.height, how.width)
        return Decoder(wanted, how, shape)

    def read(
        self, pictures: Sequence[Path | bytes | None], names: Sequence[str] | None = None
    ) -> tuple[Array, dict[int, str]]:
        """The pictures, (rows, *shape), and why some are none, where files are called by these ``names``."""
        made = np.zeros((len(pictures), *self.shape), self.wanted.dtype)

        def decode(row: int) -> str | None:
            picture = pictures[row]
            if picture is None:
                return "null"
            named = NamedPicture("picture", picture) if isinstance(picture, bytes) else picture
            try:
                made[row] = read_image(named, self.how, largest=_LARGEST_PICTURE)
            except InputError as error:
                # By its id: how the folder was named is no part of a prediction.
                own = "the picture" if names is None else quote(names[row])
                return str(error).replace(quote(str(named)), own)
            return None

        threads = min(_THREADS, len(os.sched_getaffinity(0)), len(pictures))
        with (
            silence_pillow(),
            ThreadPoolExecutor(threads) as pool,
        ):  # Pillow lets go of the interpreter while it decodes
            reasons = list(pool.map(decode, range(len(pictures))))
        return made, {row: reason for row, reason in enumerate(reasons) if reason is not None}

    def describe(self, files: str) -> str:
        """What is done to the pictures, in a line."""
        return recipe_text(files, self.how, self.shape)


@dataclass(frozen=True)
class PictureRows:
    """Pictures by path. ``names`` are the ids, as one text, and ``ends`` says where each ends in it."""

    roots: Sequence[Path]
    root_of: Array
    names: bytes
    ends: Array
    decoder: Decoder
    identity: str
    notes: Sequence[str]

    @property
    def rows(self) -> int:
        """How many pictures there are."""
        return len(self.ends)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of a row, by input."""
        return {self.decoder.wanted.name: self.decoder.shape}

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of the ids: texts."""
        return np.dtype(object)

    def read(self, start: int, stop: int) -> Columns:
        """The pictures from ``start`` to ``stop``."""
        names = [self._name(row) for row in range(start, stop)]
        paths = [self._path(row, name) for row, name in zip(range(start, stop), names, strict=True)]
        columns = Columns(stop - start, ids=np.array(names, object))
        columns.put(self.decoder.wanted.name, *self.decoder.read(paths, names))
        return columns

    def check(self) -> None:
        """Nothing: a picture that is broken is a bad row."""

    def close(self) -> None:
        """Nothing is open."""

    def _name(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        # What is no UTF-8 in a file's name is written as an escape, since neither Parquet nor JSON could hold it.
        return self.names[start : int(self.ends[row])].decode("utf-8", "backslashreplace")

    def _path(self, row: int, name: str) -> Path:
        start = int(self.ends[row - 1]) if row else 0
        root = self.roots[int(self.root_of[row])]
        return root / os.fsdecode(self.names[start : int(self.ends[row])]) if root.is_dir() else root


def open_pictures(paths: Sequence[Path], asked: Asked, wanted: Wanted, metadata: Mapping[str, str]) -> PictureRows:
    """The pictures at these paths, files or folders; InputError where there are none, or the input takes none."""
    if paths[0].is_dir() and len(wanted.info.shape) != 4:
        raise InputError(f"{quote(str(paths[0]))} has no Parquet files, and {wanted.describe()} takes no pictures")
    decoder = Decoder.make(wanted, metadata, asked.images)
    names, ends, roots = bytearray(), [], []
    digest = hashlib.sha256()
    others = 0
    for index, path in enumerate(paths):
        for name, status in _list_files(path) if path.is_dir() else [(os.fsencode(path.name), path.stat())]:
            if status is None:
                others += 1
                continue
            names += name
            ends.append(len(names))
            roots.append(index)
            digest.update(b"%s\0%d\0%d\0" % (name, status.st_size, status.st_mtime_ns))
    if not ends:
        raise InputError(
            f"{quote(str(paths[0]))} has no pictures (.png, .jpg, .jpeg) and no Parquet files",
            hint="name a folder of pictures, or files: .parquet, .npz or .npy",
        )
    identity = f"{count_text(len(ends), 'picture')}, {digest.hexdigest()[:32]}"
    notes = [decoder.describe(count_text(len(ends), "picture"))]
    notes += [f"called like no picture, and left alone: {count_text(others, 'file')}"] * bool(others)
    at = np.array(roots, np.int32)
    return PictureRows(paths, at, bytes(names), np.array(ends, np.int64), decoder, identity, notes)


def _list_files(folder: Path) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """(path from the folder, status) of each picture in order; the status of another file is None."""
    root = os.fsencode(folder)
    for name in sorted(_walk_folder(root)):
        path = Path(os.fsdecode(os.path.join(root, name)))  # noqa: PTH118  (names are bytes, in whatever encoding)
        picture = path.suffix.lower() in _ENDINGS
        # A link that leads nowhere is a row, too: a bad one.
        yield name, None if not picture else path.stat() if path.exists() else path.lstat()


def _walk_folder(root: bytes) -> Iterator[bytes]:
    for folder, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        below = os.path.relpath(folder, root)
        for name in files:
            if not name.startswith(b"."):
                yield name if below == b"." else os.path.join(below, name)  # noqa: PTH118


def _refuse(error: OSError) -> None:
    """A folder that can't be listed must not be left out in silence."""
    raise InputError(f"can't list {quote(str(error.filename))}: {error.strerror}")
