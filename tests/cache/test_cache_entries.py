"""Entries of the cache: digests, concurrent and killed writers, a full disk, the limit, and why there is a miss."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_writing import LARGE, REQUEST, request, weights, write_often

from trnrt.cache.entries import Entries, Times, key_of
from trnrt.cache.plans import PlanCache


def entries(folder: Path, limit: int = LARGE) -> Entries:
    folder.mkdir(mode=0o700, exist_ok=True)
    return Entries(folder, limit)


def test_what_is_put_is_found(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    assert cache.put(REQUEST, {"name": "plan"}, weights(0)) == ""
    found = entries(tmp_path / "cache").look_up(REQUEST)
    assert found.saved == {"name": "plan"}
    for mine, theirs in zip(found.arrays, weights(0), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def test_arrays_are_shared(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    for batch in (1, 2, 4):
        cache.put(request(shapes={"image": [batch, 1, 8, 8]}), {}, weights(0))
    assert len(list((tmp_path / "cache" / "arrays").iterdir())) == 2
    assert len(cache.entries()) == 3


def test_files_are_the_owners(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {}, weights(0))
    for path in (tmp_path / "cache").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "trn1"}, "target trn2 -> trn1"),
        ({"target": "trn1", "dtype": "bfloat16"}, "target trn2 -> trn1, dtype float32 -> bfloat16"),
        ({"shapes": {"image": [8, 1, 8, 8]}}, "shapes image 1x1x8x8 -> 8x1x8x8"),
        ({"model": "c" * 40}, "the model changed"),
        ({"name": "other"}, "this model is not in the cache"),
    ],
)
def test_a_miss_says_what_changed(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {}, [])
    cache.put(request(target="trn3", dtype="float16", shapes={}), {}, [])
    found = cache.look_up(request(**changes))
    assert found.saved is None and found.reason == reason


def test_a_miss_reads_only_some_entries_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However full the cache is: what a model's name and its latest entries say is enough."""
    cache = entries(tmp_path / "cache")
    for k in range(40):
        cache.put(request(name=f"other{k}"), {}, [])
        cache.put(request(batch=k), {}, [])
    read, real = [], Path.read_bytes

    def reads(path: Path) -> bytes:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", reads)
    assert cache.look_up(request(batch=39, target="trn1")).reason == "target trn2 -> trn1"
    assert len(read) == 1 + 32  # the entry that is not there, and those used last
    assert len({name.split("-")[0] for name in read}) == 1


@pytest.mark.parametrize("what", ["plans", "arrays"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_what_is_damaged_is_never_used(tmp_path: Path, what: str, damage: str) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {"numbers": [1, 2, 3]}, weights(0))
    path = min((tmp_path / "cache" / what).iterdir(), key=lambda p: -p.stat().st_size)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(content[: len(content) // 2 if damage == "cut" else 0]))
    found = cache.look_up(REQUEST)
    assert found.saved is None
    assert ("damaged" in found.reason) != (what == "plans" and damage == "gone")
    cache.put(REQUEST, {"numbers": [1, 2, 3]}, weights(0))
    assert cache.look_up(REQUEST).saved is not None


def test_an_entry_under_another_name_is_not_taken(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {}, [])
    folder = tmp_path / "cache" / "plans"
    (folder / f"{key_of(REQUEST)}.json").rename(folder / f"{key_of(request(target='trn1'))}.json")
    assert "another request" in cache.look_up(request(target="trn1")).reason


def test_the_entry_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache", limit=3 * 4000 + 3000)
    for batch in range(4):
        cache.put(request(batch=batch), {}, weights(batch, 1000))
        path = tmp_path / "cache" / "plans" / f"{key_of(request(batch=batch))}.json"
        os.utime(path, (1000 + batch, 1000 + batch))
        if batch == 2:
            assert cache.look_up(request(batch=0)).saved is not None  # now the one used last
    assert cache.size() <= cache.limit
    kept = {entry.request["batch"] for entry in cache.entries()}
    assert 0 in kept and 1 not in kept


def test_a_full_disk_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = entries(tmp_path / "cache")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    note = cache.put(REQUEST, {}, weights(0))
    assert "No space left on device" in note
    monkeypatch.undo()
    assert cache.look_up(REQUEST).saved is None
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_concurrent_writers(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_often, args=(tmp_path / "cache", seed, 20)) for seed in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        for batch in range(3):
            found = cache.look_up(request(batch=batch))
            assert "damaged" not in found.reason
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for batch in range(3):
        np.testing.assert_array_equal(cache.look_up(request(batch=batch)).arrays[0], weights(batch, 20_000)[0])


def test_killed_writers_leave_nothing_that_is_used(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    context = multiprocessing.get_context("spawn")
    for pause in (0.0, 0.02, 0.05):
        writer = context.Process(target=write_often, args=(tmp_path / "cache", 0, 10_000))
        writer.start()
        while not list((tmp_path / "cache").rglob("*.npy")):
            assert writer.is_alive()
            time.sleep(0.01)
        time.sleep(pause)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        for entry in cache.entries():
            assert cache.look_up(entry.request).saved == {"by": 0}
    for path in (tmp_path / "cache").rglob("*"):
        os.utime(path, (1, 1))  # no writer is about to name what stands there
    Entries(tmp_path / "cache", 0).shrink()
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["usage"]


def test_clear(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {}, weights(0))
    size = cache.size()
    assert cache.clear() == size > 0
    assert cache.entries() == [] and cache.size() == 0


def test_entries_are_json(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    cache.put(REQUEST, {"a": 1}, weights(0))
    (path,) = (tmp_path / "cache" / "plans").iterdir()
    assert json.loads(path.read_bytes())["schema_version"] == 1


def test_predicted_times_are_kept_with_their_request_and_checked(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "cache")
    asked: list[Times] = []
    times = (11.0, 12.5, 14.0)

    def predict() -> Times:
        asked.append(times)
        return times

    for version in "112":
        assert cache.time({"name": "m", "version": version}, predict) == times
    assert len(asked) == 2
    assert cache.entries.entries() == []
    (one, other) = (tmp_path / "cache" / "times").glob("*.json")
    one.write_text(one.read_text().replace("12.5", "1.25"))
    other.write_text('{"digest": "0", "predicted_us": 12.5}')  # as it was without a range
    for version in "12":
        assert cache.time({"name": "m", "version": version}, predict) == times
    assert len(asked) == 4
    assert cache.entries.clear() > 0
    assert cache.entries.size() == 0
    off = PlanCache(tmp_path / "off", enabled=False)
    assert (off.time({}, predict), len(asked)) == (times, 5)
    assert not (tmp_path / "off").exists()


def test_the_files_are_counted_only_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    size = Entries.size

    def count(cache: Entries) -> int:
        counted.append(1)
        return size(cache)

    monkeypatch.setattr(Entries, "size", count)
    for batch in range(40):  # each by a cache of its own, as by a command
        entries(tmp_path / "cache").put(request(shapes={"image": [batch, 1, 8, 8]}), {}, weights(batch))
    assert len(counted) <= 2
    cache = entries(tmp_path / "cache")
    most = cache.size() // 2
    counted.clear()
    small = entries(tmp_path / "cache", most)
    small.put(request(shapes={"image": [100, 1, 8, 8]}), {}, weights(100))
    assert counted and small.size() <= most, "the limit holds"


def test_notes_of_bytes_that_can_not_be_read_are_counted_anew(tmp_path: Path) -> None:
    cache = entries(tmp_path / "cache")
    for damage in (b"", b"counted x\n", b"\xff\n", b"12\n"):
        (tmp_path / "cache" / "usage").write_bytes(damage)
        assert cache.put(REQUEST, {}, weights(0)) == ""
        assert (tmp_path / "cache" / "usage").read_text() == f"counted {cache.size()}\n"
    cache.clear()
    assert not (tmp_path / "cache" / "usage").exists()
