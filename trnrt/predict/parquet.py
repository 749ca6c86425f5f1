"""Rows of Parquet files: a few at a time, whatever the size of their row groups.

Which column is which input is said (``--columns``), or follows from the names:

1. ``--columns INPUT=COLUMN`` for a column that has a row's whole tensor, or its picture;
   ``--columns INPUT=A,B,C`` for columns of one number each, in this order. ``INPUT=`` may be left out where there is
   one input.
2. A column that is called like the input; for a model's only input also one called as ``DATA_NAMES`` say.
3. For a model's only input, where a row is a vector of n numbers: the file's number columns, in the file's order, if
   there are n; but not the ids, nor a column called as ``LABEL_NAMES`` say.

Anything else is refused: which column is meant is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.errors import BackendError, InputError, OptionError
from trnrt.inputs.matching import DATA_NAMES, LABEL_NAMES
from trnrt.predict.columns import column_text, contents, id_dtype, id_values, is_picture, leaf_of, row_shape, tensor
from trnrt.predict.pictures import Decoder
from trnrt.predict.rows import Array, Columns, Wanted
from trnrt.predict.source import Asked, file_identity
from trnrt.text import count_text, escape_text, list_text, name_text, quote

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BUFFER = 1 << 20
"""Bytes of a column that are read at once. Without a buffer all of a row group's column is, which may be the file's."""
_ROWS_AT_ONCE = 1024
"""Rows decoded at once; fewer where a row is wide."""
_BYTES_AT_ONCE = 8 << 20
_PICTURES_AT_ONCE = 16
"""Pictures decoded at once that stand in a dictionary: of such rows the file does not say how large they are."""


@dataclass(frozen=True)
class Binding:
    """An input and its columns: one with the tensor or the ``picture``, or several with one number each."""

    wanted: Wanted
    columns: tuple[str, ...]
    shape: tuple[int, ...]
    picture: Decoder | None

    def read(self, table: pa.Table) -> tuple[Array, dict[int, str]]:
        """The input's values in these rows, and why some have none."""
        arrays = [table.column(name).combine_chunks() for name in self.columns]
        if self.picture is not None:
            return self.picture.read(contents(arrays[0]))
        if len(arrays) == 1:
            return tensor(arrays[0], self.shape, self.wanted)
        found = [tensor(array, (), self.wanted) for array in arrays]
        bad = {
            row: f"column {quote(name)}: {reason}"
            for name, (_, reasons) in reversed(list(zip(self.columns, found, strict=True)))
            for row, reason in reasons.items()
        }
        return np.stack([values for values, _ in found], axis=1).reshape(len(table), *self.shape), bad


@dataclass
class ParquetRows:
    """Files that follow each other as one table; at the rows ``ends`` and ``groups`` end files and row groups.

    ``_batches`` goes on at the row ``_position``, after those in ``_left``.
    """

    files: Sequence[Path]
    ends: Array
    groups: Array
    bindings: Sequence[Binding]
    id: str | None
    identity: str
    notes: Sequence[str]
    at_once: int
    id_dtype: np.dtype[Any] | None
    _batches: Iterator[pa.RecordBatch] | None = None
    _left: list[pa.RecordBatch] = field(default_factory=list)
    _position: int = 0

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return int(self.ends[-1])

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of a row, by input."""
        return {binding.wanted.name: binding.shape for binding in self.bindings}

    def read(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` to ``stop``."""
        first, last = (int(np.searchsorted(self.ends, row, "right")) for row in (start, stop - 1))
        # The values, too: only here a text is found to be no UTF-8.
        with reading_parquet(*self.files[first : last + 1]):
            table = self._table(start, stop)
            columns = Columns(stop - start)
            for binding in self.bindings:
                columns.put(binding.wanted.name, *binding.read(table))
            if self.id is not None:
                columns.ids = id_values(table.column(self.id).combine_chunks())
                for row in np.flatnonzero([value is None for value in columns.ids]):
                    columns.bad.setdefault(int(row), (self.id, "its id is null"))
            return columns

    def _table(self, start: int, stop: int) -> pa.Table:
        import pyarrow as pa

        group = int(np.searchsorted(self.groups, start, "right"))
        first = int(self.groups[group - 1]) if group else 0
        if self._batches is None or not first <= self._position <= start:
            self._batches, self._left, self._position = self._read_batches(start), [], start
        # Forward in the same row group it is quicker to go on than to begin the group anew.
        while self._position < start:
            self._take(min(self.at_once, start - self._position))
        return pa.Table.from_batches(self._take(stop - start))

    def _take(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows."""
        assert self._batches is not None
        found, missing = self._left, count - sum(map(len, self._left))
        while missing > 0:
            found.append(next(self._batches))
            missing -= len(found[-1])
        # Of the last one, what is beyond the last row is for the next call.
        self._left = [found[-1].slice(len(found[-1]) + missing)] if missing else []
        self._position += count
        return [*found[:-1], found[-1].slice(0, len(found[-1]) + missing)]

    def _read_batches(self, start: int) -> Iterator[pa.RecordBatch]:
        """All rows from ``start`` on: those before it in its row group are decoded and dropped."""
        names = [name for binding in self.bindings for name in binding.columns]
        names = list(dict.fromkeys([*names, *([] if self.id is None else [self.id])]))
        for index in range(int(np.searchsorted(self.ends, start, "right")), len(self.files)):
            before = int(self.ends[index - 1]) if index else 0
            with reading_parquet(self.files[index]), _open_file(self.files[index]) as file:
                first, skip = _row_group(file, max(start - before, 0))
                groups = range(first, file.metadata.num_row_groups)
                for batch in file.iter_batches(self.at_once, groups, columns=names, use_threads=False):
                    rest = batch.slice(min(skip, len(batch)))
                    skip -= len(batch) - len(rest)
                    if len(rest):
                        # Files may differ in what pandas wrote beside the columns.
                        yield rest.select(names).replace_schema_metadata(None)

    def check(self) -> None:
        """Nothing: what is broken is met when it is read."""

    def close(self) -> None:
        """Close the files."""
        self._batches, self._left = None, []


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and below, in the order of their paths; hidden ones are left alone."""
    found = [path for path in folder.rglob("*.parquet") if path.is_file()]
    shown_ = [path for path in found if not any(p.startswith((".", "_")) for p in path.relative_to(folder).parts)]
    return sorted(shown_, key=lambda path: path.relative_to(folder).parts)


def open_parquet(
    paths: Sequence[Path], asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]
) -> ParquetRows:
    """The rows of these files, or of the files in these folders; InputError where they don't fit the model."""
    needs_pyarrow()
    files = [file for path in paths for file in (parquet_files(path) if path.is_dir() else [path])]
    counts: list[int] = []
    groups: list[int] = []
    schema: pa.Schema | None = None
    width, coded, ids = 0, False, None
    for path in files:
        with reading_parquet(path), _open_file(path) as file:
            counts.append(file.metadata.num_rows)
            groups += [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            schema = schema or file.schema_arrow
            found = file.schema_arrow
            if path == files[0]:
                bindings = _bindings(schema, path.name, asked, wanted, metadata)
                if asked.id is not None:
                    ids = id_dtype(_field(schema, asked.id, path.name, "--id").type, column_text(asked.id, path.name))
            _check_same(schema, found, bindings, asked.id, path)
            width = max(width, _bytes_a_row(file))
            coded = coded or _has_dictionary(file, bindings)
    assert schema is not None
    notes = [note for binding in bindings for note in _notes(binding, files[0], schema)]
    at_once = _at_once(bindings, width, coded=coded)
    names = [path.name for path in files]
    identity = file_identity(files, names)
    ends = np.cumsum(counts), np.cumsum(groups)
    return ParquetRows(files, *ends, bindings, asked.id, identity, notes, at_once, ids)


def needs_pyarrow(instead: str = "") -> None:
    """BackendError where pyarrow is not installed; ``instead`` of which there is another way."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise BackendError(
            "Parquet needs pyarrow", hint=f"pip install 'trnrt[parquet]'{instead and ', '}{instead}"
        ) from error


@contextmanager
def reading_parquet(*paths: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a bad file, one of these, into InputError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, StopIteration, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        named = list_text([quote(str(path)) for path in paths])
        raise InputError(f"can't read {'one of ' * (len(paths) > 1)}{named}: {escape_text(reason)[:400]}") from error


@contextmanager
def _open_file(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    # pre_buffer would read whole row groups ahead.
    with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, memory_map=False) as file:
        yield file


def _row_group(file: pq.ParquetFile, row: int) -> tuple[int, int]:
    """The row group that has a row of the file, and which of its rows that is."""
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if row < rows:
            return group, row
        row -= rows
    return file.metadata.num_row_groups, 0


def _bytes_a_row(file: pq.ParquetFile) -> int:
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    return max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)


def _at_once(bindings: Sequence[Binding], width: int, *, coded: bool) -> int:
    """Rows decoded at once, where a row has ``width`` bytes in the file, and pictures may be ``coded``.

    Repeated values take next to nothing in a file: what a row has in memory counts, too.
    """
    decoded = sum(math.prod(one.shape) * one.wanted.dtype.itemsize for one in bindings if one.picture is None)
    most = _PICTURES_AT_ONCE if coded else _ROWS_AT_ONCE
    return max(1, min(most, _BYTES_AT_ONCE // max(width, decoded, 1)))


def _has_dictionary(file: pq.ParquetFile, bindings: Sequence[Binding]) -> bool:
    """Whether a column of pictures stands in a dictionary, by what its row groups say."""
    names = {name for one in bindings if one.picture is not None for name in one.columns}
    if not names:
        return False
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    return any(one.path_in_schema.split(".")[0] in names and one.has_dictionary_page for one in columns)


def _bindings(
    schema: pa.Schema, file: str, asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]
) -> list[Binding]:
    said = _parse_columns(asked.columns, wanted)
    bindings = []
    for one in wanted:
        names = said.get(one.name) or _guess_columns(schema, file, one, alone=len(wanted) == 1, id_=asked.id)
        types = [_field(schema, name, file, one.describe()).type for name in names]
        if len(names) == 1 and is_picture(types[0]):
            decoder = Decoder.make(one, metadata, asked.images)
            bindings.append(Binding(one, (names[0],), decoder.shape, decoder))
        elif len(names) == 1:
            bindings.append(Binding(one, tuple(names), row_shape(types[0], one, column_text(names[0], file)), None))
        else:
            bindings.append(Binding(one, tuple(names), _features(one, names, types, file), None))
    return bindings


def _parse_columns(columns: Sequence[str], wanted: Sequence[Wanted]) -> dict[str, list[str]]:
    """What --columns says, by input."""
    said: dict[str, list[str]] = {}
    names = [one.name for one in wanted]
    for text in columns:
        name = next((n for n in sorted(names, key=len, reverse=True) if text.startswith(f"{n}=")), None)
        listed_ = text if name is None else text[len(name) + 1 :]
        if name is None and len(names) != 1:
            raise OptionError(
                f"--columns {name_text(text)} doesn't say for which input",
                hint=f"say INPUT=COLUMN; the inputs are {list_text([one.describe() for one in wanted])}",
            )
        said.setdefault(name or names[0], []).extend(part.strip() for part in listed_.split(","))
    return said


def _guess_columns(schema: pa.Schema, file: str, wanted: Wanted, *, alone: bool, id_: str | None) -> list[str]:
    """The columns of an input about which nothing was said."""
    names = [name for name in schema.names if name != id_]
    if wanted.name in names:
        return [wanted.name]
    if alone:
        usual = [name for name in names if name.lower() in DATA_NAMES]
        if len(usual) == 1:
            return usual
        numbers = [name for name in names if name.lower() not in LABEL_NAMES and _is_number(schema, name)]
        if len(wanted.shape) == 1 and len(numbers) > 1 and wanted.shape[0] in (None, len(numbers)):
            return numbers
    raise InputError(
        f"which columns of {quote(file)} are {wanted.describe()} is not clear; "
        f"it has {list_text(_column_texts(schema), 12)}",
        hint=f"say --columns {name_text(wanted.name)}=COLUMN, or =COLUMN,COLUMN,... for columns of one number each",
    )


def _features(wanted: Wanted, names: Sequence[str], types: Sequence[Any], file: str) -> tuple[int, ...]:
    """The shape of a row whose numbers stand in a column each."""
    for name, type_ in zip(names, types, strict=True):
        row_shape(type_, Wanted(wanted.info, (), wanted.dtype), column_text(name, file))
    if len(wanted.shape) != 1 or wanted.shape[0] not in (None, len(names)):
        raise InputError(f"{count_text(len(names), 'column')} of one value each are not what {wanted.describe()} takes")
    return (len(names),)


def _field(schema: pa.Schema, name: str, file: str, use: str) -> pa.Field:
    found = schema.get_all_field_indices(name)
    if len(found) == 1:
        return schema.field(found[0])
    told = "two columns" if found else "no column"
    raise InputError(
        f"{quote(file)} has {told} {quote(name)}, which {use} should be from"
        if found
        else f"{quote(file)} has no column {quote(name)} for {use}; it has {list_text(_column_texts(schema), 12)}"
    )


def _check_same(schema: pa.Schema, found: pa.Schema, bindings: Sequence[Binding], id_: str | None, path: Path) -> None:
    """InputError unless a file has the columns that are read, of the first file's types."""
    for name in [*(name for binding in bindings for name in binding.columns), *([id_] if id_ else [])]:
        mine = schema.field(name).type
        theirs = _field(found, name, str(path), "a column of the first file").type
        if mine != theirs:
            raise InputError(
                f"{column_text(name, str(path))} is {name_text(str(theirs))}, "
                f"and {name_text(str(mine))} in the first file"
            )


def _notes(binding: Binding, path: Path, schema: pa.Schema) -> list[str]:
    name, columns = binding.wanted.name, binding.columns
    if binding.picture is not None:
        return [binding.picture.describe(f"column {quote(columns[0])}")]
    if len(columns) > 1:
        return [f"{quote(name)} is from {count_text(len(columns), 'column')}: {list_text([quote(c) for c in columns])}"]
    return [f"{quote(name)} is from {column_text(columns[0], path.name)}"] if columns[0] != name else []


def _is_number(schema: pa.Schema, name: str) -> bool:
    found = schema.get_all_field_indices(name)
    leaf = leaf_of(schema.field(found[0]).type)
    return leaf is not None and not leaf.lengths and leaf.kind in "biuf"


def _column_texts(schema: pa.Schema) -> list[str]:
    return [f"{quote(item.name)} {name_text(str(item.type))}" for item in schema]
