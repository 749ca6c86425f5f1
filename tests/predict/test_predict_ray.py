"""Batch prediction on Ray Data: the bytes of the local engine, with one of its processes killed in between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import trnrt
from predicting import digests, linear

pytest.importorskip("ray")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    import ray
    import ray.data

from trnrt.errors import BackendError, InputError, ModelFileError, OptionError
from trnrt.predict import on_ray
from trnrt.predict.job import Job, Request, open_job, prepare
from trnrt.predict.on_ray import ATTEMPTS, Attempts, PartMaker, Place
from trnrt.predict.output import MostBad, open_output
from trnrt.predict.part import make_part, part_file
from trnrt.predict.source import Asked

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
ROWS = 2_000
LIMIT_S = 300.0  # only what hangs takes so long
# trnrt, whose process that has made part 7 stays with it: its file is written, and nobody was told. ``sys.argv[1]``
# then is a link to the process's number; the next one to make it goes on.
STAYING = """
import os, signal, sys
from trnrt.cli import main
from trnrt.predict import on_ray

mark = sys.argv.pop(1)

class Staying(on_ray.PartMaker):
    def __call__(self, rows):
        made = super().__call__(rows)
        if int(rows["number"][0]) == 7 and not os.path.lexists(mark):
            os.symlink(str(os.getpid()), mark)
            while True:
                signal.pause()
        return made

on_ray.PartMaker = Staying
main()
"""


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    """The command, without where to: 20 parts, and a bad row."""
    model = linear(tmp_path / "m.onnx", 64)
    rows = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    return ["predict", str(model), "-i", f"x={tmp_path / 'x.npy'}", "--rows-per-part", "100", "--format", "npz"]


def started(session: int, name: str) -> set[int]:
    """The processes of a session whose name has this in it."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z" and name in (path / "cmdline").read_text():
                found.add(int(path.name))
    return found


@contextmanager
def begun(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process of Python in a session of its own; nothing of it is left at the end."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            for pid in started(process.pid, ""):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def noted(out: Path) -> int:
    """Parts that are done."""
    with suppress(FileNotFoundError):
        return (out / "_progress.jsonl").read_bytes().count(b"\n")
    return 0


def until(true: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_is_killed_changes_no_byte(tmp_path: Path, line: list[str]) -> None:
    """One of the two is killed with a part that it has made and told nobody of, after others are done."""
    whole, out, mark = tmp_path / "whole", tmp_path / "out", tmp_path / "mark"
    assert trnrt(*line, "--output", whole).code == 0
    on = [*line, "--output", str(out), "--engine", "ray", "--replicas", "2", "--json"]
    with begun("-c", STAYING, str(mark), *on) as process:
        until(lambda: process.poll() is not None or (mark.is_symlink() and noted(out)))
        assert process.poll() is None, process.communicate()
        staying = int(mark.readlink().name)
        assert staying in started(process.pid, "ray::MapWorker")
        os.kill(staying, signal.SIGKILL)
        (workshop,) = out.glob(".parts-*")
        (workshop / ".part-00003.npz.0123456789abcdef").write_bytes(b"what it may leave")
        told, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        assert json.loads(told)["rows"] == ROWS
        assert digests(out) == digests(whole)
        until(lambda: not started(process.pid, ""))  # Ray goes with the command


# -- without Ray ---------------------------------------------------------------------------------------------------


class Local:
    """In the place of a handle of ``Attempts``."""

    def __init__(self) -> None:
        self._attempts = Attempts()
        self.begin = self

    def remote(self, number: int) -> int:
        """What Ray would go and fetch."""
        return self._attempts.begin(number)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(ray, "get", lambda found: found)
    model = linear(tmp_path / "m.onnx", 4)
    np.save(tmp_path / "x.npy", np.ones((10, 4), np.float32))
    (tmp_path / "out").mkdir()
    asked = Asked((f"x={tmp_path / 'x.npy'}",))
    opened = prepare(Request(str(model), str(tmp_path / "out"), asked, rows_per_part=5, form="npz"))
    opened.close()
    return opened.job


def close(maker: PartMaker) -> None:
    """What the end of a process does."""
    assert maker._opened is not None
    maker._opened.close()


def said(maker: PartMaker, number: int) -> dict[str, Any]:
    (answer,) = maker({"number": np.array([number])})["answer"]
    return {"answer": answer}


def test_a_part_travels_as_a_row_and_so_does_an_error(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    maker = PartMaker(job, str(tmp_path), tmp_path / "out", Local())
    done = on_ray._read_answer(said(maker, 1), job, tmp_path / "out")
    close(maker)
    assert (done.number, done.rows, done.predicted, done.reasons) == (1, 5, 5, ())
    with pytest.raises(BackendError, match="has no folder") as caught:
        on_ray._read_answer(
            said(PartMaker(job, str(tmp_path / "none"), tmp_path / "out", Local()), 0), job, tmp_path / "out"
        )
    assert caught.value.hint is not None and "shared storage" in caught.value.hint
    np.save(tmp_path / "x.npy", np.zeros((10, 4), np.float32))
    with pytest.raises(InputError, match="the job has changed"):
        on_ray._read_answer(said(PartMaker(job, str(tmp_path), tmp_path / "out", Local()), 0), job, tmp_path / "out")
    (tmp_path / "m.onnx").unlink()
    with pytest.raises(ModelFileError):
        on_ray._read_answer(said(PartMaker(job, str(tmp_path), tmp_path / "out", Local()), 0), job, tmp_path / "out")


def test_another_machine_is_named_with_what_it_has_not(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own file of this name is as wrong as none; and what it wrote on a disk of its own is not believed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_ray, "SEEN_S", 0.0)
    maker = PartMaker(job, str(tmp_path), tmp_path / "out", Local())
    made = said(maker, 0)
    close(maker)
    np.save(tmp_path / "x.npy", np.zeros((10, 4), np.float32))
    other = said(PartMaker(job, str(tmp_path), tmp_path / "out", Local()), 0)
    here = socket.gethostname()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(InputError, match=f"on {here}: the job has changed") as caught:
            on_ray._read_answer(other, job, tmp_path / "out")
        assert caught.value.hint is not None and "shared storage" in caught.value.hint
        assert on_ray._read_answer(made, job, tmp_path / "out").number == 0
        part_file(job, 0).write_bytes(b"")
        with pytest.raises(BackendError, match=f"{here} wrote part 0, and '.*' on elsewhere is not what it wrote"):
            on_ray._read_answer(made, job, tmp_path / "out")
    part_file(job, 0).unlink()
    with pytest.raises(BackendError, match="is not what it wrote"):
        on_ray._read_answer(made, job, tmp_path / "out")


def test_ray_data_is_no_guest_of_a_cluster() -> None:
    with pytest.raises(OptionError, match="works on machines of the cluster alone"):
        Place(address="ray://10.0.0.7:10001")


def test_a_part_that_kills_its_processes_is_given_up(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    maker = PartMaker(job, str(tmp_path), tmp_path / "out", Local())
    for _ in range(ATTEMPTS):
        on_ray._read_answer(said(maker, 0), job, tmp_path / "out")
    with pytest.raises(BackendError, match=f"{ATTEMPTS} processes of Ray ended before they had made part 0"):
        on_ray._read_answer(said(maker, 0), job, tmp_path / "out")
    close(maker)


def test_a_process_that_outlives_its_driver_changes_nothing(job: Job, tmp_path: Path) -> None:
    """The driver is killed, another job takes the directory, and only then the process comes to its end."""
    driver = open_output(job, MostBad())
    orphan = open_job(job)
    driver.add(make_part(orphan, 0, driver.workshop))
    (driver.workshop / ".part-00001.npz.0123").write_bytes(b"half")
    driver.lock.close()  # as the kernel does
    other = replace(job, identity=(*job.identity, ("other", "yes")))
    with closing(orphan), closing(open_output(other, MostBad(), overwrite=True)) as output:
        with pytest.raises(OptionError, match=r"can't write .*part-00001"):
            make_part(orphan, 1, driver.workshop)
        for number in output.missing:
            output.add(make_part(orphan, number, output.workshop))
            with pytest.raises(OptionError, match="can't write"):
                make_part(orphan, number, driver.workshop)
        output.finish()
        with pytest.raises(OptionError, match="can't write"):  # one of its own that Ray took for dead
            make_part(orphan, 1, output.workshop)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".lock", "_manifest.json", "part-00000.npz", "part-00001.npz"}
    with closing(open_output(other, MostBad())) as again:
        assert again.finished


def test_a_ray_that_does_not_start_is_told(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does, in ray/_private/node.py

    monkeypatch.setattr(ray, "init", init)
    outcome = trnrt(*line, "--output", tmp_path / "out", "--engine", "ray")
    assert outcome.code == 2, outcome.err
    assert "Ray did not start: The current node timed out during startup." in outcome.err


def test_flags_of_ray_need_ray(line: list[str], tmp_path: Path) -> None:
    for flag, value in (("--replicas", "2"), ("--address", "auto"), ("--replica-cpus", "1")):
        outcome = trnrt(*line, "--output", tmp_path / "out", flag, value)
        assert outcome.code == 2 and f"{flag} needs --engine ray" in outcome.err
    outcome = trnrt(*line, "--output", tmp_path / "out", "--engine", "ray", "--replicas", "999")
    assert outcome.code == 2 and "999 replicas need" in outcome.err
