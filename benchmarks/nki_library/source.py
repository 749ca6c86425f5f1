"""The library's source: a clone at the commit in ``families.py``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.nki_library.families import BRANCH, COMMIT, REPOSITORY
from trnrt.errors import OptionError


def check_out(source: str | None, folder: Path) -> Path:
    """Clone the library, from ``source`` (a clone or a bare mirror) if given, and check out its commit.

    Raises:
        OptionError: if it can't be cloned, or has not that commit.
    """
    path = folder / "nki-library"
    origin = REPOSITORY if source is None else str(Path(source).resolve())
    if source is not None and not Path(source).is_dir():
        raise OptionError(f"there is no folder {source!r}", hint="--source is a clone of nki-library or a bare mirror")
    _git("clone", "--quiet", "--branch", BRANCH, origin, str(path), what=f"can't clone {origin}")
    _git("-C", str(path), "checkout", "--quiet", "--detach", COMMIT, what=f"{origin} has no commit {COMMIT}")
    return path


def _git(*arguments: str, what: str) -> None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OptionError(f"can't run git: {error}") from None
    if done.returncode:
        raise OptionError(f"{what}: {done.stderr.strip()}", hint="--source DIR uses a clone that is there already")
