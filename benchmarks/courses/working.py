"""A working folder for a harness, and the harness run in it by ``trnrt nki run``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.courses.harnesses import Run
from benchmarks.courses.repositories import Repository
from trnrt.errors import OptionError

# In the place of AWS's profiler, which harnesses call for the trace of a compiled kernel: the file that
# trnrt.nki.legacy.artefacts wrote for the kernel, under the trace's name.
NEURON_PROFILE = f"""#!{sys.executable}
import json, sys
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if sys.argv[1:2] != ["capture"] or not {{"-n", "-s"}} <= given.keys():
    sys.exit("this stand-in of trnrt's benchmark answers: neuron-profile capture -n FILE.neff -s FILE.ntff")
with open(given["-n"], encoding="utf-8") as file:
    document = json.load(file)
document["what"] = "a stand-in for a device's trace, written by trnrt's benchmark: a prediction, nothing was measured"
with open(given["-s"], "w", encoding="utf-8") as file:
    json.dump(document, file)
"""


_MERGED = subprocess.STDOUT  # harnesses print errors and results in one order


@dataclass(frozen=True)
class Result:
    """The output of a run, and its problems: none if all is as it must be."""

    run: Run
    output: str
    times_us: tuple[float, ...]
    cpu_seconds: float
    problems: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not self.problems


def run_harness(run: Run, trees: Mapping[Repository, Path], folder: Path, python: str) -> Result:
    """Copy, put the solution's files in their places, change, run, and read."""
    work = folder / re.sub(r"\W+", "-", run.name)
    shutil.copytree(trees[run.course], work, ignore=shutil.ignore_patterns(".git", "*.png", "*.gif", "*.pdf"))
    if run.solution is not None:
        repository, files = run.solution
        for file in files:
            shutil.copyfile(trees[repository] / file, work / file)
    for file, what, change in run.changes:
        before = (work / file).read_text(encoding="utf-8")
        after = change(before)
        if after == before:
            raise OptionError(f"{run.name}: nothing to change in {file}: {what}")
        (work / file).write_text(after, encoding="utf-8")
    environment = _environment(folder)
    cwd, began = work / run.folder, os.times()
    command = [python, "-m", "trnrt", "nki", "run", "--target", run.target, *run.options, run.script, *run.arguments]
    outputs = [_call([python, *run.setup], cwd, environment)] if run.setup else []
    outputs.append(_call(command, cwd, environment))
    ended = os.times()
    code, output = outputs[-1]
    times = tuple(float(found) * run.unit_us for found in re.findall(run.time, output))
    seconds = ended.children_user - began.children_user
    return Result(run, output, times, seconds, tuple(_problems(run, code, output, times, cwd)))


def _environment(folder: Path) -> dict[str, str]:
    """Our trnrt, one thread, and the stand-in for the profiler first on PATH."""
    tools = folder / "bin"
    if not tools.exists():
        tools.mkdir()
        (tools / "neuron-profile").write_text(NEURON_PROFILE, encoding="utf-8")
        (tools / "neuron-profile").chmod(0o755)
    return os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TRNRT_NKI": "simulator",
    }


def _call(command: list[str], cwd: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=cwd, env=dict(environment), text=True, check=False, stdout=subprocess.PIPE, stderr=_MERGED
    )
    return done.returncode, done.stdout


def _problems(run: Run, code: int, output: str, times: tuple[float, ...], cwd: Path) -> list[str]:
    problems = []
    if code != run.code:
        problems.append(f"it exits with {code}, and must exit with {run.code}: {output.strip().splitlines()[-1:]}")
    problems += [f"its output does not say {says!r}" for says in run.says if not re.search(says, output)]
    expected = max(len(run.limits), len(run.published))
    if len(times) < expected:
        problems.append(f"it prints {len(times)} times in place of {expected}")
    problems += [f"it leaves no file {name}" for name in run.files if not (cwd / name).exists()]
    return problems


def check_python(python: str) -> None:
    """Refuse an interpreter without what harnesses import.

    Raises:
        OptionError: if it has no PyTorch, or not trnrt's dependencies.
    """
    code = "import numpy, ml_dtypes, click, rich, torch"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OptionError(f"can't run {python}: {error}") from None
    if done.returncode:
        raise OptionError(
            f"{python}: {done.stderr.strip().splitlines()[-1]}",
            hint="--python names an interpreter with trnrt's dependencies and PyTorch, which the harnesses import: "
            "python -m venv --system-site-packages VENV && VENV/bin/pip install torch",
        )
