"""The rows of a prediction's input: the user's settings, and several readers side by side."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import reading_file
from trnrt.predict.rows import Array, Bad, Reader, Rows, Wanted
from trnrt.text import count_text, name_text

_ENDS = 1 << 20
"""Bytes at a file's beginning and end that its identity covers, beside its size and time."""


@dataclass(frozen=True)
class Asked:
    """The user's settings for the input. ``columns``: ``[INPUT=]COLUMN[,COLUMN...]``; ``id``: a column or array.

    ``flag`` and ``id_flag``: how the command line calls the files and the ids, for messages.
    """

    files: tuple[str, ...]
    id: str | None = None
    columns: tuple[str, ...] = ()
    images: ImageOptions = field(default_factory=ImageOptions)
    flag: str = "--input"
    id_flag: str = "--id"


@dataclass(frozen=True)
class Source:
    """The rows of the input: each reader has some of the inputs.

    ``keyed``: positions of the readers with ids, which must agree; without any, a row's number is its id.
    """

    wanted: Sequence[Wanted]
    readers: Sequence[Reader]
    rows: int
    keyed: Sequence[int] = ()

    @property
    def identity(self) -> dict[str, str]:
        """(name, value) of all that must not change between two runs of one job."""
        return {f"input {', '.join(sorted(reader.shapes))}": reader.identity for reader in self.readers}

    @property
    def notes(self) -> list[str]:
        """How the files are understood, for the user."""
        return [note for reader in self.readers for note in reader.notes]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a row, by input."""
        return {name: shape for reader in self.readers for name, shape in reader.shapes.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory."""
        return sum(math.prod(self.shapes[one.name]) * one.dtype.itemsize for one in self.wanted)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The ids' dtype: integers, or object for texts."""
        return next((own for at in self.keyed if (own := self.readers[at].id_dtype) is not None), np.dtype(np.int64))

    def read(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` to ``stop``. InputError for a broken file, and if two files' ids differ."""
        found = [reader.read(start, stop) for reader in self.readers]
        count = stop - start
        given = [own for at in self.keyed if (own := found[at].ids) is not None]
        ids: Array = given[0] if given else np.arange(start, stop)
        for other in given[1:]:
            _check_agree(ids, other, start)
        aside: dict[int, tuple[str, str]] = {}
        for columns in found:
            aside = columns.bad | aside
        bad = [Bad(start + row, json_id(ids[row]), *aside[row]) for row in sorted(aside)]
        good = np.ones(count, bool)
        good[list(aside)] = False
        values = {name: array for columns in found for name, array in columns.values.items()}
        if aside:
            values = {name: array[good] for name, array in values.items()}
        return Rows(count, np.arange(start, stop)[good], ids[good].astype(self.id_dtype), values, tuple(bad))

    def check(self) -> None:
        """InputError for a file that can be seen to be broken only by reading all of it."""
        for reader in self.readers:
            reader.check()

    def close(self) -> None:
        """Close the files."""
        for reader in self.readers:
            reader.close()


def file_identity(paths: Iterable[Path], names: Iterable[str]) -> str:
    """A text that changes when the files do: their number, bytes, and a digest.

    The digest covers each file's name, size, modification time, and a MiB at either end: reading all of a large file
    would take as long as the prediction's own reading.
    """
    digest, size, count = hashlib.sha256(), 0, 0
    for path, name in zip(paths, names, strict=True):
        with reading_file(path), path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
            digest.update(file.read(_ENDS))
            file.seek(max(status.st_size - _ENDS, 0))
            digest.update(file.read(_ENDS))
        size, count = size + status.st_size, count + 1
    return f"{count_text(count, 'file')}, {count_text(size, 'byte')}, {digest.hexdigest()[:32]}"


def _check_agree(ids: Array, others: Array, start: int) -> None:
    """InputError if the ids of two files, from the row ``start`` on, differ."""
    pairs = zip(ids.tolist(), others.tolist(), strict=True)  # as Python values: a text and a number compare, too
    differing = next(((row, one, other) for row, (one, other) in enumerate(pairs, start) if one != other), None)
    if differing is not None:
        row, one, other = differing
        raise InputError(
            f"row {row} has the id {name_text(str(one))} in one file and {name_text(str(other))} in another",
            hint="the files' rows must be in the same order; without --id they are joined by position",
        )


def json_id(value: object) -> int | str | None:
    """An id as a JSON value."""
    if value is None:
        return None
    return int(value) if isinstance(value, (int, np.integer)) else str(value)
