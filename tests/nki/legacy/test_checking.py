"""``nki check`` of files of the old namespace: by the hardware's limits, not by a language that they don't use."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnrt.nki.checking import check

FILE = """
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x)
    {more}
    nl.store(out, t * 2)
    return out

{today}
double(np.ones(({rows}, 4), np.float32))
"""


def write(folder: Path, *, rows: int = 8, more: str = "pass", today: str = "") -> Path:
    path = folder / "old.py"
    path.write_text(FILE.format(rows=rows, more=more, today=today), encoding="utf-8")
    return path


def test_a_file_of_the_old_namespace_is_clean(tmp_path: Path) -> None:
    report = check(write(tmp_path))
    assert report.clean and len(report.calls) == 1
    assert any("trnrt nki port" in note for note in report.notes)


def test_the_limits_of_the_hardware_hold(tmp_path: Path) -> None:
    report = check(write(tmp_path, rows=200))
    assert not report.clean and report.findings[0].line == 9


def test_a_file_that_uses_both_is_held_to_todays_language(tmp_path: Path) -> None:
    report = check(write(tmp_path, today="import nki.language"))
    assert "old-namespace" in {finding.rule for finding in report.findings}


@pytest.mark.parametrize("more", ["t = [", "t = = 1"])
def test_wrong_syntax_is_a_finding(more: str, tmp_path: Path) -> None:
    assert [finding.rule for finding in check(write(tmp_path, more=more)).findings] == ["syntax"]
