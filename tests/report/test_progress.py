"""Progress where stderr is no terminal: plain lines about long work, none about short work, none with --quiet."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from commanding import trnrt

from trnrt import session
from trnrt.report import progress
from trnrt.report.progress import counting, quiet, stepping, working

PATIENCE_S = 60.0
CNN = Path(__file__).parents[2] / "models" / "digits_cnn.onnx"


class Stderr:
    """The text on stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._text = capsys, ""

    def getvalue(self) -> str:
        """All of it."""
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def err(capsys: pytest.CaptureFixture[str]) -> Stderr:
    return Stderr(capsys)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.01)
    monkeypatch.setattr(progress, "PAUSE_S", 0.01)


def lines(err: Stderr, wanted: Callable[[list[str]], bool]) -> list[str]:
    """The lines, as soon as they are as wanted."""
    end = time.monotonic() + PATIENCE_S
    while not wanted(err.getvalue().splitlines()):
        assert time.monotonic() < end, err.getvalue()
        time.sleep(0.01)
    return err.getvalue().splitlines()


@pytest.mark.usefixtures("soon")
def test_long_work_prints_the_time_so_far_and_stops_when_it_is_done(err: Stderr) -> None:
    with working("planning \x1b[31mnet\n"):
        found = lines(err, lambda found: len(found) >= 2)
    assert re.fullmatch(r"planning \\x1b\[31mnet\\x0a: \d+ s so far", found[0])
    printed = err.getvalue()
    time.sleep(0.1)
    assert err.getvalue() == printed


@pytest.mark.usefixtures("soon")
def test_rows_are_counted_with_their_rate_and_the_time_left(err: Stderr) -> None:
    with counting("predicting", 50_000, 10_000) as advance:
        assert re.fullmatch(r"predicting: 10,000 of 50,000 rows, \d+ s so far", lines(err, bool)[0])
        advance(2_000)
        found = lines(err, lambda found: bool(found) and "12,000" in found[-1])
    assert found[-1].startswith("predicting: 12,000 of 50,000 rows, ") and found[-1].endswith((" s left", " min left"))
    assert " rows/s, about " in found[-1]


@pytest.mark.usefixtures("soon")
def test_steps_are_named(err: Stderr) -> None:
    with stepping("comparing the steps") as advance:
        advance(3, 40, "conv1")
        found = lines(err, lambda found: any("conv1" in line for line in found))
    assert re.fullmatch(r"comparing the steps: 3 of 40 done, now conv1; \d+ s so far", found[-1])


def test_short_work_prints_nothing(err: Stderr) -> None:
    with working("planning"), counting("predicting", 3) as advance, stepping("comparing") as step:
        advance(3)
        step(0, 1, "conv1")
    assert err.getvalue() == ""


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "begin", [lambda: working("planning"), lambda: counting("predicting", 3), lambda: stepping("comparing")]
)
def test_quiet_work_prints_nothing(
    begin: Callable[[], AbstractContextManager[Any]], terminal: bool, err: Stderr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    before = quiet.set(True)
    try:
        with begin():
            time.sleep(0.1)
    finally:
        quiet.reset(before)
    assert err.getvalue() == ""


@pytest.fixture
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a model takes longer than the pause before the first line."""
    read = session.InferenceSession.__init__

    def read_slowly(self: Any, *arguments: Any, **details: Any) -> None:
        time.sleep(0.3)
        read(self, *arguments, **details)

    monkeypatch.setattr(session.InferenceSession, "__init__", read_slowly)


@pytest.mark.usefixtures("soon", "slow_reading")
def test_a_verb_prints_progress_and_notes_to_stderr_unless_it_is_quiet() -> None:
    loud = trnrt("run", CNN)
    assert loud.code == 0
    assert re.search(rf"^reading {re.escape(str(CNN))}: \d+ s so far$", loud.err, re.MULTILINE)
    assert "note: " in loud.err and "\x1b" not in loud.err
    for arguments in (("run", CNN, "--quiet"), ("-q", "run", CNN)):
        outcome = trnrt(*arguments)
        assert (outcome.code, outcome.err) == (0, ""), arguments
        assert outcome.out.splitlines()[:2] == loud.out.splitlines()[:2]
    assert quiet.get() is False
    assert "error: " in trnrt("-q", "run", "none.onnx").err
