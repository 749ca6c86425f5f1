"""Batch prediction is interrupted, in every way that we could think of, and ends with the same bytes."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commanding import trnrt
from predicting import FFNN, digests, linear, lists, parts

from trnrt.predict import output as output_room
from trnrt.predict.part import PartDone

SEED = 20261122
LIMIT = 120.0  # seconds; only what hangs takes so long
# trnrt, which stands still where it has made ``sys.argv[1]`` parts and written some of the next: it says so to the
# descriptor ``sys.argv[2]``, and goes on when its standard input ends.
HELD = """
import os, sys
import pyarrow.parquet as pq
from trnrt.cli import main

after, told = int(sys.argv.pop(1)), int(sys.argv.pop(1))
real, made = pq.write_table, []

def write_table(table, file, **options):
    if len(made) == after:
        file.write(b"half of it")
        file.flush()
        os.write(told, b"!")
        os.read(0, 1)
        file.seek(0)
        file.truncate()
    made.append(table)
    real(table, file, **options)

pq.write_table = write_table
main()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """10,000 rows with ids for the digits, some of them bad; in one row group, so that parts begin within it."""
    rows = np.random.default_rng(0).random((10_000, 64), dtype=np.float32)
    column = lists(rows)
    mask = np.zeros(len(rows), bool)
    mask[[0, 999, 1000, 7777, 9_999]] = True
    column = pa.ListArray.from_arrays(column.offsets, column.values, mask=pa.array(mask))
    keys = pa.array([f"row-{number}" for number in range(len(rows))])
    pq.write_table(pa.table({"key": keys, "image": column}), tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def line(data: Path, out: Path) -> list[str]:
    """The command that the user repeats, without the program: 40 parts."""
    arguments = ["--input", str(data), "--id", "key", "--output", str(out), "--rows-per-part", "256", "--top", "1"]
    return ["predict", str(FFNN), *arguments, "--json"]


def noted(out: Path) -> int:
    """Parts that are done, as the progress says."""
    try:
        return (out / "_progress.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def stopped(arguments: list[str], how: int, after: int) -> subprocess.CompletedProcess[str]:
    """Start a command, and send it a signal while it writes the part behind so many."""
    ready, told = os.pipe()
    command = [sys.executable, "-c", HELD, str(after), str(told), *arguments]
    pipe = subprocess.PIPE
    with (
        os.fdopen(ready, "rb") as heard,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, pass_fds=[told]) as process,
    ):
        os.close(told)
        held = heard.read(1)
        process.send_signal(how)
        out, err = process.communicate(timeout=LIMIT)
        assert held, err
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def finished(arguments: list[str]) -> dict[str, Any]:
    """What a command that goes well says."""
    command = [sys.executable, "-m", "trnrt", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def test_killed_twice_and_resumed_gives_the_bytes_of_one_run(tmp_path: Path, data: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert finished(line(data, whole))["parts"] == 40
    drawn = random.Random(SEED)
    first, second = drawn.randint(1, 10), drawn.randint(1, 10)
    for more, kept in ((first, first), (second, first + second)):
        killed = stopped(line(data, out), signal.SIGKILL, more)
        assert killed.returncode == -signal.SIGKILL
        assert noted(out) == kept
        (half,) = out.glob(".parts-*/*")
        assert half.read_bytes() == b"half of it"
    last = finished(line(data, out))
    assert (last["parts_kept"], last["rows_run"]) == (kept, 10_000 - kept * 256)
    assert (last["predicted"], last["bad"]) == (9_995, 5)
    assert digests(out) == digests(whole)
    assert [row["id"] for row in parts(out)] == [
        f"row-{number}" for number in range(10_000) if number not in (0, 999, 1000, 7777, 9_999)
    ]


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_between_two_batches(tmp_path: Path, data: Path, how: int, code: int) -> None:
    out = tmp_path / "out"
    result = stopped(line(data, out), how, after=1)
    assert result.returncode == code
    assert result.stdout == "" and "of 40 parts are done and kept: the same command goes on from there" in result.stderr
    assert "Traceback" not in result.stderr
    names = {path.name for path in out.iterdir()}
    assert names - {f"part-{k:05d}.parquet" for k in range(40)} == {
        ".lock",
        "_manifest.json",
        "_progress.jsonl",
        "_quarantine",
    }
    assert len([name for name in names if name.startswith("part-")]) == noted(out) == 2


# ---- in one process, at every step


class CrashError(BaseException):
    """The end of the process, as far as the code can tell."""


def crashing(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Let everything that makes a file last fail from the ``after``-th time on; returns what was called."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) > after:
                raise CrashError
            return real(*arguments, **options)

        return call

    monkeypatch.setattr(os, "fsync", wrapped("fsync", os.fsync))
    for name in ("mkdir", "rename", "replace", "unlink"):  # a process that ends deletes nothing, either
        monkeypatch.setattr(Path, name, wrapped(name, getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", wrapped("rmtree", shutil.rmtree))
    return calls


def small(tmp_path: Path) -> list[str | Path]:
    """A job of three parts with a bad row in the middle one."""
    rows = [[float(number), 1.0, 2.0] for number in range(12)]
    rows[6] = [1.0]
    pq.write_table(pa.table({"x": pa.array(rows, pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    model = linear(tmp_path / "m.onnx")
    return ["predict", model, "--input", tmp_path / "x.parquet", "--rows-per-part", "4", "--json"]


def test_a_crash_at_any_step_of_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = small(tmp_path)
    assert trnrt(*arguments, "--output", tmp_path / "whole").code == 0
    with monkeypatch.context() as patch:
        steps = crashing(patch, after=10_000)
        assert trnrt(*arguments, "--output", tmp_path / "counted").code == 0
    assert len(steps) > 20
    for after in range(len(steps)):
        out = tmp_path / f"out-{after}"
        with monkeypatch.context() as patch:
            crashing(patch, after)
            with pytest.raises(CrashError):
                trnrt(*arguments, "--output", out)
        before = noted(out)
        outcome = trnrt(*arguments, "--output", out)
        assert outcome.code == 0, f"after {after}: {steps[after]}: {outcome.err}"
        assert outcome.document["parts_kept"] >= before
        assert digests(out) == digests(tmp_path / "whole"), f"after {after}: {steps[after]}"


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        real = pq.write_table
        calls: list[object] = []

        def fail(table: Any, file: Any, **options: Any) -> None:
            calls.append(table)
            if len(calls) == 3:
                file.write(b"half of it")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(table, file, **options)

        patch.setattr(pq, "write_table", fail)
        outcome = trnrt(*arguments, "--output", out)
    assert outcome.code == 2
    assert "part-00002.parquet': no space left on device" in outcome.err
    assert "2 of 3 parts are done and kept" in outcome.err
    assert not list(out.glob(".parts-*"))
    assert trnrt(*arguments, "--output", out).document["parts_kept"] == 2
    assert trnrt(*arguments, "--output", tmp_path / "whole").code == 0
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.parametrize("name", ["part-00001.parquet", "_quarantine/part-00001.jsonl"])
@pytest.mark.parametrize("finished_before", [True, False])
def test_a_part_is_believed_only_with_its_digest(tmp_path: Path, name: str, finished_before: bool) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    whole = digests(out)
    if not finished_before:  # as a process leaves it that is killed just before the end
        manifest = json.loads((out / "_manifest.json").read_text("utf-8"))
        lines = [json.dumps(part) for part in manifest.pop("parts")]
        (out / "_progress.jsonl").write_text("\n".join([*lines, lines[-1][:20]]), "utf-8")
        (out / "_manifest.json").write_text(json.dumps(manifest | {"state": "running"}), "utf-8")
    content = bytearray((out / name).read_bytes())
    content[len(content) // 2] ^= 1
    (out / name).write_bytes(content)
    outcome = trnrt(*arguments, "--output", out)
    assert outcome.document["rows_run"] == 4
    assert "changed since they were written, and made again: part-00001.parquet" in outcome.err
    assert digests(out) == whole


def test_a_finished_job_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    outcome = trnrt(*arguments, "--output", out)
    assert "nothing to do: 3 of 3 parts are there" in outcome.err
    assert (outcome.document["rows_run"], outcome.document["bad"]) == (0, 1)
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}


# ---- whose directory it is


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rows-per-part", "5"), "rows per part 4 -> 5"),
        (("--dtype", "bfloat16"), "dtype float32 -> bfloat16"),
        (("--target", "trn1"), "target trn2 -> trn1"),
        (("--batch", "4"), "batch 16 -> 4"),
        (("--fallback", "onnxruntime"), "fallback none -> onnxruntime"),
        (("--limit", "11"), "rows 12 -> 11"),
        (("--format", "npz"), "format parquet -> npz"),
        (("--top", "1"), "top none -> 1"),
        (("--columns", "x"), "columns none -> x"),
    ],
)
def test_another_setting_in_the_same_directory_is_refused(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    before = digests(out)
    outcome = trnrt(*arguments, *options, "--output", out)
    assert outcome.code == 2
    assert f"holds another prediction; the differences: {told}" in outcome.err
    assert digests(out) == before
    assert trnrt(*arguments, *options, "--output", out, "--overwrite").code == 0
    assert trnrt(*arguments, *options, "--output", tmp_path / "new").code == 0
    assert digests(out) == digests(tmp_path / "new")


def test_another_model_or_input_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    other = [arguments[0], linear(tmp_path / "other.onnx"), *arguments[2:]]
    assert "the differences: model " in trnrt(*other, "--output", out).err
    status = (tmp_path / "x.parquet").stat()
    os.utime(tmp_path / "x.parquet", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert "the differences: input x 1 file" in trnrt(*arguments, "--output", out).err


def test_an_input_that_changes_while_it_is_read_is_no_finished_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    real = output_room.Output.add

    def add(output: output_room.Output, part: PartDone) -> None:
        real(output, part)
        if part.number == 0:
            small(tmp_path)  # the same rows, written anew

    with monkeypatch.context() as patch:
        patch.setattr(output_room.Output, "add", add)
        outcome = trnrt(*arguments, "--output", out)
    assert outcome.code == 2 and "the input changed while it was read: input x 1 file" in outcome.err
    assert "the same command goes on" not in outcome.err
    assert json.loads((out / "_manifest.json").read_text("utf-8"))["state"] == "running"
    assert "holds another prediction" in trnrt(*arguments, "--output", out).err
    assert trnrt(*arguments, "--output", out, "--overwrite").code == 0


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_what_writes_the_files_is_part_of_the_job(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = [*small(tmp_path), "--format", form], tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    monkeypatch.setattr(pa, "__version__", "1.2.3")
    outcome = trnrt(*arguments, "--output", out)
    assert ("pyarrow" in outcome.err and outcome.code == 2) if form == "parquet" else outcome.code == 0


def test_a_try_that_made_no_part_binds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(output_room.Output, "add", crash)
        with pytest.raises(CrashError):
            trnrt(*arguments, "--output", out)
    assert trnrt(*arguments, "--output", out, "--batch", "4").code == 0


def crash(output: object, part: PartDone) -> None:
    """End before the first part is noted."""
    raise CrashError


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("all of it", "utf-8")
    for options in ((), ("--overwrite",)):
        outcome = trnrt(*arguments, "--output", out, *options)
        assert outcome.code == 2
        assert "has files that are not from a batch prediction: 'thesis.txt'" in outcome.err
    assert (out / "thesis.txt").read_text("utf-8") == "all of it"
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    assert trnrt(*arguments, "--output", out / "thesis.txt").code == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema_version": 9}', '{"schema_version": 1, "job": {}, "state": 3}']
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "_manifest.json").write_text(text, "utf-8")
    outcome = trnrt(*arguments, "--output", out)
    assert outcome.code == 2
    assert "is no manifest that this version of trnrt can read" in outcome.err
    assert trnrt(*arguments, "--output", out, "--overwrite").code == 0


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    "damage",
    [{"reasons": 5}, {"number": "0"}, {"rows": "4"}, {"sha256": None}, {"bad_sha256": 1}, {"number": True}, None],
)
def test_a_damaged_note_of_a_part_is_none(tmp_path: Path, running: bool, damage: dict[str, Any] | None) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    whole = digests(out)
    manifest = json.loads((out / "_manifest.json").read_text("utf-8"))
    noted_parts = manifest["parts"]
    noted_parts[1] = noted_parts[1] | damage if damage else [1]
    if running:
        lines = [json.dumps(part) for part in manifest.pop("parts")]
        (out / "_progress.jsonl").write_text("".join(f"{text}\n" for text in lines), "utf-8")
        manifest["state"] = "running"
    (out / "_manifest.json").write_text(json.dumps(manifest), "utf-8")
    outcome = trnrt(*arguments, "--output", out)
    assert (outcome.code, outcome.document["rows_run"]) == (0, 4), outcome.err
    assert digests(out) == whole


@pytest.mark.parametrize("noted_parts", [None, 3, {"a": 1}, "text"])
def test_a_manifest_without_a_list_of_parts_has_none(tmp_path: Path, noted_parts: object) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    assert trnrt(*arguments, "--output", out).code == 0
    whole = digests(out)
    manifest = json.loads((out / "_manifest.json").read_text("utf-8"))
    (out / "_manifest.json").write_text(json.dumps(manifest | {"parts": noted_parts}), "utf-8")
    outcome = trnrt(*arguments, "--output", out)
    assert (outcome.code, outcome.document["rows_run"]) == (0, 12), outcome.err
    assert digests(out) == whole


def test_two_processes_do_not_write_into_one_directory(tmp_path: Path) -> None:
    arguments, out = small(tmp_path), tmp_path / "out"
    out.mkdir()
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    held = [sys.executable, "-c", script, str(out / ".lock")]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        outcome = trnrt(*arguments, "--output", out)
        other.communicate("")
    assert outcome.code == 2
    assert "another trnrt predict is writing into" in outcome.err
    assert trnrt(*arguments, "--output", out).code == 0


def test_rows_with_nan_or_infinity_are_predicted_and_counted_once(tmp_path: Path) -> None:
    """A second run of the same command finds them in the record; one of before 0.2 has no such counts."""
    x = np.ones((12, 3), np.float32)
    x[6], x[9, 1] = np.nan, np.inf
    np.save(tmp_path / "x.npy", x)
    model, out = linear(tmp_path / "m.onnx"), tmp_path / "out"
    command = ("predict", model, "--input", tmp_path / "x.npy", "--rows-per-part", "4", "--output", out, "--json")
    for _ in range(2):
        outcome = trnrt(*command)
        assert outcome.err.count("2 rows with NaN or infinite inputs, the first is row 6") == 1
        assert (outcome.document["odd"], outcome.document["bad"], outcome.document["predicted"]) == (2, 0, 12)
    manifest = json.loads((out / "_manifest.json").read_text("utf-8"))
    for part in manifest["parts"]:
        del part["odd"], part["first_odd"]
    (out / "_manifest.json").write_text(json.dumps(manifest), "utf-8")
    outcome = trnrt(*command)
    assert (outcome.document["odd"], outcome.document["rows_run"]) == (0, 0)
