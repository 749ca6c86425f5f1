"""The cache directory is the owner's alone, and a changed file does not run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trnrt.cache import CACHE_VARIABLE, KernelCache, default_directory, write_whole
from trnrt.errors import CacheError


def test_same_content_same_file_and_owner_only(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    path = cache.kernel("model", "x = 1\n")[0]
    assert cache.kernel("model", "x = 1\n")[0] == path and cache.kernel("model", "x = 2\n")[0] != path
    assert cache.read(path) == b"x = 1\n"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_lax_umask_opens_no_directory_of_the_cache(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        path = KernelCache(tmp_path / "new" / "cache").kernel("model", "x = 1\n")[0]
    finally:
        os.umask(before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in list(path.parents)[:2]] == [0o700, 0o700]


def test_changed_file_is_refused(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    path = cache.kernel("model", "x = 1\n")[0]
    path.write_text("import os\n")
    with pytest.raises(CacheError, match="changed after it was cached"):
        cache.read(path)


def test_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.kernel("model", "x = 1\n")[0]
    (tmp_path / "cache" / "kernels").chmod(0o777)
    with pytest.raises(CacheError, match="other users may write"):
        cache.kernel("model", "x = 1\n")[0]


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="can't be written") as caught:
        KernelCache(tmp_path / "file" / "cache").kernel("model", "x = 1\n")[0]
    assert caught.value.hint is not None and CACHE_VARIABLE in caught.value.hint


def test_model_name_does_not_leave_the_directory(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    path = cache.kernel("../../etc/passwd\n", "x = 1\n")[0]
    assert path.parent == tmp_path / "cache" / "kernels"


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a"))
    assert default_directory() == tmp_path / "a"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_directory() == tmp_path / "b" / "trnrt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert default_directory() == tmp_path / "c" / ".cache" / "trnrt"


def test_write_whole_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, b"after")
    assert target.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["file"]
