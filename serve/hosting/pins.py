"""Private copies of the files that are served: a worker's successor, or a model that recovers, loads the same content.

A copy stays as it is, whether somebody renames another file to the model's name or writes into the file itself. The
copies are in ``serving`` in the cache directory, or where temporary files go if that can't be written. They take as
much room as the models, and during a reload that of the new content, too. The server removes them when it ends. Those
of a server that was killed are removed by the next one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trnrt.cache import default_directory
from trnrt.cache.places import is_bundle
from trnrt.errors import TrnrtError
from trnrt.serve.hosting.catalog import Pinned
from trnrt.serve.hosting.contents import copy_content, digest_of
from trnrt.serve.hosting.files import Source
from trnrt.serve.http.problems import error_text

_FOLDER = "serving"
_LOCK = "lock"
"""A server holds its store's lock as long as it lives: an unlocked store is nobody's."""


class Store:
    """A folder of copies. ``close`` removes it; so does the end of the process, unless that is killed."""

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        """``lock``: the lock file of a store that is this process's own. A worker uses its supervisor's."""
        self.folder = folder
        self.close = weakref.finalize(self, _remove_store, folder, lock) if lock is not None else _leave_alone

    @classmethod
    def make(cls) -> Store:
        """A new store; remove those of servers that were killed."""
        parent = _writable_parent()
        with _exclusive(parent):
            for folder in parent.iterdir():
                if folder.is_dir() and not folder.is_symlink():
                    _remove_if_abandoned(folder)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))
            lock = _open_lock(folder)
            with suppress(OSError):  # a file system without locks: nobody removes the store of another
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(folder, lock)

    def pin(self, source: Source) -> Pinned:
        """Copy a model's content. If that fails, the result tells why."""
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{source.name}-"))
        file = folder / (source.name if is_bundle(source.path) else f"{source.name}.onnx")
        try:
            digest = copy_content(source.path, file)
        except TrnrtError as error:
            _remove(folder)
            problem = error_text(error)
            return Pinned(source.name, source.version, source.path, source.path, source.is_versioned, problem=problem)
        return Pinned(source.name, source.version, source.path, file, source.is_versioned, digest, folder)

    def discard(self, folders: Iterable[Path | None]) -> None:
        """Remove copies."""
        for folder in folders:
            if folder is not None:
                _remove(folder)


def why_changed(pinned: Pinned) -> str | None:
    """Why a copy can't be loaded: there is none, or it is not what was pinned."""
    if pinned.problem or not pinned.digest:
        return pinned.problem or None
    try:
        found = digest_of(pinned.file)
    except TrnrtError as error:
        found = error_text(error)
    if found == pinned.digest:
        return None
    return f"the server's copy of it, {str(pinned.file)!r}, is not {pinned.digest} any more, but {found}; load it again"


def _writable_parent() -> Path:
    parent = default_directory() / _FOLDER
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if parent.stat().st_uid == os.getuid() and os.access(parent, os.W_OK | os.X_OK):
            return parent
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        pass
    return Path(tempfile.mkdtemp(prefix="trnrt-serving-"))


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of all stores of a folder."""
    lock = _open_lock(folder)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    with suppress(OSError):
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        finally:
            os.close(lock)


def _open_lock(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _remove_store(folder: Path, lock: int) -> None:
    _remove(folder)
    os.close(lock)
    if folder.parent.name != _FOLDER:
        _remove(folder.parent)


def _leave_alone() -> None:
    """Nothing: the store is another process's."""


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
