"""Debugging a kernel: Python's errors point at its lines, and a breakpoint stops in it with values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commanding import trnrt

HEAD = """\
import json
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
"""
KERNEL = (
    HEAD
    + """\
def deeper(tile):
    {statement}  # here
def helper(tile):
    deeper(tile)
@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    {call}
    nisa.dma_copy(dst=out, src=tile)
    return out
print(kernel(np.arange(8, dtype=np.float32).reshape(2, 4)).sum())
"""
)
DIRECT, IN_A_LOOP = "helper(tile)", "nl.fori_loop(0, 3, lambda i: helper(tile))"
ERRORS = {
    "1 / (tile.shape[0] - 2)": "ZeroDivisionError: division by zero",
    "tile.shape[7]": "IndexError: tuple index out of range",
    "'a' + 1": "TypeError: can only concatenate str",
    "{}['x']": "KeyError: 'x'",
    "assert tile.shape[0] == 3, 'three rows'": "assertion failed: three rows",
    "np.sqrt(tile)": "numpy.sqrt asks for that of (2, 4)",
    "np.sum(tile)": "a numpy function asks for that of (2, 4)",
    "np.asarray(tile)": "numpy.asarray asks for that of (2, 4)",
    "np.broadcast_shapes((2, 3), (4,))": "ValueError: shape mismatch",  # raised by numpy's own Python
    "json.loads('x')": "JSONDecodeError: Expecting value",
    "nisa.memset(dst=tile[5], value=0)": "index 5 is outside dimension 0",
}


def write(folder: Path, statement: str, call: str = DIRECT) -> tuple[Path, int]:
    """A script, and the number of its line that ends in ``# here``."""
    path = folder / "kernels.py"
    text = KERNEL.replace("{statement}", statement).replace("{call}", call)
    path.write_text(text, encoding="utf-8")
    return path, next(at for at, line in enumerate(text.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize("call", [DIRECT, IN_A_LOOP])
@pytest.mark.parametrize("statement", ERRORS)
def test_each_verb_shows_the_kernels_line_and_code(statement: str, call: str, tmp_path: Path) -> None:
    path, line = write(tmp_path, statement, call)
    ran = trnrt("nki", "run", path)
    assert (ran.code, ran.out) == (1, "")
    assert ERRORS[statement] in ran.err
    assert ran.err.endswith(f"  at {path}:{line} in deeper\n    {statement}  # here\n")
    assert "Traceback" not in ran.err and "trnrt/nki" not in ran.err
    if call == IN_A_LOOP:
        return
    profiled = trnrt("nki", "profile", path)
    assert profiled.code == 1 and f"  at {path}:{line}\n    {statement}  # here\n" in profiled.err
    checked = trnrt("nki", "check", path, "--json")
    assert checked.code == 1
    assert line in [finding["line"] for finding in checked.document["findings"]]


def process(path: Path, *command: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with lines for its stdin."""
    return subprocess.run(
        [sys.executable, *command, str(path)],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONBREAKPOINT": "pdb.set_trace", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def test_pytest_ends_at_the_kernels_line(tmp_path: Path) -> None:
    """A refusal's traceback ends in the kernel; the simulator's own frames are hidden."""
    path, line = write(tmp_path, "nisa.memset(dst=tile[5], value=0)")
    text = path.read_text(encoding="utf-8").replace(
        "import nki\n", "from trnrt.nki import install; install(); import nki\n"
    )
    test = tmp_path / "test_it.py"
    test.write_text(text.replace("print(", "def test():\n    (", 1), encoding="utf-8")
    shown = process(test, "-m", "pytest", "-q", "-p", "no:cacheprovider").stdout
    assert f"test_it.py:{line}: KernelError" in shown
    assert f">   {'nisa.memset(dst=tile[5], value=0)'}" in shown.replace(">       ", ">   ")
    assert "trnrt/nki/sim" not in shown


LOOK = "p tile\npp tile[0:1, 0:2]\np np.asarray(tile).max()\nboth = np.asarray(tile) * 2\np both\nc\n"


def test_a_breakpoint_stops_in_the_kernel_with_values(tmp_path: Path) -> None:
    path, line = write(tmp_path, "breakpoint()")
    stopped = process(path, "-m", "trnrt", "nki", "run", typed=f"u\nu\n{LOOK}")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert f"{path}({line})deeper()" in stopped.stdout or f"{path}({line + 2})" in stopped.stdout
    for shown in ("[[0. 1. 2. 3.]\n [4. 5. 6. 7.]]", "[[0. 1.]]", "7.0", "[ 8., 10., 12., 14.]]"):
        assert shown in stopped.stdout
    assert stopped.stdout.endswith("28.0\n")


def test_leaving_the_debugger_ends_the_script_without_an_error(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "breakpoint()")
    left = process(path, "-m", "trnrt", "nki", "run", typed="q\n")
    assert (left.returncode, left.stderr) == (1, "")
    assert "28.0" not in left.stdout


@pytest.mark.parametrize("verb", ["check", "profile"])
def test_without_data_a_breakpoint_is_skipped_with_a_note(verb: str, tmp_path: Path) -> None:
    path, line = write(tmp_path, "breakpoint()")
    before = sys.breakpointhook
    outcome = trnrt("nki", verb, path)
    assert outcome.code == 0
    assert f"breakpoint() at {path}:{line} is skipped: there are no values yet" in outcome.err
    assert sys.breakpointhook is before
