"""Rows of .npy and .npz files, read from where they stand: never a whole array in memory.

Read, not mapped: a file that shrinks under a map ends the process with a signal. Stored members of an .npz
are read in place; deflated ones are a stream, and to go on in the middle what stands before is inflated again.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.matching import DATA_NAMES, NpyHeader, npy_header, reading_file
from trnrt.predict.rows import Array, Columns, Wanted, check_kind, fit
from trnrt.predict.source import file_identity
from trnrt.text import list_text, quote, shape_text

_LOCAL_HEADER = 30  # the fixed part of a zip member's own header: section 4.3.7 of PKWARE's APPNOTE


@dataclass
class StoredArray:
    """An array whose bytes stand in a file as they are: in C's order, or in Fortran's. It is opened when it is read.

    ``member``: where a member of an .npz begins, its bytes, and its CRC-32; None for a .npy, which has none.
    """

    path: Path
    offset: int
    header: NpyHeader
    member: tuple[int, int, int] | None = None
    file: IO[bytes] | None = None

    def check(self) -> None:
        """InputError where the member's bytes are not those that were written, as ``numpy.load`` refuses them."""
        if self.member is None:
            return
        offset, rest, written = self.member
        found = 0
        with reading_file(self.path), self.path.open("rb") as file:
            file.seek(offset)
            while rest:
                piece = file.read(min(rest, 1 << 20))
                if not piece:
                    raise EOFError("it ends before its rows do")
                found, rest = zlib.crc32(piece, found), rest - len(piece)
            if found != written:
                raise zipfile.BadZipFile("bad CRC-32: an array is not as it was written")

    def read(self, start: int, stop: int) -> Array:
        """The rows from ``start`` to ``stop``."""
        header = self.header
        with reading_file(self.path):
            if not header.fortran or len(header.shape) == 1:
                width = math.prod(header.shape[1:])
                return self._run(start * width, (stop - start) * width).reshape(stop - start, *header.shape[1:])
            # The rows' first elements stand together, then their second ones, and so on.
            runs = [self._run(k * header.shape[0] + start, stop - start) for k in range(math.prod(header.shape[1:]))]
            return np.stack(runs, axis=1).reshape(stop - start, *header.shape[1:], order="F")

    def _run(self, first: int, count: int) -> Array:
        dtype = self.header.dtype
        found = np.empty(count, dtype)
        self.file = self.file or self.path.open("rb")
        self.file.seek(self.offset + first * dtype.itemsize)
        if self.file.readinto(found.view(np.uint8).data) != found.nbytes:  # type: ignore[attr-defined]
            raise EOFError("it ends before its rows do")
        return found.astype(dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
        self.file = None


@dataclass
class StreamedArray:
    """An array in a deflated member of an .npz, opened when it is read; ``position`` is the row that comes next."""

    path: Path
    member: str
    header: NpyHeader
    archive: zipfile.ZipFile | None = None
    stream: IO[bytes] | None = None
    position: int = 0

    def check(self) -> None:
        """Nothing: the stream itself compares the CRC-32 when its last row is read."""

    def read(self, start: int, stop: int) -> Array:
        """The rows from ``start`` to ``stop``."""
        header = self.header
        width = math.prod(header.shape[1:]) * header.dtype.itemsize
        with reading_file(self.path):
            stream = self._seek(start, width)
            content = stream.read((stop - start) * width)
            if len(content) != (stop - start) * width:
                raise EOFError("it ends before its rows do")
            self.position = stop
            rows = np.frombuffer(content, header.dtype).reshape(stop - start, *header.shape[1:])
            return rows.astype(header.dtype.newbyteorder("="), copy=False)

    def _seek(self, start: int, width: int) -> IO[bytes]:
        if self.stream is None or start < self.position:
            self.close()
            self.archive = zipfile.ZipFile(self.path)
            self.stream = self.archive.open(self.member)
            npy_header(self.stream, self.path, self.archive.getinfo(self.member).file_size)
            self.position = 0
        rest = (start - self.position) * width
        while rest:
            skipped = len(self.stream.read(min(rest, 1 << 20)))
            if not skipped:
                raise EOFError("it ends before its rows do")
            rest -= skipped
        self.position = start
        return self.stream

    def close(self) -> None:
        """Close the file."""
        for opened in (self.stream, self.archive):
            if opened is not None:
                opened.close()
        self.stream = self.archive = None


@dataclass
class ArrayRows:
    """The arrays of one file that are inputs, and perhaps one that has the ids."""

    arrays: Mapping[str, StoredArray | StreamedArray]
    wanted: Mapping[str, Wanted]
    ids: StoredArray | StreamedArray | None
    rows: int
    shapes: Mapping[str, tuple[int, ...]]
    identity: str
    notes: Sequence[str]

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
        """Read what is stored once, and compare its CRC-32s."""
        for array in (*self.arrays.values(), *([] if self.ids is None else [self.ids])):
            array.check()

    @property
    def id_dtype(self) -> np.dtype[Any] | None:
        """Of the ids."""
        if self.ids is None:
            return None
        dtype = self.ids.header.dtype
        return dtype.newbyteorder("=") if dtype.kind in "iu" else np.dtype(object)

    def close(self) -> None:
        """Close the files."""
        for array in self.arrays.values():
            array.close()
        if self.ids is not None:
            self.ids.close()


def open_arrays(path: Path, name: str | None, id_name: str | None, wanted: Sequence[Wanted]) -> ArrayRows:
    """The .npy file of the input ``name``, or an .npz (``name`` is None) with arrays that are named like inputs.

    InputError where they can't be read, or can't fit.
    """
    by_name = {one.name: one for one in wanted}
    ids = None
    spare: list[str] = []
    if name is not None:
        arrays: dict[str, StoredArray | StreamedArray] = {name: _open_npy(path)}
    else:
        members = _members(path)
        chosen = _match_arrays(list(members), wanted, path, id_name)
        arrays = {one: _open_member(path, members[key]) for key, one in chosen.items()}
        # Another file may have the ids.
        ids = _open_ids(path, members, id_name) if id_name in members else None
        spare = [key for key in members if key not in chosen and key != id_name]
    shapes = {one: _row_shape(array, by_name[one], path) for one, array in arrays.items()}
    rows = _row_count({**arrays, **({} if ids is None else {str(id_name): ids})}, path)
    identity = file_identity([path], [path.name])
    return ArrayRows(arrays, by_name, ids, rows, shapes, identity, _notes(arrays, by_name, spare))


def names_in(path: Path) -> list[str]:
    """What the arrays in an .npz are called; InputError where it can't be read."""
    return list(_members(path))


def _open_npy(path: Path) -> StoredArray:
    with reading_file(path), path.open("rb") as file:
        size = path.stat().st_size
        header = npy_header(file, path, size)
        if file.tell() + header.size > size:
            raise EOFError("it ends before its rows do")
        return StoredArray(path, file.tell(), header)


def _members(path: Path) -> dict[str, zipfile.ZipInfo]:
    with reading_file(path), zipfile.ZipFile(path) as archive:
        return {member.filename.removesuffix(".npy"): member for member in archive.infolist()}


def _open_member(path: Path, member: zipfile.ZipInfo) -> StoredArray | StreamedArray:
    with reading_file(path), zipfile.ZipFile(path) as archive, path.open("rb") as file:
        with archive.open(member) as stream:
            header = npy_header(stream, path, member.file_size)
            length = stream.tell()
        if member.compress_type == zipfile.ZIP_STORED:
            offset = _data_offset(file, member)
            return StoredArray(path, offset + length, header, (offset, member.file_size, member.CRC))
        if header.fortran and len(header.shape) > 1:
            raise InputError(
                f"{quote(member.filename)} in {quote(str(path))} is compressed and in Fortran's order, whose rows "
                "can't be streamed",
                hint="save it anew: numpy.savez(FILE, NAME=numpy.ascontiguousarray(array))",
            )
        return StreamedArray(path, member.filename, header)


def _data_offset(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where a member's content begins: after its own header, whose lengths may differ from the directory's."""
    file.seek(member.header_offset)
    start = file.read(_LOCAL_HEADER)
    if len(start) != _LOCAL_HEADER or start[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member is not where the directory says")
    name, extra = struct.unpack("<HH", start[26:30])
    return member.header_offset + _LOCAL_HEADER + int(name) + int(extra)


def _match_arrays(keys: Sequence[str], wanted: Sequence[Wanted], path: Path, id_name: str | None) -> dict[str, str]:
    """Which array is which input; a model's only input is also found under one of ``DATA_NAMES``."""
    names = [one.name for one in wanted]
    chosen = {key: key for key in keys if key in names}
    others = [key for key in keys if key.lower() in DATA_NAMES and key != id_name]
    if not chosen and len(names) == 1 and len(others) == 1:
        chosen = {others[0]: names[0]}
    if not chosen:
        raise InputError(
            f"{quote(str(path))} holds {list_text([quote(key) for key in keys]) or 'nothing'}, "
            "which no input is called",
            hint=f"the inputs are {list_text([one.describe() for one in wanted])}",
        )
    return chosen


def _open_ids(path: Path, members: Mapping[str, zipfile.ZipInfo], name: str) -> StoredArray | StreamedArray:
    ids = _open_member(path, members[name])
    if len(ids.header.shape) != 1 or ids.header.dtype.kind not in "iuUS":
        told = f"{ids.header.dtype} {shape_text(ids.header.shape)}"
        raise InputError(f"{quote(name)} in {quote(str(path))} is {told}: ids are one integer or text a row")
    return ids


def _row_shape(array: StoredArray | StreamedArray, wanted: Wanted, path: Path) -> tuple[int, ...]:
    """The shape of the array's rows; InputError where the input takes no such rows."""
    shape, told = array.header.shape, f"{array.header.dtype} {shape_text(array.header.shape)}"
    place = f"{quote(str(path))}, {told},"
    check_kind(array.header.dtype.kind, wanted, place)
    fits = len(shape) == len(wanted.shape) + 1 and all(
        want is None or have == want for have, want in zip(shape[1:], wanted.shape, strict=True)
    )
    if not fits or 0 in shape[1:]:
        hint = "one row needs its batch dimension, too: array[None]" if len(shape) == len(wanted.shape) else None
        raise InputError(f"{place} is not what {wanted.describe()} takes", hint=hint)
    return shape[1:]


def _row_count(arrays: Mapping[str, StoredArray | StreamedArray], path: Path) -> int:
    counts = {array.header.shape[0]: name for name, array in arrays.items()}
    if len(counts) > 1:
        told = ", ".join(f"{quote(name)} has {count:,}" for count, name in counts.items())
        raise InputError(f"the arrays in {quote(str(path))} have different numbers of rows: {told}")
    return next(iter(counts))


def _notes(
    arrays: Mapping[str, StoredArray | StreamedArray], wanted: Mapping[str, Wanted], spare: Sequence[str]
) -> list[str]:
    notes = [f"not named like an input, and left alone: {list_text([quote(key) for key in spare])}"] * bool(spare)
    for name, array in arrays.items():
        held, taken = array.header.dtype.newbyteorder("="), wanted[name]
        if held != taken.dtype and taken.info.dtype != "str":
            notes.append(f"{quote(name)} is {held}, and its values are converted to {taken.info.dtype}")
    return notes
