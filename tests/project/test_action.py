"""The GitHub Action that checks kernels: its file is sound, and its script does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "actions" / "nki-check"
TEXT = (FOLDER / "action.yml").read_text(encoding="utf-8")
ACTION: dict[str, Any] = yaml.safe_load(TEXT)
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
CLEAN = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def copy(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    a_sb = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_sb, src=a)
    nisa.dma_copy(dst=out, src=a_sb)
    return out

copy(np.ones((2, 2), np.float32))
"""
WRONG = CLEAN.replace("buffer=nl.sbuf", "buffer=nl.psum").replace("(a.shape, dtype", "((129, 2), dtype")


def test_the_file_is_sound() -> None:
    assert ACTION["name"] and ACTION["description"] and ACTION["runs"]["using"] == "composite"
    for name, given in ACTION["inputs"].items():
        assert given["description"].endswith("."), name
        assert given.get("required") or isinstance(given["default"], str), name
        assert f"inputs.{name}" in TEXT, f"{name} is not used"
    known = {*ACTION["inputs"]}
    assert set(re.findall(r"inputs\.(\w+)", TEXT)) == known
    outputs = set(re.findall(r"steps\.check\.outputs\.(\w+)", TEXT))
    assert outputs == set(ACTION["outputs"]) == set(re.findall(r'echo "(\w+)=', (FOLDER / "check.sh").read_text()))


def test_steps_have_what_composite_actions_need_and_take_inputs_as_data() -> None:
    for step in STEPS:
        assert ("uses" in step) != ("run" in step)
        if "run" in step:
            assert step["shell"] == "bash"
            assert "${{" not in step["run"], "an input in a command line is code: pass it by the environment"
        else:
            assert re.fullmatch(r"[\w-]+(/[\w-]+)+@v\d+", step["uses"])
    assert (FOLDER / "../../../pyproject.toml").exists()  # what it installs by default


def test_the_page_shows_its_inputs() -> None:
    page = (ROOT / "docs" / "testing-kernels.md").read_text(encoding="utf-8")
    assert ".github/actions/nki-check@" in page
    assert [name for name in ACTION["inputs"] if f"`{name}`" not in page] == []


@dataclass
class Checked:
    """The result of the action's script."""

    code: int
    out: str
    outputs: dict[str, str]

    def logs(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(Path(self.outputs["sarif"]).iterdir())]


def check(folder: Path, files: str, **settings: str) -> Checked:
    """Run check.sh in a folder, as the action does."""
    outputs = folder / "outputs.txt"
    outputs.write_text("")
    environment = os.environ | {"RUNNER_TEMP": str(folder / "temp"), "GITHUB_OUTPUT": str(outputs), "FILES": files}
    environment |= {"TARGET": "", "NKI": "", "PYTHONPATH": str(ROOT)} | settings
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = ["bash", str(FOLDER / "check.sh")]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    lines = outputs.read_text().splitlines()
    return Checked(ran.returncode, ran.stdout, dict(line.split("=", 1) for line in lines))


def test_scripts_and_patterns_are_checked_each_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "deep" / "er" / "clean.py").write_text(CLEAN)
    checked = check(tmp_path, "wrong.py\ndeep/**/*.py\n", TARGET="trn3", NKI="0.6")
    assert (checked.code, checked.outputs["failed"]) == (0, "1")
    assert "wrong.py on trn3, NKI 0.6: 1 finding" in checked.out
    runs = [log["runs"][0] for log in checked.logs()]
    assert [len(run["results"]) for run in runs] == [1, 0]
    assert runs[0]["results"][0]["ruleId"] == "TRN523"
    assert len({run["automationDetails"]["id"] for run in runs}) == 2  # else one replaces the other


@pytest.mark.parametrize("files", ["*.none", "gone.py"])
def test_a_script_that_is_not_there_fails(tmp_path: Path, files: str) -> None:
    checked = check(tmp_path, files)
    assert checked.code == 2 and "::error::" in checked.out and checked.outputs == {}
