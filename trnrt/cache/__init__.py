"""The cache directory: kernel modules on disk, private to their owner, and checked by digest before they run."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
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
    """Write a file whole or not at all: beside its place, then renamed."""
    import tempfile  # it loads random, which a plan that is there already doesn't need

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
    """Kernel modules by content: a file's name ends in its digest, so that changes are detected."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or default_directory()

    def prepare(self) -> str:
        """Make the directories; return why nothing can be kept (a full disk), or "".

        CacheError if they are not private to the owner, or can't be made.
        """
        directory = self.directory / "kernels"
        try:
            # mkdir applies its mode to the last directory only; the umask may let a group write to the others.
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            self._check_owner(self.directory)
            self._check_owner(directory)
        except OSError as error:
            return self._unwritten_text(error)
        return ""

    def kernel(self, name: str, source: str) -> tuple[Path, bytes, str]:
        """The file for ``source``, its checked content, and why it could not be written (a full disk), or "".

        CacheError if the directory is not safe, or the file was changed.
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
        """A note on a full disk; CacheError for anything else, which the user can fix."""
        problem = f"the cache {self.directory} can't be written: {error.strerror}"
        if error.errno in _FULL:
            return problem
        raise CacheError(problem, hint=f"set {CACHE_VARIABLE} to a directory of your own") from None

    def read(self, path: Path) -> bytes:
        """The content of a cached file; CacheError if it was changed."""
        content = path.read_bytes()
        if not path.stem.endswith(f"_{_digest(content)}"):
            raise CacheError(
                f"{path} was changed after it was cached: its digest does not match its name",
                hint="delete it; edit a copy instead, as `trnrt compile -o DIR` writes it",
            )
        return content

    def _check_owner(self, directory: Path) -> None:
        status = directory.stat()
        if status.st_uid != os.getuid():
            raise CacheError(f"the cache {directory} belongs to another user", hint=f"set {CACHE_VARIABLE}")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise CacheError(
                f"other users may write to the cache {directory}, and trnrt would run their files",
                hint=f"chmod 700 {directory}",
            )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
