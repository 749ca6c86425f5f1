"""The files of ``--input``: arrays in .npz and .npy files, and images, matched to a model's inputs.

    FILE.npz          the arrays named like inputs; others are ignored
    NAME=FILE.npy     one array; a model with one input needs no NAME=
    NAME=FILE.png     an image (also .jpg); several for one input become a batch

Files are untrusted: their content decides their kind, pickles are refused, and sizes in headers are checked against
``LARGEST_INPUT`` before arrays are read.
"""

from __future__ import annotations

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.images import ImageOptions, Recipe, read_images, recipe
from trnrt.text import escape_text, list_text, name_text, quote, reason_text, shape_text, size_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.importer import TensorInfo

LARGEST_INPUT = 4 * 2**30
"""The most bytes of all arrays read for one run."""

# By first bytes: a suffix can lie.
_KINDS = (
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"\x89PNG\r\n\x1a\n", "image"),
    (b"\xff\xd8\xff", "image"),
)
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Pictures:
    """The image files of one input, and how they became its rows."""

    paths: Sequence[Path]
    how: Recipe


@dataclass
class Inputs:
    """The arrays to feed, by input name, and notes on them; ``pictures``: of the inputs that are made from images."""

    feeds: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    pictures: dict[str, Pictures] = field(default_factory=dict)


@dataclass
class _Reading:
    """The state of reading: each input's source, images to read together, and arrays that match no input."""

    wanted: Mapping[str, TensorInfo]
    inputs: Inputs = field(default_factory=Inputs)
    sources: dict[str, Path] = field(default_factory=dict)
    pictures: dict[str, list[Path]] = field(default_factory=dict)
    spare: list[str] = field(default_factory=list)
    size: int = 0

    def claim(self, name: str, path: Path) -> None:
        """Record that the input ``name`` comes from ``path``; InputError if it has come from another."""
        if name in self.sources:
            raise InputError(f"input {quote(name)} is given twice: by {_file(self.sources[name])} and by {_file(path)}")
        self.sources[name] = path

    def reserve(self, size: int, path: Path) -> None:
        """Count the bytes to be read next; InputError beyond ``LARGEST_INPUT``."""
        self.size += size
        if self.size > LARGEST_INPUT:
            raise InputError(
                f"with {_file(path)}, the inputs need {size_text(self.size)}; the limit is {size_text(LARGEST_INPUT)}",
                hint="give fewer rows per run",
            )


def read_inputs(
    arguments: Sequence[str],
    wanted: Sequence[TensorInfo],
    *,
    metadata: Mapping[str, str],
    images: ImageOptions,
) -> Inputs:
    """Read the files in ``arguments`` for a model with the inputs ``wanted``.

    Arrays are passed on as they are; the session checks shapes and dtypes.

    Raises:
        InputError: for an unreadable file, an unknown name, or a missing input.
    """
    reading = _Reading({tensor.name: tensor for tensor in wanted})
    for argument in arguments:
        name, path = split_argument(argument, reading.wanted)
        _READERS[kind_of(path)](reading, name, path)
    for name, paths in reading.pictures.items():
        how = recipe(reading.wanted[name], metadata, images)
        reading.inputs.feeds[name], described = read_images(paths, how, largest=LARGEST_INPUT)
        reading.inputs.notes.append(described)
        reading.inputs.pictures[name] = Pictures(paths, how)
    _check_complete(reading)
    return reading.inputs


LABEL_NAMES = ("label", "labels", "y", "target", "targets")
"""Names of the labels in a ``--data`` file, in upper or lower case."""
DATA_NAMES = ("x", "data", "image", "images", "input", "inputs", "features", "pixels")
"""Other names that a model's only input may have there."""


def read_labelled(path: Path, wanted: Sequence[TensorInfo]) -> tuple[Inputs, npt.NDArray[Any]]:
    """The inputs in an .npz, and the labels of their rows, (N,).

    Inputs are found by name; a model's only input also under one of ``DATA_NAMES``, if it is the only one there.

    Raises:
        InputError: for a file that is unreadable, or lacks labels or an input.
    """
    reading = _Reading({tensor.name: tensor for tensor in wanted})
    if kind_of(path) != "npz":
        raise InputError(f"{_file(path)} is no .npz, which holds inputs and labels together", hint=_SAVE)
    with reading_file(path), zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        inputs, label = _match_arrays(list(members), reading.wanted, path)
        reading.spare += [key for key in members if key not in inputs and key != label]
        arrays = {}
        for key in [*inputs, label]:
            with archive.open(members[key]) as file:
                arrays[key] = _read_array(reading, file, path, members[key].file_size)
    reading.inputs.feeds |= {name: arrays[key] for key, name in inputs.items()}
    _check_complete(reading)
    labels = _label_column(arrays[label], path)
    for name, array in reading.inputs.feeds.items():
        if array.ndim and len(array) != len(labels):
            raise InputError(f"{_file(path)} holds {len(labels)} labels for {len(array)} rows of {quote(name)}")
    return reading.inputs, labels


def _match_arrays(keys: Sequence[str], wanted: Mapping[str, TensorInfo], path: Path) -> tuple[dict[str, str], str]:
    """The input of each array, and the array with the labels."""
    inputs = {key: key for key in keys if key in wanted}
    labels = [key for key in keys if key not in inputs and key.lower() in LABEL_NAMES]
    if len(labels) != 1:
        found = list_text(map(quote, labels or keys)) or "nothing"
        raise InputError(
            f"{_file(path)} holds {found}: it is not clear which are the labels",
            hint=f"call them {' or '.join(LABEL_NAMES)}; to compare without labels, use --input",
        )
    others = [key for key in keys if key not in inputs and key.lower() in DATA_NAMES]
    if not inputs and len(wanted) == 1 and len(others) == 1:
        inputs = {others[0]: next(iter(wanted))}
    return inputs, labels[0]


def _label_column(labels: npt.NDArray[Any], path: Path) -> npt.NDArray[Any]:
    """Labels as (N,); whole numbers stored as floats become integers."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "biufUS":
        raise InputError(
            f"the labels in {_file(path)} are {labels.dtype} {shape_text(labels.shape)}; "
            "expected one number or text per row"
        )
    if labels.dtype.kind == "S":
        decoded: npt.NDArray[Any] = np.char.decode(labels, "utf-8", "replace")
        return decoded
    if labels.dtype.kind != "f":
        return labels
    whole: npt.NDArray[Any] = np.nan_to_num(labels).astype(np.int64)
    if not np.array_equal(whole, labels):
        raise InputError(f"the labels in {_file(path)} are {labels.dtype} with fractions; classes are whole numbers")
    return whole


def split_argument(argument: str, wanted: Mapping[str, TensorInfo]) -> tuple[str | None, Path]:
    """Split ``NAME=FILE``; either may hold a "=", so NAME must be an input. None for a FILE alone."""
    for name in sorted(wanted, key=len, reverse=True):
        if argument.startswith(f"{name}="):
            return name, local_path(argument[len(name) + 1 :])
    path = local_path(argument)
    if "=" in argument and not path.exists():
        name = argument.split("=")[0]
        raise InputError(f"the model has no input {quote(name)}", hint=f"its inputs are {_inputs(wanted)}")
    return None, path


def local_path(text: str) -> Path:
    """A local path; InputError for an address such as s3://BUCKET/FILE."""
    path = Path(text)
    if "://" in text and not path.exists():
        raise InputError(
            f"{quote(text)} is an address; trnrt reads and writes local files only",
            hint="copy it, as with aws s3 cp --recursive, or mount it",
        )
    return path


def kind_of(path: Path) -> str:
    """A file's kind by its first bytes: "npy", "npz" or "image"; InputError for anything else."""
    with reading_file(path):
        if path.is_dir():
            raise InputError(
                f"can't read {_file(path)}: it is a folder",
                hint="name the files in it; `trnrt predict` takes a folder of pictures",
            )
        if path.exists() and not path.is_file():  # a pipe that nothing may ever write to
            raise ValueError("it is no regular file")
        with path.open("rb") as file:
            start = file.read(8)
    for magic, kind in _KINDS:
        if start.startswith(magic):
            return kind
    if path.suffix.lower() in _IMAGE_ENDINGS:
        raise InputError(f"{_file(path)} is no PNG or JPEG image")
    if start.startswith(b"\x80"):
        raise InputError(f"{_file(path)} is a pickle, and reading one runs code that is in it", hint=_SAVE)
    raise InputError(f"{_file(path)} is none of .npz, .npy, PNG and JPEG, by its first bytes", hint=_SAVE)


_SAVE = "numpy.savez(FILE, NAME=array) writes a file that trnrt reads"


def _read_npy(reading: _Reading, name: str | None, path: Path) -> None:
    name = name or _only_input(reading, path)
    reading.claim(name, path)
    with reading_file(path), path.open("rb") as file:
        reading.inputs.feeds[name] = _read_array(reading, file, path, path.stat().st_size)


def _read_npz(reading: _Reading, name: str | None, path: Path) -> None:
    if name is not None:
        raise InputError(f"{_file(path)} names its arrays itself", hint=f"give it without {name_text(name)}=")
    with reading_file(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            key = member.filename.removesuffix(".npy")
            if key not in reading.wanted:
                reading.spare.append(key)
                continue
            reading.claim(key, path)
            with archive.open(member) as file:
                reading.inputs.feeds[key] = _read_array(reading, file, path, member.file_size)


def _note_picture(reading: _Reading, name: str | None, path: Path) -> None:
    name = name or _only_input(reading, path)
    if name not in reading.pictures:
        reading.claim(name, path)
    reading.pictures.setdefault(name, []).append(path)


_READERS: dict[str, Callable[[_Reading, str | None, Path], None]] = {
    "npy": _read_npy,
    "npz": _read_npz,
    "image": _note_picture,
}


@dataclass(frozen=True)
class NpyHeader:
    """An .npy file's header; ``fortran``: the first dimension varies fastest."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def npy_header(file: IO[bytes], path: Path, available: int) -> NpyHeader:
    """Read and check the header of an open .npy file of ``available`` bytes; the array's bytes come next.

    InputError for an array that is truncated, or no tensor.
    """
    header = _read_header(file)
    if min(header.shape, default=0) < 0:  # numpy before 2.3 reads that
        raise InputError(f"can't read {_file(path)}: its header has the shape {shape_text(header.shape)}", hint=_SAVE)
    if header.dtype.hasobject:
        raise InputError(f"{_file(path)} holds an array of Python objects, which only pickle can read", hint=_SAVE)
    if header.dtype.kind not in "biufcSU" or header.dtype.itemsize == 0:
        kind = escape_text(str(header.dtype))
        raise InputError(f"{_file(path)} holds an array of {kind}, which is no tensor", hint=_SAVE)
    if header.size > available:
        raise InputError(f"{_file(path)} is truncated: it says {size_text(header.size)} and has {size_text(available)}")
    return header


def _read_array(reading: _Reading, file: IO[bytes], path: Path, available: int) -> npt.NDArray[Any]:
    """The array in an open .npy file of ``available`` bytes, in the machine's byte order."""
    header = npy_header(file, path, available)
    reading.reserve(header.size, path)
    file.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def _read_header(file: IO[bytes]) -> NpyHeader:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return NpyHeader(*np.lib.format.read_array_header_1_0(file))
    if version == (2, 0):
        return NpyHeader(*np.lib.format.read_array_header_2_0(file))
    # Version 3.0 is for fields whose names are not ASCII.
    raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is not for plain arrays")


_DAMAGE = (
    OSError,
    ValueError,
    OverflowError,
    EOFError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,  # an encrypted archive, an unknown compression, a header of brackets
    MemoryError,  # a header of more brackets
)
"""The errors of numpy and zipfile for bad files."""


@contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Turn the errors of numpy and zipfile for a bad file into InputError."""
    try:
        yield
    except _DAMAGE as error:
        raise InputError(f"can't read {_file(path)}: {reason_text(error)}") from error


def _only_input(reading: _Reading, path: Path) -> str:
    if len(reading.wanted) == 1:
        return next(iter(reading.wanted))
    raise InputError(
        f"the model has {len(reading.wanted)} inputs, and {_file(path)} names none",
        hint=f"give NAME={name_text(str(path))}; the inputs are {_inputs(reading.wanted)}",
    )


def _check_complete(reading: _Reading) -> None:
    missing = [tensor for name, tensor in reading.wanted.items() if name not in reading.inputs.feeds]
    spare = list_text(map(quote, reading.spare))
    if missing:
        found = f"; the files also hold {spare}" if spare else ""
        raise InputError(
            f"no array for input {_inputs({tensor.name: tensor for tensor in missing})}{found}",
            hint=f"name an array of an .npz so, or give --input {name_text(missing[0].name)}=FILE.npy",
        )
    if spare:
        reading.inputs.notes.append(f"ignored: the model has no input {spare}")


def _inputs(wanted: Mapping[str, TensorInfo]) -> str:
    """The inputs as messages name them: ``'image' float32 [batch, 1, 8, 8]``."""
    return list_text([f"{quote(t.name)} {t.dtype} {shape_text(t.shape)}" for t in wanted.values()])


def _file(path: Path) -> str:
    return quote(str(path))
