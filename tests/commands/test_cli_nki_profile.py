"""``trnrt nki profile``: the calls of a script, or those that are named, and what becomes of those that can't run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from commanding import Outcome, trnrt
from profiles import STEPS, made_profile

from trnrt.errors import KernelError
from trnrt.nki import profiling
from trnrt.nki.machine.program import Program
from trnrt.nki.profiling import Profile

KERNELS = """
import sys
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add(a, b, times=1):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.dma_copy(dst=y, src=b)
    for _ in range(times):
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def huge(a):
    x = nl.ndarray((128, 100000), dtype=nl.float32, buffer=nl.sbuf)
    return a


ones = np.ones((128, 64), np.float32)
"""
ONE, SEVEN = "add(f32[128,64], f32[128,64])", "add(f32[128,64], f32[128,64], times=7)"
BOTH = "add(ones, ones)\nadd(ones, ones, times=7)\nadd(ones, ones)\n"


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Writes a script of the kernels above and ``text``."""

    def write(text: str = "", kernels: str = KERNELS) -> Path:
        path = tmp_path / "my_kernel.py"
        path.write_text(kernels + dedent(text), encoding="utf-8")
        return path

    return write


def profiled(script: Path, *arguments: str | Path) -> Outcome:
    return trnrt("nki", "profile", script, *arguments)


def made(benchmark_us: float) -> Any:
    """A ``profile_programs`` that gives every call this latency."""

    def say(programs: Sequence[Program]) -> Profile:
        kernel, target = programs[0].kernel, programs[0].target.name
        return made_profile(kernel=kernel, target=target, batch=None, benchmark_us=benchmark_us)

    return say


def test_the_calls_of_the_script_are_profiled_each_different_one_once(script: Any) -> None:
    outcome = profiled(script(f"print('from the script')\n{BOTH}"))
    assert outcome.code == 0
    assert outcome.err == "from the script\n"
    headings = [line for line in outcome.out.splitlines() if line.startswith("add(")]
    assert headings == [f"{ONE}: float32 on trn2", f"{SEVEN}: float32 on trn2"]
    assert "nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)" in outcome.out
    assert "ONNX" not in outcome.out


def test_json_has_an_entry_for_each_call(script: Any, tmp_path: Path) -> None:
    path = script(BOTH)
    outcome = profiled(path, "--json", "--json-out", tmp_path / "out.json", "--target", "trn1")
    document = outcome.document
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert (document["schema_version"], document["file"], document["target"]) == (1, str(path), "trn1")
    assert [(call["kernel"], call["arguments"]) for call in document["calls"]] == [
        ("add", "f32[128,64], f32[128,64]"),
        ("add", "f32[128,64], f32[128,64], times=7"),
    ]
    first, second = document["calls"]
    assert first["dma_transfer_count"] == 3 and first["hbm_bytes"] == 3 * 128 * 64 * 4
    assert first["predicted_us"]["benchmark"] < second["predicted_us"]["benchmark"]
    assert second["instructions"] - first["instructions"] == 6
    assert (first["batch"], document["failures"], document["comparison"]) == (None, [], None)


def test_named_calls_are_profiled_in_the_place_of_the_scripts(script: Any) -> None:
    path = script("add(ones, ones)\nsys.exit(3)\n")
    call = "add(bf16[64,32], bf16[64,32], 2)"
    document = profiled(path, "--call", call, "--call", "add(f32[1,1], f32[1,1])", "--json").document
    assert [call["arguments"] for call in document["calls"]] == ["bf16[64,32], bf16[64,32], 2", "f32[1,1], f32[1,1]"]


def test_a_kernel_on_two_cores(script: Any) -> None:
    document = profiled(script(), "--call", "add[2](f32[128,64], f32[128,64])", "--json").document
    assert [(call["kernel"], call["cores"]) for call in document["calls"]] == [("add[2]", 2)]


def test_files_of_several_calls_are_numbered(script: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    files = ("--html", folder / "report.html", "--trace", folder / "trace.json")
    outcome = profiled(script(BOTH), *files)
    assert outcome.code == 0
    names = ["report-1.html", "report-2.html", "trace-1.json", "trace-2.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert f"note: 2 calls: wrote '{folder / names[0]}' to '{folder / names[1]}', in their order" in outcome.err
    assert f"note: 2 calls: wrote '{folder / names[2]}' to '{folder / names[3]}', in their order" in outcome.err
    assert "times=7" in (folder / "report-2.html").read_text()
    assert profiled(script(), "--call", ONE, *files).code == 0
    assert (folder / "report.html").exists() and (folder / "trace.json").exists()


# ---- what can't be profiled


def test_a_broken_rule_names_the_source_line(script: Any) -> None:
    path = script("add(ones, ones)\nhuge(ones)\n")
    line = (
        path.read_text().splitlines().index("    x = nl.ndarray((128, 100000), dtype=nl.float32, buffer=nl.sbuf)") + 1
    )
    outcome = profiled(path)
    assert outcome.code == 1
    assert outcome.out.startswith(ONE)  # the other call is not lost
    assert f"  at {path}:{line}\n    x = nl.ndarray((128, 100000)" in outcome.err
    assert "error: nl.ndarray: shape (128, 100000) takes 400000 bytes a partition" in outcome.err
    assert "Traceback" not in outcome.err
    document = profiled(path, "--json").document
    assert [call["kernel"] for call in document["calls"]] == ["add"]
    assert [(failure["line"], failure["rule"]) for failure in document["failures"]] == [(line, "tile-bytes")]


def test_a_call_that_does_not_fit_the_kernel(script: Any) -> None:
    outcome = profiled(script(), "--call", "add(f32[1,1])")
    assert (outcome.code, outcome.out) == (1, "")
    assert "missing a required argument: 'b'" in outcome.err


def test_a_kernel_that_deadlocks_is_an_answer(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(programs: Sequence[Program]) -> Profile:
        raise KernelError("the program never ends: nothing signals what instruction 3 waits for")

    monkeypatch.setattr(profiling, "profile_programs", stuck)
    outcome = profiled(script("add(ones, ones)"))
    assert (outcome.code, outcome.out) == (1, "")
    assert "error: the program never ends" in outcome.err


@pytest.mark.parametrize(
    ("text", "told"),
    [("1 / 0", "the script stopped: ZeroDivisionError"), ("def f(:", "invalid syntax"), ("sys.exit(3)", "SystemExit")],
)
def test_a_script_that_stops_before_its_first_call(script: Any, text: str, told: str) -> None:
    outcome = profiled(script(text))
    assert (outcome.code, outcome.out) == (1, "")
    assert told in outcome.err and "my_kernel.py:" in outcome.err


def test_a_script_without_calls_is_told_how_to_name_one(script: Any) -> None:
    outcome = profiled(script())
    assert (outcome.code, outcome.out) == (2, "")
    assert "my_kernel.py' calls no kernel" in outcome.err
    assert "hint: name a call, for example --call 'add(f32[128,512], f32[128,512])'" in outcome.err
    assert "--call 'kernel(f32[128,512], f32[128,512])'" in profiled(script("x = 1", kernels="")).err


def test_what_the_compiler_would_refuse_is_profiled_with_a_note(script: Any) -> None:
    text = """
    @nki.jit
    def listing(a):
        sizes = [k for k in range(3)]
        return add(a, a, times=len(sizes))
    listing(ones)
    """
    path = script(text)
    outcome = profiled(path, "--nki", "0.6")
    assert outcome.code == 0 and outcome.out.startswith("listing(f32[128,64]): float32 on trn2\n")
    told = "AWS's compiler (NKI 0.6) would refuse this file for 1 reason; `trnrt nki check --nki 0.6` lists them"
    assert f"note: {told}" in outcome.err
    assert "would refuse" not in profiled(path).err


@pytest.mark.parametrize(
    "arguments",
    [["--target", "trn9"], ["--call", "add("], ["--call", "none(f32[1])"], ["--max-regress", "2%"], ["--html", "no/x"]],
)
def test_a_wrong_request(script: Any, arguments: list[str]) -> None:
    outcome = profiled(script(BOTH), *arguments)
    assert (outcome.code, outcome.out) == (2, "")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    outcome = profiled(tmp_path / "missing.py")
    assert outcome.code == 2 and "there is no file" in outcome.err


# ---- the baseline


def test_a_call_that_got_slower_exits_with_1(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old = script(BOTH), tmp_path / "old.json"
    monkeypatch.setattr(profiling, "profile_programs", made(40.0))
    assert profiled(path, "--json-out", old).code == 0
    assert profiled(path, "--baseline", old).code == 0
    monkeypatch.setattr(profiling, "profile_programs", made(44.0))
    outcome = profiled(path, "--baseline", old)
    assert outcome.code == 1
    for call in (ONE, SEVEN):
        assert f"FAIL {call} against {old}: +10.0%, accepted +2%" in outcome.out
    assert profiled(path, "--baseline", old, "--max-regress", "10%").code == 0


def test_a_line_that_moved_is_the_same_step(script: Any, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert profiled(script("add(ones, ones)"), "--json-out", old).code == 0
    moved = tmp_path / "moved.py"
    moved.write_text(f"# a comment\n{KERNELS}add(ones, ones)")
    outcome = profiled(moved, "--baseline", old, "--json")
    assert outcome.code == 0
    assert outcome.document["comparison"]["changes"][0]["steps"] == []


def test_a_baseline_of_other_calls_or_another_target_is_refused(script: Any, tmp_path: Path) -> None:
    path, old = script(BOTH), tmp_path / "old.json"
    assert profiled(path, "--json-out", old).code == 0
    fewer = profiled(path, "--baseline", old, "--call", ONE)
    assert (fewer.code, fewer.out) == (2, "")
    assert f"is a baseline for the calls {ONE}, {SEVEN}; these are {ONE}" in fewer.err
    other = profiled(path, "--baseline", old, "--target", "trn3")
    assert (other.code, other.out) == (2, "")
    assert "a baseline for target 'trn2'; this is target 'trn3'" in other.err


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": None},
        {"calls": [1]},
        {"calls": [{"kernel": "add"}]},
        {"calls": [{"arguments": "", "predicted_us": {"benchmark": 1, "profiler": 2}, "steps": []}]},
        {"schema_version": 3},
        {"schema_version": "1"},
    ],
)
def test_a_baseline_that_is_no_report_is_refused(script: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    path, old = script(BOTH), tmp_path / "old.json"
    assert profiled(path, "--json-out", old).code == 0
    old.write_text(json.dumps(json.loads(old.read_text()) | changes))
    outcome = profiled(path, "--baseline", old)
    assert (outcome.code, outcome.out) == (2, "") and "old.json" in outcome.err


def test_a_baseline_of_a_model_is_refused(script: Any, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    step = {"name": STEPS[0].name, "time_us": 1.0}
    predicted = {"benchmark": 1.0, "profiler": 2.0}
    old.write_text(json.dumps({"schema_version": 1, "model": "m", "predicted_us": predicted, "steps": [step]}))
    outcome = profiled(script(BOTH), "--baseline", old)
    assert outcome.code == 2 and "it is one of `trnrt profile`" in outcome.err


# ---- another run


def test_what_pins_the_critical_path_is_said_first(script: Any) -> None:
    path = script("add(ones, ones)")
    document = profiled(path, "--json").document["calls"][0]
    sentence = document["bottleneck"]["sentence"]
    assert sentence.startswith("The fixed latencies of DMA transfers (lines 14, 15 and 18) hold ")
    out = " ".join(profiled(path).out.split())
    assert sentence in out and out.index(sentence) < out.index("What makes the first range wide")


def test_json_has_the_cost_of_each_line(script: Any) -> None:
    path = script("add(ones, ones)")
    call = profiled(path, "--json").document["calls"][0]
    assert [line["code"][:18] for line in call["lines"]] == [
        "nisa.dma_copy(dst=", "nisa.dma_copy(dst=", "nisa.tensor_tensor", "nisa.dma_copy(dst="
    ]  # fmt: skip
    assert {line["file"] for line in call["lines"]} == {str(path)}
    assert sum(line["path_us"] for line in call["lines"]) == pytest.approx(sum(s["time_us"] for s in call["steps"]))


@pytest.mark.parametrize("kind", ["script", "report", "document"])
def test_against_another_run(script: Any, tmp_path: Path, kind: str) -> None:
    old = tmp_path / "old.py"
    old.write_text(f"# a comment\n{KERNELS}add(ones, ones)\n")
    report, document, page = tmp_path / "old.html", tmp_path / "old.json", tmp_path / "new.html"
    assert profiled(old, "--html", report, "--json-out", document).code == 0
    other = {"script": old, "report": report, "document": document}[kind]
    path = script("add(ones, ones, times=7)\n")
    outcome = profiled(path, "--against", other, "--html", page, "--json")
    assert outcome.code == 0
    (found,) = outcome.document["against"]
    assert (found["name"], found["against"], found["file"]) == (SEVEN, ONE, str(other))
    assert found["after_us"] > found["before_us"]
    busy = {engine["name"]: (engine["before_us"], engine["after_us"]) for engine in found["engines"]}
    assert busy["vector"][1] > 4 * busy["vector"][0] > 0
    largest = found["lines"][0]
    assert largest["code"].startswith("nisa.tensor_tensor") and largest["before_line"] == largest["after_line"] + 1
    drawn = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])["against"]
    assert len(drawn["cores"]) == (0 if kind == "document" else 1)
    assert ("has no timeline to draw" in page.read_text()) == (kind == "document")
    assert f"{SEVEN} against {other}" in profiled(path, "--against", other).out


def test_reports_of_several_calls_are_read_by_their_numbers(script: Any, tmp_path: Path) -> None:
    path, report = script(BOTH), tmp_path / "old.html"
    assert profiled(path, "--html", report).code == 0
    found = profiled(path, "--against", report, "--json").document["against"]
    assert [difference["file"] for difference in found] == [str(tmp_path / f"old-{k}.html") for k in (1, 2)]
    assert all(difference["after_us"] == difference["before_us"] for difference in found)


def test_other_runs_that_do_not_fit_are_refused(script: Any, tmp_path: Path) -> None:
    path, old = script(BOTH), tmp_path / "old.py"
    old.write_text(f"{KERNELS}add(ones, ones)\n")
    fewer = profiled(path, "--against", old)
    assert (fewer.code, fewer.out) == (2, "")
    assert f"has the calls {ONE}; these are {ONE}, {SEVEN}" in fewer.err
    old.write_text(KERNELS)
    assert "has no call to compare with" in profiled(path, "--against", old).err
    for name in ("none.html", "none.json", "none.py"):
        missing = profiled(path, "--against", tmp_path / name)
        assert (missing.code, missing.out) == (2, ""), name
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"schema_version": 1, "calls": [{"kernel": "add", "arguments": "", "predicted_us":
        {"benchmark": 1, "profiler": 2}, "steps": []}]}))  # fmt: skip
    assert "has no engines and lines" in profiled(script("add(ones, ones)"), "--against", empty).err
