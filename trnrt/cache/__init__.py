"""The cache directory: kernel modules on disk, the owner's alone, checked against their digest before they run."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from trnrt.errors import CacheError
from trnrt.planner.naming import identifier

CACHE_VARIABLE = "TRNRT_CACHE"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def default_directory() -> Path:
    """``$TRNRT_CACHE``, else ``$XDG_CACHE_HOME/trnrt``, else ``~/.cache/trnrt``."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trnrt"


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file so that a reader sees all of it or none: beside it first, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class KernelCache:
    """Kernel modules by content: a file's name ends in the digest of its text, so that a changed file is noticed."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def prepare(self) -> str:
        """Make the directories; why nothing can be kept in them (a full disk), or nothing.

        CacheError where they are not the owner's alone, or can't be there at all.
        """
        directory = self.directory / "kernels"
        try:
            # mkdir gives its mode to the last directory alone, and the umask may let a group write to the others.
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            self._check_owner(self.directory)
            self._check_owner(directory)
        except OSError as error:
            return self._unwritten_text(error)
        return ""

    def put(self, name: str, source: str) -> Path:
        """The file that holds ``source``; written if it is not there. CacheError where it can't be."""
        path, _, note = self.kernel(name, source)
        if note:
            raise CacheError(note, hint=f"set {CACHE_VARIABLE} to a directory of your own")
        return path

    def kernel(self, name: str, source: str) -> tuple[Path, bytes, str]:
        """The file that holds ``source``, its checked content, and why it is not on disk after all (a full one).

        CacheError where the directory is not safe or the file was changed.
        """
        content = source.encode("utf-8")
        path = self.directory / "kernels" / f"{identifier(name)}_{_digest(content)}.py"
        note = self.prepare()
        if not note:
            try:
                if path.exists():
                    os.utime(path)
                else:
                    write_whole(path, content)
                return path, self.read(path), ""
            except OSError as error:
                note = self._unwritten_text(error)
        return path, content, note

    def _unwritten_text(self, error: OSError) -> str:
        """What a full disk means; CacheError for anything else, which the user can mend."""
        told = f"the cache {self.directory} can't be written: {error.strerror}"
        if error.errno in _FULL:
            return told
        raise CacheError(told, hint=f"set {CACHE_VARIABLE} to a directory of your own") from None

    def read(self, path: Path) -> bytes:
        """The content of a cached file, after checking that it is what was put there."""
        content = path.read_bytes()
        if not path.stem.endswith(f"_{_digest(content)}"):
            raise CacheError(
                f"{path} was changed after it was cached: its digest does not match its name",
                hint="delete it; to run an edited kernel module, keep it elsewhere (trnrt compile -o DIR)",
            )
        return content

    def _check_owner(self, directory: Path) -> None:
        status = directory.stat()
        if status.st_uid != os.getuid():
            raise CacheError(f"the cache {directory} belongs to another user", hint=f"set {CACHE_VARIABLE}")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise CacheError(
                f"other users may write to the cache {directory}: what they put there would be run",
                hint=f"chmod 700 {directory}",
            )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
