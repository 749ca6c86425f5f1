"""``trnrt nki compare``: two kernels of one file or of two, their times, their numbers, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import Outcome, trnrt
from kernel_files import ADDITIONS, CALL, OLD_ADDITIONS, OLD_CALL

NARROW = CALL[:-1] + ", TILE=128)"
SCALED = CALL[:-1] + ", scale=2.0)"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "first.py"
    path.write_text(ADDITIONS, encoding="utf-8")
    return path


def compare(*arguments: str | Path) -> Outcome:
    return trnrt("nki", "compare", *arguments)


def compared(*arguments: str | Path) -> Any:
    (found,) = compare(*arguments, "--json").document["comparisons"]
    return found


def test_two_calls_of_one_file(script: Path) -> None:
    outcome = compare(script, "--call", CALL, "--call-b", NARROW)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"a: first.py: {CALL}" in outcome.out and f"b: first.py: {NARROW}" in outcome.out
    assert "% longer than a" in outcome.out and "PASS result, float32 [128, 1024]: the same bits" in outcome.out
    assert "x = nl.ndarray" not in outcome.out  # it takes no time
    assert "nisa.dma_copy(dst=x, src=a[:, c * TILE : (c + 1) * TILE])" in outcome.out


def test_the_document_has_what_a_profile_has_for_both(script: Path, tmp_path: Path) -> None:
    outcome = compare(script, "--call", CALL, "--call-b", NARROW, "--json", "--json-out", tmp_path / "out.json")
    document = outcome.document
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert (document["schema_version"], document["target"], document["max_slower_percent"]) == (1, "trn2", None)
    (found,) = document["comparisons"]
    profile = trnrt("nki", "profile", script, "--call", CALL, "--call", NARROW, "--json").document["calls"]
    for side, one in zip("ab", profile, strict=True):
        kept = one.keys() - {"kernel", "arguments", "lines"}  # the lines of both stand side by side
        assert {key: found[side][key] for key in kept} == {key: one[key] for key in kept}
    a, b = (one["predicted_us"]["benchmark"] for one in profile)
    assert found["change_percent"] == pytest.approx(100 * (b / a - 1))
    assert found["b"]["instructions"] - found["a"]["instructions"] == 4 * 4
    assert (found["numbers"]["equal"], found["numbers"]["results"][0]["identical"]) == (True, True)


def test_the_lines_of_both_add_up_to_their_times(script: Path) -> None:
    found = compared(script, "--call", CALL, "--call-b", NARROW)
    for side, key in (("a", "first_us"), ("b", "second_us")):
        fixed = sum(part["time_us"] for part in found[side]["breakdown"]["parts"] if part["part"] == "launch")
        total = sum(line[key] or 0 for line in found["lines"])
        assert total + fixed == pytest.approx(found[side]["predicted_us"]["benchmark"])
    differences = sum(line["difference_us"] for line in found["lines"])
    change = found["b"]["predicted_us"]["benchmark"] - found["a"]["predicted_us"]["benchmark"]
    assert differences == pytest.approx(change)


def test_two_files_and_an_edited_line(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "second.py"
    edited = ADDITIONS.replace("op=nl.add", "op=nl.subtract").replace(
        "    rows, columns", "    # more\n    rows, columns"
    )
    other.write_text(edited)
    outcome = compare(script, other, "--call", CALL)
    assert outcome.code == 1
    assert "FAIL result, float32 [128, 1024]: largest difference" in outcome.out and "A tie" in outcome.out
    found = compared(script, other, "--call", CALL)
    (line,) = [line for line in found["lines"] if "nl.subtract" in line["code"]]
    assert line["second_line"] == line["first_line"] + 1  # one line, edited and moved
    assert line["first_us"] == line["second_us"] > 0
    assert not any("op=nl.add" in line["code"] for line in found["lines"])


def test_a_line_that_only_one_has(script: Path) -> None:
    found = compared(script, "--call", CALL, "--call-b", SCALED)
    (line,) = [line for line in found["lines"] if "tensor_scalar" in line["code"]]
    assert (line["first_line"], line["first_us"]) == (None, None) and line["second_us"] > 0
    assert found["numbers"]["equal"] is False


def test_tolerances(script: Path) -> None:
    slightly = CALL[:-1] + ", scale=1.001)"
    arguments = (script, "--call", CALL, "--call-b", slightly)
    assert compare(*arguments).code == 1
    assert compare(*arguments, "--rtol", "0.002").code == 0
    assert compare(*arguments, "--rtol", "0.0005").code == 1
    assert compare(*arguments, "--atol", "0.1").code == 0


def test_a_limit_for_ci(script: Path) -> None:
    arguments = (script, "--call", CALL, "--call-b", NARROW, "--max-slower")
    passing, failing = compare(*arguments, "500%"), compare(*arguments, "3")
    assert (passing.code, failing.code) == (0, 1)
    assert "PASS b against a: +" in passing.out and "accepted +500 %" in passing.out
    assert "FAIL b against a: +" in failing.out
    assert compare(script, "--call", NARROW, "--call-b", CALL, "--max-slower", "0").code == 0
    assert compared(*arguments, "3")["too_slow"] is True


def test_the_scripts_own_calls_and_data(tmp_path: Path) -> None:
    main = "\na = np.full((128, 256), 3, np.float32)\nprint(add(a, a, scale={}).sum())\n"
    for name, scale in (("first", 1.0), ("second", 0.5)):
        (tmp_path / f"{name}.py").write_text(ADDITIONS + main.format(scale))
    outcome = compare(tmp_path / "first.py", tmp_path / "second.py")
    assert outcome.code == 1
    assert "largest difference 3 at [0, 0]: 6 and 3" in outcome.out  # of the first script's numbers
    assert outcome.err.splitlines() == ["196608.0", "98304.0"]


def test_several_calls_are_compared_in_their_order(script: Path) -> None:
    small = "add(f32[128,512], f32[128,512])"
    document = compare(script, script, "--call", CALL, "--call", small, "--json").document
    assert [(one["a"]["call"], one["b"]["call"]) for one in document["comparisons"]] == [(CALL, CALL), (small, small)]


def test_inputs_of_a_file(script: Path, tmp_path: Path) -> None:
    ones = np.ones((128, 1024), np.float32)
    np.savez(tmp_path / "data.npz", a=ones, b=2 * ones)
    arguments = (script, "--call", CALL, "--call-b", SCALED, "--input")
    assert "3 and 6" in compare(*arguments, tmp_path / "data.npz").out
    np.savez(tmp_path / "less.npz", a=ones)
    outcome = compare(*arguments, tmp_path / "less.npz")
    assert (outcome.code, "has no array 'b'" in outcome.err) == (2, True)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    outcome = compare(*arguments, tmp_path / "bad.npz")
    assert (outcome.code, "can't read" in outcome.err) == (2, True)


def test_a_seed_draws_other_numbers(script: Path) -> None:
    def worst(seed: str) -> Any:
        found = compared(script, "--call", CALL, "--call-b", SCALED, "--seed", seed)
        return found["numbers"]["results"][0]["largest"]

    assert worst("1") == worst("1") != worst("2")


def test_two_cores_against_one(script: Path) -> None:
    found = compared(script, "--call", CALL, "--call-b", CALL.replace("add(", "add[2]("))
    assert (found["a"]["cores"], found["b"]["cores"], found["numbers"]["equal"]) == (1, 2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "there is only one file"),
        (["--call", CALL], 2, "there is only one file"),
        (["--call", CALL, "--call", CALL, "--call-b", CALL], 2, "2 times --call and 1 times --call-b"),
        (["--call", CALL, "--call-b", "add(f32[128,512], f32[128,512])"], 2, "different tensors"),
        (["--call", CALL, "--call-b", "subtract(f32[1,1])"], 2, "has no kernel 'subtract'"),
        (["--call", CALL, "--call-b", CALL[:-1] + ", TILE=100)"], 1, "no multiple of 100"),
    ],
)
def test_what_can_not_be_compared(script: Path, arguments: list[str], code: int, message: str) -> None:
    outcome = compare(script, *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err


def test_scripts_with_other_numbers_of_calls(script: Path, tmp_path: Path) -> None:
    call = "\na = np.ones((128, 256), np.float32)\nadd(a, a)\n"
    script.write_text(ADDITIONS + call)
    (tmp_path / "second.py").write_text(ADDITIONS + call + "add(a, a, TILE=128)\n")
    outcome = compare(script, tmp_path / "second.py")
    assert (outcome.code, "makes 1 calls of kernels, and" in outcome.err) == (2, True)


def test_kernels_of_the_old_namespace(script: Path, tmp_path: Path) -> None:
    """Against each other on two grids, and against one of today."""
    old = tmp_path / "old.py"
    old.write_text(OLD_ADDITIONS)
    found = compared(old, "--call", OLD_CALL, "--call-b", OLD_CALL.replace("[1]", "[2, 1]", 1))
    assert (found["a"]["call"], found["b"]["call"]) == (OLD_CALL, OLD_CALL.replace("[1]", "[2, 1]", 1))
    assert found["numbers"]["results"][0]["identical"]
    found = compared(old, script, "--call", OLD_CALL, "--call-b", CALL)
    assert found["numbers"]["results"][0]["identical"]
    assert found["a"]["instructions"] == found["b"]["instructions"] == 16
    found = compared(old, script, "--call", "timed(f32[128,1024], f32[128,1024])", "--call-b", CALL)
    assert found["numbers"]["equal"] and found["a"]["instructions"] == 4
