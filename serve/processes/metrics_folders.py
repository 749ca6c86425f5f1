"""The folder of several workers' metrics, and those that killed supervisors left behind.

Every process of a run holds a shared lock on the file ``lock`` of its folder, which ends with the process, however it
ends. So a folder whose lock can be had belongs to nobody any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trnrt.serve.processes.logs import log

PREFIX = "trnrt-metrics-"
LOCK = "lock"


@contextmanager
def metrics_folder() -> Iterator[str]:
    """A new folder, removed at the end; folders of supervisors that were killed are removed now."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        # Locked before it has its name: another server must not take it for an abandoned one.
        new = Path(folder) / f"{LOCK}.new"
        with new.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            new.rename(Path(folder) / LOCK)
            yield folder


def hold_folder(folder: str) -> IO[bytes] | None:
    """Keep the folder while this process runs and the file is open; None if the folder is gone."""
    try:
        file = (Path(folder) / LOCK).open("rb")
    except OSError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders in ``parent`` whose processes are gone. One without a lock's file stays."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
                continue
            with (folder / LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            log("info", "metrics_removed", folder=str(folder))
        except OSError:  # a process holds it, it has no lock, or another server removed it
            continue
