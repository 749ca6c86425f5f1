"""The content of a model: its file, the data files that it names, and its golden input, by one digest.

The digest of a model in one file is that file's SHA-256, as ``sha256sum`` prints it. With data files or a golden input,
it is the SHA-256 of a list with a line for each file, also as ``sha256sum`` prints it: ``model.onnx`` first, then the
data files by the names that the model gives them, sorted, then ``golden.npz``. That of a bundle is the SHA-256 of such
a list of all its files, sorted.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from hashlib import sha256
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from trnrt.cache.places import check_writers, golden_file
from trnrt.errors import ModelFileError
from trnrt.importer.reading.limits import LARGEST_MODEL, in_words

PREFIX = "sha256:"
"""A digest begins with it; hexadecimal digits follow."""
MOST_OF_A_BUNDLE, MOST_FILES = 8 * LARGEST_MODEL, 100_000
"""Bytes and files. A bundle has a model's weights once more for each of their layouts."""
ATTEMPTS, PAUSE_S = 3, 0.2
"""The most attempts to read files that keep changing, and the pause before each new one, seconds."""
_CHUNK = 1 << 20
_LOCATION = b"location"
"""The key of a data file's name in a model: without it, the model has no data files, and needs no parsing."""


def digest_of(path: Path) -> str:
    """The digest of a model's content. ModelFileError if it can't be read, or changes meanwhile."""
    return _read_stable(path, None)


def copy_content(path: Path, target: Path) -> str:
    """Copy a model's content, its file as ``target`` and the rest beside it; return the digest of the copy.

    The target's folder holds nothing else: another attempt empties it.

    A model whose file is damaged is copied as well: loading it tells what is wrong.

    Raises:
        ModelFileError: if a file can't be read or copied, changes meanwhile, or is outside the model's folder, or if
            all together are too large
    """
    return _read_stable(path, target)


def _read_stable(path: Path, target: Path | None) -> str:
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
            if target is not None:
                shutil.rmtree(target.parent)
        reading = _Reading(path, target)
        digest = reading.read()
        if not reading.has_changed():
            return digest
    text = f"{str(path)!r} changed while it was read, {ATTEMPTS} times"
    raise ModelFileError(text, hint="load it when it is complete; replace a file by renaming another one to its name")


class _Reading:
    """One reading of a content. ``target``: the copy's file, if there is to be a copy."""

    def __init__(self, path: Path, target: Path | None) -> None:
        self._path, self._target, self._room = path, target, LARGEST_MODEL
        self._seen: dict[Path, tuple[int, ...]] = {}
        self._lines: list[tuple[str, str]] = []

    def read(self) -> str:
        """Read everything, and return the digest."""
        target = self._target
        if self._path.is_dir():
            self._read_bundle()
        elif self._take(self._path, target, "model.onnx"):
            folder = Path(os.path.realpath(self._path.parent))
            for location in sorted(_locations(self._path if target is None else target)):
                if (real := self._data_file(folder, location)) is not None:
                    self._take(real, None if target is None else _place_of(target, location), location)
        golden = golden_file(self._path)
        if self._path.is_file() and golden.is_file():
            self._take(golden, None if target is None else golden_file(target), "golden.npz")
        if len(self._lines) == 1:
            return PREFIX + self._lines[0][0]
        listed = "".join(f"{digest}  {name}\n" for digest, name in self._lines)
        return PREFIX + sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()

    def _data_file(self, folder: Path, location: str) -> Path | None:
        """The data file, links resolved; None if there is none: the importer says so. ModelFileError if it is outside
        the model's folder."""
        is_absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
        if not location or "\0" in location or is_absolute:
            return None
        real = Path(os.path.realpath(folder / location))
        if not real.is_relative_to(folder):
            text = f"{str(self._path)!r} has data in {location!r}, outside the model's folder"
            raise ModelFileError(text, hint="copy the data file itself, not a link to it, into the model file's folder")
        return real if real.is_file() else None

    def _read_bundle(self) -> None:
        """Read every file of a bundle, in order; links inside it are followed."""
        check_writers(self._path)  # before it is copied: nobody else can write to the copy
        self._room = MOST_OF_A_BUNDLE
        root = Path(os.path.realpath(self._path))
        found: list[str] = []
        for folder, folders, files in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [os.path.relpath(Path(folder, name), root) for name in files if not name.startswith(".")]
            if len(found) > MOST_FILES:
                raise ModelFileError(f"the bundle {str(self._path)!r} has more than {MOST_FILES} files")
        for name in sorted(found):
            real = Path(os.path.realpath(root / name))
            if not real.is_relative_to(root):
                hint = "copy the file itself into it"
                raise ModelFileError(f"{name!r} of the bundle {str(self._path)!r} is a link out of it", hint=hint)
            self._take(real, None if self._target is None else self._target / name, name)

    def has_changed(self) -> bool:
        """True if a file is another one than when it was opened."""
        try:
            return any(_identity(path.stat()) != seen for path, seen in self._seen.items())
        except OSError:
            return True

    def _take(self, path: Path, target: Path | None, name: str) -> bool:
        """Read a file, and copy it; true if it has a data file's key."""
        try:
            # O_NONBLOCK: a pipe would wait for a writer.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelFileError(f"{str(path)!r} is not a regular file")
                self._seen[path] = _identity(status)
                if target is None:
                    digest, has_key = self._pass_on(file, None)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
                        digest, has_key = self._pass_on(file, copy)
        except OSError as error:
            what = f"can't copy {str(path)!r} to {str(target)!r}" if target is not None else f"can't read {str(path)!r}"
            raise ModelFileError(f"{what}: {(error.strerror or str(error)).lower()}") from None
        self._lines.append((digest, name))
        return has_key

    def _pass_on(self, file: BinaryIO, copy: BinaryIO | None) -> tuple[str, bool]:
        digest, has_key, last = sha256(), False, b""
        while chunk := file.read(_CHUNK):
            self._room -= len(chunk)
            if self._room < 0:
                most = MOST_OF_A_BUNDLE if self._path.is_dir() else LARGEST_MODEL
                text = f"{str(self._path)!r}, with all its files, is larger than {in_words(most)}"
                raise ModelFileError(text, hint="trnrt takes models up to that size")
            digest.update(chunk)
            has_key = has_key or _LOCATION in last + chunk
            last = chunk[-len(_LOCATION) :]
            if copy is not None:
                copy.write(chunk)
        return digest.hexdigest(), has_key


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """A file's device, number, size and times: one of them changes when it is written or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _locations(path: Path) -> set[str]:
    """The names of the model's data files, as the model says them; none if the file is damaged."""
    import onnx

    from trnrt.importer.reading.protos import all_tensors

    try:
        model = onnx.load_model(path, load_external_data=False)
        tensors = [tensor for tensor in all_tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
        return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    except Exception:  # protobuf's DecodeError and others, whose modules depend on the version
        return set()


def _place_of(target: Path, location: str) -> Path:
    """The data file's place in the copy, where the importer looks for it."""
    place = Path(os.path.normpath(target.parent / location))
    if not place.is_relative_to(target.parent) or place in (target, golden_file(target)):
        text = f"the model's data file is called {location!r}, which is the name of another of its files here"
        raise ModelFileError(text, hint="export the model again with another name for its data file")
    return place
