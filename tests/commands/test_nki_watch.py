"""``trnrt nki check --watch``: another check after each change, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nki_scripts import ONES, heed_interrupts, script, trnrt

from trnrt.commands.options import Reporting
from trnrt.commands.views import Checking, Tracing
from trnrt.commands.watching import local_files, watch_script
from trnrt.errors import OptionError
from trnrt.nki.level import Level

BROKEN = "huge(np.ones((2, 2), np.float32))"
CLEAN = f"{ONES}add(ones, ones)"


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def watch(path: Path, *steps: Callable[[], object], checking: Checking | None = None) -> int:
    """Watch ``path``; each look at the files ends with the next of the steps, then comes Ctrl-C."""
    ahead = iter([*steps, press_ctrl_c])
    return watch_script(path, Tracing(), checking or Checking(watch=True), Reporting(), wait=lambda _: next(ahead)())


def test_a_line_for_each_change_and_the_last_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, BROKEN)
    sarif = tmp_path / "out.sarif"
    checking = Checking(sarif=sarif, watch=True)
    code = watch(path, lambda: None, lambda: script(tmp_path, CLEAN), lambda: None, checking=checking)
    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path} on trn2, NKI 0.7: 1 finding, 1 call traced",
        f"{path} on trn2, NKI 0.7: 0 findings, 1 call traced",
    ]
    assert '"results": []' in sarif.read_text()


def test_a_terminal_is_cleared_and_shows_the_whole_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, BROKEN)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert watch(path) == 1
    out = capfd.readouterr().out
    assert out.startswith("\033[2J\033[3J\033[H") and out.count("\033[2J") == 1
    assert "TRN524" in out and out.endswith("watching 1 file; Ctrl-C ends\n")


def test_each_check_has_the_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, document = script(tmp_path, BROKEN), tmp_path / "out.json"
    tracing = Tracing(["add(f32[1,1], f32[1,1])", "huge(f32[2,2])"], "trn3", Level.nki_0_6, no_capacity=True)
    reporting = Reporting(json_out=document)
    watch_script(path, tracing, Checking(watch=True), reporting, wait=lambda _: press_ctrl_c())
    assert capsys.readouterr().out == f"{path} on trn3, NKI 0.6: 0 findings, 2 calls traced\n"
    assert [call["arguments"] for call in json.loads(document.read_text())["calls"]] == [
        "f32[1,1], f32[1,1]",
        "f32[2,2]",
    ]


def test_what_is_watched(tmp_path: Path) -> None:
    """Imported files beside the script, packages, what they import; not what is elsewhere or isn't imported."""
    files = {
        "main.py": "import numpy\nimport beside\nfrom package import inner\n",
        "beside.py": "import broken\n\ndef f():\n    import later\n",
        "broken.py": "def (:\n",
        "later.py": "",
        "other.py": "",
        "package/__init__.py": "from .sub import *\n",
        "package/inner.py": "from . import cousin\nfrom .. import impossible\n",
        "package/cousin.py": "",
        "package/sub.py": "",
        "package/unused.py": "",
    }
    (tmp_path / "package").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {str(path.relative_to(tmp_path)) for path in local_files(tmp_path / "main.py") if path.exists()}
    assert found == set(files) - {"other.py", "package/unused.py"}
    assert tmp_path / "numpy.py" in local_files(tmp_path / "main.py")  # it would be imported, were it there


def test_an_import_from_above_the_root_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"from {'.' * 99}x import y\n")
    assert tmp_path / "main.py" in local_files(tmp_path / "main.py")


def test_a_file_beside_it_that_is_mended_or_comes_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, f"import beside\n{CLEAN}")
    beside = tmp_path / "beside.py"
    assert watch(path, lambda: beside.write_text("def (:\n"), lambda: beside.write_text("number = 1\n")) == 0
    counts = [line.split(": ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert counts == ["1 finding, 0 calls traced", "1 finding, 0 calls traced", "0 findings, 1 call traced"]


def test_a_script_that_goes_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script(tmp_path, CLEAN)
    assert watch(path, path.unlink) == 2
    assert capsys.readouterr().out.splitlines()[1] == f"{path}: not checked, exit code 2"
    with pytest.raises(OptionError, match="there is no file"):
        watch(path)


def test_wrong_requests_end_at_once(tmp_path: Path) -> None:
    path = script(tmp_path, CLEAN)
    for options, error in ((["--json"], "--json-out FILE"), (["--call", "add"], "can't read --call 'add'")):
        outcome = trnrt("check", path, "--watch", *options)
        assert outcome.code == 2 and error in outcome.err


def test_ctrl_c_ends_it_with_the_last_code_and_no_error(tmp_path: Path) -> None:
    path = script(tmp_path, BROKEN)
    command = [sys.executable, "-m", "trnrt", "nki", "check", "--watch", str(path)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
        preexec_fn=heed_interrupts,
    ) as watching:
        assert watching.stdout is not None and watching.stderr is not None
        assert "1 finding" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 1
        assert watching.stderr.read() == ""
