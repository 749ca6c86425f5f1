"""``trnrt nki port``: what it prints and writes, the comparison of the numbers, its exit codes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from nki_scripts import trnrt

OLD = """import neuronxcc.nki as nki
import neuronxcc.nki.language as nl
import numpy as np


@nki.jit
def double(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    # twice each number
    nl.store(out, value=nl.load(a) * 2)
    return out
"""
MAIN = """

if __name__ == "__main__":
    for _ in range(2):
        print(double(np.ones((4, 8), np.float32)))
"""
TIMED = "\n\ndef timed(a):\n    return nki.benchmark(double)(a)\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "old.py"
    path.write_text(text)
    return path


def test_the_ported_file_goes_to_stdout_and_the_comparison_to_stderr(tmp_path: Path) -> None:
    path = written(tmp_path, OLD)
    outcome = trnrt("port", path, "--call", "double(f32[130,8])")
    assert outcome.code == 1  # 130 partitions
    assert "the old kernel failed" in outcome.err
    outcome = trnrt("port", path, "--call", "double(f32[100,8])", "--call", "double(bf16[4,4])")
    assert outcome.code == 0
    assert "nisa.dma_copy(dst=loaded, src=a)" in outcome.out
    assert "    # twice each number\n" in outcome.out
    assert f"{path}: ported, 0 places left" in outcome.err
    assert outcome.err.count("equal") == 2


def test_the_calls_of_the_script_are_compared(tmp_path: Path) -> None:
    outcome = trnrt("port", written(tmp_path, OLD + MAIN))
    assert outcome.code == 0
    assert outcome.err.count("double(f32[4,8])") == 1
    assert "equal" in outcome.err
    assert "[[2. 2." not in outcome.out  # what the script prints


@pytest.mark.parametrize("flags", [(), ("--no-run",)])
def test_without_a_call_nothing_is_compared(flags: tuple[str, ...], tmp_path: Path) -> None:
    outcome = trnrt("port", written(tmp_path, OLD), *flags)
    assert outcome.code == 0
    assert "The numbers were not compared" in outcome.err
    assert flags or "--call 'kernel(f32[128,512])'" in outcome.err


def test_diff(tmp_path: Path) -> None:
    path = written(tmp_path, OLD)
    lines = trnrt("port", path, "--diff", "--no-run").out.splitlines()
    assert lines[:2] == [f"--- {path}", f"+++ {path} (ported)"]
    assert "-import neuronxcc.nki as nki" in lines
    assert "+import nki" in lines
    assert "     # twice each number" in lines


def test_output_and_json(tmp_path: Path) -> None:
    path, new = written(tmp_path, OLD + TIMED), tmp_path / "new.py"
    outcome = trnrt("port", path, "-o", new, "--json", "--call", "double(f32[4,8])")
    assert outcome.code == 1
    document = outcome.document
    assert document["text"] == new.read_text()
    assert [mark["line"] for mark in document["left"]] == [15]
    assert "# trnrt: nki.benchmark" in document["text"]
    assert document["calls"] == [
        {
            "kernel": "double",
            "arguments": "f32[4,8]",
            "difference": 0.0,
            "ratio": 0.0,
            "error": None,
            "equal": True,
        }
    ]
    assert trnrt("port", path, "-o", new, "--no-run").out.startswith(f"{path}: ported, 1 place left\n")
    again = trnrt("port", new, "--json")
    assert again.code == 0
    assert again.document["is_new"]


def test_modules_beside_the_script_are_ported_to_compare(tmp_path: Path) -> None:
    written(tmp_path, OLD).rename(tmp_path / "doubling.py")
    text = OLD.partition("@nki.jit")[0] + (
        "from doubling import double\n\n\n@nki.jit\ndef fourfold(a):\n    return double(double(a))\n"
    )
    outcome = trnrt("port", written(tmp_path, text), "--call", "fourfold(f32[4,8])")
    assert outcome.code == 0, outcome.err
    assert "equal" in outcome.err
    assert "doubling" not in sys.modules


def test_other_numbers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.nki.porting import operators

    monkeypatch.setitem(operators.OPERATORS, ast.Mult, "add")
    outcome = trnrt("port", written(tmp_path, OLD), "--call", "double(f32[4,8])")
    assert outcome.code == 1
    assert "FAIL" in outcome.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--call", "triple(f32[4,8])"), "has no kernel 'triple'"),
        (("--call", "double(f32[4,8"), "can't read --call"),
        (("--call", "double(f32[4,8])", "--no-run"), "--call has no use"),
        (("-o", "SELF"), "is the old file itself"),
        (("-o", "/no/such/folder/new.py"), "can't write"),
    ],
)
def test_wrong_requests(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    path = written(tmp_path, OLD)
    outcome = trnrt("port", path, *(str(path) if flag == "SELF" else flag for flag in flags))
    assert outcome.code == 2
    assert says in outcome.err


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    path = written(tmp_path, "import neuronxcc.nki\nif True\n")
    outcome = trnrt("port", path)
    assert outcome.code == 2
    assert f"{path}:2:" in outcome.err
    assert trnrt("port", tmp_path / "none.py").code == 2
