"""Leases of NeuronCores: no core twice, none lost when a process dies, and the runtime sees no other."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trnrt.errors import BackendError
from trnrt.serve import cores
from trnrt.serve.cores import VISIBLE, device_cores, lease_cores, lease_for_worker, parse_cores

HOLD = """
import sys, pathlib, time
from trnrt.serve.cores import lease_cores
lease = lease_cores(range(4), 1, pathlib.Path(sys.argv[1]))
print(*lease.cores, flush=True)
time.sleep(60)
"""


def test_no_core_is_leased_twice(tmp_path: Path) -> None:
    first = lease_cores(range(4), 2, tmp_path)
    second = lease_cores(range(4), 1, tmp_path)
    assert (first.cores, second.cores) == ((0, 1), (2,))
    with pytest.raises(BackendError, match="1 of 4 NeuronCores are free, and a worker needs 2"):
        lease_cores(range(4), 2, tmp_path)
    first.release()
    assert lease_cores(range(4), 3, tmp_path).cores == (0, 1, 3)


def test_other_processes_see_the_lease_and_a_killed_one_gives_it_back(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "0\n"
        assert lease_cores(range(4), 1, tmp_path).cores == (1,)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    assert lease_cores(range(1), 1, tmp_path).cores == (0,)


def test_every_user_may_lock_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    lease_cores([0], 1, folder).release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "core-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        lease_cores([0], 1, tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("text", "known"), [("3", [3]), ("0-2", [0, 1, 2]), ("0,4-5", [0, 4, 5])])
def test_visible_cores_are_read(text: str, known: list[int]) -> None:
    assert parse_cores(text) == known


@pytest.mark.parametrize("text", ["x", "3-1", "0-", "0-99999999", "-1", ""])
def test_what_names_no_cores_is_told(text: str) -> None:
    with pytest.raises(BackendError, match=VISIBLE):
        parse_cores(text)


def test_a_worker_shows_the_runtime_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv(VISIBLE, "4-6")
    first = lease_for_worker()
    assert first.cores == (4,) and os.environ[VISIBLE] == "4"
    monkeypatch.setenv(VISIBLE, "4-6")
    assert lease_for_worker().cores == (5,) and os.environ[VISIBLE] == "5"


def test_the_machines_cores_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "device_target", lambda: "trn1")
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: iter([Path("/dev/neuron0"), Path("/dev/neuron1")]))
    assert device_cores() == [0, 1, 2, 3]
