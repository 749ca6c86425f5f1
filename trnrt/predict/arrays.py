"""Rows of .npy and .npz files, read from disk as they are needed: never a whole array in memory.

Files are read, not mapped: if a mapped file shrinks, a signal ends the process. Stored members of an .npz are read in
place. Deflated ones are streams: going back means inflating from the beginning.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.matching import DATA_NAMES, NpyHeader, npy_header, reading_file
from trnrt.predict.rows import Array, Columns, Reader, Wanted, check_kind, fit
from trnrt.predict.source import file_identity
from trnrt.text import list_text, quote, shape_text

_LOCAL_HEADER = 30  # the fixed part of a zip member's own header: section 4.3.7 of PKWARE's APPNOTE


@dataclass
class ArrayFile:
    """An array on disk, in C or Fortran order. The first read opens it.

    ``offset``: where the array begins, in the file or, if ``is_deflated``, in the inflated ``member`` of an .npz.
    """

    path: Path
    header: NpyHeader
    offset: int
    member: str = ""
    is_deflated: bool = False
    file: IO[bytes] | None = None

    def check(self) -> None:
        """InputError if a stored member has another CRC-32. Others have none, or are compared as they are inflated."""
        if self.member and not self.is_deflated:
            with reading_file(self.path), _open_member(self.path, self.member) as stream:
                while stream.read(1 << 20):
                    pass

    def read(self, start: int, stop: int) -> Array:
        """The rows from ``start`` to ``stop``."""
        header = self.header
        with reading_file(self.path):
            if not header.fortran or len(header.shape) == 1:
                width = math.prod(header.shape[1:])
                return self._read_run(start * width, (stop - start) * width).reshape(stop - start, *header.shape[1:])
            # The file has the first element of all rows, then the second of all rows, and so on.
            count = math.prod(header.shape[1:])
            runs = [self._read_run(k * header.shape[0] + start, stop - start) for k in range(count)]
            return np.stack(runs, axis=1).reshape(stop - start, *header.shape[1:], order="F")

    def _read_run(self, first: int, count: int) -> Array:
        dtype = self.header.dtype
        found = np.empty(count, dtype)
        if self.file is None:
            self.file = _open_member(self.path, self.member) if self.is_deflated else self.path.open("rb")
        self.file.seek(self.offset + first * dtype.itemsize)
        if self.file.readinto(found.view(np.uint8).data) != found.nbytes:  # type: ignore[attr-defined]
            raise EOFError("it ends before its rows do")
        return found.astype(dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
        self.file = None

    def describe(self) -> str:
        """The array's dtype and shape, for messages."""
        return f"{self.header.dtype} {shape_text(self.header.shape)}"


@dataclass
class ArrayRows(Reader):
    """The arrays of one file that are inputs, and perhaps one with the ids."""

    arrays: Mapping[str, ArrayFile]
    wanted: Mapping[str, Wanted]
    ids: ArrayFile | None

    def read(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` to ``stop``."""
        columns = Columns(stop - start)
        for name, array in self.arrays.items():
            columns.put(name, *fit(array.read(start, stop), self.wanted[name]))
        if self.ids is not None:
            found = self.ids.read(start, stop)
            columns.ids = np.char.decode(found, "utf-8", "replace") if found.dtype.kind == "S" else found
        return columns

    def check(self) -> None:
        """Read the stored members once, and compare their CRC-32."""
        for array in self._files():
            array.check()

    def close(self) -> None:
        """Close the files."""
        for array in self._files():
            array.close()

    def _files(self) -> Iterable[ArrayFile]:
        return [*self.arrays.values(), *([] if self.ids is None else [self.ids])]


def open_arrays(path: Path, name: str | None, id_name: str | None, wanted: Sequence[Wanted]) -> ArrayRows:
    """The .npy file of the input ``name``, or an .npz (``name`` is None) whose arrays are named like inputs.

    InputError if they can't be read, or don't fit.
    """
    by_name = {one.name: one for one in wanted}
    ids = id_dtype = None
    notes: list[str] = []
    if name is not None:
        arrays = {name: _open_npy(path)}
    else:
        members = _list_members(path)
        chosen = _match_arrays(list(members), wanted, path, id_name)
        arrays = {one: _open_array(path, members[key]) for key, one in chosen.items()}
        if id_name in members:  # else another file may have the ids
            ids = _open_ids(path, members, id_name)
            id_dtype = ids.header.dtype.newbyteorder("=") if ids.header.dtype.kind in "iu" else np.dtype(object)
        if spare := [quote(key) for key in members if key not in chosen and key != id_name]:
            notes.append(f"ignored, as the model has no such input: {list_text(spare)}")
    shapes = {one: _row_shape(array, by_name[one], path) for one, array in arrays.items()}
    return ArrayRows(
        rows=_count_rows({**arrays, **({} if ids is None else {str(id_name): ids})}, path),
        shapes=shapes,
        identity=file_identity([path], [path.name]),
        notes=notes + _conversion_notes(arrays, by_name),
        id_dtype=id_dtype,
        arrays=arrays,
        wanted=by_name,
        ids=ids,
    )


def names_in(path: Path) -> list[str]:
    """The names of the arrays in an .npz; InputError if it can't be read."""
    return list(_list_members(path))


def _open_npy(path: Path) -> ArrayFile:
    with reading_file(path), path.open("rb") as file:
        size = path.stat().st_size
        header = npy_header(file, path, size)
        if file.tell() + header.size > size:
            raise EOFError("it ends before its rows do")
        return ArrayFile(path, header, file.tell())


def _list_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    with reading_file(path), zipfile.ZipFile(path) as archive:
        return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _open_member(path: Path, name: str) -> IO[bytes]:
    """A member as a stream, which keeps the archive's file open, and compares the CRC-32 when it ends."""
    with zipfile.ZipFile(path) as archive:
        return archive.open(name)


def _open_array(path: Path, member: zipfile.ZipInfo) -> ArrayFile:
    with reading_file(path), _open_member(path, member.filename) as stream, path.open("rb") as file:
        header = npy_header(stream, path, member.file_size)
        length = stream.tell()
        if member.compress_type == zipfile.ZIP_STORED:
            return ArrayFile(path, header, _data_offset(file, member) + length, member.filename)
        if header.fortran and len(header.shape) > 1:
            raise InputError(
                f"{quote(member.filename)} in {quote(str(path))} is compressed and in Fortran order: "
                "its rows can't be streamed",
                hint="save it in C order: numpy.savez(FILE, NAME=numpy.ascontiguousarray(array))",
            )
        return ArrayFile(path, header, length, member.filename, is_deflated=True)


def _data_offset(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """The start of a member's content: after its own header, whose lengths may differ from the directory's."""
    file.seek(member.header_offset + _LOCAL_HEADER - 4)
    name, extra = struct.unpack("<HH", file.read(4))
    return member.header_offset + _LOCAL_HEADER + int(name) + int(extra)


def _match_arrays(keys: Sequence[str], wanted: Sequence[Wanted], path: Path, id_name: str | None) -> dict[str, str]:
    """Array name -> input name. A model's only input also matches one of ``DATA_NAMES``."""
    names = [one.name for one in wanted]
    chosen = {key: key for key in keys if key in names}
    others = [key for key in keys if key.lower() in DATA_NAMES and key != id_name]
    if not chosen and len(names) == 1 and len(others) == 1:
        chosen = {others[0]: names[0]}
    if not chosen:
        raise InputError(
            f"{quote(str(path))} has {list_text([quote(key) for key in keys]) or 'no arrays'}; no input has this name",
            hint=f"the inputs are {list_text([one.describe() for one in wanted])}",
        )
    return chosen


def _open_ids(path: Path, members: Mapping[str, zipfile.ZipInfo], name: str) -> ArrayFile:
    ids = _open_array(path, members[name])
    if len(ids.header.shape) != 1 or ids.header.dtype.kind not in "iuUS":
        raise InputError(
            f"{quote(name)} in {quote(str(path))} is {ids.describe()}: these are one integer or text for each row"
        )
    return ids


def _row_shape(array: ArrayFile, wanted: Wanted, path: Path) -> tuple[int, ...]:
    """The shape of the array's rows; InputError if the input doesn't take such rows."""
    shape = array.header.shape
    place = f"{quote(str(path))}, {array.describe()},"
    check_kind(array.header.dtype.kind, wanted, place)
    fits = len(shape) == len(wanted.shape) + 1 and all(
        want is None or have == want for have, want in zip(shape[1:], wanted.shape, strict=True)
    )
    if not fits or 0 in shape[1:]:
        hint = "one row needs its batch dimension, too: array[None]" if len(shape) == len(wanted.shape) else None
        raise InputError(f"{place} does not fit {wanted.describe()}", hint=hint)
    return shape[1:]


def _count_rows(arrays: Mapping[str, ArrayFile], path: Path) -> int:
    counts = {array.header.shape[0]: name for name, array in arrays.items()}
    if len(counts) > 1:
        found = ", ".join(f"{quote(name)} has {count:,}" for count, name in counts.items())
        raise InputError(f"the arrays in {quote(str(path))} have different numbers of rows: {found}")
    return next(iter(counts))


def _conversion_notes(arrays: Mapping[str, ArrayFile], wanted: Mapping[str, Wanted]) -> list[str]:
    dtypes = [(wanted[name], array.header.dtype.newbyteorder("=")) for name, array in arrays.items()]
    return [
        f"{quote(one.name)} is {dtype}: its values are converted to {one.info.dtype}"
        for one, dtype in dtypes
        if dtype != one.dtype and one.info.dtype != "str"
    ]
