"""What ``--input`` names, as one sequence of rows for all inputs of a model.

    DATA.parquet, or a folder of them    a column an input (trnrt.predict.parquet); several follow each other
    FILE.npz                             the arrays that are named like inputs
    NAME=FILE.npy                        one array; NAME= may be left out for a model of one input
    NAME=FOLDER, NAME=FILE.png           pictures, in the order of their names; several files follow each other

What comes from several places must have as many rows in each.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.errors import InputError, OptionError
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import kind_of, reading_file, split_argument
from trnrt.predict.rows import Array, Bad, Reader, Rows, Wanted
from trnrt.report.text import counted, listed, quoted, shown

_ENDS = 1 << 20
"""Bytes at a file's beginning and at its end that its identity covers, beside its size and time."""


# Which function of pyarrow reads a table, and what it needs beside the path.
_TABLES = {
    ".csv": "csv.read_csv",
    ".tsv": "csv.read_csv , parse_options=pyarrow.csv.ParseOptions(delimiter='\\t')",
    ".json": "json.read_json",
    ".jsonl": "json.read_json",
    ".ndjson": "json.read_json",
    ".feather": "feather.read_table",
    ".arrow": "feather.read_table",
    ".orc": "orc.read_table",
}


@dataclass(frozen=True)
class Asked:
    """What the user says about the input; ``columns`` are ``[INPUT=]COLUMN[,COLUMN...]``, ``id`` a column or array."""

    files: tuple[str, ...]
    id: str | None = None
    columns: tuple[str, ...] = ()
    images: ImageOptions = field(default_factory=ImageOptions)


@dataclass(frozen=True)
class Source:
    """The rows of the input: what several readers have of each, side by side.

    ``keyed``: the readers whose ids are the rows', by their places; several must agree, and without any the rows'
    numbers are their ids.
    """

    wanted: Sequence[Wanted]
    readers: Sequence[Reader]
    rows: int
    keyed: Sequence[int] = ()

    @property
    def identity(self) -> dict[str, str]:
        """What must not change between two runs of one job."""
        return {f"input {', '.join(sorted(reader.shapes))}": reader.identity for reader in self.readers}

    @property
    def notes(self) -> list[str]:
        """What a user should know about how the files are understood."""
        return [note for reader in self.readers for note in reader.notes]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a row, by input."""
        return {name: shape for reader in self.readers for name, shape in reader.shapes.items()}

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of the ids: integers, or object for texts."""
        return next((own for at in self.keyed if (own := self.readers[at].id_dtype) is not None), np.dtype(np.int64))

    def read(self, start: int, stop: int) -> Rows:
        """The rows from ``start`` to ``stop``. InputError for a broken file, and where two files' ids differ."""
        found = [reader.read(start, stop) for reader in self.readers]
        count = stop - start
        given = [own for at in self.keyed if (own := found[at].ids) is not None]
        ids: Array = given[0] if given else np.arange(start, stop)
        for other in given[1:]:
            _check_agree(ids, other, start)
        aside: dict[int, tuple[str, str]] = {}
        for columns in found:
            aside = columns.bad | aside
        bad = [Bad(start + row, plain(ids[row]), *aside[row]) for row in sorted(aside)]
        good = np.ones(count, bool)
        good[list(aside)] = False
        values = {name: array for columns in found for name, array in columns.values.items()}
        if aside:
            values = {name: array[good] for name, array in values.items()}
        return Rows(count, np.arange(start, stop)[good], ids[good].astype(self.id_dtype), values, tuple(bad))

    def check(self) -> None:
        """InputError for a file that says itself, once all of it is read, that it is broken."""
        for reader in self.readers:
            reader.check()

    def close(self) -> None:
        """Close the files."""
        for reader in self.readers:
            reader.close()


def open_source(asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]) -> Source:
    """Find out what the files hold; nothing but headers is read.

    Raises:
        InputError: for files that can't be read, or don't fit the model.
        OptionError: for settings that are for other files than those given.
    """
    places = _places(asked.files, wanted)
    kinds = {kind for kind, _, _ in places}
    if "parquet" in kinds and len(kinds) > 1:
        raise InputError("Parquet files have all inputs in their columns, and can't be combined with other files")
    if asked.columns and "parquet" not in kinds:
        raise OptionError("--columns is for Parquet files, and no --input is one", hint="leave it out")
    if asked.images != ImageOptions() and kinds <= {"npy", "npz"}:
        raise OptionError("--layout, --color, --scale, --mean and --std are for images, and no --input is one")
    if asked.id is not None and not kinds & {"parquet", "npz"}:
        raise OptionError(
            "--id names a column of a Parquet file or an array of an .npz, and no --input is one",
            hint="the ids of pictures are their paths, those of other rows their numbers, from 0",
        )
    readers = _readers(places, asked, wanted, metadata)
    return _joined(readers, wanted, _keyed(readers, places, asked.id))


def file_identity(paths: Iterable[Path], names: Iterable[str]) -> str:
    """Files in a few words that change when they do: how many, bytes, and a digest.

    The digest is of each one's name, size, time of change, and of a MiB at either end: reading all of a file that is
    larger than memory only to know it again would take as long as reading it.
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
    return f"{counted(count, 'file')}, {counted(size, 'byte')}, {digest.hexdigest()[:32]}"


def _places(files: Sequence[str], wanted: Sequence[Wanted]) -> list[tuple[str, str | None, Path]]:
    """(kind, input or None, path) of each argument."""
    if not files:
        raise OptionError("no --input", hint="name the rows to predict: --input data.parquet, an .npz, or a folder")
    by_name = {one.name: one.info for one in wanted}
    places = []
    for argument in files:
        name, path = split_argument(argument, by_name)
        places.append((_kind(path), name, path))
    return places


def _kind(path: Path) -> str:
    """What an argument is: "parquet", "npy", "npz", "image", or "images" for a folder of them."""
    if path.is_dir():
        from trnrt.predict.parquet import parquet_files

        return "parquet" if parquet_files(path) else "images"
    if path.is_file():
        with reading_file(path), path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return "parquet"
        if path.suffix.lower() == ".parquet":
            raise InputError(f"{quoted(str(path))} is no Parquet file, by its first bytes")
        if (read := _TABLES.get(path.suffix.lower())) is not None:
            raise InputError(
                f"{quoted(str(path))} is no Parquet file, and tables are read from Parquet alone",
                hint=_conversion(path, read),
            )
    elif has_magic(str(path)) and not path.exists():
        hint = "name the folder for all Parquet files or pictures in it, or repeat --input for each file"
        raise InputError(f"there is no file {quoted(str(path))}, and --input takes no patterns", hint=hint)
    return kind_of(path)


def _conversion(path: Path, read: str) -> str:
    """The command that makes a Parquet file of a table, with pyarrow's function ``read``."""
    function, _, options = read.partition(" ")
    names = f"{str(path)!r}{options}), {str(path.with_suffix('.parquet'))!r}"
    program = (
        f"import pyarrow.{function.partition('.')[0]}, pyarrow.parquet as p; p.write_table(pyarrow.{function}({names})"
    )
    return f"python3 -c {shlex.quote(program)}"


def _readers(
    places: Sequence[tuple[str, str | None, Path]],
    asked: Asked,
    wanted: Sequence[Wanted],
    metadata: Mapping[str, str],
) -> list[Reader]:
    from trnrt.predict.arrays import open_arrays
    from trnrt.predict.pictures import open_pictures

    if places[0][0] == "parquet":
        from trnrt.predict.parquet import open_parquet

        named = [name for _, name, _ in places if name is not None]
        if named:
            raise InputError(
                f"a Parquet file has all inputs in its columns, and {quoted(named[0])}= was said",
                hint=f"say --columns {named[0]}=COLUMN for the column of an input",
            )
        return [open_parquet([path for _, _, path in places], asked, wanted, metadata)]
    pictures: dict[str, list[Path]] = {}
    readers: list[Reader] = []
    for kind, name, path in places:
        if kind in ("image", "images"):
            pictures.setdefault(name or _only(wanted, path), []).append(path)
        elif kind == "npz" and name is not None:
            raise InputError(f"{quoted(str(path))} names its arrays itself", hint=f"give it without {name}=")
        else:
            known = name or _only(wanted, path) if kind == "npy" else None
            readers.append(open_arrays(path, known, asked.id, wanted))
    by_name = {one.name: one for one in wanted}
    return readers + [open_pictures(paths, asked, by_name[name], metadata) for name, paths in pictures.items()]


def _only(wanted: Sequence[Wanted], path: Path) -> str:
    if len(wanted) == 1:
        return wanted[0].name
    raise InputError(
        f"the model has {len(wanted)} inputs, and {quoted(str(path))} doesn't say which it is for",
        hint=f"say NAME={path}; the inputs are {listed([one.told() for one in wanted])}",
    )


def _keyed(readers: Sequence[Reader], places: Sequence[tuple[str, str | None, Path]], id_: str | None) -> list[int]:
    """Whose ids are the rows': of --id all that have it, and not the paths of pictures; else the first that has any."""
    from trnrt.predict.arrays import names_in
    from trnrt.predict.pictures import PictureRows

    having = [at for at, reader in enumerate(readers) if reader.id_dtype is not None]
    if id_ is None:
        return having[:1]
    keyed = [at for at in having if not isinstance(readers[at], PictureRows)]
    if not keyed:
        archives = [path for kind, _, path in places if kind == "npz"]
        told = "; ".join(
            f"{quoted(str(path))} has {listed([quoted(key) for key in names_in(path)])}" for path in archives
        )
        raise InputError(f"no array {quoted(id_)} for --id; {told}")
    return keyed


def _check_agree(ids: Array, others: Array, start: int) -> None:
    """InputError where the ids of two files, from the row ``start`` on, are not the same."""
    pairs = zip(ids.tolist(), others.tolist(), strict=True)  # as Python's: a text and a number can be compared, too
    differing = next(((row, one, other) for row, (one, other) in enumerate(pairs, start) if one != other), None)
    if differing is not None:
        row, one, other = differing
        raise InputError(
            f"row {row} has the id {shown(str(one))} in one file and {shown(str(other))} in another",
            hint="the files' rows must stand in one order; without --id they are put together as they stand",
        )


def _joined(readers: Sequence[Reader], wanted: Sequence[Wanted], keyed: Sequence[int]) -> Source:
    given = [name for reader in readers for name in reader.shapes]
    if twice := [name for name in given if given.count(name) > 1]:
        raise InputError(f"input {quoted(twice[0])} is given twice")
    if missing := [one for one in wanted if one.name not in given]:
        raise InputError(f"no rows for {listed([one.told() for one in missing])}; given were {listed(given) or 'none'}")
    counts = {reader.rows: next(iter(reader.shapes), "") for reader in readers}
    if len(counts) > 1:
        told = ", ".join(f"{counted(rows, 'row')} for {quoted(name)}" for rows, name in counts.items())
        raise InputError(f"the inputs have different numbers of rows: {told}")
    return Source(wanted, readers, next(iter(counts)), keyed)


def plain(value: object) -> int | str | None:
    """An id as JSON has it."""
    if value is None:
        return None
    return int(value) if isinstance(value, (int, np.integer)) else str(value)
