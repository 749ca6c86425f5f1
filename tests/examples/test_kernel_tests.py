"""examples/kernel_tests: the tests that pass, those that fail, and how the docs show them.

``UPDATE_DOCS=1 pytest tests/examples/test_kernel_tests.py`` writes that part of docs/testing-kernels.md anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import yaml

from trnrt.nki.machine.dtypes import DTYPES
from trnrt.nki.testing.comparing import choose_tolerance

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing-kernels.md"
BLOCK = re.compile(r"(<!-- generated: .* -->\n```\n)(.*?)(```\n<!-- end -->)", re.DOTALL)


@cache
def output() -> str:
    """The output of ``pytest examples/kernel_tests``, 110 columns wide, with trnrt installed."""
    command = [sys.executable, "-m", "pytest", "examples/kernel_tests", "-p", "trnrt.nki.testing.plugin", "--no-header"]
    for name in ("cacheprovider", "schemathesis", "hypothesispytest", "anyio"):  # of this environment, slow to import
        command += ["-p", f"no:{name}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "110"}
    environment.pop("NEURON_PLATFORM_TARGET_OVERRIDE", None)
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def failures() -> str:
    """The part of the output that shows the two failures."""
    shown = re.sub(r"object at 0x\w+", "object", output().split("= FAILURES =")[1].split("\n", 1)[1])
    lines = shown.split("= short test summary")[0].rstrip("=").rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_two_fail_and_the_others_pass() -> None:
    assert "2 failed, 5 passed" in output()


def test_the_page_shows_how_they_fail() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_DOCS"):
        page = BLOCK.sub(lambda found: found.group(1) + failures() + found.group(3), page)
        PAGE.write_text(page, encoding="utf-8")
    found = BLOCK.search(page)
    assert found is not None
    # Not the rulers: those are pytest's, and may change with it.
    lines = [line for line in found.group(2).splitlines() if line.strip("_ ")]
    assert len(lines) > 20 and [line for line in lines if line not in failures()] == []


def test_the_page_has_the_tolerances() -> None:
    rows = re.findall(r"^\| ([\w, ]+) \| ([\de.-]+) \| ([\de.-]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name: (float(rtol), float(atol)) for names, rtol, atol in rows for name in names.split(", ")}
    whole = shown.pop("integers")
    assert whole == shown.pop("bool") == (0.0, 0.0)
    tolerances = {name: choose_tolerance(dtype, None, None) for name, dtype in DTYPES.items() if dtype.is_float}
    assert shown == {name: (tolerance.rtol, tolerance.atol) for name, tolerance in tolerances.items()}


def test_the_workflow_on_the_page_is_sound() -> None:
    workflow = yaml.safe_load(PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
    (_, checking) = workflow["jobs"]["kernels"]["steps"]
    folder = checking["uses"].partition("@")[0].removeprefix("trnrt/trnrt/")
    action = yaml.safe_load((ROOT / folder / "action.yml").read_text(encoding="utf-8"))
    assert checking["with"].keys() <= action["inputs"].keys()
    assert workflow["jobs"]["kernels"]["permissions"]["security-events"] == "write"
