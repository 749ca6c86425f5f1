"""The files of ``--input`` as one sequence of rows for all inputs of a model.

    DATA.parquet, or a folder of them    a column for each input (trnrt.predict.parquet); several follow each other
    FILE.npz                             the arrays that are named like inputs
    NAME=FILE.npy                        one array; NAME= may be left out for a model of one input
    NAME=FOLDER, NAME=FILE.png           pictures, in the order of their names; several files follow each other

Inputs from different files must have the same number of rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from glob import has_magic
from pathlib import Path

from trnrt.errors import InputError, OptionError
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import kind_of, reading_file, split_argument
from trnrt.predict.rows import Reader, Wanted
from trnrt.predict.source import Asked, Source
from trnrt.text import count_text, list_text, quote

# pyarrow's function for a table, and its arguments beside the path.
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


def open_source(asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]) -> Source:
    """Open the files; only headers are read.

    Raises:
        InputError: for files that can't be read, or don't fit the model.
        OptionError: for settings that don't apply to these files.
    """
    places = _places(asked, wanted)
    kinds = {kind for kind, _, _ in places}
    if "parquet" in kinds and len(kinds) > 1:
        raise InputError("Parquet files have all inputs in their columns: they can't be combined with other files")
    if asked.columns and "parquet" not in kinds:
        raise OptionError(f"--columns is for Parquet files, and no {asked.flag} is one", hint="leave it out")
    if asked.images != ImageOptions() and kinds <= {"npy", "npz"}:
        raise OptionError(
            f"--layout, --color, --scale, --mean, --std and --fit are for images, and no {asked.flag} is one"
        )
    if asked.id is not None and not kinds & {"parquet", "npz"}:
        raise OptionError(
            f"{asked.id_flag} names a column of a Parquet file or an array of an .npz, and no {asked.flag} is one",
            hint="leave it out",
        )
    readers = _open_readers(places, asked, wanted, metadata)
    return _join_readers(readers, wanted, _id_readers(readers, places, asked))


def _places(asked: Asked, wanted: Sequence[Wanted]) -> list[tuple[str, str | None, Path]]:
    """(kind, input or None, path) of each argument."""
    if not asked.files:
        raise OptionError(
            f"no {asked.flag}", hint=f"name the rows to predict: {asked.flag} data.parquet, an .npz, or a folder"
        )
    by_name = {one.name: one.info for one in wanted}
    named = [split_argument(argument, by_name) for argument in asked.files]
    return [(_kind(path, asked.flag), name, path) for name, path in named]


def _kind(path: Path, flag: str) -> str:
    """The kind of an argument: "parquet", "npy", "npz", "image", or "images" for a folder of them."""
    if path.is_dir():
        from trnrt.predict.parquet import parquet_files

        return "parquet" if parquet_files(path) else "images"
    if path.is_file():
        with reading_file(path), path.open("rb") as file:
            if file.read(4) == b"PAR1":
                return "parquet"
        if path.suffix.lower() == ".parquet":
            raise InputError(f"{quote(str(path))} is no Parquet file: it doesn't begin with PAR1")
        if (read := _TABLES.get(path.suffix.lower())) is not None:
            raise InputError(
                f"{quote(str(path))} is no Parquet file, the only format that tables are read from",
                hint=_conversion(path, read),
            )
    elif has_magic(str(path)) and not path.exists():
        hint = f"name the folder for all Parquet files or pictures in it, or repeat {flag} for each file"
        raise InputError(f"there is no file {quote(str(path))}, and {flag} takes no patterns", hint=hint)
    return kind_of(path)


def _conversion(path: Path, read: str) -> str:
    """The command that converts a table to Parquet with pyarrow's function ``read``."""
    function, _, options = read.partition(" ")
    names = f"{str(path)!r}{options}), {str(path.with_suffix('.parquet'))!r}"
    program = (
        f"import pyarrow.{function.partition('.')[0]}, pyarrow.parquet as p; p.write_table(pyarrow.{function}({names})"
    )
    return f"python3 -c {shlex.quote(program)}"


def _open_readers(
    places: Sequence[tuple[str, str | None, Path]],
    asked: Asked,
    wanted: Sequence[Wanted],
    metadata: Mapping[str, str],
) -> list[Reader]:
    from trnrt.predict.arrays import open_arrays
    from trnrt.predict.pictures import open_pictures

    if places[0][0] == "parquet":
        from trnrt.predict.parquet import open_parquet

        for _, name, path in places:
            if name is not None:
                raise InputError(
                    f"{quote(str(path))} has all inputs in its columns, so it can't be for {quote(name)} alone",
                    hint=f"say --columns {name}=COLUMN for the column of an input",
                )
        return [open_parquet([path for _, _, path in places], asked, wanted, metadata)]
    pictures: dict[str, list[Path]] = {}
    readers: list[Reader] = []
    for kind, name, path in places:
        if kind in ("image", "images"):
            pictures.setdefault(name or _only_input(wanted, path), []).append(path)
        elif kind == "npz" and name is not None:
            raise InputError(f"{quote(str(path))} has names for its arrays", hint=f"leave out {name}=")
        else:
            known = name or _only_input(wanted, path) if kind == "npy" else None
            readers.append(open_arrays(path, known, asked.id, wanted))
    by_name = {one.name: one for one in wanted}
    return readers + [open_pictures(paths, asked, by_name[name], metadata) for name, paths in pictures.items()]


def _only_input(wanted: Sequence[Wanted], path: Path) -> str:
    if len(wanted) == 1:
        return wanted[0].name
    raise InputError(
        f"the model has {len(wanted)} inputs, and {quote(str(path))} doesn't say which it is for",
        hint=f"say NAME={path}; the inputs are {list_text([one.describe() for one in wanted])}",
    )


def _id_readers(readers: Sequence[Reader], places: Sequence[tuple[str, str | None, Path]], asked: Asked) -> list[int]:
    """The readers whose ids are the rows': with --id all that have it, but no paths of pictures; else the first one."""
    from trnrt.predict.arrays import names_in
    from trnrt.predict.pictures import PictureRows

    having = [at for at, reader in enumerate(readers) if reader.id_dtype is not None]
    if asked.id is None:
        return having[:1]
    keyed = [at for at in having if not isinstance(readers[at], PictureRows)]
    if not keyed:
        archives = [path for kind, _, path in places if kind == "npz"]
        names = [f"{quote(str(path))} has {list_text([quote(key) for key in names_in(path)])}" for path in archives]
        raise InputError(f"no array {quote(asked.id)} for {asked.id_flag}; {'; '.join(names)}")
    return keyed


def _join_readers(readers: Sequence[Reader], wanted: Sequence[Wanted], keyed: Sequence[int]) -> Source:
    given = [name for reader in readers for name in reader.shapes]
    if twice := [name for name in given if given.count(name) > 1]:
        raise InputError(f"input {quote(twice[0])} is given twice")
    if missing := [one for one in wanted if one.name not in given]:
        raise InputError(
            f"no rows for {list_text([one.describe() for one in missing])}; given were {list_text(given) or 'none'}"
        )
    counts = {reader.rows: next(iter(reader.shapes), "") for reader in readers}
    if len(counts) > 1:
        found = ", ".join(f"{count_text(rows, 'row')} for {quote(name)}" for rows, name in counts.items())
        raise InputError(f"the inputs have different numbers of rows: {found}")
    return Source(wanted, readers, next(iter(counts)), keyed)
