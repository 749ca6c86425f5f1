"""``trnrt nki tune``: the page, the document, the exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from commanding import Outcome, trnrt
from kernel_files import ADDITIONS, CALL, OLD_ADDITIONS, OLD_CALL
from nki_scripts import heed_interrupts


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernels.py"
    path.write_text(ADDITIONS, encoding="utf-8")
    return path


def tune(script: Path, *arguments: str | Path) -> Outcome:
    return trnrt("nki", "tune", script, "--jobs", "1", *arguments)


def test_the_page(script: Path) -> None:
    outcome = tune(script, "--call", CALL, "--space", "TILE=64,100,200,256,512,1024")
    assert outcome.code == 0
    assert outcome.out.startswith("my_kernels.py: add on trn2: 6 candidates (all of them), 4 timed, 2 refused\n")
    best = next(line for line in outcome.out.splitlines() if line.startswith("best"))
    assert best.endswith(("TILE=512)", "TILE=1024)"))
    assert f"{CALL[:-1]}, TILE=256)" in outcome.out  # the default
    assert "PASS result, float32 [128, 1024]: the same bits" in outcome.out
    assert "slower, for sure" in outcome.out
    (refused,) = [line for line in outcome.out.splitlines() if "no multiple of" in line]
    assert refused.split()[:2] == ["2", "TILE=100"]  # both reasons in one line
    assert outcome.err == ""  # no progress bar without a terminal


def test_the_document_and_the_results(script: Path, tmp_path: Path) -> None:
    arguments = ("--call", CALL, "--space", "TILE=64,100,256,1024", "--json", "--json-out", tmp_path / "out.json")
    document = tune(script, *arguments).document
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert (document["schema_version"], document["kernel"], document["target"]) == (1, "add", "trn2")
    assert document["space"] == {"TILE": [64, 100, 256, 1024]} and document["space_size"] == 4
    assert (document["complete"], document["stopped"], document["resumed"]) == (True, False, 0)
    assert [one["values"]["TILE"] for one in document["candidates"]] == ["256", "64", "100", "1024"]
    best, default = document["best"], document["default"]
    (profiled,) = trnrt("nki", "profile", script, "--call", best["call"], "--json").document["calls"]
    assert best["predicted_us"] == profiled["predicted_us"] and best["causes"] == profiled["causes"]
    assert default["call"] == CALL[:-1] + ", TILE=256)" and default["reason"] is None
    assert document["numbers"]["compared"] and document["numbers"]["results"][0]["identical"]
    assert document["order"]["certainty"] in ("tie", "certain", "likely", "open")
    assert document["top"][0]["call"] == best["call"] and document["top"][-1]["against_best"] == "certain"
    assert script.with_suffix(".tune.jsonl").exists()
    again = tune(script, *arguments[:5])
    assert again.document["resumed"] == 4 and "4 candidates had results in" in again.err


def test_a_large_space_is_searched_with_a_seed(script: Path, tmp_path: Path) -> None:
    arguments = ("--call", CALL, "--space", "TILE=range(1, 1025)", "--space", "scale=1.0,1.0001", "--trials", "12")
    found = [
        tune(script, *arguments, "--seed", seed, "--json", "--results", tmp_path / f"{run}.jsonl").document
        for run, seed in enumerate(("3", "3", "4"))
    ]
    assert [one["complete"] for one in found] == [False] * 3 and len(found[0]["candidates"]) == 12
    assert found[0]["candidates"] == found[1]["candidates"] != found[2]["candidates"]


def test_when_nothing_is_right(script: Path) -> None:
    outcome = tune(script, "--call", CALL, "--space", "TILE=100,200", "--reference", "wrong")
    assert outcome.code == 1  # the default runs, but its numbers are not those of the reference
    assert "No candidate runs with the right numbers." in outcome.out and "Faster, but wrong:" in outcome.out
    outcome = tune(script, "--call", CALL[:-1] + ", TILE=300)", "--space", "TILE=100,200")
    assert outcome.code == 1 and "3 candidates (all of them), 0 timed, 3 refused" in outcome.out


def test_a_reference_that_stops(script: Path) -> None:
    outcome = tune(script, "--call", CALL, "--space", "TILE=256", "--reference", "broken")
    assert (outcome.code, outcome.out) == (1, "")
    assert "--reference broken stopped: AttributeError:" in outcome.err and "Traceback" not in outcome.err


def test_numbers_that_could_not_be_compared(script: Path) -> None:
    outcome = tune(script, "--call", CALL[:-1] + ", TILE=300)", "--space", "TILE=256")
    assert outcome.code == 0 and re.search(r"^default +can't run", outcome.out, re.MULTILINE)
    assert "nothing to compare the numbers with: the default can't run" in outcome.err


def test_the_scripts_own_call_and_data(script: Path) -> None:
    script.write_text(ADDITIONS + "\na = np.ones((128, 1024), np.float32)\nadd(a, a)\n")
    outcome = tune(script, "--space", "TILE=512,1024")
    assert outcome.code == 0 and "PASS result" in outcome.out


def test_a_target_that_was_never_measured_says_so(script: Path) -> None:
    outcome = tune(script, "--call", CALL, "--space", "TILE=512", "--target", "trn3")
    assert "trn3's model was never compared with a measurement" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--call", CALL], "Missing option '--space'"),
        (["--call", CALL, "--space", "TILE"], "not NAME=value"),
        (["--call", CALL, "--space", "TILES=1"], "no argument 'TILES'"),
        (["--call", CALL, "--space", "a=1,2"], "can't change 'a': it is a tensor"),
        (["--call", CALL, "--space", "TILE=256", "--reference", "nothing"], "--reference nothing returned None"),
        (["--space", "TILE=1"], "calls no kernel"),
        (["--call", CALL, "--space", "TILE=1", "--results", "/proc/none/x.jsonl"], "can't write '/proc/none/x.jsonl'"),
    ],
)
def test_wrong_requests(script: Path, arguments: list[str], message: str) -> None:
    outcome = tune(script, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_kernel_of_the_old_namespace(script: Path) -> None:
    script.write_text(OLD_ADDITIONS)
    document = tune(script, "--call", OLD_CALL.replace("[1]", "[2]", 1), "--space", "TILE=64,512", "--json").document
    assert document["best"]["call"] == "add[2](f32[128,1024], f32[128,1024], TILE=512)"
    assert document["numbers"]["results"][0]["identical"]


def test_ctrl_c_ends_it_quietly_and_it_resumes(script: Path) -> None:
    """As a terminal sends it: to the processes that time candidates, too."""
    slow = "    import time; time.sleep(TILE / 200)\n    rows, columns = a.shape\n"
    script.write_text(ADDITIONS.replace("    rows, columns = a.shape\n", slow))
    command = [sys.executable, "-m", "trnrt", "nki", "tune", str(script), "--call", CALL, "--space", "TILE=64,128,1024"]
    running = subprocess.Popen(
        [*command, "-j", "1"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    results = script.with_suffix(".tune.jsonl")
    deadline = monotonic() + 60
    while not (results.exists() and results.read_text().count("\n") >= 2) and monotonic() < deadline:
        sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (130, "error: interrupted\n")
    assert tune(script, "--call", CALL, "--space", "TILE=64,128", "--json").document["resumed"] >= 2
