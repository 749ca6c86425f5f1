"""``trnrt nki`` with kernels that do not fit SBUF, and ``--no-capacity``."""

from __future__ import annotations

from pathlib import Path

import pytest
from nki_scripts import ONES, script, trnrt

FULL = """
@nki.jit
def full(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.tensor_copy(dst=y, src=x)
    nisa.tensor_tensor(dst=y, data1=x, data2=y, op=nl.add)
    nisa.dma_copy(dst=out, src=y)
    return out


print(full(np.ones((2, 30000), np.float32)).sum())
"""


@pytest.mark.parametrize("verb", ["run", "check", "profile"])
def test_what_does_not_fit_is_refused_with_the_way_out(tmp_path: Path, verb: str) -> None:
    outcome = trnrt(verb, script(tmp_path, FULL))
    told = outcome.out + outcome.err
    assert outcome.code == 1
    assert "SBUF is full" in told and "--no-capacity" in told


def test_no_capacity_runs_for_the_numbers(tmp_path: Path) -> None:
    path = script(tmp_path, FULL)
    outcome = trnrt("run", path, "--no-capacity")
    assert (outcome.code, outcome.out) == (0, "120000.0\n")
    assert outcome.err.count("240,000 bytes a partition of SBUF") == 1
    fitting = trnrt("run", script(tmp_path, f"{ONES}print(add(ones, ones).sum())\n"), "--no-capacity")
    assert (fitting.code, fitting.err) == (0, "")
    assert trnrt("run", script(tmp_path, FULL)).code == 1  # it is over with the run


def test_no_capacity_checks_the_rest(tmp_path: Path) -> None:
    outcome = trnrt("check", script(tmp_path, FULL), "--no-capacity", "--json")
    assert outcome.code == 0 and outcome.document["findings"] == []
    (call,) = outcome.document["calls"]
    assert (call["fits"], call["sbuf_peak_bytes"]) == (False, 240000)
    assert any("does not fit trn2" in note for note in outcome.document["notes"])
    assert "does not fit" in trnrt("check", script(tmp_path, FULL), "--no-capacity").out
    broken = FULL.replace("op=nl.add", "op=nl.no_such")
    assert trnrt("check", script(tmp_path, broken), "--no-capacity").code == 1


def test_no_capacity_predicts_and_says_of_what(tmp_path: Path) -> None:
    path = script(tmp_path, FULL)
    outcome = trnrt("profile", path, "--no-capacity", "--json")
    (call,) = outcome.document["calls"]
    assert outcome.code == 0 and (call["fits"], call["sbuf_peak_bytes"]) == (False, 240000)
    assert any("leaves out the spills" in note for note in call["notes"])
    page = trnrt("profile", path, "--no-capacity", "--html", tmp_path / "page.html")
    assert "of a kernel that does not fit trn2" in page.out
    assert "SBUF peak: 240,000 of 212,992 bytes" in page.out
    assert page.err.count("does not fit trn2") == 1
    assert "does not fit" in (tmp_path / "page.html").read_text(encoding="utf-8")
