"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.text import escape_text, quote

if TYPE_CHECKING:
    import numpy.typing as npt


def check_writable(path: Path) -> None:
    """OptionError if it is known already that ``write_whole`` can't write ``path``; to be asked before long work.

    An empty file is made beside it and deleted again: permissions, a disk that is read-only and names that are too
    long are met in the way in which the report would meet them.
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


def write_or_keep(path: Path, text: str) -> str | None:
    """Write a text file; where that fails, write it into a new temporary directory, and tell so.

    Returns what went wrong and where the text is instead; None where nothing went wrong.
    """
    try:
        write_text(path, text)
    except OptionError as error:
        try:
            kept = Path(tempfile.mkdtemp(prefix="trnrt-")) / (path.name or "report")[-100:]
            write_text(kept, text)
        except (OSError, OptionError) as again:
            return f"{error}; nor can the temporary directory be written: {again}"
        return f"{error}; it is in {quote(str(kept))} instead"
    return None


def write_whole(path: Path, write: Callable[[IO[bytes]], None], *, durable: bool = False) -> None:
    """Call ``write`` with a new file beside ``path``, then put that file in its place.

    Whoever reads ``path`` sees the old file or the whole new one. A device or a pipe is written to
    directly, as it must not be replaced. ``durable``: it is on the disk when this returns, whatever
    becomes of the machine then.

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
    write_whole(path, lambda file: _write_all(file, text.encode()), durable=durable)


def write_npz(file: IO[bytes], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write what ``write_arrays`` does into an open file; equal arrays give equal bytes."""
    from trnrt.inputs.npz import pack_npz

    pack_npz(file, {name: _storable(array) for name, array in arrays.items()})


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """Write an .npz file of these arrays, by name, that ``np.load`` reads without pickle.

    Strings become unicode arrays. A number format that numpy has no code for (bfloat16) becomes
    float32, which holds every value of it; the notes returned say so. OptionError if the file can't
    be written.
    """
    from trnrt.inputs.npz import pack_npz

    storable = {name: _storable(array) for name, array in arrays.items()}
    write_whole(path, lambda file: pack_npz(file, storable))
    return [
        f"{quote(name)} is {array.dtype} and was saved as {storable[name].dtype}, as .npz files have no {array.dtype}"
        for name, array in arrays.items()
        if array.dtype.kind == "V"
    ]


def _replace(path: Path, write: Callable[[IO[bytes]], None], durable: bool) -> None:
    # Not tempfile: its files are the owner's alone, and a report gets the permissions of any other new file.
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
    """Have the names in a directory on the disk: a file that was renamed is there after a power cut, too."""
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
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return OptionError(f"can't write {quote(str(path))}: {escape_text(reason)}", hint=_hint(path))


def _hint(path: Path) -> str | None:
    return None if path.parent.is_dir() else f"make the directory first: mkdir -p {escape_text(str(path.parent))}"


def _write_all(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def _storable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind == "O":
        return array.astype(str)
    return array.astype("float32") if array.dtype.kind == "V" else array
