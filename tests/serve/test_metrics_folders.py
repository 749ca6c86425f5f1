"""The folders of workers' metrics: those of killed supervisors go, those of running servers and of others stay."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trnrt.serve.processes.metrics_folders import LOCK, PREFIX, hold_folder, metrics_folder, remove_abandoned


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of its own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder


def abandoned(temporary: Path, name: str) -> Path:
    folder = temporary / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / LOCK).touch()
    (folder / "counter_123.db").write_bytes(b"x")
    return folder


def test_what_a_killed_supervisor_left_is_removed_at_the_next_start(temporary: Path) -> None:
    left = abandoned(temporary, "left")
    (temporary / "other").mkdir()
    with metrics_folder() as folder:
        assert not left.exists() and Path(folder).is_dir() and (temporary / "other").exists()
        assert [path.name for path in Path(folder).iterdir()] == [LOCK]
    assert not Path(folder).exists()


def test_a_running_servers_folder_stays(temporary: Path) -> None:
    with metrics_folder() as folder:
        remove_abandoned(temporary)
        assert Path(folder).exists()
        with metrics_folder() as other:
            assert Path(folder).exists() and other != folder
    worker = abandoned(temporary, "draining")
    held = hold_folder(str(worker))  # its supervisor is gone, and a worker still answers
    assert held is not None
    remove_abandoned(temporary)
    assert worker.exists()
    held.close()
    remove_abandoned(temporary)
    assert not worker.exists()


def test_what_is_not_ours_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = temporary / f"{PREFIX}new"  # another server is about to lock it
    new.mkdir()
    target = abandoned(temporary, "target")
    with (target / LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        (temporary / f"{PREFIX}link").symlink_to(target)
        (temporary / f"{PREFIX}file").touch()
        remove_abandoned(temporary)
    assert new.exists() and target.exists() and (temporary / f"{PREFIX}file").exists()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_abandoned(temporary)
    assert target.exists()
