"""Writing files whole or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.text import escape_text, quote, reason_text

if TYPE_CHECKING:
    import numpy.typing as npt


def check_writable(path: Path) -> None:
    """OptionError if ``write_whole`` can't write ``path``; call this before long work.

    It makes and deletes an empty file beside ``path``: missing permissions, a read-only disk or a long name fail here
    as they would later.
    """
    try:
        if path.is_dir():
            raise OptionError(f"can't write {quote(str(path))}: it is a directory")
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise PermissionError("permission denied")
        else:
            _probe(Path(os.path.realpath(path)))
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error


def check_directory(directory: Path) -> None:
    """OptionError if files can't be written into ``directory``, which may have to be made. Call this before work."""
    found = Path(os.path.realpath(directory))
    if found.exists() and not found.is_dir():
        raise OptionError(f"can't write into {quote(str(directory))}: it is a file", hint="name a directory")
    while not found.exists() and found != found.parent:
        found = found.parent
    try:
        _probe(found / "trnrt")
    except OSError as error:
        problem = f"can't write into {quote(str(directory))}: {reason_text(error)}"
        hint = f"{escape_text(str(found))} is a file" if not found.is_dir() else None
        raise OptionError(problem, hint=hint) from error


def write_or_keep(path: Path, text: str) -> str | None:
    """Write a text file; if that fails, write it into a new temporary directory.

    Returns the problem with the other file's path; None if there was none.
    """
    try:
        write_text(path, text)
    except OptionError as error:
        try:
            kept = Path(tempfile.mkdtemp(prefix="trnrt-")) / (path.name or "report")[-100:]
            write_text(kept, text)
        except (OSError, OptionError) as again:
            return f"{error}; the temporary directory can't be written either: {again}"
        return f"{error}; it is in {quote(str(kept))} instead"
    return None


def write_whole(path: Path, write: Callable[[IO[bytes]], object], *, durable: bool = False) -> None:
    """Call ``write`` with a new file beside ``path``, then put that file in its place.

    Readers of ``path`` see the old file or the whole new one. A device or a pipe is written to
    directly: it must not be replaced. ``durable``: the file is on disk when this returns.

    Raises:
        OptionError: if the file can't be written; nothing is left behind.
    """
    try:
        if path.is_dir():
            raise OptionError(f"can't write {quote(str(path))}: it is a directory")
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                write(file)
        else:
            _replace(Path(os.path.realpath(path)), write, durable)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; OptionError if it can't be."""
    write_whole(path, lambda file: file.write(text.encode()), durable=durable)


def write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """``write_arrays`` into an open file; equal arrays give equal bytes."""
    from trnrt.inputs.npz import pack_npz

    pack_npz(file, {name: _storable(array) for name, array in arrays.items()})


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Write these arrays by name as an .npz file that ``np.load`` reads without pickle; return notes.

    Strings become unicode arrays. A dtype that numpy lacks (bfloat16) becomes float32, which holds all its values; a
    note says so. OptionError if the file can't be written.
    """
    from trnrt.inputs.npz import pack_npz

    storable = {name: _storable(array) for name, array in arrays.items()}
    write_whole(path, lambda file: pack_npz(file, storable))
    return [
        f"{quote(name)} is {array.dtype} and was saved as {storable[name].dtype}, as .npz files have no {array.dtype}"
        for name, array in arrays.items()
        if array.dtype.kind == "V"
    ]


def _replace(path: Path, write: Callable[[IO[bytes]], object], durable: bool) -> None:
    # Not tempfile: its files are readable by the owner alone; a report gets a new file's usual permissions.
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        with beside.open("xb") as file:
            write(file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if durable:
            sync_directory(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Flush a directory's names to disk: a renamed file then survives a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _probe(path: Path) -> None:
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        beside.open("xb").close()
    finally:
        beside.unlink(missing_ok=True)


def _write_error(path: Path, error: OSError | ValueError) -> OptionError:
    hint = None if path.parent.is_dir() else f"make the directory first: mkdir -p {escape_text(str(path.parent))}"
    return OptionError(f"can't write {quote(str(path))}: {reason_text(error)}", hint=hint)


def _storable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind == "O":
        return array.astype(str)
    return array.astype("float32") if array.dtype.kind == "V" else array
