"""Rows of Parquet files: a few at a time, however large their row groups are.

An input's columns are chosen by

1. ``--columns INPUT=COLUMN`` for a column with a row's whole tensor, or its picture; ``--columns INPUT=A,B,C`` for
   columns of one number each, in this order. ``INPUT=`` may be left out if the model has one input.
2. The input's name; for a model's only input also the names in ``DATA_NAMES``.
3. For a model's only input, if a row is a vector of n numbers: the file's n number columns, in the file's order,
   without the ids and columns named in ``LABEL_NAMES``.

Anything else is refused, not guessed.
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
from trnrt.predict.rows import Array, Columns, Reader, Wanted
from trnrt.predict.source import Asked, file_identity
from trnrt.text import count_text, escape_text, list_text, name_text, quote

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BUFFER = 1 << 20
"""Bytes of a column that are read at once. Without a buffer it is a row group's whole column, perhaps the file's."""
_ROWS_AT_ONCE = 1024
"""Rows decoded at once; fewer where a row is wide."""
_BYTES_AT_ONCE = 8 << 20
_PICTURES_AT_ONCE = 16
"""Rows decoded at once if their pictures are in a dictionary: then the file does not say how large the rows are."""


@dataclass(frozen=True)
class Binding:
    """An input and its columns: one with the tensor or the pictures for ``decoder``, or several with a number each."""

    wanted: Wanted
    columns: tuple[str, ...]
    shape: tuple[int, ...]
    decoder: Decoder | None

    def read(self, table: pa.Table) -> tuple[Array, dict[int, str]]:
        """The input's values in these rows, and why some have none."""
        arrays = [table.column(name).combine_chunks() for name in self.columns]
        if self.decoder is not None:
            return self.decoder.read(contents(arrays[0]))
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
class ParquetRows(Reader):
    """Files that follow each other as one table. ``ends`` and ``groups``: the rows where files and row groups end.

    ``columns``: the names of those that are read. ``_batches`` goes on at the row ``_position``, after those in
    ``_left``.
    """

    files: Sequence[Path]
    ends: Array
    groups: Array
    bindings: Sequence[Binding]
    id: str | None
    columns: Sequence[str]
    batch_rows: int
    _batches: Iterator[pa.RecordBatch] | None = None
    _left: list[pa.RecordBatch] = field(default_factory=list)
    _position: int = 0

    def read(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` to ``stop``."""
        first, last = (int(np.searchsorted(self.ends, row, "right")) for row in (start, stop - 1))
        # Converting the values can fail, too: only then is a text found not to be UTF-8.
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
        # Within the row group, going on is faster than reading it from its beginning.
        while self._position < start:
            self._take(min(self.batch_rows, start - self._position))
        return pa.Table.from_batches(self._take(stop - start))

    def _take(self, count: int) -> list[pa.RecordBatch]:
        """The next ``count`` rows."""
        assert self._batches is not None
        found, missing = self._left, count - sum(map(len, self._left))
        while missing > 0:
            found.append(next(self._batches))
            missing -= len(found[-1])
        # The rest of the last batch is for the next call.
        self._left = [found[-1].slice(len(found[-1]) + missing)] if missing else []
        self._position += count
        return [*found[:-1], found[-1].slice(0, len(found[-1]) + missing)]

    def _read_batches(self, start: int) -> Iterator[pa.RecordBatch]:
        """All rows from ``start`` on. Earlier rows of its row group are decoded and dropped."""
        for index in range(int(np.searchsorted(self.ends, start, "right")), len(self.files)):
            before = int(self.ends[index - 1]) if index else 0
            with _open_file(self.files[index]) as file:
                row = max(start - before, 0)
                begins = np.cumsum([0, *(group.num_rows for group in _row_groups(file))])
                first = int(np.searchsorted(begins[1:], row, "right"))
                skip = row - int(begins[first])
                groups = range(first, file.metadata.num_row_groups)
                for batch in file.iter_batches(self.batch_rows, groups, columns=self.columns, use_threads=False):
                    rest = batch.slice(min(skip, len(batch)))
                    skip -= len(batch) - len(rest)
                    if len(rest):
                        # The files' schemas may differ in metadata that pandas wrote.
                        yield rest.select(self.columns).replace_schema_metadata(None)

    def close(self) -> None:
        """Close the files."""
        self._batches, self._left = None, []


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files in a folder and below, without hidden ones, in the order of their paths."""
    found = {path.relative_to(folder).parts: path for path in folder.rglob("*.parquet") if path.is_file()}
    return [path for parts, path in sorted(found.items()) if not any(part.startswith((".", "_")) for part in parts)]


def open_parquet(
    paths: Sequence[Path], asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]
) -> ParquetRows:
    """The rows of these files, or of the files in these folders; InputError if they don't fit the model."""
    require_pyarrow()
    files = [file for path in paths for file in (parquet_files(path) if path.is_dir() else [path])]
    with _open_file(files[0]) as file:
        schema, name = file.schema_arrow, files[0].name
    bindings = _bind_columns(schema, name, asked, wanted, metadata)
    ids = None
    columns = list(dict.fromkeys(column for binding in bindings for column in binding.columns))
    if asked.id is not None:
        ids = id_dtype(_field(schema, asked.id, name, asked.id_flag).type, column_text(asked.id, name))
        columns = list(dict.fromkeys([*columns, asked.id]))
    counts: list[int] = []
    group_rows: list[int] = []
    width, coded = 0, False
    for path in files:
        with _open_file(path) as file:
            _check_types(schema, file.schema_arrow, columns, str(path))
            groups = _row_groups(file)
        counts.append(sum(group.num_rows for group in groups))
        group_rows += [group.num_rows for group in groups]
        width = max([width, *(group.total_byte_size // max(group.num_rows, 1) for group in groups)])
        coded = coded or _has_dictionary(groups, bindings)
    ends = np.cumsum(counts)
    return ParquetRows(
        rows=int(ends[-1]),
        shapes={binding.wanted.name: binding.shape for binding in bindings},
        identity=file_identity(files, [path.name for path in files]),
        notes=[note for binding in bindings for note in _notes(binding, name)],
        id_dtype=ids,
        files=files,
        ends=ends,
        groups=np.cumsum(group_rows),
        bindings=bindings,
        id=asked.id,
        columns=columns,
        batch_rows=_batch_rows(bindings, width, coded=coded),
    )


def require_pyarrow(instead: str = "") -> None:
    """BackendError if pyarrow is not installed; ``instead``: another way out, for the hint."""
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
    """The file; InputError if it is broken."""
    import pyarrow.parquet as pq

    # pre_buffer would read whole row groups ahead.
    with reading_parquet(path), pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, memory_map=False) as file:
        yield file


def _row_groups(file: pq.ParquetFile) -> list[pq.RowGroupMetaData]:
    return [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]


def _batch_rows(bindings: Sequence[Binding], width: int, *, coded: bool) -> int:
    """Rows decoded at once, if a row has ``width`` bytes in the file; ``coded``: pictures are in a dictionary.

    Repeated values take next to nothing in a file, so a row's bytes in memory count, too.
    """
    decoded = sum(math.prod(one.shape) * one.wanted.dtype.itemsize for one in bindings if one.decoder is None)
    most = _PICTURES_AT_ONCE if coded else _ROWS_AT_ONCE
    return max(1, min(most, _BYTES_AT_ONCE // max(width, decoded, 1)))


def _has_dictionary(groups: Sequence[pq.RowGroupMetaData], bindings: Sequence[Binding]) -> bool:
    """True if a row group has a column of pictures in a dictionary."""
    names = {name for one in bindings if one.decoder is not None for name in one.columns}
    if not names:
        return False
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    return any(one.path_in_schema.split(".")[0] in names and one.has_dictionary_page for one in columns)


def _bind_columns(
    schema: pa.Schema, file: str, asked: Asked, wanted: Sequence[Wanted], metadata: Mapping[str, str]
) -> list[Binding]:
    listed = _parse_columns(asked.columns, wanted)
    bindings = []
    for one in wanted:
        names = listed.get(one.name) or _guess_columns(schema, file, one, alone=len(wanted) == 1, id_=asked.id)
        types = [_field(schema, name, file, one.describe()).type for name in names]
        decoder = None
        if len(names) > 1:
            shape = _vector_shape(one, names, types, file)
        elif is_picture(types[0]):
            decoder = Decoder.make(one, metadata, asked.images)
            shape = decoder.shape
        else:
            shape = row_shape(types[0], one, column_text(names[0], file))
        bindings.append(Binding(one, tuple(names), shape, decoder))
    return bindings


def _parse_columns(columns: Sequence[str], wanted: Sequence[Wanted]) -> dict[str, list[str]]:
    """The columns in --columns, by input."""
    found: dict[str, list[str]] = {}
    names = [one.name for one in wanted]
    for text in columns:
        name = next((n for n in sorted(names, key=len, reverse=True) if text.startswith(f"{n}=")), None)
        if name is None and len(names) != 1:
            raise OptionError(
                f"--columns {name_text(text)} doesn't name its input",
                hint=f"say INPUT=COLUMN; the inputs are {list_text([one.describe() for one in wanted])}",
            )
        listed = text if name is None else text[len(name) + 1 :]
        found.setdefault(name or names[0], []).extend(part.strip() for part in listed.split(","))
    return found


def _guess_columns(schema: pa.Schema, file: str, wanted: Wanted, *, alone: bool, id_: str | None) -> list[str]:
    """The columns of an input that --columns does not name."""
    fields = [item for item in schema if item.name != id_]
    names = [item.name for item in fields]
    if wanted.name in names:
        return [wanted.name]
    if alone:
        usual = [name for name in names if name.lower() in DATA_NAMES]
        if len(usual) == 1:
            return usual
        numbers = [item.name for item in fields if item.name.lower() not in LABEL_NAMES and _is_number(item.type)]
        if len(wanted.shape) == 1 and len(numbers) > 1 and wanted.shape[0] in (None, len(numbers)):
            return numbers
    raise InputError(
        f"which columns of {quote(file)} are {wanted.describe()} is not clear; "
        f"it has {list_text(_column_texts(schema), 12)}",
        hint=f"say --columns {name_text(wanted.name)}=COLUMN, or =COLUMN,COLUMN,... for columns of one number each",
    )


def _vector_shape(wanted: Wanted, names: Sequence[str], types: Sequence[Any], file: str) -> tuple[int, ...]:
    """The shape of a row whose numbers have a column each."""
    for name, type_ in zip(names, types, strict=True):
        row_shape(type_, Wanted(wanted.info, (), wanted.dtype), column_text(name, file))
    if len(wanted.shape) != 1 or wanted.shape[0] not in (None, len(names)):
        raise InputError(f"{count_text(len(names), 'column')} of one value each don't fit {wanted.describe()}")
    return (len(names),)


def _field(schema: pa.Schema, name: str, file: str, use: str) -> pa.Field:
    """The one column of this name, for ``use``."""
    found = schema.get_all_field_indices(name)
    if len(found) == 1:
        return schema.field(found[0])
    if found:
        raise InputError(f"{quote(file)} has two columns {quote(name)}: which of them is for {use} is not clear")
    raise InputError(
        f"{quote(file)} has no column {quote(name)} for {use}; it has {list_text(_column_texts(schema), 12)}"
    )


def _check_types(schema: pa.Schema, found: pa.Schema, columns: Sequence[str], path: str) -> None:
    """InputError unless a file has these columns, with the first file's types."""
    for name in columns:
        mine, theirs = schema.field(name).type, _field(found, name, path, "a column of the first file").type
        if mine != theirs:
            raise InputError(
                f"{column_text(name, path)} is {name_text(str(theirs))}, and {name_text(str(mine))} in the first file"
            )


def _notes(binding: Binding, file: str) -> list[str]:
    name, columns = binding.wanted.name, binding.columns
    if binding.decoder is not None:
        return [binding.decoder.describe(f"column {quote(columns[0])}")]
    if len(columns) > 1:
        return [f"{quote(name)} is from {count_text(len(columns), 'column')}: {list_text([quote(c) for c in columns])}"]
    return [f"{quote(name)} is from {column_text(columns[0], file)}"] if columns[0] != name else []


def _is_number(type_: pa.DataType) -> bool:
    leaf = leaf_of(type_)
    return leaf is not None and not leaf.lengths and leaf.kind in "biuf"


def _column_texts(schema: pa.Schema) -> list[str]:
    return [f"{quote(item.name)} {name_text(str(item.type))}" for item in schema]
